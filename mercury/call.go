package mercury

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/quicksilver-rpc/quicksilver/mercury/internal/hgwire"
	"github.com/quicksilver-rpc/quicksilver/mercury/internal/xnet"
)

// The two sides of a connection must use different tags for their calls, because a response and the acknowledgement of
// a response arrive in the same kind of message. C counts from 1. A node that has dialed the connection starts at
// firstTag, and one that has accepted it starts at firstTag+tagCount.
const (
	firstTag = 1 << 30
	tagCount = 1 << 29
)

// A pendingCall is a call that is waiting for its response. A goroutine that removes a pendingCall from conn.calls must
// complete it. This ensures that each call is completed only once.
type pendingCall struct {
	done    chan struct{} // has one slot, filled by complete
	out     []byte
	outBulk hgwire.Bulk // handle of the output, if it is too long for a message
	sums    hgwire.Sums // checksums of the output in outBulk
	err     error
	notify  bool // the call is a Notify that is waiting for an acknowledgement
}

// callPool holds pendingCalls for reuse.
var callPool = sync.Pool{New: func() any { return &pendingCall{done: make(chan struct{}, 1)} }}

// complete sets the result of k and wakes the goroutine that is waiting for it.
func (k *pendingCall) complete(out []byte, err error) {
	k.out, k.err = out, err
	k.done <- struct{}{}
}

// Call sends in to the RPC id at addr and blocks until its output has arrived or ctx is done.
//
//   - After Call has returned, in is no longer accessed.
//   - When ctx is done, the target is not notified, and its response is discarded when it arrives.
//   - The error is an *Error. It matches ErrRemote if the target responded with an error, and otherwise ErrUnreachable,
//     ErrPeerLost, ErrTimeout, ErrCanceled or another code. FateOf reports whether the request has run.
func (n *Node) Call(ctx context.Context, addr string, id uint64, in []byte) ([]byte, error) {
	return n.callWithDeadline(ctx, "call", addr, id, in, 0)
}

// Notify sends in to the RPC id at addr, which has no response. If the error has the fate NotRun, the request certainly
// did not run, but a nil error does not mean that it ran. If in is too long for a message, Notify blocks until the
// target has read it.
func (n *Node) Notify(ctx context.Context, addr string, id uint64, in []byte) error {
	_, err := n.callWithDeadline(ctx, "notify", addr, id, in, hgwire.NoReply)
	return err
}

// noResponseText is part of the error for a call that received no response.
const noResponseText = "no response: the target hangs, or a C target could not decode the request"

// callWithDeadline makes a call or a notification. It applies Config.Timeout if ctx has no deadline.
func (n *Node) callWithDeadline(ctx context.Context, name, addr string, id uint64, in []byte, flags uint8) ([]byte, error) {
	ctx, cancel := n.withTimeout(ctx)
	if cancel != nil {
		defer cancel()
	}
	fate := NotRun
	var out []byte
	c, err := n.connTo(ctx, addr)
	if err == nil {
		var sums bool
		if sums, err = c.checksums(ctx); err == nil {
			if sums {
				flags |= hgwire.Checksums
			}
			out, fate, err = c.call(ctx, id, in, flags)
		}
	}
	if err != nil {
		return nil, &Error{name, addr, id, fate, err}
	}
	return out, nil
}

// call sends a request and waits for its response or, for a notification with long input, for its acknowledgement. It
// returns the output and the fate of the request.
func (c *conn) call(ctx context.Context, id uint64, in []byte, flags uint8) ([]byte, Fate, error) {
	if ctx.Err() != nil {
		return nil, NotRun, contextError(ctx, "")
	}
	var region *Region
	r := hgwire.Request{ID: id, Flags: flags}
	if len(in) > c.node.cfg.MessageSize-hgwire.SourceSize-hgwire.HeaderSize(flags&hgwire.Checksums != 0) {
		var err error
		if int64(len(in)) > hgwire.MaxBulk {
			return nil, NotRun, ErrOverflow
		}
		if region, err = c.node.newRegion([][]byte{in}, Read, c, nil); err != nil {
			return nil, NotRun, err
		}
		if flags&hgwire.Checksums != 0 {
			r.Sums.Payload = hgwire.Sum(in)
		}
		b := region.Bulk()
		in, _ = b.AppendProc(nil)
		r.Flags |= hgwire.More
	}
	k := callPool.Get().(*pendingCall)
	*k = pendingCall{done: k.done, notify: flags&hgwire.NoReply != 0}
	tag, err := c.sendRequest(ctx, k, &r, in)
	if err != nil || k.notify && region == nil {
		if region != nil {
			region.Close()
		}
		return nil, NotRun, err
	}
	select {
	case <-k.done:
	case <-ctx.Done():
		if c.abandonCall(k, tag, region) {
			return nil, MaybeRan, contextError(ctx, noResponseText)
		}
		<-k.done // the response arrived first
	}
	if region != nil {
		region.Close()
	}
	out, more, sums, err := k.out, k.outBulk, k.sums, k.err
	callPool.Put(k)
	if e, ok := errors.AsType[*Error](err); ok {
		return nil, e.Fate, e.Err
	}
	if err == nil && !more.IsNull() {
		if out, err = c.fetchOutput(ctx, tag, more, sums); err != nil {
			return nil, Ran, err
		}
	}
	return out, Ran, err
}

