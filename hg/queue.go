package hg

import (
	"sync"
	"sync/atomic"
)

// A task is something that Trigger runs, made once to be posted often. It is part of what it belongs to, and in the queue at
// most once.
type task struct {
	next *task
	fn   func(data any)
	data any
	lent bool // it belongs to the queue, for one function
}

// init has t run fn with data.
func (t *task) init(fn func(data any), data any) { t.fn, t.data = fn, data }

// queue is the completion queue of a context, in order. Any goroutine may push and pop.
type queue struct {
	n          atomic.Int64
	mu         sync.Mutex // guards the list
	head, tail *task
	spare      *task // lent ones
	spares     int
}

// maxSpareTasks bounds those that a queue keeps.
const maxSpareTasks = 64

func (q *queue) len() int { return int(q.n.Load()) }

func (q *queue) push(t *task) {
	q.mu.Lock()
	q.append(t)
	q.mu.Unlock()
}

// pushFunc is push for a function, in a task that is used again.
func (q *queue) pushFunc(fn func()) {
	q.mu.Lock()
	defer q.mu.Unlock()
	t := q.spare
	if t == nil {
		t = &task{fn: callFunc, lent: true}
	} else {
		q.spare, t.next = t.next, nil
		q.spares--
	}
	t.data = fn
	q.append(t)
}

func callFunc(fn any) { fn.(func())() }

// append is push. Locked.
func (q *queue) append(t *task) {
	if q.tail == nil {
		q.head = t
	} else {
		q.tail.next = t
	}
	q.tail = t
	q.n.Add(1)
}

// pop takes out what is to run next; fn is nil if nothing is.
func (q *queue) pop() (fn func(data any), data any) {
	if q.n.Load() == 0 {
		return nil, nil
	}
	q.mu.Lock()
	if t := q.head; t != nil {
		if q.head = t.next; q.head == nil {
			q.tail = nil
		}
		t.next = nil
		q.n.Add(-1)
		fn, data = t.fn, t.data
		if t.lent {
			q.giveBack(t)
		}
	}
	q.mu.Unlock()
	return fn, data
}

// giveBack keeps a lent task for another function. Locked.
func (q *queue) giveBack(t *task) {
	t.data = nil
	if q.spares < maxSpareTasks {
		t.next, q.spare = q.spare, t
		q.spares++
	}
}
