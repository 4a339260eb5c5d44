package na

import "sync/atomic"

// A Task is a function that Trigger runs: the end of an operation, a received message, or a
// function that a layer above has queued. It is a field of the object that it belongs to. It may be
// queued repeatedly, but is in the queue at most once at a time.
type Task struct {
	next *Task
	run  func(data any) (ran int)
	data any
}

// Init makes t run a function with data. run returns how many of the user's callbacks it has run.
func (t *Task) Init(run func(data any) (ran int), data any) { t.run, t.data = run, data }

// A queue is a completion queue: a lock-free FIFO of tasks. Any goroutine may push and take.
//
//	push ─► in: a stack ─ take: all of it ─► a list of the goroutine in Trigger: it runs the first,
//	                                           └─ and leaves the others in rest for other goroutines
type queue struct {
	// the number of tasks that have not begun to run, including one that is being pushed
	n    atomic.Int64
	in   atomic.Pointer[Task] // a list, newest first
	rest atomic.Pointer[Task] // a list, oldest first; its tasks are older than those of in
}

func (q *queue) len() int { return int(q.n.Load()) }

func (q *queue) push(t *Task) {
	q.n.Add(1) // before t is in the list: a goroutine that takes t decrements n
	for {
		t.next = q.in.Load()
		if q.in.CompareAndSwap(t.next, t) {
			return
		}
	}
}

// take takes the oldest tasks, oldest first, or returns nil. The caller runs them or puts them
// back.
func (q *queue) take() (first *Task) {
	if q.rest.Load() != nil {
		if first = q.rest.Swap(nil); first != nil {
			return first
		}
	}
	return q.takeIn()
}

// takeIn takes all tasks of in, oldest first.
func (q *queue) takeIn() (first *Task) {
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

// gather moves all tasks to rest, ahead of tasks that are pushed later, and reports whether there
// are any.
func (q *queue) gather() bool {
	if first := q.takeIn(); first != nil {
		q.putBack(first)
	}
	return q.rest.Load() != nil
}

// putBack puts tasks that were taken to the front of the queue.
func (q *queue) putBack(first *Task) {
	for !q.rest.CompareAndSwap(nil, first) {
		// another goroutine has put some back too; which are older is unknown
		if older := q.rest.Swap(nil); older != nil {
			last := older
			for last.next != nil {
				last = last.next
			}
			last.next, first = first, older
		}
	}
}