// sendRequest sends r with input in under a new tag. It registers k under that tag if a response or an acknowledgement
// is expected. It blocks while too much output is queued for the peer.
func (c *conn) sendRequest(ctx context.Context, k *pendingCall, r *hgwire.Request, in []byte) (tag uint32, err error) {
	c.mu.Lock()
	for c.err == nil && len(c.out) > roomSize {
		if c.roomFreed == nil {
			c.roomFreed = make(chan struct{})
		}
		room := c.roomFreed
		c.mu.Unlock()
		select {
		case <-room:
		case <-ctx.Done():
			return 0, contextError(ctx, "the peer does not read")
		}
		c.mu.Lock()
	}
	if c.err != nil {
		defer c.mu.Unlock()
		return 0, c.err
	}
	for {
		c.lastCall = (c.lastCall + 1) % tagCount
		tag = c.firstTag + c.lastCall
		if c.calls[tag] == nil {
			break
		}
	}
	if !k.notify || r.Flags&hgwire.More != 0 {
		c.calls[tag] = k
	}
	h := xnet.Header{Op: xnet.Msg, Flags: xnet.Immediate, Tag: uint64(tag)}
	c.appendHeaderLocked(&h, hgwire.SourceSize+hgwire.HeaderSize(r.Flags&hgwire.Checksums != 0)+len(in))
	c.out = r.Append(hgwire.AppendSource(c.out, c.self), in)
	c.flushLocked(false)
	return tag, nil
}

// abandonCall stops waiting for the response to call k. It returns false if the response has already arrived. If region
// is not nil, it holds long input that a slow target may still read, so abandonCall replaces its memory with a copy,
// which remains lent.
func (c *conn) abandonCall(k *pendingCall, tag uint32, region *Region) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.calls[tag] != k {
		return false
	}
	delete(c.calls, tag)
	if region != nil {
		region.replaceWithCopies()
		if !c.lendLocked(lentBody{tag, region}) {
			region.Close()
		}
	}
	return true
}

// handleExpected handles the response or acknowledgement b for the call with the given tag. An acknowledgement is a
// single byte.
func (c *conn) handleExpected(tag uint32, b []byte) error {
	ack := len(b) == 1
	c.mu.Lock()
	if ack && c.lentOut.release(tag) {
		c.mu.Unlock()
		return nil
	}
	k := c.calls[tag]
	if k == nil || k.notify != ack { // the call was abandoned
		c.lentOut.release(tag)
		c.mu.Unlock()
		if r, _, err := hgwire.ParseResponse(b); err == nil && r.Flags&hgwire.More != 0 {
			c.acknowledge(tag, true)
		}
		return nil
	}
	delete(c.calls, tag)
	c.mu.Unlock()
	if ack {
		k.complete(nil, nil)
		return nil
	}
	r, payload, err := hgwire.ParseResponse(b)
	if err == nil {
		c.recordChecksums(r.Flags&hgwire.Checksums != 0)
	}
	switch {
	case err != nil:
		err = &Error{Fate: Ran, Err: errorf(ErrProtocol, "%v", err)}
	case !c.verifier.Header(r.Sums, r.Flags):
		err = &Error{Fate: MaybeRan, Err: errorf(ErrChecksum, "%v in the response header", ErrChecksum)}
	case r.Code != 0:
		remote := &RemoteError{Code(r.Code)}
		err = &Error{Fate: Ran, Err: remote}
		if remote.isRefusal() {
			err = &Error{Fate: NotRun, Err: remote}
		}
	case r.Flags&hgwire.More != 0:
		if _, err = k.outBulk.Parse(payload); err != nil {
			err = &Error{Fate: Ran, Err: errorf(ErrProtocol, "%v", err)}
		} else if k.outBulk.Eager != nil {
			k.outBulk.Eager = slices.Clone(k.outBulk.Eager)
		}
		k.sums = r.Sums
	case !c.verifier.Payload(r.Sums, payload):
		err = &Error{Fate: Ran, Err: errorf(ErrChecksum, "%v in the output", ErrChecksum)}
	default:
		k.complete(slices.Clone(payload), nil)
		return nil
	}
	k.complete(nil, err)
	return nil
}

