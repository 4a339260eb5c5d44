package files

import (
	"context"

	"github.com/quicksilver-rpc/quicksilver/bulk"
)

// sendFile uploads a file. It opens the file, reads pieces into buffers and forwards a request for
// each piece. The target pulls the data from the buffers.
func (c *Copier) sendFile(ctx context.Context, s step, anew bool) error {
	src, err := c.local.openSource(s.from, c.opts.SHA256)
	if err != nil {
		return err
	}
	defer src.close()
	src.shareFile(c.c.node.HG(), bulk.ReadOnly)
	if !src.stamp.isSameData(s.stamp) {
		c.show.Grow(src.stamp.Size - s.stamp.Size)
	}
	opened, err := callMethod(ctx, c.c, methodOpen, openRequest{Path: s.to, Write: true, Stamp: src.stamp, How: partOptions{SHA256: c.opts.SHA256, Anew: anew, Holes: s.holes}})
	if err != nil {
		return err
	}
	if opened.Same {
		c.same(s)
		return nil
	}
	if err := src.failureReason(c.sendPieces(ctx, opened, src)); err != nil {
		c.abortTransfer(opened.ID, err)
		return err
	}
	if err := src.verify(); err != nil {
		c.abortTransfer(opened.ID, err)
		return err
	}
	c.begun = false // close may rename the part to the file, even if the call fails
	if _, err := callMethod(ctx, c.c, methodClose, closeRequest{opened.ID, true, c.opts.Sync, src.sums.crc, src.sums.digest()}); err != nil {
		return err
	}
	c.countCopied(src.sums.String())
	return nil
}

func (c *Copier) sendPieces(ctx context.Context, opened openReply, src *source) error {
	at := seekReply{Left: opened.At, Note: opened.Note}
	if err := c.verifyPrefix(ctx, seekRequest{ID: opened.ID}, &at); err != nil {
		return err
	}
	for left := int64(1); left > 0 && ctx.Err() == nil; {
		var err error
		if left, err = src.seek(at.At, at.CRC); err != nil {
			return err
		}
	}
	c.countResumed(at.At, at.Note)
	next := func(ctx context.Context) (*piece, error) {
		p, err := c.nextPiece(ctx, src.stamp.Size-src.sums.at)
		if err != nil {
			return nil, err
		}
		offset := src.sums.at
		mem, at, err := src.read(p.buf, p.size)
		if err != nil {
			return nil, err
		}
		p.call, err = c.c.forward(&pieceRequest{opened.ID, offset, p.size, src.sums.crc, mem, at})
		return p, err
	}
	return overlap(ctx, c.opts.Window, next, c.pieceAnswered)
}

// pieceAnswered waits until the target has received the piece p, and releases the buffer of p.
func (c *Copier) pieceAnswered(ctx context.Context, p *piece) error {
	if _, err := p.call.wait(ctx); err != nil {
		return err
	}
	c.pieceDone(p)
	return nil
}
