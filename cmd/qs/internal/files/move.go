package files

import (
	"context"
	"errors"
	"fmt"

	"github.com/quicksilver-rpc/quicksilver/bulk"
	"github.com/quicksilver-rpc/quicksilver/hg"
	"github.com/quicksilver-rpc/quicksilver/na"
)

// A move is the transfer of a piece, or of a chunk of a piece, between the origin's memory and the target's.
type move struct {
	h    hg.Request // request to answer; the zero Request unless this is the last chunk of the piece
	req  pieceRequest
	buf  *buffer // nil if the source file is mapped
	op   *bulk.Op
	done chan error
}

// splitFront removes the first n bytes from m, whose transfer must not have started, and returns them as a separate
// move.
func (m *move) splitFront(n int64) *move {
	front := &move{req: m.req}
	front.req.Size = n
	m.req.Offset += n
	m.req.At += n
	m.req.Size -= n
	return front
}

func (t *transfer) answer(m *move, reply *pieceReply, err error) {
	if m.buf != nil {
		t.releaseBuffer(m.buf)
	}
	if m.h != (hg.Request{}) {
		m.respond(reply, err)
	}
}

func (m *move) respond(reply *pieceReply, err error) {
	if err != nil {
		_ = m.h.RespondError(withCode(err), nil)
		return
	}
	_ = m.h.Respond(reply, nil)
}

// startMove starts the transfer of m between the origin's memory and a buffer or, for a download, the mapped source.
func (t *transfer) startMove(ctx context.Context, m *move) (err error) {
	spec := bulk.Spec{Dir: bulk.Pull, Peer: t.peer, Remote: m.req.Memory, RemoteOffset: m.req.At, Size: m.req.Size}
	if t.source == nil || t.source.mapped == nil {
		if m.buf, err = t.buffer(ctx, m.req.Size); err != nil {
			return err
		}
		spec.Local = m.buf.h
	}
	if t.source != nil {
		spec.Dir = bulk.Push
		if spec.Local, spec.LocalOffset, err = t.read(m); err != nil {
			return err
		}
	}
	m.done = make(chan error, 1)
	m.op, err = bulk.Transfer(t.files.buffers.hctx, spec, func(_ *bulk.Op, err error) { m.done <- err })
	return err
}

// buffer returns memory for a move. If the memory limits are reached, it waits until the transfer releases one of its
// other buffers. If the transfer has none, buffer returns an error.
func (t *transfer) buffer(ctx context.Context, size int64) (*buffer, error) {
	for {
		own := t.lent.Load()
		b, err := t.files.buffers.get(t.client, size)
		if err == nil {
			t.lent.Add(1)
		}
		if err == nil || own == 0 || !errors.Is(err, na.ErrAgain) {
			return b, err
		}
		select {
		case <-t.returned:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}

func (t *transfer) releaseBuffer(b *buffer) {
	t.files.buffers.put(t.client, b)
	t.lent.Add(-1)
	select {
	case t.returned <- struct{}{}:
	default: // a signal is already pending
	}
}

// read reads the piece m from the source. It stores the checksum for the answer in m.
func (t *transfer) read(m *move) (mem *bulk.Handle, at int64, err error) {
	t.filesMu.Lock()
	defer t.filesMu.Unlock()
	s := t.source
	if m.req.Offset != s.sums.at || m.req.Size > s.stamp.Size-s.sums.at {
		return nil, 0, fmt.Errorf("%s: chunk of %d bytes at offset %d of %d, want %d: %w", s.name, m.req.Size, m.req.Offset, s.stamp.Size,
			s.sums.at, na.ErrProtocol)
	}
	mem, at, err = s.read(m.buf, m.req.Size)
	m.req.CRC = s.sums.crc
	return mem, at, err
}

// write writes the data of m to the file. If m is the last chunk of its piece, write verifies the piece.
func (t *transfer) write(m *move) error {
	t.filesMu.Lock()
	defer t.filesMu.Unlock()
	err := t.part.write(m.req.Offset, m.buf.mem[:m.req.Size])
	if err == nil && m.h != (hg.Request{}) {
		err = t.part.verify(m.req.CRC)
	}
	return err
}

// wait waits for the transfer of m to complete. If ctx is done first, it cancels the transfer and waits for the
// cancellation.
func (m *move) wait(ctx context.Context) error {
	select {
	case err := <-m.done:
		return err
	case <-ctx.Done():
	}
	m.op.Cancel()
	if err := <-m.done; err != nil {
		return context.Cause(ctx)
	}
	return nil
}
