package files

import (
	"context"
	"errors"
	"fmt"

	"github.com/quicksilver-rpc/quicksilver/na"
)

// receiveFile downloads a file. It forwards requests for pieces, and verifies and writes the data that the target
// pushes.
func (c *Copier) receiveFile(ctx context.Context, s step, anew bool) error {
	dst, err := c.local.openPart(s.to, s.stamp, partOptions{SHA256: c.opts.SHA256, Anew: anew, Holes: s.holes})
	if errors.Is(err, errSame) {
		c.same(s)
		return nil
	}
	if err != nil {
		return err
	}
	defer dst.close()
	opened, err := callMethod(ctx, c.c, methodOpen, openRequest{Path: s.from, How: partOptions{SHA256: c.opts.SHA256}})
	if err != nil {
		return err
	}
	if err := c.receivePart(ctx, opened, dst); err != nil {
		if errors.Is(err, na.ErrChecksum) { // the source may have been modified before its data was sent
			if now, failed := (remote{c.c}).stat(ctx, s.from); failed == nil && !now.Stamp.isSameData(s.stamp) {
				err = newChangedError(s.from)
			}
		}
		c.abortTransfer(opened.ID, err)
		return err
	}
	sums, err := callMethod(ctx, c.c, methodClose, closeRequest{ID: opened.ID, Commit: true})
	if err != nil {
		return err
	}
	if err := dst.commit(dst.sums.crc, sums.SHA256, c.opts.Sync); err != nil {
		return err
	}
	c.countCopied(dst.sums.String())
	return nil
}

// receivePart receives the data that is missing in dst.
func (c *Copier) receivePart(ctx context.Context, opened openReply, dst *part) error {
	if !opened.Stamp.isSameData(dst.stamp) {
		return fmt.Errorf("modified concurrently; run the same command again: %w", na.ErrIO)
	}
	for left := dst.journaled; left > 0 && ctx.Err() == nil; {
		var err error
		if left, err = dst.verifyNext(); err != nil {
			return err
		}
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	offset := dst.sums.at
	seek := seekReply{Left: offset}
	if err := c.verifyPrefix(ctx, seekRequest{opened.ID, offset, dst.sums.crc}, &seek); errors.Is(err, na.ErrChecksum) {
		return fmt.Errorf("%w: %w", errOther, err)
	} else if err != nil {
		return err
	}
	c.countResumed(offset, dst.note)
	return c.receivePieces(ctx, opened, offset, func(b []byte, crc uint32) error {
		if err := dst.write(dst.sums.at, b); err != nil {
			return err
		}
		return dst.verify(crc)
	})
}

// receivePieces requests all bytes of the file starting at offset. It calls take with each piece and with the checksum
// of the file up to the end of the piece.
func (c *Copier) receivePieces(ctx context.Context, opened openReply, offset int64, take func(b []byte, crc uint32) error) error {
	next := func(ctx context.Context) (*piece, error) {
		p, err := c.nextPiece(ctx, opened.Stamp.Size-offset)
		if err != nil {
			return nil, err
		}
		p.call, err = c.c.forward(&pieceRequest{ID: opened.ID, Offset: offset, Size: p.size, Memory: p.buf.h})
		offset += p.size
		return p, err
	}
	arrived := func(ctx context.Context, p *piece) error {
		reply, err := p.call.wait(ctx)
		if err != nil {
			return err
		}
		if err := take(p.buf.mem[:p.size], reply.CRC); err != nil {
			return err
		}
		c.pieceDone(p)
		return nil
	}
	return overlap(ctx, c.opts.Window, next, arrived)
}
