package group

import (
	"context"
	"iter"
	"slices"
	"sync"
)

// maxBehind limits the number of events queued for a callback or an iterator, in addition to one for each member. When
// the limit is exceeded, the oldest events are dropped. View still reflects their effect.
const maxBehind = 1024

// appendBounded appends e to events, removing the oldest ones if there are too many.
func (g *Group) appendBounded(events []Event, e Event) []Event {
	events = append(events, e)
	if over := len(events) - maxBehind - len(g.View().Members); over > 0 {
		events = slices.Delete(events, 0, over)
	}
	return events
}

// A subscriber is a callback and its queue of events. While the queue is not empty, a goroutine (in the simulator, a
// coroutine) calls the callback with one event after another.
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

// runCallbacks calls fn with each event. If fn ends its goroutine with runtime.Goexit, as FailNow does in tests,
// another goroutine continues.
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

// OnEvent calls fn for each subsequent event until remove is called. The calls are made one at a time, in the order of
// the events, on a separate goroutine. If fn ends that goroutine with runtime.Goexit, the next event is delivered on a
// new one.
//
// The function fn may block. If it falls behind by more than 1,024 events plus the number of members, the oldest events
// are dropped. The last call of fn may still be running when remove returns. View returns the members that joined
// before OnEvent was called.
func (g *Group) OnEvent(fn func(Event)) (remove func()) { return g.subscribe(fn, false) }

// subscribe adds a callback. If all is true, the callback first receives a Joined event for each member of the current
// view.
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

// Events returns an iterator over the events: first a Joined event for each member of the current view, then every
// subsequent event until ctx is done. The iterator blocks while there are no events. If the loop falls behind by more
// than the limit documented for OnEvent, it misses the oldest events, but never the most recent one.
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

// waitForEvent receives an element from more, waiting until one is available or ctx is done.
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

// Watch implements qs.Resolver. It reports the addresses of the members that provide service (see Options.Serves), or
// the address of the member with that name.
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
