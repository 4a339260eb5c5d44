package qs

import (
	"context"
	"sync"

	"github.com/quicksilver-rpc/quicksilver/internal/hghook"
)

// An openCall is a call with streams without a goroutine. Such a call may last for days, and the
// stack of a goroutine would be most of its memory. The caller's goroutine begins it without
// waiting. It ends in a callback, or on a goroutine if its end may take long. In between an
// idleDriver makes sure that its context is driven.
//
//	begin ─► hg.Handle.Call ─ the call ends, or ctx is done ─► onEnd
//	  └─ fails: the call is over
//
// A call with interceptors, which are functions that block, has a goroutine; so has every call in
// the simulator.
type openCall struct {
	f *futureCall

	mu      sync.Mutex // guards the fields below; begin and onEnd hold it throughout
	x       exchange
	ctx     context.Context
	stop    context.CancelFunc
	open    bool        // the call is in flight
	unwatch func() bool // stops watching ctx
}

// needsNoGoroutine reports whether the call can be an openCall.
func (o *outgoingCall) needsNoGoroutine() bool {
	return o.streams != nil && len(o.allInterceptors(o.home.n)) == 0 && !o.home.n.hctx.NA().Scheduled()
}

// begin begins the call. If that fails the call is over.
func (k *openCall) begin(ctx context.Context) {
	f := k.f
	k.mu.Lock()
	defer k.mu.Unlock()
	returned := false
	defer func() {
		if !k.open {
			f.onEnd(ctx, returned, recover())
		}
	}()
	err := k.forward(ctx)
	if err != nil {
		f.err = hghook.EndedBy(f.ctx, err)
	}
	returned = true
}

// forward sends the request.
func (k *openCall) forward(ctx context.Context) (err error) {
	o := k.f.o
	if ctx, k.stop, err = o.prepare(ctx); k.stop == nil {
		k.stop = func() {}
	}
	k.x, k.ctx = exchange{o: o, c: &o.Call}, ctx
	defer func() { // deferred: a codec may panic, or end the goroutine
		if !k.open {
			k.cleanUp(&err)
		}
	}()
	if err != nil {
		return err
	}
	if err = k.x.prepareHandle(ctx, &o.top); err != nil {
		return err
	}
	hghook.OnEnd(k.x.h, k.onHandleEnd)
	if err = k.x.h.Call(ctx, k.x.in, nil); err != nil {
		return k.x.takeAnswer(ctx, err)
	}
	k.open = true
	o.home.n.beginDriving(o.home.i)
	k.unwatch = context.AfterFunc(ctx, k.onContextEnd)
	return nil
}

// onHandleEnd is called when the call of the handle has ended, with locks of package hg held, and
// must not block. It runs onEnd on a goroutine if that may take long: the codec decodes an answer,
// or what was lent is taken back. Otherwise, with items only, a callback of the context runs it.
func (k *openCall) onHandleEnd() {
	o := k.f.o
	if o.reply != nil || len(o.m.fields) > 0 || o.home.n.contexts[o.home.i].Post(k.onEnd) != nil {
		o.home.n.spawn(k.onEnd)
	}
}

// onContextEnd ends the call when its context is done.
func (k *openCall) onContextEnd() {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.open {
		hghook.Outlived(k.x.h)
	}
}

// onEnd completes the call.
func (k *openCall) onEnd() {
	f := k.f
	k.mu.Lock()
	defer k.mu.Unlock()
	if !k.open { // begin failed, and has completed the call
		return
	}
	k.open = false
	k.unwatch()
	f.o.home.n.endDriving(f.o.home.i)
	returned := false
	defer func() { f.onEnd(k.ctx, returned, recover()) }()
	f.err = hghook.EndedBy(f.ctx, k.takeAnswer())
	returned = true
}

// takeAnswer takes the answer, and releases what the call holds.
func (k *openCall) takeAnswer() (err error) {
	defer k.cleanUp(&err)
	return k.x.takeAnswer(k.ctx, hghook.EndCall(k.x.h, k.ctx))
}

// cleanUp releases what the call holds, and sets the fate of *err.
func (k *openCall) cleanUp(err *error) {
	defer k.stop()
	o := k.f.o
	k.x.finish(err)
	_ = o.closeScope(&o.top) // nil: its only attempt has ended
	if *err != nil {
		*err = o.withFate(k.ctx, &o.top, o.m.name, *err)
	}
}

// An idleDriver makes sure that a context is driven while openCalls are in flight. Usually
// goroutines that wait for something drive it. If none does for a moment, or many wait, a goroutine
// stands in.
type idleDriver struct {
	mu        sync.Mutex // guards the fields below
	openCalls int        // number of openCalls in flight
	onIdle    func()     // calls startStandIn; made once
	running   bool       // the goroutine runs
	stop      context.CancelFunc
}

// beginDriving makes sure that context i is driven until endDriving. Serve does that already.
func (n *Node) beginDriving(i int) {
	k := &n.idleDrivers[i]
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.openCalls++; k.openCalls > 1 || n.served.Load() {
		return
	}
	if k.onIdle == nil {
		k.onIdle = func() { n.startStandIn(i) }
	}
	hghook.OnIdle(n.contexts[i], k.onIdle)
}

// startStandIn starts a goroutine that drives context i.
func (n *Node) startStandIn(i int) {
	k := &n.idleDrivers[i]
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.openCalls == 0 || k.running {
		return
	}
	var ctx context.Context
	ctx, k.stop = context.WithCancel(context.Background())
	k.running = n.workers.handlers.Spawn(func() {
		defer n.onStandInEnd(i) // deferred, since a callback may end the goroutine
		_ = hghook.StandIn(ctx, n.contexts[i])
	})
}

// onStandInEnd is the end of the goroutine of startStandIn.
func (n *Node) onStandInEnd(i int) {
	k := &n.idleDrivers[i]
	k.mu.Lock()
	defer k.mu.Unlock()
	k.stop()
	if k.running = false; k.openCalls > 0 {
		hghook.OnIdle(n.contexts[i], k.onIdle)
	}
}

// endDriving ends one beginDriving.
func (n *Node) endDriving(i int) {
	k := &n.idleDrivers[i]
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.openCalls--; k.openCalls > 0 || k.onIdle == nil {
		return
	}
	hghook.OnIdle(n.contexts[i], nil)
	if k.running {
		k.stop()
	}
}
