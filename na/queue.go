package na

import "sync/atomic"

// A Task is a function for Trigger to run: the completion of an operation, a received message, or a
// function queued by a higher layer. It is embedded as a field in the object it belongs to. It may
// be queued repeatedly, but at most once at a time.
type Task struct {
	next *Task
	run  func(data any) (ran int)
	data any
}

// Init sets the function of t and its argument. run returns the number of user callbacks it has
// run.
func (t *Task) Init(run func(data any) (ran int), data any) { t.run, t.data = run, data }

// A queue is a completion queue, a lock-free FIFO of tasks. It is safe for concurrent use.
//
//	push ─► in: a stack ─ take: all of it ─► a list of the goroutine in Trigger: it runs the first,
//	                                           └─ and leaves the others in rest for other goroutines
type queue struct {
	// number of tasks that have not begun to run, including any being pushed
	n    atomic.Int64
	in   atomic.Pointer[Task] // list of tasks, newest first
	rest atomic.Pointer[Task] // list of tasks, oldest first; all are older than those in in
}

func (q *queue) len() int { return int(q.n.Load()) }

func (q *queue) push(t *Task) {
	q.n.Add(1) // before t is in the list, because the goroutine that takes t decrements n
	for {
		t.next = q.in.Load()
		if q.in.CompareAndSwap(t.next, t) {
			return
		}
	}
}

// take removes and returns a list of the oldest tasks, oldest first, or nil if q is empty. The
// caller must run them or put them back.
func (q *queue) take() (first *Task) {
	if q.rest.Load() != nil {
		if first = q.rest.Swap(nil); first != nil {
			return first
		}
	}
	return q.takeIn()
}

// takeIn removes and returns all tasks in in, oldest first.
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

// gather moves all tasks to rest, ahead of tasks pushed later, and reports whether there are any.
func (q *queue) gather() bool {
	if first := q.takeIn(); first != nil {
		q.putBack(first)
	}
	return q.rest.Load() != nil
}

// putBack returns tasks that were taken to the front of the queue.
func (q *queue) putBack(first *Task) {
	for !q.rest.CompareAndSwap(nil, first) {
		// Another goroutine has also put tasks back. It is unknown which are older.
		if older := q.rest.Swap(nil); older != nil {
			last := older
			for last.next != nil {
				last = last.next
			}
			last.next, first = first, older
		}
	}
}
