package mercury

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"slices"

	"github.com/quicksilver-rpc/quicksilver/mercury/internal/hgwire"
	"github.com/quicksilver-rpc/quicksilver/mercury/internal/xnet"
	"github.com/quicksilver-rpc/quicksilver/na/codes"
)

// A Request is a call that a peer has made. It is answered once, on the connection that it came on.
type Request struct {
	c     *conn
	tag   uint32
	id    uint64
	flags uint8
	sums  hgwire.Sums
	in    []byte
	fun   func(*Request) // its handler, also when that has been removed meanwhile

	// These are guarded by c.mu.
	inline   bool // its handler is on the goroutine that reads, which flushes
	answered bool
	detached bool
}

// Input returns what the origin sent, without headers, Config.MaxBody bytes at most. It is the handler's to keep and to change; only that of
// HandleInline is good just until the handler returns.
func (r *Request) Input() []byte { return r.in }

// ID returns the identity of the RPC.
func (r *Request) ID() uint64 { return r.id }

// Peer returns the address of the process that called: the one it has, with the port it says. It is good for Call.
func (r *Request) Peer() string { return r.c.addr }

// Node returns the node that serves the request.
func (r *Request) Node() *Node { return r.c.n }

// Context ends with the connection or the node. C's requests have no deadline, and nothing tells of one that was given up.
func (r *Request) Context() context.Context { return r.c.ctx }

// Remote returns the memory that the origin has lent, to be read and written over the connection of the request.
func (r *Request) Remote(b Bulk) *Remote {
	return &Remote{ctx: r.c.ctx, n: r.c.n, conn: r.c, addr: r.c.addr, bulk: b}
}

// Detach lets the handler return without an answer, which follows later.
func (r *Request) Detach() {
	r.c.mu.Lock()
	r.detached = true
	r.c.mu.Unlock()
}

// Respond answers with out, of which it makes a copy. It does not wait. The error matches ErrAnswered if there is an answer, ErrOverflow
// if out is longer than Config.MaxBody, ErrNoMemory if the peer has still to read four times as much, and why the connection ended if it did; nil does not say that the answer arrives.
// A request that wants no response gets none.
func (r *Request) Respond(out []byte) error { return r.respond(0, out) }

// RespondError answers with the number of err. It does not wait, and returns what Respond does. An error that carries a Code which is one of
// C's numbers is sent as it is, and so are codes from 64 to 127; context.DeadlineExceeded is HG_TIMEOUT and context.Canceled
// HG_CANCELED. Every other error is HG_OTHER_ERROR, also those whose number means that no handler ran, as ErrNoMethod does. The text of err stays
// here.
func (r *Request) RespondError(err error) error { return r.respond(codeInC(err), nil) }

func (r *Request) respond(code int8, out []byte) error {
	c, h := r.c, hgwire.Response{Code: code, Flags: r.flags & hgwire.Checksums}
	var region *Region
	if size := hgwire.HeaderSize(h.Flags != 0); len(out)+size > c.n.cfg.MessageSize && r.flags&hgwire.NoReply == 0 {
		var err error
		if int64(len(out)) > c.n.cfg.MaxBody {
			return errorf(ErrOverflow, "mercury: respond: %d bytes, want at most %d: Config.MaxBody", len(out), c.n.cfg.MaxBody)
		}
		if region, err = c.n.lend([][]byte{slices.Clone(out)}, Read, c, nil); err != nil {
			return err
		}
		if h.Flags != 0 {
			h.Sums.Payload = hgwire.Sum(out)
		}
		b := region.Bulk()
		out, _ = b.AppendProc(nil)
		h.Flags |= hgwire.More
	}
	c.mu.Lock()
	if r.answered || c.err != nil {
		defer c.mu.Unlock()
		if region != nil {
			region.Close()
		}
		if r.answered {
			return ErrAnswered
		}
		return c.err
	}
	if region != nil && !c.lendLocked(lentOutput{r.tag, region}) {
		c.mu.Unlock()
		region.Close()
		return errorf(ErrNoMemory, "mercury: respond: %d bytes, and the peer has still to read output of four times Config.MaxBody", region.size)
	}
	r.answered = true
	if r.flags&hgwire.NoReply != 0 {
		c.mu.Unlock()
		return nil
	}
	c.respondLocked(r.tag, h, out)
	c.flushLocked(r.inline)
	return nil
}

func (c *conn) respondLocked(tag uint32, r hgwire.Response, out []byte) {
	c.header(&xnet.Header{Op: xnet.Tagged, Tag: uint64(tag)}, hgwire.HeaderSize(r.Flags&hgwire.Checksums != 0)+len(out))
	c.out = r.Append(c.out, out)
}

