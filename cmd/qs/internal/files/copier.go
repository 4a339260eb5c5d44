package files

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/quicksilver-rpc/quicksilver/bulk"
	"github.com/quicksilver-rpc/quicksilver/na"
	"github.com/quicksilver-rpc/quicksilver/qs"
)

// A Copier copies files for qs cp, on the origin's side. The pieces of the files pass through a few registered buffers
// that the target can access.
//
// For an upload, the Copier reads a piece into a buffer and forwards an rpcPiece request, and the target pulls the
// piece. For a download, it forwards the request, the target pushes the piece into a buffer, and the Copier verifies,
// writes and journals the piece. A buffer is reused when the request has been answered and the piece processed.
type Copier struct {
	c     *client
	local *disk
	opts  Options
	plan  *plan
	dst   store
	show  Progress
	free  chan *buffer

	counts  Counts
	current step  // file being copied
	begun   bool  // a part of the current file exists, which has not been renamed to the file
	kept    int64 // number of verified bytes in the part of the current file
}

// Options configures a Copier.
type Options struct {
	Upload bool   // copy from this machine to the target
	Folder string // folder on this machine
	Local  string // name within Folder of an upload's source or a download's destination
	Remote string // path at the target
	Into   bool   // the destination is a directory into which the source is copied

	From io.Reader // if not nil, data to upload instead of a file
	To   io.Writer // if not nil, receives the downloaded data instead of a file

	Piece  int64 // number of bytes that are requested and verified at a time
	Window int   // maximum number of pieces in flight
	SHA256 bool  // also compare SHA-256 checksums
	Anew   bool  // ignore data that already exists, and copy everything
	Sync   bool  // wait until each file is on disk before renaming it to its final name

	Timeout time.Duration // time limit for each answer
}

// Counts holds the amount of completed work.
type Counts struct {
	Files   int    // number of files copied
	Same    int    // number of files that already existed
	Bytes   int64  // number of bytes transferred by this run
	Resumed int64  // number of bytes that an earlier run had transferred
	Sum     string // checksum of the last file
}

// A Progress displays the progress of a copy. It must be safe for concurrent use.
type Progress interface {
	File(name string) // name of the file being copied
	Add(n int64)      // reports n bytes that were transferred
	Skip(n int64)     // reports n bytes that need not be transferred
	Grow(n int64)     // reports n bytes to copy in addition to Copier.Bytes
	Note(text string) // displays a note for the user
}

// NewCopier plans a copy between this machine and the target at addr. It takes ownership of node, which the caller must
// not use afterward.
func NewCopier(ctx context.Context, node *qs.Node, addr na.Addr, opts Options) (*Copier, error) {
	local := &disk{}
	streamed := opts.From != nil || opts.To != nil
	var err error
	if !streamed {
		if local, err = openDisk(opts.Folder); err != nil {
			return nil, errors.Join(err, node.Close())
		}
	}
	c := &Copier{local: local, opts: opts}
	if c.c, err = newClient(node, addr, opts.Timeout); err != nil {
		local.close()
		return nil, err
	}
	if streamed {
		err = c.planStream(ctx)
	} else if opts.Upload {
		c.dst = remote{c.c}
		c.plan, err = makePlan(ctx, local, c.dst, opts.Local, opts.Remote, opts.Into)
	} else {
		c.dst = local
		c.plan, err = makePlan(ctx, remote{c.c}, c.dst, opts.Remote, opts.Local, opts.Into)
	}
	if err != nil {
		c.Close()
		return nil, err
	}
	return c, nil
}

// Close closes the connection to the target and the local folder.
func (c *Copier) Close() {
	c.c.close()
	c.local.close()
}

// Bytes returns the total size of the files to copy, in bytes.
func (c *Copier) Bytes() int64 { return c.plan.bytes }

// Skipped returns a description of each entry that is not copied because it is neither a file nor a directory.
func (c *Copier) Skipped() []string { return c.plan.skipped }

// Counts returns the amount of work that Run has completed so far.
func (c *Copier) Counts() Counts {
	if len(c.plan.files) != 1 {
		c.counts.Sum = ""
	}
	return c.counts
}

// A State describes the partial file that remains at the destination after an interrupted copy.
type State struct {
	Name string // name of the file at the destination; "" if no copy had begun
	Size int64  // size of the source in bytes
	Kept int64  // number of verified bytes in Part
	Part string // name of the partial file
}

