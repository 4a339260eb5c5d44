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
	w     *World
	inst  *instance
	e     carrier.Core
	core  simhook.Core // the same
	wakes atomic.Uint64
	poked atomic.Bool // look is in World.todo
	held  atomic.Bool // FlushSoon was called
	shut  atomic.Bool
	gone  atomic.Bool // released, or its node has crashed
	dead  atomic.Bool // its node has crashed

	// What follows belongs to the turn; drives to World.mu.
	timer  event
	loose  event // what a cork holds back leaves
	late   bool  // one of these was due while nobody could serve it
	ends   []*end
	cos    []*coroutine // that wait here
	drives atomic.Int32 // goroutines in drive
}

var (
	_ carrier.Carrier = (*port)(nil)
	_ simhook.Driver  = (*port)(nil)
)

// Dial implements carrier.Carrier.
func (p *port) Dial(l carrier.Session) {
	if err := p.inst.node.post(); err != nil {
		l.Fail(err)
		return
	}
	en := newConn(p, l.Name(), l.Target())
	en.in.Session, en.out.Session = l, l
	l.SetConn(en)
	p.w.ask(en.c.begin, false)
}

// Flush implements carrier.Carrier.
func (p *port) Flush(ls []carrier.Session) {
	for _, l := range ls {
		if en, ok := l.Conn().(*end); ok {
			p.e.Pause()
			p.w.ask(en.pump, true)
			p.e.Lock()
		}
	}
}

// Stage implements carrier.Stager. In half of the worlds, as the seed says, a message waits for the next Flush, as it does behind another
// one.
func (p *port) Stage(l carrier.Session) carrier.Writer {
	if en, ok := l.Conn().(*end); ok && p.w.cfg.Seed%2 == 0 && !en.cut.Load() && en.out.Stages() {
		return &en.out
	}
	return nil
}

// Cut implements carrier.Carrier.
func (p *port) Cut(l carrier.Session, bye frame.Bye) {
	if en, ok := l.Conn().(*end); ok {
		l.SetConn(nil)
		en.cut.Store(true)
		p.w.ask(func() { en.close(bye.Frame()) }, false)
	}
}

// Poll implements carrier.Carrier.
func (p *port) Poll(time.Duration) time.Duration { return 0 }

// Lingering implements carrier.Carrier.
func (p *port) Lingering(time.Duration) bool { return false }

// Shut implements carrier.Carrier.
func (p *port) Shut() { p.shut.Store(true) }

// Release implements carrier.Carrier.
func (p *port) Release() {
	p.shut.Store(true)
	p.gone.Store(true)
	p.Wake()
	p.w.ask(p.release, true)
}

// Drive implements simhook.Driver.
func (p *port) Drive(timeout time.Duration, ready func() bool) bool {
	if c := p.w.cur; c != nil {
		return c.wait(p, timeout, ready)
	}
	return p.w.drive(p, timeout, ready)
}

// over reports whether a wait until limit is in vain: the context is closed for good, or crashed and nothing but the limit
// would end the wait.
func (p *port) over(limit time.Duration) bool {
	if p.dead.Load() {
		return limit == forever
	}
	return p.gone.Load() && p.core.Closed()
}

// Wake implements simhook.Driver.
func (p *port) Wake() {
	p.wakes.Add(1)
	w := p.w
	fresh := !p.poked.Swap(true)
	if !fresh && w.waiting.Load() == 0 {
		return
	}
	w.mu.Lock()
	if fresh {
		w.todo = append(w.todo, p.look)
		w.asked.Store(true)
	}
	if w.waiting.Load() > 0 {
		w.cond.Broadcast()
	}
	w.mu.Unlock()
}

// attendAfter is how long a cork holds frames back while nobody drives.
const attendAfter = 2 * time.Millisecond

// FlushSoon implements simhook.Driver.
func (p *port) FlushSoon() {
	p.held.Store(true)
	p.Wake()
}

// release ends what is left of a port: connections of peers that have not said who they are.
func (p *port) release() {
	p.unset()
	for len(p.ends) > 0 {
		en := p.ends[len(p.ends)-1]
		en.cut.Store(true)
		en.close(nil)
	}
}

// crash takes a port away from its connections.
func (p *port) crash(silent bool) {
	p.shut.Store(true)
	p.gone.Store(true)
	p.dead.Store(true)
	p.unset()
	for len(p.ends) > 0 {
		en := p.ends[len(p.ends)-1]
		en.cut.Store(true)
		en.vanish(silent)
	}
	p.Wake()
}

// unset takes out what a port that is gone has no use for.
func (p *port) unset() {
	p.w.events.unset(&p.timer)
	p.w.events.unset(&p.loose)
}

// addr is the address of the context.
func (p *port) addr() string {
	if id := p.e.ID(); id != 0 {
		return fmt.Sprintf("%s#%d", p.inst.name, id)
	}
	return p.inst.name
}

// fire is the endpoint's timer, or the end of a cork's patience.
func (p *port) fire(*event) {
	if p.gone.Load() {
		return
	}
	if p.idle() {
		p.late = true
		return
	}
	p.poll()
}

// idle reports whether nobody serves the port now.
func (p *port) idle() bool {
	return p.inst.node.paused || p.w.cfg.NoAssist && p.drives.Load() == 0 && len(p.cos) == 0
}

func (p *port) poll() {
	p.late = false
	p.w.trace("timer", p.inst.name, uint64(p.e.ID()), 0)
	p.core.Poll(p.w.Now())
	p.setTimer()
}

// setTimer follows the endpoint's next timer.
func (p *port) setTimer() {
	w := p.w
	at := p.core.Next()
	switch {
	case at == 0 || p.gone.Load():
		w.events.unset(&p.timer)
	case p.late:
	case p.timer.place == 0 || p.timer.at != at:
		w.events.set(&p.timer, at)
	}
}

// look follows a Wake: the endpoint may have a new timer, a coroutine what it waits for.
func (p *port) look() {
	p.poked.Store(false)
	p.setTimer()
	if p.held.Swap(false) && p.loose.place == 0 && !p.gone.Load() && p.core.Held() { // it may have left by now
		p.w.events.set(&p.loose, p.w.after(attendAfter))
	}
	p.w.wakeCoroutines(p)
}

// serve does what was left while nobody drove.
func (p *port) serve() {
	if p.gone.Load() || p.inst.node.paused {
		return
	}
	if p.late {
		p.poll()
	}
	for i := 0; i < len(p.ends); i++ { // ends may be added, and taken out, meanwhile
		p.ends[i].serve()
	}
}
