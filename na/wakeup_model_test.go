package na

import (
	"errors"
	"fmt"
	"iter"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/internal/loop"
	"github.com/quicksilver-rpc/quicksilver/internal/raceflag"
	"github.com/quicksilver-rpc/quicksilver/internal/simhook"
	"github.com/quicksilver-rpc/quicksilver/internal/test/long"
	"github.com/quicksilver-rpc/quicksilver/na/carrier"
)

// A model runs the leader and the background poller of a context, as they are, and a peer, in every
// order. They are coroutines, which take turns wherever they touch what they share with one
// another: at each call of the source, of the gate, of the poller and of the endpoint, and between
// the two halves of Arm and of the peer's post. What blocks in the system blocks here until its
// condition holds.
//
// An order is right if, when no actor can run, everything that the peer has posted has been taken
// in.
type model struct {
	c      *Context
	source modelSource
	actors []*actor
	turn   *actor // the goroutine that has the lead
	clock  time.Duration
	step   time.Duration // number of options that it has in each sleep and sleepFor

	// The poller: what epoll returns to the next caller.
	rung, woken bool

	// The gate.
	opened, waking bool
	sleeps         int

	// Locals of the leader and of the background poller while they are blocked.
	leads      int
	deadline   time.Duration
	began      time.Duration // this round of its loop
	seenPasses uint64

	taken int      // by either goroutine
	held  *session // has a frame that is held back whenever the leader has polled: flushing is a turn
	trace []event
}

// An event is an entry of the trace of a failure.
type event struct {
	who  *actor
	what string
}

func (e event) String() string { return e.who.name + " " + e.what }

// An actor is a coroutine that takes turns.
type actor struct {
	name    string
	next    func() (struct{}, bool)
	stop    func()
	yield   func(struct{}) bool
	canRun  func() bool // continue; nil: it can
	done    bool
	history uint64 // of all that it has seen
}

// modelSleeps bounds how often the background poller's sleep ends while others could run: they are
// slow, and run in the end.
const modelSleeps = 3

// waitTurn ends the caller's turn, before the step that it names, until can holds.
func (m *model) waitTurn(what string, can func() bool) {
	a := m.turn
	m.trace = append(m.trace, event{a, what})
	a.canRun = can
	a.record(what, 0)
	if !a.yield(struct{}{}) {
		panic(errModelOver)
	}
	// State that the actor reads without a turn before: no other actor changes it until its next
	// turn.
	a.record("", uint64(m.c.watch.Load())<<32|m.c.passes.Load())
}

// record adds to the values that a has seen.
func (a *actor) record(what string, v uint64) {
	for _, c := range []byte(what) {
		a.history = mix(a.history, uint64(c))
	}
	a.history = mix(a.history, v)
}

// mix is a hash of two values.
func mix(a, b uint64) uint64 {
	a = (a ^ b + 0x9e3779b97f4a7c15) * 0xbf58476d1ce4e5b9
	return a ^ a>>29
}

// forget reduces the values that a has seen to those that matter from now on.
func (a *actor) forget(where string, values ...int) {
	a.history = 0
	a.record(where, 0)
	for _, v := range values {
		a.record("", uint64(v))
	}
}

func (m *model) seen(v bool) bool {
	m.turn.record("", bit(v))
	return v
}

func bit(v bool) uint64 {
	if v {
		return 1
	}
	return 0
}

var errModelOver = errors.New("the run is over")

// modelSource is an Inlet in memory. posted and want are what peer and reader share.
type modelSource struct {
	m      *model
	posted int
	want   bool
	read   int
}

func (s *modelSource) Peek() bool {
	s.m.waitTurn("peeks", nil)
	n := s.posted - s.read
	s.read = s.posted
	s.m.taken += n
	return s.m.seen(n > 0)
}

func (s *modelSource) Arm() bool {
	s.m.waitTurn("asks for the bell", nil)
	s.want = true
	s.m.waitTurn("looks again", nil)
	work := s.posted != s.read
	s.m.seen(work)
	s.m.waitTurn("has armed", nil)
	return work
}

func (s *modelSource) Disarm() {
	s.m.waitTurn("disarms", nil)
	s.want = false
	s.m.waitTurn("has disarmed", nil)
}

// post is the peer's program.
func (s *modelSource) post() {
	s.m.waitTurn("posts", nil)
	s.posted++
	s.m.waitTurn("looks for the bell", nil)
	if want := s.want; s.m.seen(want) {
		s.want = false
		s.m.waitTurn("rings", nil)
		s.m.rung = true
	}
}

// modelPoller implements waiter.
type modelPoller struct{ *model }

func (m modelPoller) collect() (n int) {
	if m.rung {
		n++
	}
	if m.woken {
		n++
	}
	m.rung, m.woken = false, false
	m.turn.record("collects", uint64(n))
	return n
}

func (m modelPoller) wait(time.Duration) int {
	m.waitTurn("polls", nil)
	return m.collect()
}

