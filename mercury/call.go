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

// The tags of calls. A response and the acknowledgement of one come in the same kind of message, so no tag may stand for a call of
// each side: C counts from 1, a node that has dialed from firstTag, and one that has been dialed tagCount behind that.
const (
	firstTag = 1 << 30
	tagCount = 1 << 29
)

// A call waits for its response. The goroutine that removes it from conn.calls ends it, so it ends once.
type call struct {
	done   chan struct{} // has room for one
	out    []byte
	more   hgwire.Bulk // where the output is, if it travels apart
	sums   hgwire.Sums // of it
	err    error
	notify bool // waits for an acknowledgement
}

var calls = sync.Pool{New: func() any { return &call{done: make(chan struct{}, 1)} }}

func (k *call) end(out []byte, err error) {
	k.out, k.err = out, err
	k.done <- struct{}{}
}

// Call sends in to the RPC id at addr and waits for its output. in is the caller's again when Call returns. When ctx ends so
// does Call; the target is not told, and its answer is thrown away.
//
// The error is an *Error. It matches ErrRemote if the target answered, ErrUnreachable, ErrPeerLost, ErrTimeout, ErrCanceled or
// another code; FateOf says what became of the request.
func (n *Node) Call(ctx context.Context, addr string, id uint64, in []byte) ([]byte, error) {
	return n.do(ctx, "call", addr, id, in, 0)
}

// Notify sends in to the RPC id at addr, which gives no response: NotRun in an error is certain, but nil does not say that it ran.
// If in is too long for a message, Notify waits until the target has read it.
func (n *Node) Notify(ctx context.Context, addr string, id uint64, in []byte) error {
	_, err := n.do(ctx, "notify", addr, id, in, hgwire.NoReply)
	return err
}

const noAnswer = "no answer: the target may hang, or could not decode the request, which C does not answer"

func (n *Node) do(ctx context.Context, name, addr string, id uint64, in []byte, flags uint8) ([]byte, error) {
	ctx, cancel := n.bound(ctx)
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

// call sends a request and waits.
func (c *conn) call(ctx context.Context, id uint64, in []byte, flags uint8) ([]byte, Fate, error) {
	if ctx.Err() != nil {
		return nil, NotRun, ended(ctx, "")
	}
	var region *Region
	r := hgwire.Request{ID: id, Flags: flags}
	if len(in) > c.n.cfg.MessageSize-hgwire.SourceSize-hgwire.HeaderSize(flags&hgwire.Checksums != 0) {
		var err error
		if int64(len(in)) > hgwire.MaxBulk {
			return nil, NotRun, ErrOverflow
		}
		if region, err = c.n.lend([][]byte{in}, Read, c, nil); err != nil {
			return nil, NotRun, err
		}
		if flags&hgwire.Checksums != 0 {
			r.Sums.Payload = hgwire.Sum(in)
		}
		b := region.Bulk()
		in, _ = b.AppendProc(nil)
		r.Flags |= hgwire.More
	}
	k := calls.Get().(*call)
	*k = call{done: k.done, notify: flags&hgwire.NoReply != 0}
	tag, err := c.request1(ctx, k, &r, in)
	if err != nil || k.notify && region == nil {
		if region != nil {
			region.Close()
		}
		return nil, NotRun, err
	}
	select {
	case <-k.done:
	case <-ctx.Done():
		if c.giveUp(k, tag, region) {
			return nil, MaybeRan, ended(ctx, noAnswer)
		}
		<-k.done // it has been answered
	}
	if region != nil {
		region.Close()
	}
	out, more, sums, err := k.out, k.more, k.sums, k.err
	calls.Put(k)
	if e, ok := errors.AsType[*Error](err); ok {
		return nil, e.Fate, e.Err
	}
	if err == nil && !more.IsNull() {
		if out, err = c.fetch(ctx, tag, more, sums); err != nil {
			return nil, Ran, err
		}
	}
	return out, Ran, err
}

// request1 appends a request and sends it.
func (c *conn) request1(ctx context.Context, k *call, r *hgwire.Request, in []byte) (tag uint32, err error) {
	c.mu.Lock()
	for c.err == nil && len(c.out) > roomSize {
		if c.room == nil {
			c.room = make(chan struct{})
		}
		room := c.room
		c.mu.Unlock()
		select {
		case <-room:
		case <-ctx.Done():
			return 0, ended(ctx, "the peer does not read")
		}
		c.mu.Lock()
	}
	if c.err != nil {
		defer c.mu.Unlock()
		return 0, c.err
	}
	for {
		c.lastCall = (c.lastCall + 1) % tagCount
		if tag = c.firstTag + c.lastCall; c.calls[tag] == nil {
			break
		}
	}
	if !k.notify || r.Flags&hgwire.More != 0 {
		c.calls[tag] = k
	}
	h := xnet.Header{Op: xnet.Msg, Flags: xnet.Immediate, Tag: uint64(tag)}
	c.header(&h, hgwire.SourceSize+hgwire.HeaderSize(r.Flags&hgwire.Checksums != 0)+len(in))
	c.out = r.Append(hgwire.AppendSource(c.out, c.self), in)
	c.flushLocked(false)
	return tag, nil
}

// giveUp ends the wait for a response, and reports whether it did. A target that is slow may still read the input: it gets a copy.
func (c *conn) giveUp(k *call, tag uint32, region *Region) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.calls[tag] != k {
		return false
	}
	delete(c.calls, tag)
	if region != nil {
		region.keep()
		if !c.lendLocked(lentOutput{tag, region}) {
			region.Close()
		}
	}
	return true
}

