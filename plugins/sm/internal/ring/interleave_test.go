package ring

import (
	"fmt"
	"runtime"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/internal/test/long"
)

// Every order of the steps of two or three actors: each runs from one Point to the next, and the search goes through all choices of
// who is next. The memory is the heap, so the race detector checks the accesses.

// A scheduler runs actors in one order.
type scheduler struct {
	actors []*actor
	now    *actor
	back   chan struct{}
}

type actor struct {
	name string
	run  func(*actor)
	turn chan bool // false: it dies
	may  func() bool
	over bool
	s    *scheduler
}

// step lets another actor run, at the points between which the two sides exchange data.
func (s *scheduler) step(p Point) {
	if s.now != nil && p != Reserve && p != Write && p != Consume {
		s.now.await(always)
	}
}

// await stops the actor until cond holds, and another chooses it.
func (a *actor) await(cond func() bool) {
	a.may = cond
	a.s.back <- struct{}{}
	if !<-a.turn {
		runtime.Goexit()
	}
	a.may = nil
}

func always() bool { return true }

// playOrder runs the actors: choose picks one of n that can run. It returns the actors that are
// stuck at the end.
func playOrder(choose func(n int) int, actors ...*actor) (stuck []string) {
	s := &scheduler{actors: actors, back: make(chan struct{})}
	Step = s.step
	defer func() { Step = nil }()
	for _, a := range actors {
		a.s, a.turn, a.may, a.over = s, make(chan bool), always, false
		go func() {
			defer func() { a.over = true; s.back <- struct{}{} }()
			if <-a.turn {
				a.run(a)
			}
		}()
	}
	for {
		var able []*actor
		stuck = nil
		for _, a := range actors {
			switch {
			case a.over:
			case a.may():
				able = append(able, a)
			default:
				stuck = append(stuck, a.name)
			}
		}
		if len(able) == 0 {
			break
		}
		s.now = able[choose(len(able))]
		s.now.turn <- true
		<-s.back
		s.now = nil
	}
	for _, a := range actors {
		if !a.over {
			a.turn <- false
			<-s.back
		}
	}
	return stuck
}

// search plays what setup makes in every order; check gets the actors that sleep for ever, and ends the search when it reports
// false. It returns how many orders there are.
func search(setup func() (actors []*actor, check func(stuck []string) bool)) (orders int, path []int) {
	var width []int
	for {
		actors, check := setup()
		at := 0
		stuck := playOrder(func(n int) int {
			if at == len(path) {
				path, width = append(path, 0), append(width, n)
			}
			at++
			return path[at-1]
		}, actors...)
		orders++
		path, width = path[:at], width[:at]
		if !check(stuck) {
			return orders, path
		}
		for len(path) > 0 && path[len(path)-1] == width[len(path)-1]-1 {
			path, width = path[:len(path)-1], width[:len(path)-1]
		}
		if len(path) == 0 {
			return orders, nil
		}
		path[len(path)-1]++
	}
}

// everyOrder searches for what check calls bad, or an actor that sleeps for ever.
func everyOrder(t *testing.T, setup func() (actors []*actor, check func() string)) (orders int) {
	t.Helper()
	found := ""
	orders, path := search(func() ([]*actor, func([]string) bool) {
		actors, check := setup()
		return actors, func(stuck []string) bool {
			if found = check(); len(stuck) > 0 {
				found += fmt.Sprintf(" asleep for ever: %v", stuck)
			}
			return found == ""
		}
	})
	require.Empty(t, found, "order %v", path)
	return orders
}

var tiny = Geometry{Envelopes: 1, Eager: 256}

// segments are made once: a search uses them again and again.
type segments struct{ left, right, area []byte }

func newSegments() *segments {
	return &segments{heap(tiny.Size()), heap(tiny.Size()), heap(AreaSize)}
}

func (s *segments) pair(t testing.TB) (a, b *End) {
	clear(s.left[:offMessages+8*descSize])
	clear(s.right[:offMessages+8*descSize])
	a, b = New(s.left, tiny), New(s.right, tiny)
	require.NoError(t, a.Join(s.right, tiny))
	require.NoError(t, b.Join(s.left, tiny))
	a.SetArea(s.area)
	require.NoError(t, b.SetPeerArea(s.area))
	return a, b
}

