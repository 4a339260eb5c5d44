package qs

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"

	"github.com/quicksilver-rpc/quicksilver/bulk"
	"github.com/quicksilver-rpc/quicksilver/hg"
	"github.com/quicksilver-rpc/quicksilver/internal/pieces"
	"github.com/quicksilver-rpc/quicksilver/na"
)

// A ringCall is a handler's side of ringRPC.
type ringCall struct {
	n  *Node
	i  int
	to hg.Addr
	id ringID
}

func (p *pulled) call() ringCall { return ringCall{p.req.n, p.req.r.HG().ID(), p.peer, p.id} }
func (p *pushed) call() ringCall { return ringCall{p.req.n, p.req.r.HG().ID(), p.peer, p.id} }

// say tells the caller how far the handler is, waits until the caller is as far as need, or at the end, and returns where it is.
func (c ringCall) say(ctx context.Context, mine, need int64) (theirs int64, end bool, err error) {
	in := make([]byte, 0, ringRequest)
	in = append(in, c.id[:]...)
	in = binary.LittleEndian.AppendUint64(in, uint64(mine))
	in = binary.LittleEndian.AppendUint64(in, uint64(need))
	var bad error
	err = c.n.callRaw(ctx, c.i, c.to, ringRPC, in, func(out []byte) {
		if len(out) != ringAnswer {
			bad = fmt.Errorf("qs: %s: answer of %d bytes, want %d: %w", ringRPC, len(out), ringAnswer, na.ErrProtocol)
			return
		}
		theirs, end = int64(binary.LittleEndian.Uint64(out)), out[8] == 1
	})
	if err == nil {
		err = bad
	}
	if r, ok := hg.RemoteOf(err); ok && r.Code == na.ErrIO { // of the program's, there; by which call it is told is of no use
		err = errors.New("qs: " + r.Text)
	}
	return theirs, end, err
}

var errRingAnswer = fmt.Errorf("qs: %s: the caller answers a position that cannot be: %w", ringRPC, na.ErrProtocol)

// A ringReader reads a Reader at its handler.
type ringReader struct {
	pieces.Reader
	c    ringCall
	p    *pulled
	ctx  context.Context
	buf  []byte
	pos  int64 // bytes that were pulled
	have int64 // bytes that the caller has read
	end  bool
}

func newRingReader(p *pulled) *ringReader {
	r := &ringReader{c: p.call(), p: p}
	r.Reader = pieces.Reader{Check: func() error { return p.check("Source") }, Next: func() ([]byte, error) {
		b, err := r.pull()
		return b, p.cause("Source", err)
	}}
	return r
}

// pull waits for the next piece.
func (r *ringReader) pull() ([]byte, error) {
	if r.pos == r.have && r.end {
		return nil, io.EOF
	}
	have, end, err := r.c.say(r.ctx, r.pos, r.pos+1) // what was pulled is free now
	switch {
	case err != nil:
		return nil, err
	case have < r.have || have > r.pos+ringSize || have == r.pos && !end:
		return nil, errRingAnswer
	}
	r.have, r.end = have, end
	if have == r.pos {
		return nil, io.EOF
	}
	at := r.pos % ringSize
	n := min(have-r.pos, ringPiece, ringSize-at)
	if int64(cap(r.buf)) < n {
		r.buf = make([]byte, n)
	}
	hctx := r.p.req.r.HG()
	ra, err := bulk.NewReaderAt(r.ctx, hctx, bulk.Stream{Peer: r.p.peer, Handle: r.p.handle})
	if err != nil {
		return nil, err
	}
	if _, err := ra.ReadAt(r.buf[:n], at); err != nil && err != io.EOF {
		return nil, err
	}
	r.pos += n
	return r.buf[:n], nil
}

// A ringWriter writes a Writer at its handler.
type ringWriter struct {
	pieces.Writer
	c    ringCall
	p    *pushed
	buf  []byte // to be pushed
	pos  int64  // bytes that were pushed
	done int64  // bytes that the caller has written
	err  error
}

func newRingWriter(p *pushed) *ringWriter {
	w := &ringWriter{c: p.call(), p: p}
	w.Writer = pieces.Writer{Room: w.room, Add: w.add}
	return w
}

// room returns where the next bytes go. There is always some.
func (w *ringWriter) room() ([]byte, error) {
	if err := w.p.check("Sink"); err != nil {
		return nil, err
	}
	if w.buf == nil {
		w.buf = make([]byte, 0, ringPiece)
	}
	end := min(ringPiece, ringSize-w.pos%ringSize) // a piece does not go around the end
	return w.buf[len(w.buf):end], w.err
}

func (w *ringWriter) add(n int) error {
	w.buf = w.buf[:len(w.buf)+n]
	if int64(len(w.buf)) < min(ringPiece, ringSize-w.pos%ringSize) {
		return nil
	}
	return w.push()
}

// push moves what is in buf into the ring, when there is room, and says so.
func (w *ringWriter) push() error {
	if w.err != nil || len(w.buf) == 0 {
		return w.err
	}
	w.err = w.tryPush()
	return w.err
}

func (w *ringWriter) tryPush() error {
	n := int64(len(w.buf))
	if w.pos+n-w.done > ringSize {
		if err := w.say(w.pos + n - ringSize); err != nil {
			return err
		}
	}
	if err := w.p.push(w.p.w.ctx, w.buf, w.pos%ringSize); err != nil {
		return err
	}
	w.pos += n
	w.buf = w.buf[:0]
	return w.say(0)
}

func (w *ringWriter) say(need int64) error {
	done, _, err := w.c.say(w.p.w.ctx, w.pos, need)
	switch {
	case err != nil:
		return err
	case done < w.done || done < need || done > w.pos:
		return errRingAnswer
	}
	w.done = done
	return nil
}

// flush waits until the caller has written everything.
func (w *ringWriter) flush() error {
	if err := w.push(); err != nil || w.done == w.pos {
		return err
	}
	w.err = w.say(w.pos)
	return w.err
}
