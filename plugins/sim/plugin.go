package sim

import (
	"fmt"
	"strings"
	"sync/atomic"
	"time"

	"github.com/quicksilver-rpc/quicksilver/na"
	"github.com/quicksilver-rpc/quicksilver/plugins/internal/engine"
)

const scheme = "sim"

func init() { na.RegisterPlugin(NewWorld(Config{Paced: true}).Plugin()) }

// plugin opens classes in a world, on one node of it or on the node that the caller runs on.
type plugin struct {
	w    *World
	node *Node
}

var _ na.Plugin = (*plugin)(nil)

// Plugin returns the plugin of the world, for na.Config.Plugins. A class that a coroutine opens lives on the
// coroutine's node; any other lives on the node that is called as the name it listens under, or on one of its own.
func (w *World) Plugin() na.Plugin { return &plugin{w: w} }

// Scheme implements na.Plugin.
func (p *plugin) Scheme() string { return scheme }

// Open implements na.Plugin.
func (p *plugin) Open(cls *na.Class, rest string) (na.Domain, error) {
	w := p.w
	w.take()
	defer w.give()
	in := &instance{w: w}
	var self string // left to the engine for a class that only originates
	if rest == "" {
		w.names++
		rest = fmt.Sprintf("@%d", w.names)
	} else {
		if err := checkName(rest); err != nil {
			return nil, err
		}
		self = scheme + "://" + rest
		if w.named[self] != nil {
			return nil, na.WithText(na.ErrAddrInUse, "somebody listens on "+self)
		}
		w.named[self] = in
		delete(w.lost, self)
	}
	switch {
	case p.node != nil:
		in.node = p.node
	case w.cur != nil:
		in.node = w.cur.node
	default:
		in.node = w.nodeNamed(rest)
	}
	opts := engine.Options{
		Scheme: scheme, Self: self, Listen: self, Host: in.node.name, Now: w.Now, Rand: w.Rand, Driven: true,
		Carrier: in.carrier, Close: in.close,
	}
	in.node.dark = false
	in.eng = engine.New(cls, opts)
	in.name = in.eng.Addr().Name()
	in.node.instances = append(in.node.instances, in)
	w.trace(traceOpen, in.name, uint64(len(in.node.instances)), 0)
	return in.eng, nil
}

// checkName tells what is wrong with the part of an address after "sim://" that somebody wants to listen on.
func checkName(rest string) error {
	if rest == "" || len(rest) > 255 {
		return na.WithText(na.ErrInvalid, fmt.Sprintf("sim: a name has 1 to 255 bytes, not %d", len(rest)))
	}
	for i := 0; i < len(rest); i++ {
		c := rest[i]
		if !(c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || strings.IndexByte("-_.:", c) >= 0) {
			return na.WithText(na.ErrInvalid, fmt.Sprintf("sim: name %q has a character other than letters, digits and -_.:", rest))
		}
	}
	return nil
}

// An instance is a class of the world.
type instance struct {
	w     *World
	node  *Node
	name  string
	eng   *engine.Engine
	ports []*port // by context id
	dead  bool    // its node has crashed
}

// carrier makes the carrier of a context.
func (in *instance) carrier(e *engine.Endpoint) (engine.Carrier, error) {
	w := in.w
	w.take()
	defer w.give()
	p := &port{w: w, inst: in, e: e}
	p.timer = event{act: p, slow: true}
	if in.dead {
		p.gone.Store(true)
	}
	in.ports = append(in.ports, p)
	return p, nil
}

// port returns the port of a context if it takes connections.
func (in *instance) port(target int) *port {
	if in == nil || in.dead || target >= len(in.ports) {
		return nil
	}
	if p := in.ports[target]; !p.shut.Load() && !p.gone.Load() {
		return p
	}
	return nil
}

// close gives the name back.
func (in *instance) close() error {
	in.w.take()
	defer in.w.give()
	if in.w.named[in.name] == in {
		delete(in.w.named, in.name)
	}
	in.node.forget(in)
	return nil
}

// A port is the carrier of one context.
type port struct {
	w     *World
	inst  *instance
	e     *engine.Endpoint
	wakes atomic.Uint64
	poked atomic.Bool
	shut  atomic.Bool
	gone  atomic.Bool // released, or its node has crashed

	// What follows belongs to the turn; drives to World.mu.
	timer  event
	late   bool // the timer was due while nobody could serve it
	ends   []*end
	cos    []*coroutine // that wait here
	drives atomic.Int32 // goroutines in drive
}

var (
	_ engine.Carrier = (*port)(nil)
	_ na.Driver      = (*port)(nil)
	_ na.Waker       = (*port)(nil)
)

// Check implements engine.Carrier.
func (p *port) Check(name string) error {
	rest := strings.TrimPrefix(name, scheme+"://")
	if strings.HasPrefix(rest, "@") {
		return na.WithText(na.ErrUnreachable, name+" is the name of a class that does not listen")
	}
	return checkName(rest)
}