func (m modelPoller) sleep(d time.Duration) int {
	m.waitTurn("sleeps", func() bool { return m.rung || m.woken || d >= 0 })
	if m.clock += max(d, 0); d < 0 {
		m.clock += m.step
	}
	return m.collect()
}

func (m modelPoller) dispatch(int) {}
func (m modelPoller) wake()        { m.woken = true }

// modelGate implements gate.
type modelGate struct{ *model }

func (m modelGate) park() bool {
	m.seenPasses = m.c.passes.Load()
	m.turn.forget("gate", int(m.seenPasses))
	m.waitTurn("parks", func() bool { return m.waking || m.through() })
	if m.through() {
		m.opened = false
	} else {
		m.waking = false
	}
	m.waitTurn("comes from the gate", nil)
	return true
}

func (m *model) through() bool { return m.opened && (m.rung || m.woken) }

func (m modelGate) sleepFor(time.Duration) {
	m.sleeps++
	m.turn.forget("sleepFor", int(m.seenPasses), int(m.c.passes.Load()))
	m.waitTurn("sleeps", func() bool { return m.sleeps <= modelSleeps || !m.others() })
	m.clock += m.step
}

func (m modelGate) open() {
	m.waitTurn("opens the gate", nil)
	m.opened = true
}

func (m modelGate) shut() {
	m.waitTurn("shuts the gate", nil)
	m.opened = false
}

func (m modelGate) wake() {
	m.waitTurn("wakes the background poller", nil)
	m.waking = true
}

func (m modelGate) alarm(time.Duration) {}
func (m modelGate) close()              {}

// modelCarrier is a Carrier that has nothing to do.
type modelCarrier struct {
	carrier.Carrier
	m *model
}

// Poll is where the leader's loop begins: earlier steps do not matter any more.
func (ca modelCarrier) Poll(time.Duration) time.Duration {
	m := ca.m
	if m.turn.name == "leader" {
		m.began = m.clock
		left := time.Duration(-1)
		if m.deadline >= 0 {
			left = m.deadline - m.clock
		}
		m.turn.forget("loop", m.leads, int(left), int(bit(m.c.nudged.Load())))
	}
	m.c.ep.pending = append(m.c.ep.pending[:0], m.held)
	return 0
}

func (ca modelCarrier) Flush([]carrier.Session) {
	ca.m.c.ep.Pause()
	ca.m.waitTurn("flushes", nil)
	ca.m.c.ep.Lock()
}

// modelClock is the clock of the model.
type modelClock struct {
	simhook.Clock
	m *model
}

func (k modelClock) Now() time.Duration { return k.m.clock }

// newModel makes a model whose leader runs program, and whose peer posts the given number of
// letters.
func newModel(posts int, step time.Duration, nudges bool, program func(m *model)) *model {
	m := &model{step: step}
	m.source.m = m
	m.c = &Context{class: &Class{domain: &domain{clock: modelClock{nil, m}}}, poller: &poller{}, waits: modelPoller{m}}
	m.c.makeLoop()
	m.c.ep = newEndpoint(m.c.class.domain, m.c)
	m.c.ep.routes = []route{{carrier: modelCarrier{nil, m}}}
	m.held = &session{e: m.c.ep, route: &m.c.ep.routes[0]}
	m.c.corks.Store(1)
	m.c.poller.AddInlet(&m.source)
	m.c.poller.panicked = func(v, _ any) { panic(v) } // errModelOver: at ends actors so
	m.c.background = &backgroundPoller{nctx: m.c, gate: modelGate{m}}
	m.c.watch.Store(backgroundTicks) // as start leaves it
	m.waking = true
	m.act("leader", func() { program(m) })
	m.act("background poller", m.c.background.run)
	m.act("peer", func() {
		for range posts {
			m.source.post()
		}
	})
	if nudges {
		m.act("user", func() {
			m.waitTurn("nudges", nil)
			m.c.pollSoon()
		})
	}
	return m
}

// act adds an actor.
func (m *model) act(name string, program func()) {
	a := &actor{name: name}
	a.next, a.stop = iter.Pull(func(yield func(struct{}) bool) {
		defer func() {
			if r := recover(); r != nil && r != errModelOver {
				panic(r)
			}
		}()
		a.yield = yield
		program()
	})
	m.actors = append(m.actors, a)
}

// lead is Progress of the leader: it waits for the lead, so that only one goroutine has it.
func (m *model) lead(timeout time.Duration, letters int) error {
	m.waitTurn("wants the lead", func() bool {
		free := m.c.loop.TryLead()
		if free {
			m.c.loop.Unlead()
		}
		return free
	})
	m.c.loop.TryLead()
	defer m.c.loop.Unlead()
	m.leads++
	if m.deadline = -1; timeout >= 0 {
		m.deadline = m.clock + timeout
	}
	until := loop.Never
	if m.deadline >= 0 {
		until = m.deadline
	}
	_, err := m.c.drive(modelWait{m, letters}, -1, until)
	return err
}

// modelWait waits for so many letters.
type modelWait struct {
	m       *model
	letters int
}

func (w modelWait) Stirred() bool {
	w.m.waitTurn("is anything ready", nil)
	return w.m.seen(w.m.taken >= w.letters)
}