// A reader reads everything, and records what is wrong with it.
type reader struct {
	e   *End
	got int
	bad string
	buf [256]byte
}

func (r *reader) takeAll() {
	var m Taken
	for ring := range rings {
		for {
			ok, _, err := r.e.Take(ring, &m, r.buf[:])
			if err != nil {
				r.bad = err.Error()
			}
			if !ok {
				break
			}
			want := fmt.Sprintf("message %d", r.got)
			if m.Tag != uint64(r.got) || string(m.Body) != want {
				r.bad = fmt.Sprintf("got %q with tag %d, want %q", m.Body, m.Tag, want)
			}
			r.got++
			r.e.Free(ring)
		}
	}
	r.e.Report()
}

func putMessage(e *End, n int) {
	e.Put(Messages, &Message{Kind: 1, Tag: uint64(n)}, []byte(fmt.Sprintf("message %d", n)))
}

// TestEveryOrderOfSleep checks that a reader that sleeps on an empty ring is always woken, in any
// order of message and sleep.
func TestEveryOrderOfSleep(t *testing.T) {
	mem := newSegments()
	const n = 3
	orders := everyOrder(t, func() ([]*actor, func() string) {
		a, b := mem.pair(t)
		rang := false
		r := &reader{e: b}
		writer := &actor{name: "writer", run: func(*actor) {
			putMessage(a, 0)
			rang = a.Publish() || rang
			putMessage(a, 1)
			putMessage(a, 2)
			rang = a.Publish() || rang
		}}
		leader := &actor{name: "leader", run: func(me *actor) {
			for r.takeAll(); r.got < n && r.bad == ""; r.takeAll() {
				if !b.Arm() {
					me.await(func() bool { return rang })
					rang = false
				}
				b.Disarm()
			}
		}}
		return []*actor{writer, leader}, func() string { return checkResult(r, n) }
	})
	t.Logf("%d orders", orders)
	require.Greater(t, orders, 100)
}

func checkResult(r *reader, n int) string {
	if r.bad == "" && r.got != n {
		return fmt.Sprintf("got %d messages, want %d", r.got, n)
	}
	return r.bad
}

// TestEveryOrderOfAssist checks that a leader that leaves with the bell armed is followed by the
// background poller, which the bell wakes; a new leader takes over from it.
func TestEveryOrderOfAssist(t *testing.T) {
	mem := newSegments()
	n := long.Or(1, 2)
	orders := everyOrder(t, func() ([]*actor, func() string) {
		a, b := mem.pair(t)
		rang, armed, leading := false, false, false
		r := &reader{e: b}
		writer := &actor{name: "writer", run: func(*actor) {
			for i := range n {
				putMessage(a, i)
				rang = a.Publish() || rang
			}
		}}
		pass := func() { // until there is nothing, with the bell armed
			for r.takeAll(); b.Arm(); r.takeAll() {
				b.Disarm()
			}
			armed = true
		}
		lead := func(me *actor) {
			me.await(func() bool { return !leading })
			leading = true
		}
		leader := &actor{name: "leader", run: func(me *actor) {
			for range 2 { // begins, looks once, and returns to user code
				lead(me)
				if armed {
					b.Disarm()
					armed = false
				}
				pass()
				leading = false
			}
		}}
		assist := &actor{name: "assist", run: func(me *actor) {
			for r.got < n && r.bad == "" {
				me.await(func() bool { return !leading && (rang || r.got == n || r.bad != "") })
				if rang {
					leading, rang = true, false
					b.Disarm()
					pass()
					leading = false
				}
			}
		}}
		return []*actor{writer, leader, assist}, func() string { return checkResult(r, n) }
	})
	t.Logf("%d orders", orders)
	require.Greater(t, orders, 100)
}

