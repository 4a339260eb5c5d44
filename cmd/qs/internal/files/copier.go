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

// A Copier is the origin of qs cp. Pieces go through a few buffers that peers can reach while it runs.
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
	current step  // the file that is copied
	begun   bool  // of current: its part is there, and has not become the file
	kept    int64 // of current: bytes that are verified in its part
}

// Options configures a copy.
type Options struct {
	Upload bool   // from this machine to the target
	Folder string // of this machine
	Local  string // the name in Folder: of the source if it is an upload, else of the destination
	Remote string // the path at the target
	Into   bool   // the destination is a directory that the source goes into

	From io.Reader // what is uploaded, instead of a file
	To   io.Writer // where what is downloaded is written, instead of a file

	Piece  int64 // bytes that are asked for and verified at a time
	Window int   // pieces under way at a time
	SHA256 bool  // compare SHA-256 checksums, too
	Anew   bool  // copy all, and from the beginning, whatever is there
	Sync   bool  // wait until each file is on the disk before it gets its name

	Timeout time.Duration // for each answer
}

// Counts counts the work that has been done.
type Counts struct {
	Files   int    // copied
	Same    int    // were there already
	Bytes   int64  // moved by this run
	Resumed int64  // of files that an earlier run had begun
	Sum     string // of the last file
}

// A Progress shows the progress of a copy. Several goroutines call it.
type Progress interface {
	File(name string) // that is copied now
	Add(n int64)      // bytes that were moved
	Skip(n int64)     // bytes that need not be moved
	Grow(n int64)     // there is more to do than Copier.Bytes said
	Note(text string) // what the user should know
}

// NewCopier plans a copy between the target at addr and this machine. It owns node, which must not be used for anything else.
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

// Close ends it.
func (c *Copier) Close() {
	c.c.close()
	c.local.close()
}

// Bytes returns the size of all files.
func (c *Copier) Bytes() int64 { return c.plan.bytes }

// Skipped returns the names of what is neither a file nor a directory, and is left out, each with what it is.
func (c *Copier) Skipped() []string { return c.plan.skipped }

// Counts returns the counts of Run until now.
func (c *Copier) Counts() Counts {
	if len(c.plan.files) != 1 {
		c.counts.Sum = ""
	}
	return c.counts
}

// A State describes the part that Run has left of a file whose copy was interrupted.
type State struct {
	Name string // at the destination; "" if no copy of a file had begun
	Size int64  // of the source
	Kept int64  // bytes that are verified in Part; 0 if there is none
	Part string // its name
}

// State returns the state of the interrupted copy. A target that is gone may have kept less.
func (c *Copier) State() State {
	if !c.begun {
		return State{}
	}
	st := State{Name: c.current.to, Size: c.current.stamp.Size, Kept: c.kept, Part: c.current.to + partSuffix}
	if c.opts.From != nil {
		st.Kept = 0 // a stream is not resumed
	}
	return st
}

// Run copies everything.
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

// countResumed counts what an earlier run has left.
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

// verifyPrefix has the target look at what is there already, until nothing is left.
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

// countCopied counts a file that is complete.
func (c *Copier) countCopied(sum string) {
	c.counts.Files++
	c.counts.Sum = sum
}

// A piece is on its way between a buffer and the target.
type piece struct {
	call *pending
	buf  *buffer
	size int64
}

// nextPiece waits for a buffer.
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

// closeTimeout bounds the call that aborts a transfer at the target.
const closeTimeout = 500 * time.Millisecond

// abortTransfer ends the transfer at the target, so that it closes its file now instead of after its timeout. An error is ignored.
func (c *Copier) abortTransfer(id uint64, why error) {
	if errors.Is(why, na.ErrPeerLost) || errors.Is(why, na.ErrUnreachable) {
		return
	}
	ctx, stop := context.WithTimeout(context.Background(), closeTimeout)
	defer stop()
	_, _ = callMethod(ctx, c.c, methodClose, closeRequest{ID: id})
}
