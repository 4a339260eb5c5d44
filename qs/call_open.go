package qs

import (
	"context"
	"sync"

	"github.com/quicksilver-rpc/quicksilver/internal/hghook"
)

// An openCall is a call with streams that no goroutine waits for: it may last for ever, and a goroutine with what attempt has on its stack
// would be the most that it costs. The caller's goroutine begins it, which does not wait; it ends in a callback, or on a goroutine of
// the node if that may take long; and meanwhile an attendant sees to it that its context is driven.
//
//	begin ─► hg.Handle.Call ─ the call has ended, or ctx has ─► settle
//	  └─ fails: the call is over
//
// A call with interceptors, which are functions that wait, has a goroutine; so has one in the simulator.
type openCall struct {
	f *futureCall

	mu      sync.Mutex // guards the fields below, and is held while the call begins, and while it ends
	x       exchange
	ctx     context.Context
	stop    context.CancelFunc
	open    bool        // it is under way
	unwatch func() bool // ends the watch of ctx
}

// needsNoGoroutine reports whether o may be an openCall.
func (o *outgoingCall) needsNoGoroutine() bool {
	return o.streams != nil && len(o.allInterceptors(o.home.n)) == 0 && !o.home.n.hctx.NA().Scheduled()
}

// begin begins the call. If that fails it is over.
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

// forward has the request leave.
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

// onHandleEnd is called with locks held when the call has ended. To take an answer may take long, as what is lent is taken back, and the codec decodes it:
// a goroutine does that. With items only there is nothing of the kind.
func (k *openCall) onHandleEnd() {
	o := k.f.o
	if o.reply != nil || len(o.m.fields) > 0 || o.home.n.contexts[o.home.i].Post(k.onEnd) != nil {
		o.home.n.spawn(k.onEnd)
	}
}

// onContextEnd is the end of ctx.
func (k *openCall) onContextEnd() {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.open {
		hghook.Outlived(k.x.h)
	}
}

// onEnd is the end of the call.
func (k *openCall) onEnd() {
	f := k.f
	k.mu.Lock()
	defer k.mu.Unlock()
	if !k.open { // it has failed to begin, and is over
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

// takeAnswer takes the answer.
func (k *openCall) takeAnswer() (err error) {
	defer k.cleanUp(&err)
	return k.x.takeAnswer(k.ctx, hghook.EndCall(k.x.h, k.ctx))
}

// cleanUp ends what was begun for the call, which ends with *err.
func (k *openCall) cleanUp(err *error) {
	defer k.stop()
	o := k.f.o
	k.x.finish(err)
	_ = o.closeScope(&o.top) // nothing is under way
	if *err != nil {
		*err = o.withFate(k.ctx, &o.top, o.m.name, *err)
	}
}

// An idleDriver sees to it that a context is driven while openCalls are under way: by those who wait for something, and by a goroutine that stands
// in when nobody has for a moment, or when many wait.
type idleDriver struct {
	mu        sync.Mutex // guards the fields below
	openCalls int
	onIdle    func() // standIn, bound once
	running   bool   // there is that goroutine
	stop      context.CancelFunc
}

// beginDriving has context i be driven until unattend. Serve does that already.
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

// startStandIn has a goroutine drive context i.
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
		defer n.onStandInEnd(i) // deferred: a callback may end the goroutine
		_ = hghook.StandIn(ctx, n.contexts[i])
	})
}

// onStandInEnd is the end of the goroutine of standIn.
func (n *Node) onStandInEnd(i int) {
	k := &n.idleDrivers[i]
	k.mu.Lock()
	defer k.mu.Unlock()
	k.stop()
	if k.running = false; k.openCalls > 0 {
		hghook.OnIdle(n.contexts[i], k.onIdle)
	}
}

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