func (w modelWait) WillSleep() {}

// isRunnable reports whether an actor can continue.
func (a *actor) isRunnable() bool { return !a.done && (a.canRun == nil || a.canRun()) }

// others reports whether an actor other than the background poller can run.
func (m *model) others() bool {
	return slices.ContainsFunc(m.actors, func(a *actor) bool { return a.name != "background poller" && a.isRunnable() })
}

// options returns the actors that can run; the one that has just had a turn is first.
func (m *model) options() (can []*actor) {
	for _, a := range m.actors {
		if a.isRunnable() {
			can = append(can, a)
		}
	}
	if i := slices.Index(can, m.turn); i > 0 {
		can[0], can[i] = can[i], can[0]
	}
	return can
}

// state returns a hash of everything that decides how m continues.
func (m *model) state() (h uint64) {
	for _, a := range m.actors {
		h = mix(h, a.history)
	}
	late := m.clock-m.began >= backgroundAfter
	for _, v := range []bool{m.rung, m.woken, m.opened, m.waking, m.source.want, m.c.poller.armed, m.c.nudged.Load(), late, len(m.c.ep.pending) > 0} {
		h = mix(h, bit(v))
	}
	for _, v := range []int{m.sleeps, m.source.posted, m.source.read, int(m.c.watch.Load()), int(m.c.passes.Load()), slices.Index(m.actors, m.turn)} {
		h = mix(h, uint64(v))
	}
	return h
}

// explore runs models in every order with at most a given number of turns taken from an actor that
// could continue, and returns how many states there were. It fails with the first order in which a
// letter is left.
func explore(t *testing.T, preemptions int, make func() *model) (states int) {
	type choice struct {
		state                uint64
		taken, options, used int
	}
	var path []choice
	seen := map[uint64]int{} // a state, and the number of preemptions before it
	for {
		m, used := make(), 0
		for depth := 0; ; depth++ {
			can := m.options()
			if len(can) == 0 {
				if m.taken != m.source.posted {
					require.FailNow(t, "letters are left, and no actor looks", "%v", m.trace)
				}
				break
			}
			require.Less(t, depth, 1000, "the background poller never rests")
			preempts := m.turn != nil && m.turn == can[0]
			if depth == len(path) {
				s := m.state()
				if before, known := seen[s]; known && before <= used {
					if slices.ContainsFunc(path, func(c choice) bool { return c.state == s }) {
						m.settle(t)
					}
					break
				}
				seen[s] = used
				c := choice{s, 0, len(can), used}
				if preempts && used == preemptions {
					c.options = 1
				}
				path = append(path, c)
			}
			c := path[depth]
			if used = c.used; preempts && c.taken > 0 {
				used++
			}
			m.take(can[c.taken])
		}
		for _, a := range m.actors {
			a.stop()
		}
		for len(path) > 0 && path[len(path)-1].taken == path[len(path)-1].options-1 {
			path = path[:len(path)-1]
		}
		if len(path) == 0 {
			return len(seen)
		}
		path[len(path)-1].taken++
	}
}

// settle lets each actor run in turn, from a state that was met in the same run before, until none
// can. So it detects an endless cycle.
func (m *model) settle(t *testing.T) {
	for i := range 1000 {
		can := m.options()
		if len(can) == 0 {
			return
		}
		m.take(m.actors[i%len(m.actors)])
	}
	require.FailNow(t, "they go round in circles", "%v", m.trace)
}

// take gives a its turn, if it can continue.
func (m *model) take(a *actor) {
	if !a.isRunnable() {
		return
	}
	m.turn = a
	if _, more := a.next(); !more {
		a.done = true
	}
}

// TestWakeupsInEveryOrder checks that whatever the leader does, and whenever the peer posts, every
// posted letter is taken in.
func TestWakeupsInEveryOrder(t *testing.T) {
	t.Parallel()
	preemptions := long.Or(2, 4)
	if raceflag.Enabled {
		preemptions = 1
	}
	for _, c := range []struct {
		name    string
		posts   int
		nudges  bool
		program func(m *model)
	}{
		{"stays away", 2, false, func(*model) {}},
		{"looks once", 2, false, func(m *model) { _ = m.lead(0, 9) }},
		{"sleeps for two", 2, false, func(m *model) { _ = m.lead(-1, 1); _ = m.lead(-1, 2) }},
		{"sleeps for ever", 2, false, func(m *model) { _ = m.lead(-1, 9) }},
		{"gives up", 2, false, func(m *model) { _ = m.lead(time.Microsecond, 9) }},
		{"is nudged", 1, true, func(m *model) { _ = m.lead(time.Microsecond, 9) }},
	} {
		for _, step := range []time.Duration{0, backgroundAfter} { // short sleeps, and long ones
			t.Run(fmt.Sprintf("%s/%v", c.name, step), func(t *testing.T) {
				t.Parallel()
				states := explore(t, preemptions, func() *model { return newModel(c.posts, step, c.nudges, c.program) })
				t.Logf("%d states", states)
			})
		}
	}
}
