package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/quicksilver-rpc/quicksilver/bulk"
	"github.com/quicksilver-rpc/quicksilver/na"
)

// A copier is the origin of qs cp. Pieces go through a few buffers that peers can reach while it runs.
//
//	upload:   read into a buffer ─► forward rpcPiece ═ the target pulls ═► answered: the buffer is free
//	download: forward rpcPiece ═ the target pushes into a buffer ═► answered ─► check, write, journal: the buffer is free
type copier struct {
	c      *client
	local  *disk
	upload bool
	opts   copyOptions
	show   *progress
	free   chan *buffer

	counts counts
}

type copyOptions struct {
	piece  int64
	window int
	sha    bool
	anew   bool
	sync   bool
}

// counts are what has been done.
type counts struct {
	files   int   // copied
	same    int   // were there already
	bytes   int64 // moved by this run
	resumed int64 // of files that an earlier run had begun
	sum     string
}

// run copies all of a plan.
func (c *copier) run(ctx context.Context, p *plan, dst store) error {
	for _, d := range p.dirs {
		if err := dst.mkdir(ctx, d.to, d.stamp.Mode); err != nil {
			return err
		}
	}
	size := int64(1)
	for _, s := range p.files {
		size = max(size, min(s.stamp.Size, c.opts.piece))
	}
	access := bulk.WriteOnly
	if c.upload {
		access = bulk.ReadOnly
	}
	c.free = make(chan *buffer, c.opts.window)
	for range c.opts.window {
		b, err := newBuffer(c.c.hctx, access, size)
		if err != nil {
			return err
		}
		c.free <- b
	}
	copyFile := c.receiveFile
	if c.upload {
		copyFile = c.sendFile
	}
	for _, s := range p.files {
		c.show.file(s.to)
		err := copyFile(ctx, s, c.opts.anew)
		if errors.Is(err, errOther) {
			c.show.note(s.to + ": the part that was left behind is not of this source: it begins anew")
			err = copyFile(ctx, s, true)
		}
		if err != nil {
			return fmt.Errorf("%s: %w", s.from, err)
		}
	}
	return nil
}

// same counts a file that need not be copied.
func (c *copier) same(s step) {
	c.counts.same++
	c.show.skip(s.stamp.Size)
}

// resume counts what an earlier run has left.
func (c *copier) resume(at int64, note string) {
	if note != "" {
		c.show.note(note)
	}
	if at > 0 {
		c.counts.resumed += at
		c.show.skip(at)
	}
}

// seek has the target look at what is there already, until nothing is left.
func (c *copier) seek(ctx context.Context, req *seekRequest, r *seekReply) error {
	for r.Left > 0 {
		before := r.Left
		if err := c.c.call(ctx, rpcSeek, req, r); err != nil {
			return err
		}
		if r.Left >= before {
			return fmt.Errorf("%s has %d bytes to look at, before %d: %w", c.c.peer, r.Left, before, na.ErrProtocol)
		}
	}
	return nil
}

// copied counts a file that is complete.
func (c *copier) copied(sum string) {
	c.counts.files++
	c.counts.sum = sum
}

// A piece is on its way between a buffer and the target.
type piece struct {
	call *pending
	buf  *buffer
	size int64
}

// nextPiece waits for a buffer.
func (c *copier) nextPiece(ctx context.Context, left int64) (*piece, error) {
	if left == 0 {
		return nil, io.EOF
	}
	select {
	case b := <-c.free:
		return &piece{buf: b, size: min(left, c.opts.piece)}, nil
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

func (c *copier) pieceDone(p *piece) {
	c.free <- p.buf
	c.counts.bytes += p.size
	c.show.add(p.size)
}

// farewell bounds how long a target is told that a transfer is broken off.
const farewell = 500 * time.Millisecond

// breakOff tells the target not to wait for more pieces, so that it lets its file go now. It need not hear it.
func (c *copier) breakOff(id uint64, why error) {
	if errors.Is(why, na.ErrPeerLost) || errors.Is(why, na.ErrUnreachable) {
		return
	}
	ctx, stop := context.WithTimeout(context.Background(), farewell)
	defer stop()
	_ = c.c.call(ctx, rpcClose, &closeRequest{ID: id}, nil)
}