// TestEveryOrderOfRoom checks that a writer that sleeps for want of room is woken by the reader
// that frees some.
func TestEveryOrderOfRoom(t *testing.T) {
	mem := newSegments()
	orders := everyOrder(t, func() ([]*actor, func() string) {
		a, b := mem.pair(t)
		Step = nil
		sent, rangA, rangB := 0, false, false
		r := &reader{e: b}
		full := func() bool {
			longest, _ := largestMessage(t, a, Bulk)
			return longest < 0
		}
		one := func() {
			a.Put(Bulk, &Message{Kind: 1, Tag: uint64(sent)}, []byte(fmt.Sprintf("message %d", sent)))
			sent++
		}
		for !full() {
			one()
		}
		rangB = a.Publish()
		n := sent + 1
		writer := &actor{name: "writer", run: func(me *actor) {
			for full() {
				if a.Wait(); full() && !a.Arm() {
					me.await(func() bool { return rangA })
					rangA = false
				}
				a.Disarm()
			}
			a.Go()
			one()
			rangB = a.Publish() || rangB
		}}
		var m Taken
		taker := &actor{name: "reader", run: func(me *actor) {
			for r.got < n && r.bad == "" {
				for k := 0; k < bulkDescs/2; k++ {
					Step, me.s.now = nil, nil
					ok, _, err := b.Take(Bulk, &m, r.buf[:])
					Step, me.s.now = me.s.step, me
					if err != nil || ok && m.Tag != uint64(r.got) {
						r.bad = fmt.Sprint(err, m.Tag, r.got)
					}
					if !ok {
						break
					}
					r.got++
				}
				rangA = b.Report() || rangA
				if r.got < n && !b.Arm() {
					me.await(func() bool { return rangB })
					rangB = false
				}
				b.Disarm()
			}
		}}
		return []*actor{writer, taker}, func() string { return checkResult(r, n) }
	})
	t.Logf("%d orders", orders)
	require.Greater(t, orders, 100)
}

// TestEveryOrderOfDeath checks a writer that exits at each of its steps: its peer gets the
// published messages, the first ones in their order, and nothing else.
func TestEveryOrderOfDeath(t *testing.T) {
	mem := newSegments()
	for last := 1; last < 16; last++ {
		everyOrder(t, func() ([]*actor, func() string) {
			a, b := mem.pair(t)
			rang, dead, steps := false, false, 0
			r := &reader{e: b}
			writer := &actor{name: "writer"}
			writer.run = func(me *actor) {
				defer func() { dead = true }()
				step := Step
				Step = func(p Point) {
					if me.s.now != me {
						step(p)
						return
					}
					if steps++; steps == last {
						runtime.Goexit()
					}
					step(p)
				}
				putMessage(a, 0)
				putMessage(a, 1)
				rang = a.Publish() || rang
				putMessage(a, 2)
				rang = a.Publish() || rang
			}
			var published uint64
			leader := &actor{name: "leader", run: func(me *actor) {
				for over := false; !over && r.bad == ""; {
					over = dead // the new message is read first: the older one after it
					r.takeAll()
					if !over && !b.Arm() {
						me.await(func() bool { return rang || dead })
						rang = false
					}
					b.Disarm()
				}
			}}
			return []*actor{writer, leader}, func() string {
				o := &a.out[Messages]
				for published = 0; a.own.load(o.base+int(published)*descSize) != 0; published++ {
				}
				return checkResult(r, int(published))
			}
		})
	}
}

// TestSearchFinds checks that the search finds known bugs: otherwise a search without a result
// would prove nothing.
func TestSearchFinds(t *testing.T) {
	mem := newSegments()
	asleep := 0
	orders, _ := search(func() ([]*actor, func([]string) bool) {
		a, b := mem.pair(t)
		rang := false
		r := &reader{e: b}
		writer := &actor{name: "writer", run: func(*actor) {
			putMessage(a, 0)
			rang = a.Publish()
		}}
		leader := &actor{name: "leader", run: func(me *actor) {
			for r.takeAll(); r.got < 1; r.takeAll() {
				step(Arm)
				b.own.store(offBell, 1) // and does not look again
				me.await(func() bool { return rang })
			}
		}}
		return []*actor{writer, leader}, func(stuck []string) bool {
			if slices.Equal(stuck, []string{"leader"}) {
				asleep++
			}
			return true
		}
	})
	require.Positive(t, asleep)
	require.Less(t, asleep, orders)
}
