package qs

import (
	"context"

	"github.com/quicksilver-rpc/quicksilver/hg"
	"github.com/quicksilver-rpc/quicksilver/internal/hghook"
)

// callNow makes the call on the goroutine of the program. When it returns nothing of the call is in
// flight.
func (o *outgoingCall) callNow(ctx context.Context) error {
	if o.isPlain() {
		return o.callPlain(ctx)
	}
	return o.run(ctx)
}

// isPlain reports whether only the goroutine that makes the call can reach it: no interceptor may
// keep the Call or make several attempts, and nothing is lent. A Future, which other goroutines may
// cancel, does not use it.
func (o *outgoingCall) isPlain() bool {
	return o.home != nil && len(o.home.n.cfg.ClientInterceptors) == 0 && len(o.m.o.interceptors) == 0 &&
		!o.lends
}

// callPlain makes a plain call, see isPlain. It makes one attempt, and needs neither locks nor an
// attemptControl.
func (o *outgoingCall) callPlain(ctx context.Context) (err error) {
	ctx, stop, err := o.prepare(ctx)
	if stop != nil {
		defer stop()
	}
	if err == nil {
		if err = o.attemptPlain(ctx); err != nil {
			err = o.withFate(ctx, &o.top, o.m.name, err)
		}
	}
	return err
}

// resetPlain resets what a plain call has set, so that another call of its method to any Peer may
// use o. It reports false if it cannot: the call has failed, or a Balancer has seen o.
func (o *outgoingCall) resetPlain(err error) bool {
	if err != nil || o.home.single == nil {
		return false
	}
	o.Peer, o.home, o.callerCtx, o.Metadata, o.decodeTarget = Peer{}, nil, nil, hg.Metadata{}, nil
	return true
}

// attemptPlain makes the attempt of callPlain.
func (o *outgoingCall) attemptPlain(ctx context.Context) (err error) {
	p := o.Peer.p
	n := p.n
	id, err := n.idOf(o.m)
	if err != nil {
		return err
	}
	to := p.single
	var t backendLease // of a peer with several addresses
	if to == nil {
		if t, err = p.acquireAddr(&o.Call); err != nil {
			return err
		}
		to = t.backend
	}
	var h *hg.Handle
	// Deferred, since a codec, or another callback that runs in the wait, may panic or end the
	// goroutine.
	defer func() {
		if h != nil {
			_ = h.Close()
		}
		if t.backend != nil {
			p.finishAttempt(t, err)
		}
	}()
	if h, err = n.takeIdle(p.i, to.addr, id); err != nil {
		return err
	}
	if !o.Metadata.IsZero() {
		if err = h.SetMeta(o.Metadata.WithoutOwn()); err != nil {
			return err
		}
	}
	var out any
	if o.reply != nil {
		o.decodeTarget, out = o.reply, (*decodedOutput)(o)
	}
	err = hghook.CallTo(h, ctx, to.addr, uint64(id), o.In, out)
	if !o.Metadata.IsZero() {
		_ = h.SetMeta(hg.Metadata{}) // the next call sets its own
	}
	n.keepIdle(p.i, h)
	h = nil
	return err
}
