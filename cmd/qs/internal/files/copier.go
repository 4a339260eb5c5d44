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

// A Copier is the origin's side of qs cp. While it runs, pieces are transferred through a few registered buffers that
// peers can access.
//
//	upload:   read into a buffer ─► forward rpcPiece ═ the target pulls ═► answered: the buffer is free
//	download: forward rpcPiece ═ the target pushes into a buffer ═► answered ─► check, write, journal: the buffer is free
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
	begun   bool  // the part of the current file exists and has not yet become the file
	kept    int64 // bytes verified in the part of the current file
}

// Options configures a copy.
type Options struct {
	Upload bool   // from this machine to the target
	Folder string // folder on this machine
	Local  string // name in Folder: of the source of an upload, or the destination of a download
	Remote string // path at the target
	Into   bool   // the destination is a directory that the source is copied into

	From io.Reader // uploaded instead of a file
	To   io.Writer // receives downloaded data instead of a file

	Piece  int64 // bytes requested and verified at a time
	Window int   // maximum number of pieces in flight
	SHA256 bool  // also compare SHA-256 checksums
	Anew   bool  // copy everything from the beginning, regardless of what exists
	Sync   bool  // wait until each file is on disk before giving it its name

	Timeout time.Duration // limit for each answer
}

// Counts counts completed work.
type Counts struct {
	Files   int    // files copied
	Same    int    // files that already existed
	Bytes   int64  // bytes moved by this run
	Resumed int64  // bytes of files that an earlier run had begun
	Sum     string // checksum of the last file
}

// A Progress displays the progress of a copy. It must be safe for concurrent use.
type Progress interface {
	File(name string) // name of the file being copied
	Add(n int64)      // bytes that were moved
	Skip(n int64)     // bytes that need not be moved
	Grow(n int64)     // bytes to copy in addition to Copier.Bytes
	Note(text string) // note for the user
}

// NewCopier plans a copy between the target at addr and this machine. It takes ownership of node, which must not be
// used for anything else.
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

// Close closes the connection and the folder.
func (c *Copier) Close() {
	c.c.close()
	c.local.close()
}

// Bytes returns the total size of all files.
func (c *Copier) Bytes() int64 { return c.plan.bytes }

// Skipped returns the names and types of entries that are neither files nor directories and are not copied.
func (c *Copier) Skipped() []string { return c.plan.skipped }

// Counts returns the current counts of Run.
func (c *Copier) Counts() Counts {
	if len(c.plan.files) != 1 {
		c.counts.Sum = ""
	}
	return c.counts
}

// A State describes the partial file that Run has left when a copy was interrupted.
type State struct {
	Name string // at the destination; "" if no file's copy had begun
	Size int64  // size of the source
	Kept int64  // bytes verified in Part; 0 if there is none
	Part string // name of the partial file
}

// State returns the state of the interrupted copy. A target that has failed may have kept less than reported.
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

// Run copies all files.
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

// same counts a file that need not be copied.
func (c *Copier) same(s step) {
	c.counts.Same++
	c.show.Skip(s.stamp.Size)
}

// countResumed counts the bytes that an earlier run has left.
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

// verifyPrefix has the target verify existing data, step by step, until none is left to verify.
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

// countCopied counts a complete file.
func (c *Copier) countCopied(sum string) {
	c.counts.Files++
	c.counts.Sum = sum
}

// A piece is part of a file in transit between a buffer and the target.
type piece struct {
	call *pending
	buf  *buffer
	size int64
}

// nextPiece waits for a free buffer and returns a piece that uses it.
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

// closeTimeout limits the duration of the call that aborts a transfer at the target.
const closeTimeout = 500 * time.Millisecond

// abortTransfer aborts the transfer at the target, so that the target closes its file at once rather than after a
// timeout. Errors are ignored.
func (c *Copier) abortTransfer(id uint64, why error) {
	if errors.Is(why, na.ErrPeerLost) || errors.Is(why, na.ErrUnreachable) {
		return
	}
	ctx, stop := context.WithTimeout(context.Background(), closeTimeout)
	defer stop()
	_, _ = callMethod(ctx, c.c, methodClose, closeRequest{ID: id})
}
