package main

import (
	"context"
	"fmt"

	"github.com/quicksilver-rpc/quicksilver/bulk"
	"github.com/quicksilver-rpc/quicksilver/hg"
	"github.com/quicksilver-rpc/quicksilver/na"
)

// A move is one piece on its way.
type move struct {
	h    *hg.Handle
	req  pieceRequest
	buf  *buffer
	op   *bulk.Op
	done chan error
}

func (t *transfer) answer(m *move, reply *pieceReply, err error) {
	if m.buf != nil {
		t.files.buffers.put(m.buf)
	}
	respond(m.h, reply, err)
}

// read gets a piece, and its checksum for the answer.
func (t *transfer) read(m *move) error {
	t.filesMu.Lock()
	defer t.filesMu.Unlock()
	s := t.source
	if m.req.Offset != s.sums.at || m.req.Size > s.stamp.Size-s.sums.at {
		return fmt.Errorf("%s: a piece of %d bytes at %d of %d, want %d: %w", s.name, m.req.Size, m.req.Offset, s.stamp.Size,
			s.sums.at, na.ErrProtocol)
	}
	err := s.read(m.buf, m.req.Size)
	m.req.CRC = s.sums.crc
	return err
}

// begin starts the transfer of a piece between the buffer and the origin's memory.
func (t *transfer) begin(m *move) (err error) {
	dir := bulk.Pull
	if t.source != nil {
		dir = bulk.Push
	}
	m.done = make(chan error, 1)
	m.op, err = bulk.Transfer(t.files.buffers.hctx, bulk.Spec{
		Dir: dir, Peer: t.peer, Remote: m.req.Memory, Local: m.buf.h, Size: m.req.Size,
	}, func(_ *bulk.Op, err error) { m.done <- err })
	return err
}

// wait waits for the end of the transfer; the end of ctx cancels it.
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
