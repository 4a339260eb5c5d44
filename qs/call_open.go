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
	ctx, k.stop, err = o.prepare(ctx)
	k.x, k.ctx = exchange{o: o, c: &o.Call}, ctx
	defer func() { // deferred: a codec may panic, or end the goroutine
		if !k.open {
			k.endWith(&err)
		}
	}()
	if err != nil {
		return err
	}
	if err = k.x.prepareHandle(ctx, &o.top); err != nil {
		return err
	}
	hghook.OnEnd(k.x.h, k.ends)
	if err = k.x.h.Call(ctx, k.x.in, nil); err != nil {
		return k.x.takeAnswer(ctx, err)
	}
	k.open = true
	o.home.n.beginDriving(o.home.i)
	k.unwatch = context.AfterFunc(ctx, k.onContextEnd)
	return nil
}

// ends is called with locks held when the call has ended. To take an answer may take long, as what is lent is taken back, and the codec decodes it:
// a goroutine does that. With items only there is nothing of the kind.
func (k *openCall) ends() {
	o := k.f.o
	if o.reply != nil || len(o.m.fields) > 0 || o.home.n.all[o.home.i].Post(k.onEnd) != nil {
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
	defer k.endWith(&err)
	return k.x.takeAnswer(k.ctx, hghook.EndCall(k.x.h, k.ctx))
}

// endWith ends what was begun for the call, which ends with *err.
func (k *openCall) endWith(err *error) {
	defer k.stop()
	o := k.f.o
	k.x.finish(err)
	_ = o.closeScope(&o.top) // nothing is under way
	if *err != nil {
		*err = o.withFate(k.ctx, &o.top, o.m.name, *err)
	}
}

// An attendant sees to it that a context is driven while openCalls are under way: by those who wait for something, and by a goroutine that stands
// in when nobody has for a moment, or when many wait.
type attendant struct {
	mu       sync.Mutex // guards the fields below
	calls    int
	idle     func() // standIn, bound once
	standsIn bool   // there is that goroutine
	stop     context.CancelFunc
}

// beginDriving has context i be driven until unattend. Serve does that already.
func (n *Node) beginDriving(i int) {
	k := &n.attendants[i]
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.calls++; k.calls > 1 || n.served.Load() {
		return
	}
	if k.idle == nil {
		k.idle = func() { n.standIn(i) }
	}
	hghook.OnIdle(n.all[i], k.idle)
}

// standIn has a goroutine drive context i.
func (n *Node) standIn(i int) {
	k := &n.attendants[i]
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.calls == 0 || k.standsIn {
		return
	}
	var ctx context.Context
	ctx, k.stop = context.WithCancel(context.Background())
	k.standsIn = n.workers.handlers.Spawn(func() {
		defer n.stoodIn(i) // deferred: a callback may end the goroutine
		_ = hghook.StandIn(ctx, n.all[i])
	})
}

// stoodIn is the end of the goroutine of standIn.
func (n *Node) stoodIn(i int) {
	k := &n.attendants[i]
	k.mu.Lock()
	defer k.mu.Unlock()
	k.stop()
	if k.standsIn = false; k.calls > 0 {
		hghook.OnIdle(n.all[i], k.idle)
	}
}

func (n *Node) endDriving(i int) {
	k := &n.attendants[i]
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.calls--; k.calls > 0 || k.idle == nil {
		return
	}
	hghook.OnIdle(n.all[i], nil)
	if k.standsIn {
		k.stop()
	}
}
