package sim

import (
	"fmt"
	"sync/atomic"
	"time"

	"github.com/quicksilver-rpc/quicksilver/internal/frame"
	"github.com/quicksilver-rpc/quicksilver/internal/simhook"
	"github.com/quicksilver-rpc/quicksilver/na/carrier"
)

// A port is the carrier of one context.
type port struct {
	w          *World
	instance   *instance
	core       carrier.Core
	driver     simhook.Core // the same value as core
	wakes      atomic.Uint64
	lookQueued atomic.Bool // whether handleWake is in World.queued
	flushSoon  atomic.Bool // whether FlushSoon was called
	isShut     atomic.Bool
	isReleased atomic.Bool // whether the port was released or its node has crashed
	hasCrashed atomic.Bool // whether its node has crashed

	// The fields below may be used only by the goroutine that holds the turn.
	timer      event
	flushEvent event // flushes frames held back by a cork
	isOverdue  bool  // whether one of these events was due while the port was not being served
	endpoints  []*endpoint
	waiting    []*coroutine // coroutines waiting for this port
	drivers    atomic.Int32 // number of goroutines in driveUntil
}

var (
	_ carrier.Carrier = (*port)(nil)
	_ simhook.Driver  = (*port)(nil)
)

// Dial implements carrier.Carrier.
func (p *port) Dial(l carrier.Session) {
	if err := p.instance.node.checkPost(); err != nil {
		l.Fail(err)
		return
	}
	en := newConn(p, l.Name(), l.Target())
	en.in.Session, en.out.Session = l, l
	l.SetConn(en)
	p.w.runInTurn(en.conn.startDial, false)
}

// Flush implements carrier.Carrier.
func (p *port) Flush(ls []carrier.Session) {
	for _, l := range ls {
		if en, ok := l.Conn().(*endpoint); ok {
			p.core.Pause()
			p.w.runInTurn(en.sendQueued, true)
			p.core.Lock()
		}
	}
}

// Stage implements carrier.Stager. In half of the worlds, depending on the seed, it returns nil, so
// that a message waits for the next Flush as it would if other messages were ahead of it.
func (p *port) Stage(l carrier.Session) carrier.Writer {
	if en, ok := l.Conn().(*endpoint); ok && p.w.cfg.Seed%2 == 0 && !en.detached.Load() && en.out.Stages() {
		return &en.out
	}
	return nil
}

// Cut implements carrier.Carrier.
func (p *port) Cut(l carrier.Session, bye frame.Bye) {
	if en, ok := l.Conn().(*endpoint); ok {
		l.SetConn(nil)
		en.detached.Store(true)
		p.w.runInTurn(func() { en.closeWith(bye.Frame()) }, false)
	}
}

// Poll implements carrier.Carrier.
func (p *port) Poll(time.Duration) time.Duration { return 0 }

// Lingering implements carrier.Carrier.
func (p *port) Lingering(time.Duration) bool { return false }

// Shut implements carrier.Carrier.
func (p *port) Shut() { p.isShut.Store(true) }

// Release implements carrier.Carrier.
func (p *port) Release() {
	p.isShut.Store(true)
	p.isReleased.Store(true)
	p.Wake()
	p.w.runInTurn(p.closeAll, true)
}

// Drive implements simhook.Driver.
func (p *port) Drive(timeout time.Duration, ready func() bool) bool {
	if c := p.w.current; c != nil {
		return c.yieldUntil(p, timeout, ready)
	}
	return p.w.driveUntil(p, timeout, ready)
}

// isWaitInVain reports whether a wait with the given deadline can never be satisfied. That is the
// case if the context is closed, or if its node has crashed and the wait has no deadline.
func (p *port) isWaitInVain(limit time.Duration) bool {
	if p.hasCrashed.Load() {
		return limit == noDeadline
	}
	return p.isReleased.Load() && p.driver.Closed()
}