// State returns the state of an interrupted copy. If the target has failed, it may have kept less data than State
// reports.
func (c *Copier) State() State {
	if !c.begun {
		return State{}
	}
	st := State{Name: c.current.to, Size: c.current.stamp.Size, Kept: c.kept, Part: c.current.to + partSuffix}
	if c.opts.From != nil {
		st.Kept = 0 // streams cannot be resumed
	}
	return st
}

// Run copies all files and reports its progress to show.
func (c *Copier) Run(ctx context.Context, show Progress) error {
	c.show = show
	p := c.plan
	for _, d := range p.dirs {
		if err := c.dst.mkdir(ctx, d.to, d.stamp.Mode); err != nil {
			return fmt.Errorf("%s: %w", d.to, err)
		}
	}
	size := int64(1)
	for _, s := range p.files {
		size = max(size, min(s.stamp.Size, c.opts.Piece))
	}
	if c.opts.From != nil {
		size = c.opts.Piece
	}
	access := bulk.WriteOnly
	if c.opts.Upload {
		access = bulk.ReadOnly
	}
	c.free = make(chan *buffer, c.opts.Window)
	for range c.opts.Window {
		b, err := newBuffer(c.c.node.HG(), access, size)
		if err != nil {
			return err
		}
		c.free <- b
	}
	copyFile := c.receiveFile
	switch {
	case c.opts.From != nil:
		copyFile = c.sendStream
	case c.opts.To != nil:
		copyFile = c.receiveStream
	case c.opts.Upload:
		copyFile = c.sendFile
	}
	for _, s := range p.files {
		c.show.File(s.to)
		c.current, c.begun, c.kept = s, false, 0
		err := copyFile(ctx, s, c.opts.Anew)
		if errors.Is(err, errOther) {
			c.show.Note(s.to + ": the partial file is of another source; starting over")
			c.begun, c.kept = false, 0
			err = copyFile(ctx, s, true)
		}
		if err != nil {
			return fmt.Errorf("%s: %w", s.from, err)
		}
	}
	return nil
}

// same records that the file of s need not be copied.
func (c *Copier) same(s step) {
	c.counts.Same++
	c.show.Skip(s.stamp.Size)
}

// countResumed records that an earlier run has transferred the first at bytes of the file. It displays note if it is
// not empty.
func (c *Copier) countResumed(at int64, note string) {
	if note != "" {
		c.show.Note(note)
	}
	c.begun, c.kept = true, at
	if at > 0 {
		c.counts.Resumed += at
		c.show.Skip(at)
	}
}

// verifyPrefix makes the target verify its existing data in steps, until no data remains to be verified. It stores the
// last reply in r.
func (c *Copier) verifyPrefix(ctx context.Context, req seekRequest, r *seekReply) (err error) {
	for r.Left > 0 {
		before := r.Left
		if *r, err = callMethod(ctx, c.c, methodSeek, req); err != nil {
			return err
		}
		if r.Left >= before {
			return fmt.Errorf("%s: %d bytes left to verify, %d before: %w", c.c.addr, r.Left, before, na.ErrProtocol)
		}
	}
	return nil
}

// countCopied records that a file with the checksum sum has been copied.
func (c *Copier) countCopied(sum string) {
	c.counts.Files++
	c.counts.Sum = sum
}

// A piece is a part of a file that is in transit between a buffer and the target.
type piece struct {
	call *pending
	buf  *buffer
	size int64
}

// nextPiece waits for a free buffer and returns a piece of at most left bytes that uses the buffer. It returns io.EOF
// if left is 0.
func (c *Copier) nextPiece(ctx context.Context, left int64) (*piece, error) {
	if left == 0 {
		return nil, io.EOF
	}
	select {
	case b := <-c.free:
		return &piece{buf: b, size: min(left, c.opts.Piece)}, nil
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

func (c *Copier) pieceDone(p *piece) {
	c.free <- p.buf
	c.counts.Bytes += p.size
	c.kept += p.size
	c.show.Add(p.size)
}

// closeTimeout is the timeout of the call that aborts a transfer at the target.
const closeTimeout = 500 * time.Millisecond

// abortTransfer aborts the transfer at the target, so that the target closes its file immediately rather than after a
// timeout. It ignores errors. It has no effect if why means that the target is not reachable.
func (c *Copier) abortTransfer(id uint64, why error) {
	if errors.Is(why, na.ErrPeerLost) || errors.Is(why, na.ErrUnreachable) {
		return
	}
	ctx, stop := context.WithTimeout(context.Background(), closeTimeout)
	defer stop()
	_, _ = callMethod(ctx, c.c, methodClose, closeRequest{ID: id})
}
