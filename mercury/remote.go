package mercury

import (
	"context"
	"io"
	"slices"

	"github.com/quicksilver-rpc/quicksilver/mercury/internal/xnet"
)

const (
	chunkSize   = 1 << 20 // size in bytes of one chunk of a transfer; messages may have to wait for one chunk
	maxInFlight = 4       // maximum number of chunks in flight per transfer
)

// A Remote is memory lent by a peer. It is safe for concurrent use.
//
// The C protocol has no messages to refuse or cancel an access. A peer that has revoked the memory closes the
// connection, and the response to an abandoned read is discarded when it arrives.
type Remote struct {
	ctx  context.Context // context for ReadAt and WriteAt
	node *Node
	conn *conn // connection on which the handle was received; nil means the connection to addr
	addr string
	bulk Bulk
}

// Remote returns the memory at addr to which handle b refers.
func (n *Node) Remote(addr string, b Bulk) *Remote {
	return &Remote{ctx: context.Background(), node: n, addr: addr, bulk: b}
}

// With returns a copy of r that uses ctx for ReadAt and WriteAt.
func (r *Remote) With(ctx context.Context) *Remote {
	same := *r
	same.ctx = ctx
	return &same
}

// Len returns the size of the memory in bytes.
func (r *Remote) Len() int64 { return r.bulk.Len() }

// ReadAt implements io.ReaderAt. It is like Get with the context set by With, but returns io.EOF at the end of the
// memory.
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

// WriteAt implements io.WriterAt. It is like Put with the context set by With.
func (r *Remote) WriteAt(p []byte, off int64) (int, error) { return r.Put(r.ctx, p, off) }

// Get reads len(p) bytes at offset off of the memory into p, in chunks of 1 MiB. It blocks until they have arrived or
// ctx is done. After Get has returned, p is no longer written to. The result is the number of bytes at the beginning of
// p that were read, which is len(p) if the error is nil.
func (r *Remote) Get(ctx context.Context, p []byte, off int64) (int, error) {
	if b := &r.bulk.wire; b.Eager != nil && r.checkAccess("read", Read, len(p), off) == nil {
		return copy(p, b.Eager[off:]), nil
	}
	return r.transfer(ctx, "read", Read, p, off)
}

// Put writes p to the memory at offset off. It blocks until all bytes have arrived or ctx is done. After Put has
// returned, p is no longer read, but a chunk in flight may still arrive. The result is the number of bytes at the
// beginning of p that are known to have arrived.
func (r *Remote) Put(ctx context.Context, p []byte, off int64) (int, error) {
	return r.transfer(ctx, "write", Write, p, off)
}

// checkAccess returns an error unless the handle allows access to n bytes at offset off.
func (r *Remote) checkAccess(op string, access Access, n int, off int64) error {
	if off < 0 || off > r.Len() || int64(n) > r.Len()-off {
		return r.wrapError(op, errorf(ErrInvalid, "%d bytes at offset %d lie outside the memory of %d bytes", n, off, r.Len()))
	}
	if owner := r.bulk.Owner(); owner != "" && owner != r.addr {
		return r.wrapError(op, errorf(ErrInvalid, "the handle is bound to %s", owner))
	}
	if r.bulk.Access()&access == 0 {
		return r.wrapError(op, errorf(ErrPermission, "not allowed by the handle"))
	}
	return nil
}

// wrapError returns err as the *Error of operation op.
func (r *Remote) wrapError(op string, err error) error {
	return &Error{Op: op, Addr: r.addr, Fate: MaybeRan, Err: err}
}

// A transfer is a Get or Put in progress. The connection's lock guards all fields except mem and wake.
type transfer struct {
	mem      memory
	wake     chan struct{} // has one slot; wakes the goroutine of the transfer
	inFlight int           // number of chunks in flight
	hasMore  bool          // some chunks have not been started
	done     int           // number of bytes in completed chunks, which complete in order
	err      error
}

// A chunkOp is the read or write of one chunk of a transfer.
type chunkOp struct {
	transfer *transfer
	off, n   uint64
}

