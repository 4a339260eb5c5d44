package group

import (
	"context"
	"iter"
	"slices"
	"sync"
)

// maxBehind bounds the events that wait for a callback or an iterator, beside one for each member. When there are more the oldest are
// dropped; View has what they led to.
const maxBehind = 1024

// queued returns events with e behind them, without the oldest if there are too many.
func (g *Group) queued(events []Event, e Event) []Event {
	events = append(events, e)
	if over := len(events) - maxBehind - len(g.View().Members); over > 0 {
		events = slices.Delete(events, 0, over)
	}
	return events
}

// A sub is somebody who is told events: a callback, which runs on a goroutine (in the simulator, in a coroutine) while there are any.
type sub struct {
	g  *Group
	fn func(Event)

	mu      sync.Mutex // guards the fields below
	events  []Event
	running bool
}

// add has s told of e. It does not block.
func (s *sub) add(e Event) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.events = s.g.queued(s.events, e)
	if !s.running {
		s.running = true
		s.g.node.HG().NA().Spawn(s.run)
	}
}

// run calls fn with each event. One that ends its goroutine (runtime.Goexit, as FailNow of a test does) has the others on another.
func (s *sub) run() {
	returned := true
	defer func() {
		if !returned {
			s.g.node.HG().NA().Spawn(s.run)
		}
	}()
	for {
		s.mu.Lock()
		if len(s.events) == 0 {
			s.running = false
			s.mu.Unlock()
			return
		}
		e := s.events[0]
		s.events = slices.Delete(s.events, 0, 1)
		s.mu.Unlock()
		returned = false
		s.fn(e)
		returned = true
	}
}

// OnEvent has fn called with each event from now on, until remove is called, one after the other and in their order, on a goroutine of
// its own; if fn ends that, it has another one for the next event. fn may block: one that is 1,024 events behind, and as many as there are members, misses the oldest. When remove returns fn may be running, for the last time. View returns what was there before.
func (g *Group) OnEvent(fn func(Event)) (remove func()) { return g.subscribe(fn, false) }

// subscribe adds a callback. With all it is called as Joined with the members that are there, too.
func (g *Group) subscribe(fn func(Event), all bool) (remove func()) {
	s := &sub{g: g, fn: fn}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.subs = append(g.subs, s)
	if v := g.View(); all {
		for _, m := range v.Members {
			s.add(Event{Joined, m, v.Epoch})
		}
	}
	return func() {
		g.mu.Lock()
		g.subs = slices.DeleteFunc(g.subs, func(o *sub) bool { return o == s })
		g.mu.Unlock()
		s.mu.Lock()
		s.events = nil
		s.mu.Unlock()
	}
}

// Events returns an iterator over what happens: first Joined for each member that is there, then every event, until ctx ends. It
// waits in between. A loop that is as far behind as OnEvent says misses the oldest, never the last.
func (g *Group) Events(ctx context.Context) iter.Seq[Event] {
	return func(yield func(Event) bool) {
		var mu sync.Mutex
		var got []Event
		more := make(chan struct{}, 1)
		defer g.subscribe(func(e Event) {
			mu.Lock()
			got = g.queued(got, e)
			mu.Unlock()
			select {
			case more <- struct{}{}:
			default:
			}
			g.node.HG().Wake()
		}, true)()
		for g.wait(ctx, more) == nil {
			mu.Lock()
			events := got
			got = nil
			mu.Unlock()
			for _, e := range events {
				if !yield(e) {
					return
				}
			}
		}
	}
}

// wait waits until more has an element, and takes it.
func (g *Group) wait(ctx context.Context, more chan struct{}) error {
	if g.node.HG().NA().Scheduled() {
		if err := g.node.HG().Wait(ctx, func() bool { return len(more) > 0 }); err != nil {
			return err
		}
	}
	select {
	case <-more:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// Watch implements qs.Resolver: the addresses of the members that have a service among theirs (Options.Serves), or of the
// member of that name.
func (g *Group) Watch(ctx context.Context, service string, update func(addrs []string, err error)) error {
	more := make(chan struct{}, 1)
	more <- struct{}{}
	defer g.subscribe(func(Event) {
		select {
		case more <- struct{}{}:
		default:
		}
		g.node.HG().Wake()
	}, false)()
	var last []string
	for first := true; g.wait(ctx, more) == nil; first = false {
		var now []string
		for _, m := range g.View().Members {
			if (m.Name == service || slices.Contains(m.Serves, service)) && !slices.Contains(now, m.Addr) {
				now = append(now, m.Addr)
			}
		}
		if first || !slices.Equal(now, last) {
			update(now, nil)
		}
		last = now
	}
	return nil
}
