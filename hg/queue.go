package hg

import (
	"sync"
	"sync/atomic"
)

// A Task is something that Trigger runs, made once to be posted often. It may be part of what it belongs to. It is in the
// queue at most once.
type Task struct {
	next *Task
	fn   func(data any)
	data any
}

// Init has t run fn with data.
func (t *Task) Init(fn func(data any), data any) { t.fn, t.data = fn, data }

// queue is the completion queue of a context, in order. Any goroutine may push and pop.
type queue struct {
	n          atomic.Int64
	mu         sync.Mutex // guards the list
	head, tail *Task
}

func (q *queue) len() int { return int(q.n.Load()) }

func (q *queue) push(t *Task) {
	q.mu.Lock()
	if q.tail == nil {
		q.head = t
	} else {
		q.tail.next = t
	}
	q.tail = t
	q.n.Add(1)
	q.mu.Unlock()
}

func (q *queue) pop() *Task {
	if q.n.Load() == 0 {
		return nil
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	t := q.head
	if t == nil {
		return nil
	}
	if q.head = t.next; q.head == nil {
		q.tail = nil
	}
	t.next = nil
	q.n.Add(-1)
	return t
}
