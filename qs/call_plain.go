package qs

import (
	"context"

	"github.com/quicksilver-rpc/quicksilver/hg"
)

// callNow makes the call for the goroutine of the program that asked for it. When it returns nothing of it is under way.
func (o *outgoingCall) callNow(ctx context.Context) error {
	if o.isPlain() {
		return o.callPlain(ctx)
	}
	return o.run(ctx)
}

// isPlain reports whether only the goroutine that makes the call can reach it: there is no interceptor, which might keep the Call or make
// several attempts, and nothing is lent. A Future, which others may cancel, is not asked.
func (o *outgoingCall) isPlain() bool {
	return o.home != nil && len(o.home.n.cfg.ClientInterceptors) == 0 && len(o.m.o.interceptors) == 0 && !o.lends
}

// callPlain makes a call that isPlain: one attempt, without a lock and without what control keeps for those who end a call from outside.
func (o *outgoingCall) callPlain(ctx context.Context) (err error) {
	ctx, stop, err := o.prepare(ctx)
	defer stop()
	if err != nil {
		return err
	}
	if err = o.attemptPlain(ctx); err != nil {
		return o.withFate(ctx, &o.top, o.m.name, err)
	}
	return nil
}

// attemptPlain is the attempt of callPlain.
func (o *outgoingCall) attemptPlain(ctx context.Context) (err error) {
	p := o.Peer.p
	n := p.n
	id, err := n.idOf(o.m)
	if err != nil {
		return err
	}
	t, err := p.acquireAddr(&o.Call)
	if err != nil {
		return err
	}
	var h *hg.Handle
	defer func() { // deferred: a codec, or a callback of somebody else that runs in the wait, may panic or end the goroutine
		if h != nil {
			_ = h.Close()
		}
		p.finishAttempt(t, err)
	}()
	if h, err = n.takeHandle(p.i, t.at.addr, id); err != nil {
		return err
	}
	meta := o.Metadata.WithoutOwn()
	if !meta.IsZero() {
		if err = h.SetMeta(meta); err != nil {
			return err
		}
	}
	err = h.Call(ctx, o.In, nil)
	if err == nil && o.reply != nil {
		o.decodeTarget = o.reply
		err = h.Output((*decodedOutput)(o))
	}
	if !meta.IsZero() {
		_ = h.SetMeta(hg.Metadata{}) // of the next call
	}
	n.keepHandle(p.i, h)
	h = nil
	return err
}
