package sim

import (
	"slices"
	"time"
)

// An event is something that happens at a virtual time. Events of one time happen in the order in which they were set.
// They are embedded in what they happen to and set again and again, so that the heap allocates nothing.
type event struct {
	at   time.Duration
	seq  uint64
	pos  int  // index in the heap plus one; 0 when not set
	slow bool // a timer: a paced world that waits for nothing else does not skip to it
	act  actor
}

// An actor is what an event happens to. fire runs with the turn held and no lock.
type actor interface{ fire(ev *event) }

// A heap holds the events that are set: a binary heap by (at, seq).
type heap struct {
	h   []*event
	seq uint64
}

func (q *heap) min() *event {
	if len(q.h) == 0 {
		return nil
	}
	return q.h[0]
}

// set makes ev happen at a time, also if it was set to another one.
func (q *heap) set(ev *event, at time.Duration) {
	q.seq++
	ev.at, ev.seq = at, q.seq
	if ev.pos == 0 {
		q.h = append(q.h, ev)
		ev.pos = len(q.h)
	}
	if !q.up(ev.pos - 1) {
		q.down(ev.pos - 1)
	}
}

// unset takes ev out, if it is in.
func (q *heap) unset(ev *event) {
	if ev.pos == 0 {
		return
	}
	i, last := ev.pos-1, len(q.h)-1
	ev.pos = 0
	if i != last {
		q.put(i, q.h[last])
	}
	q.h[last] = nil
	q.h = q.h[:last]
	if i != last && !q.up(i) {
		q.down(i)
	}
}

// busy reports whether something is under way: an event that is not slow.
func (q *heap) busy() bool {
	return slices.ContainsFunc(q.h, func(ev *event) bool { return !ev.slow })
}

func (q *heap) put(i int, ev *event) {
	q.h[i] = ev
	ev.pos = i + 1
}

func before(a, b *event) bool { return a.at < b.at || a.at == b.at && a.seq < b.seq }

func (q *heap) up(i int) bool {
	ev, moved := q.h[i], false
	for i > 0 {
		parent := (i - 1) / 2
		if !before(ev, q.h[parent]) {
			break
		}
		q.put(i, q.h[parent])
		i, moved = parent, true
	}
	q.put(i, ev)
	return moved
}

func (q *heap) down(i int) {
	ev := q.h[i]
	for {
		child := 2*i + 1
		if child >= len(q.h) {
			break
		}
		if r := child + 1; r < len(q.h) && before(q.h[r], q.h[child]) {
			child = r
		}
		if !before(q.h[child], ev) {
			break
		}
		q.put(i, q.h[child])
		i = child
	}
	q.put(i, ev)
}