// A lookup is under way.
type lookup struct {
	p        *port
	ev       event
	name     string
	done     func(string, error)
	canceled atomic.Bool
}

// Resolve implements engine.Carrier: it takes a round trip.
func (p *port) Resolve(text string, done func(string, error)) func() {
	if rest := strings.TrimPrefix(text, scheme+"://"); !strings.HasPrefix(rest, "@") {
		if err := checkName(rest); err != nil {
			done("", err)
			return nil
		}
	}
	l := &lookup{p: p, name: text, done: done}
	p.w.ask(errand{kind: errandLookup, look: l}, true)
	return func() { l.canceled.Store(true) }
}

func (l *lookup) begin() {
	w := l.p.w
	w.stats.Lookups++
	l.ev.act = l
	w.events.set(&l.ev, w.after(w.delay()+w.delay()))
}

func (l *lookup) fire(*event) {
	w := l.p.w
	if l.canceled.Load() || l.p.gone.Load() {
		return
	}
	w.trace(traceLookup, l.name, uint64(len(l.name)), 0)
	l.done(l.name, nil)
}

// Dial implements engine.Carrier.
func (p *port) Dial(l *engine.Link) {
	en := newConn(p, l)
	l.Conn = en
	p.w.ask(errand{kind: errandDial, end: en}, false)
}

// Flush implements engine.Carrier.
func (p *port) Flush(l *engine.Link) { p.w.ask(errand{kind: errandFlush, link: l}, true) }

// Cut implements engine.Carrier.
func (p *port) Cut(l *engine.Link, last []byte) {
	if en, ok := l.Conn.(*end); ok {
		l.Conn = nil
		en.cut.Store(true)
		p.w.ask(errand{kind: errandCut, end: en, last: last}, false)
	}
}

// Poll implements engine.Carrier.
func (p *port) Poll(time.Duration) {}

// NextTimer implements engine.Carrier.
func (p *port) NextTimer() time.Duration { return 0 }

// Shut implements engine.Carrier.
func (p *port) Shut() { p.shut.Store(true) }

// Release implements engine.Carrier.
func (p *port) Release() {
	p.shut.Store(true)
	p.gone.Store(true)
	p.Wake()
	p.w.ask(errand{kind: errandRelease, port: p}, true)
}

// Drive implements na.Driver.
func (p *port) Drive(timeout time.Duration, ready func() bool) bool {
	if c := p.w.cur; c != nil {
		return c.wait(p, timeout, ready)
	}
	return p.w.drive(p, timeout, ready)
}

// Wake implements na.Waker.
func (p *port) Wake() {
	p.wakes.Add(1)
	w := p.w
	fresh := !p.poked.Swap(true)
	if !fresh && w.waiting.Load() == 0 {
		return
	}
	w.mu.Lock()
	if fresh {
		w.poked = append(w.poked, p)
		w.asked.Store(true)
	}
	if w.waiting.Load() > 0 {
		w.cond.Broadcast()
	}
	w.mu.Unlock()
}

// run does an errand.
func (w *World) run(e *errand) {
	switch e.kind {
	case errandFlush:
		if ep := e.link.Endpoint(); ep != nil {
			ep.Lock()
			en, _ := e.link.Conn.(*end)
			ep.Unlock()
			if en != nil {
				en.pump()
			}
		}
	case errandDial:
		e.end.c.begin()
	case errandCut:
		e.end.close(e.last)
	case errandLookup:
		e.look.begin()
	case errandRelease:
		e.port.release()
	}
}

// release ends what is left of a port: connections of peers that have not said who they are.
func (p *port) release() {
	p.w.events.unset(&p.timer)
	for len(p.ends) > 0 {
		en := p.ends[len(p.ends)-1]
		en.cut.Store(true)
		en.close(nil)
	}
}

// fire is the engine's timer.
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

// idle tells whether nobody serves the port now.
func (p *port) idle() bool {
	return p.inst.node.paused || p.w.cfg.NoAssist && p.drives.Load() == 0 && len(p.cos) == 0
}

func (p *port) poll() {
	p.late = false
	p.w.trace(traceTimer, p.inst.name, uint64(p.e.ID()), 0)
	p.e.Poll(p.w.Now())
	p.setTimer()
}

// setTimer follows the engine's next timer.
func (p *port) setTimer() {
	w := p.w
	at, ok := p.e.NextTimer()
	switch {
	case !ok || p.gone.Load():
		w.events.unset(&p.timer)
	case p.late:
	case p.timer.pos == 0 || p.timer.at != at:
		w.events.set(&p.timer, at)
	}
}

// look follows a Wake: the engine may have a new timer, a coroutine what it waits for.
func (p *port) look() {
	p.setTimer()
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
