package files

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"time"

	"github.com/quicksilver-rpc/quicksilver/na"
)

// planStream plans a copy of a single file from Options.From or to Options.To.
func (c *Copier) planStream(ctx context.Context) error {
	there, err := (remote{c.c}).stat(ctx, c.opts.Remote)
	c.plan = &plan{}
	if c.opts.Upload {
		if err == nil && there.Kind == directory {
			err = fmt.Errorf("%s is a directory, want a file: %w", c.opts.Remote, na.ErrInvalid)
		}
		c.plan.files = []step{{from: "-", to: c.opts.Remote}}
		return err
	}
	if err == nil && there.Kind == missing {
		err = fmt.Errorf("%s: %w", c.opts.Remote, ErrNoSource)
	}
	if err == nil && there.Kind != regular {
		err = fmt.Errorf("%s is not a file: %w", c.opts.Remote, na.ErrInvalid)
	}
	c.plan.addFile(step{from: c.opts.Remote, to: "-", stamp: there.Stamp})
	return err
}

// streamMode is the mode of a file that is uploaded from a stream, because a stream has no mode.
const streamMode = 0o644

// sendStream uploads the data of Options.From. The file at the target is created only after all data has arrived. An
// interrupted upload cannot be resumed.
func (c *Copier) sendStream(ctx context.Context, s step, _ bool) error {
	st := stamp{ModTime: nanosOf(time.Now()), Mode: streamMode}
	opened, err := callMethod(ctx, c.c, methodOpen, openRequest{Path: s.to, Write: true, Stamp: st, How: partOptions{SHA256: c.opts.SHA256, Anew: true, Stream: true}})
	if err != nil {
		return err
	}
	c.begun = true
	sums := newSums(c.opts.SHA256)
	next := func(ctx context.Context) (*piece, error) {
		p, err := c.nextPiece(ctx, c.opts.Piece)
		if err != nil {
			return nil, err
		}
		if p.size, err = readFull(ctx, c.opts.From, p.buf.mem[:c.opts.Piece]); p.size == 0 || err != nil {
			return nil, err
		}
		offset := sums.at
		sums.add(p.buf.mem[:p.size])
		c.show.Grow(p.size)
		p.call, err = c.c.forward(&pieceRequest{opened.ID, offset, p.size, sums.crc, p.buf.h, 0})
		return p, err
	}
	if err := overlap(ctx, c.opts.Window, next, c.pieceAnswered); err != nil {
		c.abortTransfer(opened.ID, err)
		return err
	}
	c.begun = false // close may rename the part to the file, even if the call fails
	if _, err := callMethod(ctx, c.c, methodClose, closeRequest{opened.ID, true, c.opts.Sync, sums.crc, sums.digest()}); err != nil {
		return err
	}
	c.countCopied(sums.String())
	return nil
}

// readFull reads until b is full or r ends. It returns io.EOF if r has no more data. If ctx is done, readFull returns
// while its read continues in the background. The caller must not use r or b afterward.
func readFull(ctx context.Context, r io.Reader, b []byte) (int64, error) {
	type result struct {
		n   int
		err error
	}
	done := make(chan result, 1)
	go func() {
		n, err := io.ReadFull(r, b)
		if err == io.ErrUnexpectedEOF {
			err = nil
		}
		done <- result{n, err}
	}()
	select {
	case got := <-done:
		return int64(got.n), got.err
	case <-ctx.Done():
		return 0, context.Cause(ctx)
	}
}

// receiveStream downloads a file to Options.To. It writes data only after verifying it.
func (c *Copier) receiveStream(ctx context.Context, s step, _ bool) error {
	opened, err := callMethod(ctx, c.c, methodOpen, openRequest{Path: s.from, How: partOptions{SHA256: c.opts.SHA256}})
	if err != nil {
		return err
	}
	w := streamWriter{newSums(c.opts.SHA256), c.opts.To}
	if err := c.receivePieces(ctx, opened, 0, w.write); err != nil {
		c.abortTransfer(opened.ID, err)
		return err
	}
	end, err := callMethod(ctx, c.c, methodClose, closeRequest{ID: opened.ID, Commit: true})
	if err != nil {
		return err
	}
	if !bytes.Equal(end.SHA256, w.sums.digest()) {
		return fmt.Errorf("SHA-256 is %x, want %x: %w", w.sums.digest(), end.SHA256, na.ErrChecksum)
	}
	c.countCopied(w.sums.String())
	return nil
}

// A streamWriter writes verified data to a stream.
type streamWriter struct {
	sums sums
	to   io.Writer
}

// write writes b. It returns an error if crc is not the checksum of all data up to the end of b.
func (w *streamWriter) write(b []byte, crc uint32) error {
	w.sums.add(b)
	if w.sums.crc != crc {
		return fmt.Errorf("the first %d bytes are corrupt: %w", w.sums.at, na.ErrChecksum)
	}
	_, err := w.to.Write(b)
	return err
}
