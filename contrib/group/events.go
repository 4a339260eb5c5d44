package group

import (
	"context"
	"iter"
	"slices"
	"sync"
)

// maxBehind bounds the events that wait for a callback or an iterator, in addition to one for each member. Beyond it the oldest are dropped;
// View shows their effect.
const maxBehind = 1024

// appendBounded appends e to events, and removes the oldest ones if there are too many.
func (g *Group) appendBounded(events []Event, e Event) []Event {
	events = append(events, e)
	if over := len(events) - maxBehind - len(g.View().Members); over > 0 {
		events = slices.Delete(events, 0, over)
	}
	return events
}

// A subscriber is a callback and its queue of events. A goroutine (in the simulator, a coroutine) calls it while there are any.
type subscriber struct {
	group *Group
	fn    func(Event)

	mu        sync.Mutex // guards the fields below
	events    []Event
	isRunning bool
}

// addEvent queues e for the callback. It does not block.
func (s *subscriber) addEvent(e Event) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.events = s.group.appendBounded(s.events, e)
	if !s.isRunning {
		s.isRunning = true
		s.group.node.HG().NA().Spawn(s.runCallbacks)
	}
}

// runCallbacks calls fn with each event. If fn ends its goroutine (runtime.Goexit, as FailNow of a test does), another goroutine continues.
func (s *subscriber) runCallbacks() {
	returned := true
	defer func() {
		if !returned {
			s.group.node.HG().NA().Spawn(s.runCallbacks)
		}
	}()
	for {
		s.mu.Lock()
		if len(s.events) == 0 {
			s.isRunning = false
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

// OnEvent calls fn with each event from now on, until remove is called. The calls are in the order of the events, one at a time, on a goroutine
// of fn's own; if fn ends that goroutine (runtime.Goexit), the next event has another one. fn may block: if it is more than 1,024 events and
// the number of members behind, it misses the oldest. fn may still be running, for the last time, when remove returns. View returns the members
// from before.
func (g *Group) OnEvent(fn func(Event)) (remove func()) { return g.subscribe(fn, false) }

// subscribe adds a callback. With all it is first called with Joined for each member of the current view.
func (g *Group) subscribe(fn func(Event), all bool) (remove func()) {
	s := &subscriber{group: g, fn: fn}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.subs = append(g.subs, s)
	if v := g.View(); all {
		for _, m := range v.Members {
			s.addEvent(Event{Joined, m, v.Epoch})
		}
	}
	return func() {
		g.mu.Lock()
		g.subs = slices.DeleteFunc(g.subs, func(o *subscriber) bool { return o == s })
		g.mu.Unlock()
		s.mu.Lock()
		s.events = nil
		s.mu.Unlock()
	}
}

// Events returns an iterator over the events: first Joined for each member of the current view, then every event, until ctx ends. It blocks
// between events. A loop that falls behind by the limit of OnEvent misses the oldest events, never the last.
func (g *Group) Events(ctx context.Context) iter.Seq[Event] {
	return func(yield func(Event) bool) {
		var mu sync.Mutex
		var got []Event
		more := make(chan struct{}, 1)
		defer g.subscribe(func(e Event) {
			mu.Lock()
			got = g.appendBounded(got, e)
			mu.Unlock()
			select {
			case more <- struct{}{}:
			default:
			}
			g.node.HG().Wake()
		}, true)()
		for g.waitForEvent(ctx, more) == nil {
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

// waitForEvent waits until more has an element, and receives it.
func (g *Group) waitForEvent(ctx context.Context, more chan struct{}) error {
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
	for first := true; g.waitForEvent(ctx, more) == nil; first = false {
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
