package na

import "sync/atomic"

// A Task is a function for Trigger to run: the completion of an operation, a received message, or a
// function queued by a higher layer. A Task is a field of the object that its function handles, so
// that queueing it allocates nothing. A Task may be queued again once it has begun to run.
type Task struct {
	next *Task
	run  func(data any) (ran int)
	data any
}

// Init sets the function that t runs and its argument. run must return the number of user callbacks
// that it called.
func (t *Task) Init(run func(data any) (ran int), data any) { t.run, t.data = run, data }

// A queue is a completion queue, a lock-free FIFO of tasks. It is safe for concurrent use.
//
// push adds tasks to the stack in. A goroutine in Trigger removes the whole stack, reverses it,
// runs the oldest task, and leaves the others in rest, where other goroutines can take them.
type queue struct {
	// number of tasks that have not begun to run, including any being pushed
	n    atomic.Int64
	in   atomic.Pointer[Task] // list of tasks, newest first
	rest atomic.Pointer[Task] // list of tasks, oldest first, all older than those of in
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

// take removes a list of the oldest tasks and returns it, oldest first. It returns nil if q is
// empty. The caller must run each task or return it with putBack.
func (q *queue) take() (first *Task) {
	if q.rest.Load() != nil {
		if first = q.rest.Swap(nil); first != nil {
			return first
		}
	}
	return q.takeIn()
}

// takeIn removes all tasks from q.in and returns them, oldest first.
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

// gather moves all tasks to q.rest, ahead of tasks pushed later, and reports whether q.rest is
// non-empty.
func (q *queue) gather() bool {
	if first := q.takeIn(); first != nil {
		q.putBack(first)
	}
	return q.rest.Load() != nil
}

// putBack inserts the list first, which take or takeIn returned, at the front of the queue.
func (q *queue) putBack(first *Task) {
	for !q.rest.CompareAndSwap(nil, first) {
		// Another goroutine has also put tasks back. It is not known which of the two lists is older.
		if older := q.rest.Swap(nil); older != nil {
			last := older
			for last.next != nil {
				last = last.next
			}
			last.next, first = first, older
		}
	}
}
