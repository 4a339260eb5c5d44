package qs

import (
	"context"

	"github.com/quicksilver-rpc/quicksilver/hg"
	"github.com/quicksilver-rpc/quicksilver/internal/hghook"
)

// callNow makes the call in the calling goroutine. When it returns, no part of the call is in
// flight.
func (o *outgoingCall) callNow(ctx context.Context) error {
	if o.isPlain() {
		return o.callPlain(ctx)
	}
	return o.run(ctx)
}

// isPlain reports whether only the calling goroutine can access the call. That is so if there are
// no interceptors, which could retain the Call or make several attempts, and if nothing is lent.
// isPlain must not be used for a Future, which other goroutines may cancel.
func (o *outgoingCall) isPlain() bool {
	return o.home != nil && len(o.home.n.cfg.ClientInterceptors) == 0 && len(o.m.o.interceptors) == 0 &&
		!o.lends
}

// callPlain makes a call for which isPlain returned true. It makes a single attempt, which needs
// neither locks nor an attemptControl.
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

// resetPlain resets the state of a plain call so that o can be reused for another call of its
// method to any Peer. It returns false if o cannot be reused, because the call failed or was passed
// to a Balancer.
func (o *outgoingCall) resetPlain(err error) bool {
	if err != nil || o.home.single == nil {
		return false
	}
	o.Peer, o.home, o.callerCtx, o.Metadata, o.decodeTarget = Peer{}, nil, nil, hg.Metadata{}, nil
	return true
}

// attemptPlain sends the request of a plain call once and waits for its response.
func (o *outgoingCall) attemptPlain(ctx context.Context) (err error) {
	p := o.Peer.p
	n := p.n
	id, err := n.idOf(o.m)
	if err != nil {
		return err
	}
	to := p.single
	var t backendLease // used only if the peer has several addresses
	if to == nil {
		if t, err = p.acquireAddr(&o.Call); err != nil {
			return err
		}
		to = t.backend
	}
	var h *hg.Handle
	// Deferred because a codec, or another callback that runs during the wait, may panic or call
	// runtime.Goexit.
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
		_ = h.SetMeta(hg.Metadata{}) // the next call sets its own metadata
	}
	n.keepIdle(p.i, h)
	h = nil
	return err
}