// fetchOutput reads the output of a call from memory b of the target, which lends output that is too long for a
// message. It then acknowledges the output.
func (c *conn) fetchOutput(ctx context.Context, tag uint32, b hgwire.Bulk, sums hgwire.Sums) ([]byte, error) {
	defer c.acknowledge(tag, false)
	if b.Len > uint64(c.node.cfg.MaxBody) {
		return nil, errorf(ErrOverflow, "output of %d bytes, limit %d (Config.MaxBody)", b.Len, c.node.cfg.MaxBody)
	}
	out := make([]byte, b.Len)
	r := Remote{node: c.node, conn: c, addr: c.addr, bulk: Bulk{b}}
	if _, err := r.Get(ctx, out, 0); err != nil {
		if e, ok := errors.AsType[*Error](err); ok {
			err = e.Err
		}
		return nil, err
	}
	if !c.verifier.Payload(sums, out) {
		return nil, errorf(ErrChecksum, "%v in the output", ErrChecksum)
	}
	return out, nil
}

// acknowledge notifies the peer that the memory that it lent for the call with the given tag is no longer needed. If
// later is set, the acknowledgement is only queued, and the caller must flush it.
func (c *conn) acknowledge(tag uint32, later bool) {
	c.mu.Lock()
	c.appendHeaderLocked(&xnet.Header{Op: xnet.Tagged, Tag: uint64(tag)}, 1)
	c.out = append(c.out, 0)
	c.flushLocked(later)
}

const (
	// When a new body would increase the number of bytes lent to a peer above maxLent, older bodies that the peer has
	// not read for lentIdle are revoked. A body that is being read is not revoked, because that would close the
	// connection. The number of bytes lent to a peer never exceeds maxLent or, if that is more, four times
	// Config.MaxBody, unless a single body does.
	maxLent  = 64 << 20
	lentIdle = 5 * time.Second
)

// lentBodies holds the bodies that a peer may read until it acknowledges them.
type lentBodies struct {
	bodies []lentBody // oldest first
	size   uint64     // total size in bytes
}

// A lentBody is the input or output of the call with the given tag.
type lentBody struct {
	tag    uint32
	region *Region
}

// lendLocked adds o to the bodies lent to the peer. It returns false, without adding o, if that would exceed the limit
// described at maxLent. c.mu must be held.
func (c *conn) lendLocked(o lentBody) bool {
	l, size := &c.lentOut, o.region.size
	if l.size+size > maxLent {
		c.revokeIdleLocked(size)
	}
	if len(l.bodies) > 0 && l.size+size > uint64(max(maxLent, 4*c.node.cfg.MaxBody)) {
		return false
	}
	o.region.lastUsed.Store(time.Now().UnixNano())
	l.bodies = append(l.bodies, o)
	l.size += size
	return true
}

// revokeIdleLocked revokes bodies that the peer has not read for lentIdle, oldest first, until size more bytes can be
// lent without exceeding maxLent. It skips bodies that are being read. c.mu must be held.
func (c *conn) revokeIdleLocked(size uint64) {
	reading := map[*memory]bool{}
	for _, j := range append(slices.Clone(c.jobs), c.job) {
		if j == nil {
			continue
		}
		for _, s := range j.spans {
			reading[s.mem] = true
		}
	}
	since := time.Now().Add(-lentIdle).UnixNano()
	for _, o := range slices.Clone(c.lentOut.bodies) {
		isRead := func(s *segment) bool { return reading[&s.mem] }
		if c.lentOut.size+size > maxLent && o.region.lastUsed.Load() < since && !slices.ContainsFunc(o.region.segments, isRead) {
			c.lentOut.release(o.tag)
		}
	}
}

// release revokes and removes the body with the given tag, and reports whether there was one.
func (l *lentBodies) release(tag uint32) bool {
	i := slices.IndexFunc(l.bodies, func(o lentBody) bool { return o.tag == tag })
	if i < 0 {
		return false
	}
	l.size -= l.bodies[i].region.size
	l.bodies[i].region.Close()
	l.bodies = slices.Delete(l.bodies, i, i+1)
	return true
}
