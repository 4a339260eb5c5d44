package na

import "sync/atomic"

// A Task is something that Trigger runs: the end of an operation, a message that has come, or what a layer above has queued. It is part
// of what it belongs to, made once to be queued often, and in the queue at most once.
type Task struct {
	next *Task
	run  func(data any) (ran int)
	data any
}

// Init has t run a function with data. It returns how many callbacks of the program it has run.
func (t *Task) Init(run func(data any) (ran int), data any) { t.run, t.data = run, data }

// queue is the completion queue: tasks in the order in which they were pushed. Any goroutine may push and take.
//
//	push ─► in: a stack ─ take: all of it ─► a list, of the goroutine in Trigger: it runs the first,
//	                                           └─ and leaves the rest to others meanwhile: rest
type queue struct {
	n    atomic.Int64         // tasks that have not begun to run; what is being pushed counts
	in   atomic.Pointer[Task] // the youngest first
	rest atomic.Pointer[Task] // the oldest first: older than those in in
}

func (q *queue) len() int { return int(q.n.Load()) }

func (q *queue) push(t *Task) {
	q.n.Add(1) // first: who finds t must not find less
	for {
		t.next = q.in.Load()
		if q.in.CompareAndSwap(t.next, t) {
			return
		}
	}
}

// take returns the oldest tasks, the oldest first; nil if there are none. The caller runs or leaves them.
func (q *queue) take() (first *Task) {
	if q.rest.Load() != nil {
		if first = q.rest.Swap(nil); first != nil {
			return first
		}
	}
	return q.taken()
}

// taken returns what is in in, the oldest first.
func (q *queue) taken() (first *Task) {
	if q.in.Load() == nil {
		return nil
	}
	for t := q.in.Swap(nil); t != nil; {
		next := t.next
		t.next, first = first, t
		t = next
	}
	return first
}

// gather has all that is queued be in rest, so that what is left next comes behind it, and reports whether there is any.
func (q *queue) gather() bool {
	if first := q.taken(); first != nil {
		q.putBack(first)
	}
	return q.rest.Load() != nil
}

// putBack gives tasks back that were taken, for anybody to take.
func (q *queue) putBack(first *Task) {
	for !q.rest.CompareAndSwap(nil, first) {
		if older := q.rest.Swap(nil); older != nil { // two goroutines left some: whose are older nobody knows
			last := older
			for last.next != nil {
				last = last.next
			}
			last.next, first = first, older
		}
	}
}
