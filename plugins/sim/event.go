package sim

import (
	"cmp"
	"slices"
	"time"

	"github.com/quicksilver-rpc/quicksilver/internal/timeheap"
)

// An event runs its actor at a virtual time. Events with equal times run in the order in which they
// were scheduled. An event is embedded in its actor and scheduled repeatedly, so that scheduling
// does not allocate.
type event struct {
	at        time.Duration
	seq       uint64
	heapIndex timeheap.Index
	isTimer   bool // the event is a timer; an idle paced world does not skip to it
	actor     actor
}

// An actor handles an event. fire is called with the turn held and no locks held.
type actor interface{ fire(ev *event) }

// An eventQueue holds the scheduled events, ordered by time.
type eventQueue struct {
	heap timeheap.Heap[event]
	seq  uint64
}

func (q *eventQueue) first() *event {
	ev, _ := q.heap.First()
	return ev
}

// schedule schedules ev, or reschedules it if it is already scheduled.
func (q *eventQueue) schedule(ev *event, at time.Duration) {
	q.seq++
	ev.at, ev.seq = at, q.seq
	q.heap.Set(ev, &ev.heapIndex, at)
}

// cancel cancels ev if it is scheduled.
func (q *eventQueue) cancel(ev *event) { q.heap.Remove(&ev.heapIndex) }

// inFlight returns the events that are not timers, in the order in which they were scheduled.
func (q *eventQueue) inFlight() (all []*event) {
	for ev := range q.heap.All() {
		if !ev.isTimer {
			all = append(all, ev)
		}
	}
	slices.SortFunc(all, func(a, b *event) int { return cmp.Compare(a.seq, b.seq) })
	return all
}

// hasInFlight reports whether there is an event that is not a timer.
func (q *eventQueue) hasInFlight() bool {
	for ev := range q.heap.All() {
		if !ev.isTimer {
			return true
		}
	}
	return false
}
