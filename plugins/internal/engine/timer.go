package engine

import (
	"time"

	"github.com/quicksilver-rpc/quicksilver/na"
)

// Timer implements na.Endpoint.
func (e *Endpoint) Timer(t na.Ticket, at time.Duration) {
	e.mu.Lock()
	if err := e.refusal(t); err != nil {
		e.refuse(t, err)
		return
	}
	o := e.begin(t, kindTimer)
	o.due = max(at, 1)
	first := e.addTimer(o)
	e.mu.Unlock()
	if first {
		e.host.PollSoon()
	}
}

// maxExpire bounds the timers that end in one Poll: those that are left are due in the next one.
const maxExpire = 1024

// expire ends timers, and calls with a deadline, that are due. Locked.
func (e *Endpoint) expire(now time.Duration) {
	for range maxExpire {
		if len(e.timers) == 0 || e.timers[0].due > now {
			return
		}
		if o := e.timers[0]; o.kind == kindCall {
			e.dropTimer(o)
			o.due = 0
			o.t.Due()
		} else {
			e.finish(o, na.Result{})
		}
	}
}

// addTimer has o end when it is due, and reports whether nothing is due before: then Poll is due sooner.
func (e *Endpoint) addTimer(o *op) (first bool) {
	o.place = len(e.timers)
	e.timers = append(e.timers, o)
	if e.timers.up(o); o.place == 0 {
		e.due.Store(int64(o.due))
	}
	return o.place == 0
}

// dropTimer takes out what addTimer has added; nothing if that has not.
func (e *Endpoint) dropTimer(o *op) {
	if o.due == 0 {
		return
	}
	at, last := o.place, len(e.timers)-1
	moved := e.timers[last]
	e.timers[last] = nil
	e.timers = e.timers[:last]
	if moved != o {
		e.timers[at], moved.place = moved, at
		e.timers.down(moved)
		e.timers.up(moved)
	}
	if at == 0 {
		e.due.Store(int64(e.timers.next()))
	}
}

// timers is a binary heap, the earliest first.
type timers []*op

// next is when the first is due; 0 when there is none.
func (t timers) next() time.Duration {
	if len(t) == 0 {
		return 0
	}
	return t[0].due
}

func (t timers) swap(a, b *op) {
	t[a.place], t[b.place] = b, a
	a.place, b.place = b.place, a.place
}

// up moves o towards the first.
func (t timers) up(o *op) {
	for o.place > 0 {
		parent := t[(o.place-1)/2]
		if parent.due <= o.due {
			return
		}
		t.swap(parent, o)
	}
}

// down moves o away from it.
func (t timers) down(o *op) {
	for {
		i := 2*o.place + 1
		if i >= len(t) {
			return
		}
		child := t[i]
		if i+1 < len(t) && t[i+1].due < child.due {
			child = t[i+1]
		}
		if child.due >= o.due {
			return
		}
		t.swap(child, o)
	}
}
