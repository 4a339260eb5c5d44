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

// A Request is a call received from a peer. Its response is sent on the same connection.
type Request struct {
	conn    *conn
	tag     uint32
	id      uint64
	flags   uint8
	sums    hgwire.Sums
	in      []byte
	handler func(*Request) // retained even if the handler is removed in the meantime

	// conn.mu guards the fields below.
	inline   bool // the handler runs in the goroutine of readLoop, which flushes the response
	answered bool // a response has been sent
	detached bool // Detach has been called
}

// Input returns the input of the call, which is at most Config.MaxBody bytes long. The handler may retain and modify
// it, except for a HandleInline handler, for which it is valid only until the handler returns.
func (r *Request) Input() []byte { return r.in }

// ID returns the ID of the RPC.
func (r *Request) ID() uint64 { return r.id }

// Peer returns the address of the calling process, which is suitable for Call. It consists of the peer's IP address and
// the port that it announced.
func (r *Request) Peer() string { return r.conn.addr }

// Node returns the node that serves the request.
func (r *Request) Node() *Node { return r.conn.node }

// Context returns a context that is canceled when the connection or the node is closed. Requests of the C protocol have
// no deadline, and the target is not notified of a cancellation.
func (r *Request) Context() context.Context { return r.conn.ctx }

// Remote returns memory lent by the origin of the request. It is accessed over the connection of the request.
func (r *Request) Remote(b Bulk) *Remote {
	return &Remote{ctx: r.conn.ctx, node: r.conn.node, conn: r.conn, addr: r.conn.addr, bulk: b}
}

// Detach allows the handler to return before Respond or RespondError is called.
func (r *Request) Detach() {
	r.conn.mu.Lock()
	r.detached = true
	r.conn.mu.Unlock()
}

// Respond sends a response with a copy of out. It does not block.
//
// The error matches ErrAnswered if a response has already been sent, ErrOverflow if out is longer than Config.MaxBody,
// and ErrNoMemory if four times Config.MaxBody of earlier output have not been read by the peer. Any other error is the
// one with which the connection was closed. A nil error does not mean that the response arrives. If the RPC has no
// response, Respond sends nothing.
func (r *Request) Respond(out []byte) error { return r.respond(0, out) }

// RespondError sends a response with the number of err. It does not block. Errors are those documented for Respond.
//
// A Code that has a number in C is sent unchanged, as are codes from 64 to 127. context.DeadlineExceeded is sent as
// HG_TIMEOUT and context.Canceled as HG_CANCELED. Every other error is sent as HG_OTHER_ERROR, including those, such as
// ErrNoMethod, whose number means that no handler ran. The text of err is not sent.
func (r *Request) RespondError(err error) error { return r.respond(codeInC(err), nil) }