// Wake implements simhook.Driver.
func (p *port) Wake() {
	p.wakes.Add(1)
	w := p.w
	fresh := !p.lookQueued.Swap(true)
	if !fresh && w.sleepers.Load() == 0 {
		return
	}
	w.mu.Lock()
	if fresh {
		w.queued = append(w.queued, p.handleWake)
		w.hasQueued.Store(true)
	}
	if w.sleepers.Load() > 0 {
		w.cond.Broadcast()
	}
	w.mu.Unlock()
}

// corkTimeout is how long a cork holds back frames while no goroutine drives.
const corkTimeout = 2 * time.Millisecond

// FlushSoon implements simhook.Driver.
func (p *port) FlushSoon() {
	p.flushSoon.Store(true)
	p.Wake()
}

// closeAll closes the port's remaining connections, which are those whose peers have not sent a
// greeting.
func (p *port) closeAll() {
	p.cancelEvents()
	for len(p.endpoints) > 0 {
		en := p.endpoints[len(p.endpoints)-1]
		en.detached.Store(true)
		en.closeWith(nil)
	}
}

// crash closes the connections of p, whose node has crashed. Their peers receive resets unless
// silent is true.
func (p *port) crash(silent bool) {
	p.isShut.Store(true)
	p.isReleased.Store(true)
	p.hasCrashed.Store(true)
	p.cancelEvents()
	for len(p.endpoints) > 0 {
		en := p.endpoints[len(p.endpoints)-1]
		en.detached.Store(true)
		en.crash(silent)
	}
	p.Wake()
}

// cancelEvents cancels the events of a port that is being released.
func (p *port) cancelEvents() {
	p.w.events.cancel(&p.timer)
	p.w.events.cancel(&p.flushEvent)
}

// address returns the context's address.
func (p *port) address() string {
	if id := p.core.ID(); id != 0 {
		return fmt.Sprintf("%s#%d", p.instance.name, id)
	}
	return p.instance.name
}

// fire handles the expiry of the core's timer or of a cork.
func (p *port) fire(*event) {
	if p.isReleased.Load() {
		return
	}
	if p.isUnserved() {
		p.isOverdue = true
		return
	}
	p.pollTimers()
}

// isUnserved reports whether the port is currently not being served, because its node is paused or
// because NoAssist is set and no goroutine is driving it.
func (p *port) isUnserved() bool {
	return p.instance.node.isPaused || p.w.cfg.NoAssist && p.drivers.Load() == 0 && len(p.waiting) == 0
}

func (p *port) pollTimers() {
	p.isOverdue = false
	p.w.addTrace("timer", p.instance.name, uint64(p.core.ID()), 0)
	p.driver.Poll(p.w.Now())
	p.updateTimer()
}

// updateTimer schedules the core's next timer.
func (p *port) updateTimer() {
	w := p.w
	at := p.driver.Next()
	switch {
	case at == 0 || p.isReleased.Load():
		w.events.cancel(&p.timer)
	case p.isOverdue:
	case p.timer.heapIndex == 0 || p.timer.at != at:
		w.events.schedule(&p.timer, at)
	}
}

// handleWake handles a call of Wake. It updates the core's timer, because Wake may have changed it,
// and makes coroutines whose conditions are true runnable.
func (p *port) handleWake() {
	p.lookQueued.Store(false)
	p.updateTimer()
	// The frames may already have been sent.
	if p.flushSoon.Swap(false) && p.flushEvent.heapIndex == 0 && !p.isReleased.Load() && p.driver.Held() {
		p.w.events.schedule(&p.flushEvent, p.w.timeAfter(corkTimeout))
	}
	p.w.wakeReady(p)
}

// serveDelayed handles the events that were due while the port was not being served.
func (p *port) serveDelayed() {
	if p.isReleased.Load() || p.instance.node.isPaused {
		return
	}
	if p.isOverdue {
		p.pollTimers()
	}
	for i := 0; i < len(p.endpoints); i++ { // endpoints may be added and removed during the loop
		p.endpoints[i].deliverWaiting()
	}
}
