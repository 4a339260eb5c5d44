package engine

import (
	"container/heap"
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
	heap.Push(&e.timers, o)
	e.due.Store(int64(e.timers.next()))
	first := e.timers[0] == o
	e.mu.Unlock()
	if first {
		e.host.PollSoon()
	}
}

// expire ends the timers that are due. Locked.
func (e *Endpoint) expire(now time.Duration) {
	for len(e.timers) > 0 && e.timers[0].due <= now {
		e.finish(e.timers[0], na.Result{})
	}
}

// timers is a heap (see container/heap), the earliest first.
type timers []*op

// next is when the first is due; 0 when there is none.
func (t timers) next() time.Duration {
	if len(t) == 0 {
		return 0
	}
	return t[0].due
}

func (t timers) Len() int           { return len(t) }
func (t timers) Less(i, j int) bool { return t[i].due < t[j].due }

func (t timers) Swap(i, j int) {
	t[i], t[j] = t[j], t[i]
	t[i].place, t[j].place = i, j
}

// Push implements heap.Interface.
func (t *timers) Push(x any) {
	o := x.(*op)
	o.place = len(*t)
	*t = append(*t, o)
}

// Pop implements heap.Interface.
func (t *timers) Pop() any {
	last := len(*t) - 1
	o := (*t)[last]
	(*t)[last] = nil
	*t = (*t)[:last]
	return o
}