// respond sends a response with the given code and output. If the output does not fit into a message, respond lends a
// copy of it to the peer.
func (r *Request) respond(code int8, out []byte) error {
	c, h := r.conn, hgwire.Response{Code: code, Flags: r.flags & hgwire.Checksums}
	var region *Region
	if size := hgwire.HeaderSize(h.Flags != 0); len(out)+size > c.node.cfg.MessageSize && r.flags&hgwire.NoReply == 0 {
		var err error
		if int64(len(out)) > c.node.cfg.MaxBody {
			return errorf(ErrOverflow, "mercury: respond: output of %d bytes, limit %d (Config.MaxBody)", len(out), c.node.cfg.MaxBody)
		}
		if region, err = c.node.newRegion([][]byte{slices.Clone(out)}, Read, c, nil); err != nil {
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
	if region != nil && !c.lendLocked(lentBody{r.tag, region}) {
		c.mu.Unlock()
		region.Close()
		return errorf(ErrNoMemory,
			"mercury: respond: output of %d bytes exceeds the limit of unread output (4*Config.MaxBody)", region.size)
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

// respondLocked appends the response r to c.out without sending it. c.mu must be held.
func (c *conn) respondLocked(tag uint32, r hgwire.Response, out []byte) {
	c.appendHeaderLocked(&xnet.Header{Op: xnet.Tagged, Tag: uint64(tag)}, hgwire.HeaderSize(r.Flags&hgwire.Checksums != 0)+len(out))
	c.out = r.Append(c.out, out)
}

// handleRequest handles the request b. It runs in the goroutine of readLoop. After an error, the connection must be
// closed.
func (c *conn) handleRequest(tag uint32, b []byte) error {
	_, b, err := hgwire.ParseSource(b) // the address is not needed, because the response is sent on this connection
	if err != nil {
		return errorf(ErrProtocol, "%v", err)
	}
	h, in, err := hgwire.ParseRequest(b)
	r := &Request{conn: c, tag: tag, id: h.ID, flags: h.Flags, sums: h.Sums, in: in}
	if err != nil {
		code := ErrProtocol
		if _, ok := errors.AsType[*hgwire.UnknownVersion](err); ok {
			code = codes.ErrVersion
			c.node.logRefusal(c.name, err)
		}
		c.refuseRequest(r, code)
		return nil
	}
	if !c.verifier.Header(h.Sums, h.Flags) || h.Flags&hgwire.More == 0 && !c.verifier.Payload(h.Sums, in) {
		c.refuseRequest(r, ErrChecksum)
		return nil
	}
	c.recordChecksums(h.Flags&hgwire.Checksums != 0)
	fn, ok := (*c.node.handlers.Load())[h.ID]
	r.handler = fn.serve
	switch {
	case !ok:
		c.refuseRequest(r, ErrNoMethod)
	case fn.inline && h.Flags&hgwire.More == 0:
		r.inline = true
		r.runHandler()
		c.mu.Lock()
		r.inline = false
		c.mu.Unlock()
	default:
		c.enqueue(r)
	}
	return nil
}

// refuseRequest queues a response with code to a request for which no handler was called. It queues nothing if the
// request wants no response.
func (c *conn) refuseRequest(r *Request, code Code) {
	if r.flags&hgwire.NoReply != 0 {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.respondLocked(r.tag, hgwire.Response{Code: int8(code), Flags: r.flags & hgwire.Checksums}, nil)
}

// enqueue starts a goroutine that runs the handler of r. If Config.MaxActive such goroutines are running, enqueue
// queues r instead. It refuses r with ErrAgain if the queue is full or Config.Budget is exhausted.
func (c *conn) enqueue(r *Request) {
	if !c.node.chargeBudget(int64(len(r.in))) {
		c.refuseRequest(r, ErrAgain)
		return
	}
	r.in = slices.Clone(r.in)
	c.mu.Lock()
	switch {
	case c.activeHandlers < c.node.cfg.MaxActive:
		c.activeHandlers++
		c.mu.Unlock()
		go c.runHandlers(r)
	case len(c.queuedRequests) < c.node.cfg.MaxQueued && c.err == nil:
		c.queuedRequests = append(c.queuedRequests, r)
		c.mu.Unlock()
	default:
		c.mu.Unlock()
		c.node.chargeBudget(-int64(len(r.in)))
		c.refuseRequest(r, ErrAgain)
	}
}

// runHandlers runs the handler of r and then those of queued requests. If a handler calls runtime.Goexit, as FailNow of
// package testing does, the queue continues in another goroutine.
func (c *conn) runHandlers(r *Request) {
	defer func() {
		if r == nil {
			return
		}
		if r = c.dequeue(); r != nil {
			go c.runHandlers(r)
		}
	}()
	for r != nil {
		r.serve()
		r = c.dequeue()
	}
}

// dequeue returns the next queued request. If there is none, it returns nil and no longer counts the goroutine as
// active.
func (c *conn) dequeue() (r *Request) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.queuedRequests) == 0 {
		c.activeHandlers--
		return nil
	}
	r, c.queuedRequests[0] = c.queuedRequests[0], nil
	c.queuedRequests = c.queuedRequests[1:]
	return r
}

// serve runs the handler of r. If the input did not fit into the message, serve reads it first.
func (r *Request) serve() {
	charged := int64(len(r.in))
	defer func() { r.conn.node.chargeBudget(-charged) }()
	defer r.conn.rescue()
	if r.flags&hgwire.More != 0 {
		in, code, err := r.fetchInput(&charged)
		if err != nil {
			if code != 0 {
				r.conn.mu.Lock()
				r.answered = true
				r.conn.mu.Unlock()
				r.conn.refuseRequest(r, code)
				r.conn.mu.Lock()
				r.conn.flushLocked(false)
			}
			return
		}
		r.in = in
	}
	r.runHandler()
}

// fetchInput reads input that is too long for a message from the origin's memory. If it fails, the returned code is the
// one to respond with, or 0 if the connection is closed. It adds the length of the input to *charged.
func (r *Request) fetchInput(charged *int64) ([]byte, Code, error) {
	var b hgwire.Bulk
	if _, err := b.Parse(r.in); err != nil {
		return nil, ErrProtocol, err
	}
	if b.Len > uint64(r.conn.node.cfg.MaxBody) || !r.conn.node.chargeBudget(int64(b.Len)) {
		return nil, ErrAgain, ErrOverflow
	}
	*charged += int64(b.Len)
	in := make([]byte, b.Len)
	ctx, cancel := r.conn.node.withTimeout(r.conn.ctx)
	if cancel != nil {
		defer cancel()
	}
	if _, err := r.Remote(Bulk{b}).Get(ctx, in, 0); err != nil {
		if r.conn.ctx.Err() != nil {
			return nil, 0, err
		}
		return nil, ErrProtocol, err
	}
	if r.flags&hgwire.NoReply != 0 {
		r.conn.acknowledge(r.tag, false)
	}
	if !r.conn.verifier.Payload(r.sums, in) {
		return nil, ErrChecksum, ErrChecksum
	}
	return in, 0, nil
}

// runHandler runs the handler and logs a panic. The response is HG_OTHER_ERROR if the handler panics before a response
// has been sent, or if it returns without having called Respond, RespondError or Detach.
func (r *Request) runHandler() {
	defer func() {
		p := recover()
		if p != nil {
			r.conn.node.logger().Error("mercury: a handler panicked", "rpc", fmt.Sprintf("%#x", r.id),
				"peer", r.conn.addr, "panic", p, "stack", string(debug.Stack()))
		}
		r.conn.mu.Lock()
		failed := !r.answered && (p != nil || !r.detached)
		r.conn.mu.Unlock()
		if failed {
			_ = r.respond(int8(otherError), nil)
		}
	}()
	r.handler(r)
}