// transfer reads or writes p and blocks until that has completed or ctx is done. It keeps up to maxInFlight chunks in
// flight.
func (r *Remote) transfer(ctx context.Context, name string, access Access, p []byte, off int64) (int, error) {
	if err := r.checkAccess(name, access, len(p), off); err != nil || len(p) == 0 {
		return 0, err
	}
	ctx, cancel := r.node.withTimeout(ctx)
	if cancel != nil {
		defer cancel()
	}
	c := r.conn
	if c == nil {
		var err error
		if c, err = r.node.connTo(ctx, r.addr); err != nil {
			return 0, r.wrapError(name, err)
		}
	}
	if ctx.Err() != nil {
		return 0, r.wrapError(name, contextError(ctx, ""))
	}
	t := &transfer{mem: memory{buf: p}, wake: make(chan struct{}, 1)}
	from := r.bulk.wire.Seek(uint64(off))
	c.mu.Lock()
	for at := 0; ; {
		for t.err == nil && c.err == nil && t.inFlight < maxInFlight && at < len(p) {
			piece := from.Next(min(len(p)-at, chunkSize))
			o := &chunkOp{t, uint64(at), uint64(piece.Len)}
			t.inFlight++
			c.startLocked(o, access, xnet.IOV{Addr: piece.Addr, Len: o.n, Key: piece.Key})
			at += piece.Len
		}
		t.hasMore = at < len(p)
		if t.err == nil {
			t.err = c.err
		}
		if t.err != nil || t.inFlight == 0 {
			break
		}
		c.flushLocked(false)
		select {
		case <-t.wake:
			c.mu.Lock()
		case <-ctx.Done():
			c.mu.Lock()
			if t.inFlight > 0 && t.err == nil {
				t.err = contextError(ctx, "")
			}
		}
	}
	err, n := t.err, t.done
	// Remove writes that have not been started. One that is being written must be completed from a copy of the rest.
	c.jobs = slices.DeleteFunc(c.jobs, func(j *dataMessage) bool { return j.op != nil && j.op.transfer == t })
	if j := c.job; j != nil && j.op != nil && j.op.transfer == t {
		for i, s := range j.spans {
			j.spans[i] = span{&memory{buf: slices.Clone(p[s.off : s.off+s.n])}, 0, s.n}
		}
	}
	t.mem.revoke()
	c.mu.Unlock()
	if err != nil {
		return n, r.wrapError(name, err)
	}
	return n, nil
}

// startLocked starts chunk o, which reads from or writes to the peer's memory at v, depending on access. c.mu must be
// held.
func (c *conn) startLocked(o *chunkOp, access Access, v xnet.IOV) {
	if access == Read {
		h := xnet.Header{Op: xnet.ReadReq, N: 1, IOV: [4]xnet.IOV{v}}
		c.appendHeaderLocked(&h, 0)
		c.pendingReads.push(o)
		return
	}
	head := xnet.Header{Op: xnet.Write, Flags: xnet.Deliver, N: 1, IOV: [4]xnet.IOV{v}}
	c.jobs = append(c.jobs, &dataMessage{head: head, spans: []span{{&o.transfer.mem, o.off, o.n}}, op: o})
}

// endLocked records that a chunk of t has completed with err. It wakes the goroutine of t if another chunk can be
// started or t is complete. The connection's lock must be held.
func (t *transfer) endLocked(err error) {
	t.inFlight--
	if err != nil && t.err == nil {
		t.err = err
	}
	if t.err == nil && t.inFlight > 0 && !t.hasMore {
		return
	}
	select {
	case t.wake <- struct{}{}:
	default:
	}
}

// handleReadResponse reads the data of a response into the memory of chunk o.
func (r *connReader) handleReadResponse(o *chunkOp) error {
	s := span{&o.transfer.mem, o.off, o.n}
	err := r.readSpan(&s)
	if err == errRevoked { // the transfer was abandoned, so discard the rest
		s.mem = nil
		err = r.readSpan(&s)
	}
	if err != nil {
		r.conn.mu.Lock()
		o.transfer.endLocked(errorf(ErrPeerLost, "%v: %v", ErrPeerLost, err))
		r.conn.mu.Unlock()
		return err
	}
	r.conn.mu.Lock()
	o.transfer.done += int(o.n)
	o.transfer.endLocked(nil)
	r.conn.mu.Unlock()
	return nil
}

// handleAck handles the acknowledgement of a write, which completes the oldest chunk in pendingWrites.
func (c *conn) handleAck() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	o, ok := c.pendingWrites.pop()
	if !ok {
		return errorf(ErrProtocol, "unexpected write acknowledgement")
	}
	o.transfer.done += int(o.n)
	o.transfer.endLocked(nil)
	return nil
}