// expected takes a response, or the acknowledgement of one, which is a single byte.
func (c *conn) expected(tag uint32, b []byte) error {
	ack := len(b) == 1
	c.mu.Lock()
	if ack && c.lent.release(tag) {
		c.mu.Unlock()
		return nil
	}
	k := c.calls[tag]
	if k == nil || k.notify != ack { // late: it was given up
		c.lent.release(tag)
		c.mu.Unlock()
		if r, _, err := hgwire.ParseResponse(b); err == nil && r.Flags&hgwire.More != 0 {
			c.acknowledge(tag, true)
		}
		return nil
	}
	delete(c.calls, tag)
	c.mu.Unlock()
	if ack {
		k.end(nil, nil)
		return nil
	}
	r, payload, err := hgwire.ParseResponse(b)
	if err == nil {
		c.saw(r.Flags&hgwire.Checksums != 0)
	}
	switch {
	case err != nil:
		err = &Error{Fate: Ran, Err: errorf(ErrProtocol, "%v", err)}
	case !c.verifier.Header(r.Sums, r.Flags):
		err = &Error{Fate: MaybeRan, Err: errorf(ErrChecksum, "%v: the header of the response", ErrChecksum)}
	case r.Code != 0:
		remote := &RemoteError{Code(r.Code)}
		err = &Error{Fate: Ran, Err: remote}
		if remote.refused() {
			err = &Error{Fate: NotRun, Err: remote}
		}
	case r.Flags&hgwire.More != 0:
		if _, err = k.more.Parse(payload); err != nil {
			err = &Error{Fate: Ran, Err: errorf(ErrProtocol, "%v", err)}
		} else if k.more.Eager != nil {
			k.more.Eager = slices.Clone(k.more.Eager)
		}
		k.sums = r.Sums
	case !c.verifier.Payload(r.Sums, payload):
		err = &Error{Fate: Ran, Err: errorf(ErrChecksum, "%v: the output", ErrChecksum)}
	default:
		k.end(slices.Clone(payload), nil)
		return nil
	}
	k.end(nil, err)
	return nil
}

// fetch reads what a message was too short for, and acknowledges it.
func (c *conn) fetch(ctx context.Context, tag uint32, b hgwire.Bulk, sums hgwire.Sums) ([]byte, error) {
	defer c.acknowledge(tag, false)
	if b.Len > uint64(c.n.cfg.MaxBody) {
		return nil, errorf(ErrOverflow, "output of %d bytes, want at most %d: Config.MaxBody", b.Len, c.n.cfg.MaxBody)
	}
	out := make([]byte, b.Len)
	r := Remote{n: c.n, conn: c, addr: c.addr, bulk: Bulk{b}}
	if _, err := r.Get(ctx, out, 0); err != nil {
		if e, ok := errors.AsType[*Error](err); ok {
			err = e.Err
		}
		return nil, err
	}
	if !c.verifier.Payload(sums, out) {
		return nil, errorf(ErrChecksum, "%v: the output", ErrChecksum)
	}
	return out, nil
}

// acknowledge tells the peer that what it has lent for tag is not needed any more.
func (c *conn) acknowledge(tag uint32, later bool) {
	c.mu.Lock()
	c.header(&xnet.Header{Op: xnet.Tagged, Tag: uint64(tag)}, 1)
	c.out = append(c.out, 0)
	c.flushLocked(later)
}

// maxLent is how much may be lent to a peer before what it has not asked for in lentIdle is taken away. What it reads is not: that would
// end the connection. The most that may be lent to it is four times Config.MaxBody, or maxLent if that is more.
const (
	maxLent  = 64 << 20
	lentIdle = 5 * time.Second
)

// lentOutputs are bodies that a peer may read until it acknowledges them.
type lentOutputs struct {
	order []lentOutput
	size  uint64
}

type lentOutput struct {
	tag    uint32
	region *Region
}

// lendLocked adds o to what the peer has, and reports whether there was room.
func (c *conn) lendLocked(o lentOutput) bool {
	l, size := &c.lent, o.region.size
	if l.size+size > maxLent {
		c.takeIdleLocked(size)
	}
	if len(l.order) > 0 && l.size+size > uint64(max(maxLent, 4*c.n.cfg.MaxBody)) {
		return false
	}
	o.region.used.Store(time.Now().UnixNano())
	l.order = append(l.order, o)
	l.size += size
	return true
}

// takeIdleLocked takes away the oldest of what the peer does not read, until there is room for size bytes.
func (c *conn) takeIdleLocked(size uint64) {
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
	for _, o := range slices.Clone(c.lent.order) {
		isRead := func(s *segment) bool { return reading[&s.mem] }
		if c.lent.size+size > maxLent && o.region.used.Load() < since && !slices.ContainsFunc(o.region.segments, isRead) {
			c.lent.release(o.tag)
		}
	}
}

func (l *lentOutputs) release(tag uint32) bool {
	i := slices.IndexFunc(l.order, func(o lentOutput) bool { return o.tag == tag })
	if i < 0 {
		return false
	}
	l.size -= l.order[i].region.size
	l.order[i].region.Close()
	l.order = slices.Delete(l.order, i, i+1)
	return true
}
