package sim

import (
	"cmp"
	"slices"
	"time"

	"github.com/quicksilver-rpc/quicksilver/internal/timeheap"
)

// An event is something that happens at a virtual time. Events of one time happen in the order in which they were set.
// They are embedded in what they happen to and set again and again, so that the heap allocates nothing.
type event struct {
	at    time.Duration
	seq   uint64
	place timeheap.Place
	slow  bool // a timer: a paced world that waits for nothing else does not skip to it
	act   actor
}

// An actor is what an event happens to. fire runs with the turn held and no lock.
type actor interface{ fire(ev *event) }

// events are those that are set.
type events struct {
	heap timeheap.Heap[event]
	seq  uint64
}

func (q *events) min() *event {
	ev, _ := q.heap.First()
	return ev
}

// set makes ev happen at a time, also if it was set to another one.
func (q *events) set(ev *event, at time.Duration) {
	q.seq++
	ev.at, ev.seq = at, q.seq
	q.heap.Set(ev, &ev.place, at)
}

// unset takes ev out, if it is in.
func (q *events) unset(ev *event) { q.heap.Remove(&ev.place) }

// underWay returns the events that are not slow, in the order in which they were set.
func (q *events) underWay() (all []*event) {
	for ev := range q.heap.All() {
		if !ev.slow {
			all = append(all, ev)
		}
	}
	slices.SortFunc(all, func(a, b *event) int { return cmp.Compare(a.seq, b.seq) })
	return all
}

// busy reports whether something is under way.
func (q *events) busy() bool {
	for ev := range q.heap.All() {
		if !ev.slow {
			return true
		}
	}
	return false
}