// request takes a request. It runs on the goroutine that reads.
func (c *conn) request(tag uint32, b []byte) error {
	_, b, err := hgwire.ParseSource(b) // the name is not needed: the answer takes the way back
	if err != nil {
		return errorf(ErrProtocol, "%v", err)
	}
	h, in, err := hgwire.ParseRequest(b)
	r := &Request{c: c, tag: tag, id: h.ID, flags: h.Flags, sums: h.Sums, in: in}
	if err != nil {
		code := ErrProtocol
		if _, ok := errors.AsType[*hgwire.UnknownVersion](err); ok {
			code = codes.ErrVersion
			c.n.refused(c.name, err)
		}
		c.refuse(r, code)
		return nil
	}
	if !c.verifier.Header(h.Sums, h.Flags) || h.Flags&hgwire.More == 0 && !c.verifier.Payload(h.Sums, in) {
		c.refuse(r, ErrChecksum)
		return nil
	}
	c.saw(h.Flags&hgwire.Checksums != 0)
	fn, ok := (*c.n.handlers.Load())[h.ID]
	r.fun = fn.fun
	switch {
	case !ok:
		c.refuse(r, ErrNoMethod)
	case fn.inline && h.Flags&hgwire.More == 0:
		r.inline = true
		r.run()
		c.mu.Lock()
		r.inline = false
		c.mu.Unlock()
	default:
		c.enqueue(r)
	}
	return nil
}

// refuse answers a request that no handler has seen.
func (c *conn) refuse(r *Request, code Code) {
	if r.flags&hgwire.NoReply != 0 {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.respondLocked(r.tag, hgwire.Response{Code: int8(code), Flags: r.flags & hgwire.Checksums}, nil)
}

// enqueue gives r a goroutine, now or when another one has ended.
func (c *conn) enqueue(r *Request) {
	if !c.n.charge(int64(len(r.in))) {
		c.refuse(r, ErrAgain)
		return
	}
	r.in = slices.Clone(r.in)
	c.mu.Lock()
	switch {
	case c.active < c.n.cfg.MaxActive:
		c.active++
		c.mu.Unlock()
		go c.work(r)
	case len(c.queue) < c.n.cfg.MaxQueued && c.err == nil:
		c.queue = append(c.queue, r)
		c.mu.Unlock()
	default:
		c.mu.Unlock()
		c.n.charge(-int64(len(r.in)))
		c.refuse(r, ErrAgain)
	}
}

// work runs r and those that wait. A handler that ends the goroutine (runtime.Goexit, as FailNow of a test does) has them on another.
func (c *conn) work(r *Request) {
	defer func() {
		if r == nil {
			return
		}
		if r = c.dequeue(); r != nil {
			go c.work(r)
		}
	}()
	for r != nil {
		r.serve()
		r = c.dequeue()
	}
}

// dequeue returns the next request that waits, or nil: then one handler less runs.
func (c *conn) dequeue() (r *Request) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.queue) == 0 {
		c.active--
		return nil
	}
	r, c.queue[0] = c.queue[0], nil
	c.queue = c.queue[1:]
	return r
}

func (r *Request) serve() {
	charged := int64(len(r.in))
	defer func() { r.c.n.charge(-charged) }()
	defer r.c.rescue()
	if r.flags&hgwire.More != 0 {
		in, code, err := r.fetch(&charged)
		if err != nil {
			if code != 0 {
				r.c.mu.Lock()
				r.answered = true
				r.c.mu.Unlock()
				r.c.refuse(r, code)
				r.c.mu.Lock()
				r.c.flushLocked(false)
			}
			return
		}
		r.in = in
	}
	r.run()
}

// fetch reads input that was too long for a message. The code is what the origin is answered, 0 if it is lost.
func (r *Request) fetch(charged *int64) ([]byte, Code, error) {
	var b hgwire.Bulk
	if _, err := b.Parse(r.in); err != nil {
		return nil, ErrProtocol, err
	}
	if b.Len > uint64(r.c.n.cfg.MaxBody) || !r.c.n.charge(int64(b.Len)) {
		return nil, ErrAgain, ErrOverflow
	}
	*charged += int64(b.Len)
	in := make([]byte, b.Len)
	ctx, cancel := r.c.n.bound(r.c.ctx)
	if cancel != nil {
		defer cancel()
	}
	if _, err := r.Remote(Bulk{b}).Get(ctx, in, 0); err != nil {
		if r.c.ctx.Err() != nil {
			return nil, 0, err
		}
		return nil, ErrProtocol, err
	}
	if r.flags&hgwire.NoReply != 0 {
		r.c.acknowledge(r.tag, false)
	}
	if !r.c.verifier.Payload(r.sums, in) {
		return nil, ErrChecksum, ErrChecksum
	}
	return in, 0, nil
}

// run runs the handler. One that panics, which is logged, or returns without an answer, has failed.
func (r *Request) run() {
	defer func() {
		p := recover()
		if p != nil {
			r.c.n.log().Error("mercury: a handler panicked", "rpc", fmt.Sprintf("%#x", r.id), "peer", r.c.addr, "panic", p, "stack", string(debug.Stack()))
		}
		r.c.mu.Lock()
		failed := !r.answered && (p != nil || !r.detached)
		r.c.mu.Unlock()
		if failed {
			_ = r.respond(int8(otherError), nil)
		}
	}()
	r.fun(r)
}
