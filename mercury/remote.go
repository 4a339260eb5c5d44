package mercury

import (
	"context"
	"io"
	"slices"

	"github.com/quicksilver-rpc/quicksilver/mercury/internal/xnet"
)

const (
	pieceSize = 1 << 20 // of a transfer: what messages behind it wait for
	window    = 4       // pieces under way
)

// A Remote is memory of a peer that it has lent. It is safe for concurrent use.
//
// No message of C's refuses an access, nor takes one back: a peer that has closed its memory ends the connection, and the answer to a
// read that was given up is thrown away when it comes.
type Remote struct {
	ctx  context.Context // of ReadAt and WriteAt
	n    *Node
	conn *conn // of the request that the handle came in; nil: that to addr
	addr string
	bulk Bulk
}

// Remote returns the memory at addr that b is the handle of.
func (n *Node) Remote(addr string, b Bulk) *Remote {
	return &Remote{ctx: context.Background(), n: n, addr: addr, bulk: b}
}

// With returns the same memory for package io: ReadAt and WriteAt of it end when ctx does.
func (r *Remote) With(ctx context.Context) *Remote {
	same := *r
	same.ctx = ctx
	return &same
}

// Len returns the bytes in the memory.
func (r *Remote) Len() int64 { return r.bulk.Len() }

// ReadAt is Get with the context of With. It returns io.EOF where an io.ReaderAt does.
func (r *Remote) ReadAt(p []byte, off int64) (int, error) {
	if off > r.Len() {
		return 0, io.EOF
	}
	all := len(p)
	if off >= 0 {
		p = p[:min(int64(len(p)), r.Len()-off)]
	}
	n, err := r.Get(r.ctx, p, off)
	if err == nil && n < all {
		err = io.EOF
	}
	return n, err
}

// WriteAt is Put with the context of With.
func (r *Remote) WriteAt(p []byte, off int64) (int, error) { return r.Put(r.ctx, p, off) }

// Get reads from offset off of the memory into p, in pieces of 1 MiB, and waits. It returns how many bytes at the beginning of
// p were read, len(p) if the error is nil. When ctx ends so does Get, and p is not touched any more.
func (r *Remote) Get(ctx context.Context, p []byte, off int64) (int, error) {
	if b := &r.bulk.b; b.Eager != nil && r.within("read", Read, len(p), off) == nil {
		return copy(p, b.Eager[off:]), nil
	}
	return r.move(ctx, "read", Read, p, off)
}

// Put writes p at offset off of the memory, and waits until all of it is there. When ctx ends so does Put, and p is not touched
// any more; a piece that was under way may still arrive. It returns how many bytes at the beginning of p are known to be there.
func (r *Remote) Put(ctx context.Context, p []byte, off int64) (int, error) {
	return r.move(ctx, "write", Write, p, off)
}

func (r *Remote) within(op string, access Access, n int, off int64) error {
	if off < 0 || off > r.Len() || int64(n) > r.Len()-off {
		return r.failed(op, errorf(ErrInvalid, "%d bytes at %d of %d", n, off, r.Len()))
	}
	if owner := r.bulk.Owner(); owner != "" && owner != r.addr {
		return r.failed(op, errorf(ErrInvalid, "the memory is that of %s", owner))
	}
	if r.bulk.Access()&access == 0 {
		return r.failed(op, errorf(ErrPermission, "the handle does not allow it"))
	}
	return nil
}

func (r *Remote) failed(op string, err error) error {
	return &Error{Op: op, Addr: r.addr, Fate: MaybeRan, Err: err}
}

// A transfer is a Get or a Put.
type transfer struct {
	mem   memory
	wake  chan struct{} // has room for one
	under int           // pieces under way
	more  bool          // there are others to begin
	ended int           // in order
	err   error
}

// An op is a piece of one.
type op struct {
	t      *transfer
	off, n uint64
}

