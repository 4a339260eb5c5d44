package qs

import (
	"context"
	"sync"

	"github.com/quicksilver-rpc/quicksilver/internal/hghook"
)

// An openCall is a streaming call that does not occupy a goroutine. Such a call may last for days,
// and a goroutine's stack would account for most of its memory.
//
// The caller's goroutine sends the request in begin, without waiting for the response. When the
// response arrives or the context is done, onEnd completes the call, either in a callback or, if
// that may take long, in a new goroutine. In between, an idleDriver ensures that the call's context
// is driven.
//
// A call with interceptors, which may block, has a goroutine, as does every call in the simulator.
type openCall struct {
	f *futureCall

	mu      sync.Mutex // guards the fields below; held throughout begin and onEnd
	x       exchange
	ctx     context.Context
	stop    context.CancelFunc
	open    bool        // the call is in flight
	unwatch func() bool // stops watching ctx
}

// needsNoGoroutine reports whether the call can run as an openCall.
func (o *outgoingCall) needsNoGoroutine() bool {
	return o.streams != nil && len(o.allInterceptors(o.home.n)) == 0 && !o.home.n.hctx.NA().Scheduled()
}

// begin starts the call. If it cannot be started, begin completes it with an error.
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
		f.err = endedBy(f.ctx, err)
	}
	returned = true
}

// forward prepares the call and sends its request.
func (k *openCall) forward(ctx context.Context) (err error) {
	o := k.f.o
	if ctx, k.stop, err = o.prepare(ctx); k.stop == nil {
		k.stop = func() {}
	}
	k.x, k.ctx = exchange{o: o, c: &o.Call}, ctx
	defer func() { // deferred because a codec may panic or call runtime.Goexit
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

// onHandleEnd is called when the call of the handle has completed. Locks of package hg are held, so
// it must not block. If onEnd may take long, because a response must be decoded or lent memory must
// be revoked, onHandleEnd runs onEnd in a goroutine. Otherwise it runs onEnd in a callback of the
// context.
func (k *openCall) onHandleEnd() {
	o := k.f.o
	if o.reply != nil || len(o.m.fields) > 0 || o.home.n.contexts[o.home.i].Post(k.onEnd) != nil {
		o.home.n.spawn(k.onEnd)
	}
}

// onContextEnd completes the call after its context is done.
func (k *openCall) onContextEnd() {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.open {
		hghook.Outlived(k.x.h)
	}
}

// onEnd completes the call after the handle's call has completed.
func (k *openCall) onEnd() {
	f := k.f
	k.mu.Lock()
	defer k.mu.Unlock()
	if !k.open { // begin failed and has already completed the call
		return
	}
	k.open = false
	k.unwatch()
	f.o.home.n.endDriving(f.o.home.i)
	returned := false
	defer func() { f.onEnd(k.ctx, returned, recover()) }()
	f.err = endedBy(f.ctx, k.takeAnswer())
	returned = true
}

// takeAnswer processes the response and releases the call's resources.
func (k *openCall) takeAnswer() (err error) {
	defer k.cleanUp(&err)
	return k.x.takeAnswer(k.ctx, hghook.EndCall(k.x.h, k.ctx))
}

// cleanUp releases the call's resources and sets the fate of *err.
func (k *openCall) cleanUp(err *error) {
	defer k.stop()
	o := k.f.o
	k.x.finish(err)
	_ = o.closeScope(&o.top) // returns nil because the only attempt has completed
	if *err != nil {
		*err = o.withFate(k.ctx, &o.top, o.m.name, *err)
	}
}

// An idleDriver ensures that a context is driven while openCalls are in flight. Usually, goroutines
// that wait for an event of the context drive it. If none of them does so for a short time, or if
// many are waiting, the idleDriver starts a goroutine that drives the context.
type idleDriver struct {
	mu        sync.Mutex // guards the fields below
	openCalls int        // number of openCalls in flight
	onIdle    func()     // calls startStandIn; allocated once
	running   bool       // the goroutine started by startStandIn is running
	stop      context.CancelFunc
}

// beginDriving ensures that context i is driven until endDriving is called. It need not do anything
// if Serve has been called, because Serve drives all contexts.
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

// startStandIn starts a goroutine that drives context i, unless it is already running or no
// openCall is in flight.
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
		defer n.onStandInEnd(i) // deferred because a callback may call runtime.Goexit
		_ = hghook.StandIn(ctx, n.contexts[i])
	})
}

// onStandInEnd is called when the goroutine started by startStandIn exits.
func (n *Node) onStandInEnd(i int) {
	k := &n.idleDrivers[i]
	k.mu.Lock()
	defer k.mu.Unlock()
	k.stop()
	if k.running = false; k.openCalls > 0 {
		hghook.OnIdle(n.contexts[i], k.onIdle)
	}
}

// endDriving reverses the effect of one call of beginDriving.
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
