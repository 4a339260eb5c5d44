package quicksilver

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/quicksilver-rpc/quicksilver/hg"
	"github.com/quicksilver-rpc/quicksilver/na"
)

// An outgoing is a Call at its origin.
//
//	run ─ interceptors ─► attempt: lend ─► hg.Handle.Call ─► take back what was lent: nobody touches it any more
//	                         ▲ again, by an interceptor that calls next again
type outgoing struct {
	Call
	m      *method
	reply  any      // where the answer is decoded to
	filled *[]int64 // of the answer; nil without Sinks
}

func (o *outgoing) begin(m *method, to Peer, ctl *control) {
	o.m = m
	o.Call.Method, o.Call.Options, o.Peer, o.Attempt, o.ctl = m.name, m.o, to, 1, ctl
}

func (o *outgoing) run(ctx context.Context) error {
	if o.Peer.p == nil {
		return noPeer(o.m.name)
	}
	if c, ok := ctx.Value(metaKey{}).(carried); ok {
		if c.err != nil {
			return &hg.Error{Op: "forward", RPC: o.m.name, Peer: o.Peer.Addr(), Fate: NotRun, Err: c.err}
		}
		o.Meta = c.m
	}
	is := o.Peer.p.n.cfg.Client
	if len(is) == 0 {
		return o.attempt(ctx)
	}
	return chain(ctx, is, &o.Call, o.attempt)
}

// attempt makes the call once.
func (o *outgoing) attempt(ctx context.Context) (err error) {
	if o.Peer.p == nil {
		return noPeer(o.m.name)
	}
	p := o.Peer.p
	n := p.n
	id, err := n.idOf(o.m)
	if err != nil {
		return err
	}
	to, place := p.pick()
	in := o.Call.In
	if len(o.m.fields) > 0 {
		l := &loans{n: n, hctx: n.all[p.i], m: o.m}
		defer func() { err = l.end(o, err) }()
		if in, err = l.lend(o.Call.In); err != nil {
			return &hg.Error{Op: "forward", RPC: o.m.name, Peer: to, Fate: NotRun, Err: err}
		}
		if o.ctl != nil {
			o.ctl.lend(l)
		}
	}
	h, err := n.handle(p.i, to, id)
	if err != nil {
		return err
	}
	ended := false
	defer func() {
		if !ended { // a callback of somebody else has panicked in the wait
			_ = h.Close()
		}
	}()
	said := !o.Meta.IsZero()
	if said {
		err = h.SetMeta(o.Meta)
	}
	if err == nil {
		err = o.call(ctx, h, in)
	}
	if said {
		_ = h.SetMeta(hg.Meta{}) // of the next call
	}
	if len(n.cfg.Client) > 0 {
		o.Answer = h.OutputMeta()
	}
	ended = true
	n.keep(p.i, h)
	if err != nil && suspect(err) {
		p.failed(place)
	}
	return err
}

// call makes the call with h, which others may take back meanwhile if there is a control.
func (o *outgoing) call(ctx context.Context, h *hg.Handle, in any) error {
	if o.ctl == nil {
		return h.Call(ctx, in, o.reply)
	}
	if err := o.ctl.begin(h, o); err != nil {
		return err
	}
	defer o.ctl.end()
	err := h.Call(ctx, in, o.reply)
	if !o.stalledOut() {
		return err
	}
	if e, ok := errors.AsType[*hg.Error](err); ok && ctx.Err() == nil && hg.CodeOf(err) == hg.ErrCanceled {
		late := *e
		late.Err = na.WithText(hg.ErrTimeout, fmt.Sprintf("no answer and no byte for %v (RetryPolicy.Stall)", o.stall))
		return &late
	}
	return err
}

// suspect reports whether an error speaks against the address that the call went to.
func suspect(err error) bool {
	if r, ok := hg.RemoteOf(err); ok {
		return r.Refused && (r.Code == hg.ErrClosed || r.Code == NotReady || r.Code == Unavailable)
	}
	switch hg.CodeOf(err) {
	case hg.ErrPeerLost, hg.ErrUnreachable, hg.ErrTimeout:
		return true
	}
	return false
}

// idOf returns the id of a method, which is made known to the class if it is not.
func (n *Node) idOf(m *method) (hg.ID, error) {
	if id, ok := n.known.Load(m); ok {
		return id.(hg.ID), nil
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	id := hg.HashName(m.name)
	if _, ok := n.class.Registered(m.name); !ok {
		var err error
		if id, err = n.class.RegisterRPC(hg.RPC{Name: m.name, OneWay: m.oneWay, Codec: m.o.Codec, Shape: m.shape}); err != nil {
			return 0, fmt.Errorf("quicksilver: method %s: %w", m.name, err)
		}
	}
	n.known.Store(m, id)
	return id, nil
}

// drained waits until nothing of a node that was closed uses memory any more.
func (n *Node) drained() {
	for _, hctx := range n.all {
		_ = hctx.WaitFor(context.Background(), closeTime, never)
	}
}

// A control is how a call under way is taken back by others than its own goroutine.
type control struct {
	mu      sync.Mutex // guards the fields below
	h       *hg.Handle // of the attempt under way
	loans   *loans     // likewise
	stopped error      // no attempt is begun any more
	stalled bool       // the attempt was given up
	watch   *na.Op
	moved   int64 // at the last look
}

// begin begins an attempt with h.
func (c *control) begin(h *hg.Handle, o *outgoing) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.stopped != nil {
		return &hg.Error{Op: "forward", RPC: o.m.name, Peer: h.Peer(), Fate: NotRun, Err: c.stopped}
	}
	c.h, c.stalled, c.moved = h, false, 0
	if o.stall > 0 {
		c.look(h, o.stall, o.withdraw)
	}
	return nil
}

// end ends it.
func (c *control) end() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.h = nil
	if c.watch != nil {
		c.watch.Cancel()
		c.watch = nil
	}
}

func (c *control) lend(l *loans) {
	c.mu.Lock()
	c.loans = l
	c.mu.Unlock()
}

// stalledOut reports whether the last attempt was given up because nothing came.
func (o *outgoing) stalledOut() bool {
	o.ctl.mu.Lock()
	defer o.ctl.mu.Unlock()
	return o.ctl.stalled
}

// look gives the attempt up if nothing has been moved when stall has passed, and else looks again. Locked.
func (c *control) look(h *hg.Handle, stall, withdraw time.Duration) {
	nctx := h.Queue().NA()
	op := nctx.NewOp(func(op *na.Op, r na.Result) {
		c.mu.Lock()
		defer c.mu.Unlock()
		if r.Err != nil || c.watch != op {
			return
		}
		c.watch = nil
		if c.loans != nil {
			if moved := c.loans.moved(); moved > c.moved {
				c.moved = moved
				c.look(h, stall, withdraw)
				return
			}
		}
		c.stalled = true
		if withdraw <= 0 {
			h.Abandon()
			return
		}
		_ = h.Withdraw(withdraw, func(_ *hg.Handle, r hg.WithdrawResult) {
			c.mu.Lock()
			defer c.mu.Unlock()
			if r != hg.Withdrawn && c.h == h && c.stalled {
				h.Abandon()
			}
		})
	})
	if nctx.Timer(op, stall) == nil {
		c.watch = op
	}
}