func (r *Remote) move(ctx context.Context, name string, access Access, p []byte, off int64) (int, error) {
	if err := r.within(name, access, len(p), off); err != nil || len(p) == 0 {
		return 0, err
	}
	ctx, cancel := r.n.bound(ctx)
	if cancel != nil {
		defer cancel()
	}
	c := r.conn
	if c == nil {
		var err error
		if c, err = r.n.connTo(ctx, r.addr); err != nil {
			return 0, r.failed(name, err)
		}
	}
	if ctx.Err() != nil {
		return 0, r.failed(name, ended(ctx, ""))
	}
	t := &transfer{mem: memory{buf: p}, wake: make(chan struct{}, 1)}
	from := r.bulk.b.Seek(uint64(off))
	c.mu.Lock()
	for at := 0; ; {
		for t.err == nil && c.err == nil && t.under < window && at < len(p) {
			piece := from.Next(min(len(p)-at, pieceSize))
			o := &op{t, uint64(at), uint64(piece.Len)}
			t.under++
			c.startLocked(o, access, xnet.IOV{Addr: piece.Addr, Len: o.n, Key: piece.Key})
			at += piece.Len
		}
		t.more = at < len(p)
		if t.err == nil {
			t.err = c.err
		}
		if t.err != nil || t.under == 0 {
			break
		}
		c.flushLocked(false)
		select {
		case <-t.wake:
			c.mu.Lock()
		case <-ctx.Done():
			c.mu.Lock()
			if t.under > 0 && t.err == nil {
				t.err = ended(ctx, "")
			}
		}
	}
	err, n := t.err, t.ended
	c.jobs = slices.DeleteFunc(c.jobs, func(j *job) bool { return j.op != nil && j.op.t == t }) // not begun
	if j := c.job; j != nil && j.op != nil && j.op.t == t {                                     // the rest of this piece must follow
		for i, s := range j.spans {
			j.spans[i] = span{&memory{buf: slices.Clone(p[s.off : s.off+s.n])}, 0, s.n}
		}
	}
	t.mem.takeAway()
	c.mu.Unlock()
	if err != nil {
		return n, r.failed(name, err)
	}
	return n, nil
}

// startLocked begins a piece.
func (c *conn) startLocked(o *op, access Access, v xnet.IOV) {
	if access == Read {
		h := xnet.Header{Op: xnet.ReadReq, N: 1, IOV: [4]xnet.IOV{v}}
		c.header(&h, 0)
		c.reads.push(o)
		return
	}
	head := xnet.Header{Op: xnet.Write, Flags: xnet.Deliver, N: 1, IOV: [4]xnet.IOV{v}}
	c.jobs = append(c.jobs, &job{head: head, spans: []span{{&o.t.mem, o.off, o.n}}, op: o})
}

// endLocked ends a piece, and wakes who waits if there is something to do.
func (t *transfer) endLocked(err error) {
	t.under--
	if err != nil && t.err == nil {
		t.err = err
	}
	if t.err == nil && t.under > 0 && !t.more {
		return
	}
	select {
	case t.wake <- struct{}{}:
	default:
	}
}

// answer takes what a peer's memory held.
func (r *reader) answer(o *op) error {
	s := span{&o.t.mem, o.off, o.n}
	err := r.span(&s)
	if err == errGone { // it was given up
		s.mem = nil
		err = r.span(&s)
	}
	if err != nil {
		r.c.mu.Lock()
		o.t.endLocked(errorf(ErrPeerLost, "%v: %v", ErrPeerLost, err))
		r.c.mu.Unlock()
		return err
	}
	r.c.mu.Lock()
	o.t.ended += int(o.n)
	o.t.endLocked(nil)
	r.c.mu.Unlock()
	return nil
}

// acknowledged ends the oldest write.
func (c *conn) acknowledged() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	o, ok := c.writes.pop()
	if !ok {
		return errorf(ErrProtocol, "an acknowledgement of no write")
	}
	o.t.ended += int(o.n)
	o.t.endLocked(nil)
	return nil
}
