package hg

import (
	"sync"
	"sync/atomic"
)

// An entry is something that Trigger runs. It is part of what it belongs to, and in the queue at most once.
type entry struct {
	next *entry
	run  func()
	task *Task // in place of run
}

// A Task is something that is to run in Trigger, made once to be posted often. It may be part of what it belongs to. It
// is in the queue at most once.
type Task struct {
	entry entry
	fn    func(data any)
	data  any
}

// Init has t run fn with data.
func (t *Task) Init(fn func(data any), data any) { t.fn, t.data, t.entry.task = fn, data, t }

// queue is the completion queue of a context, in order. Any goroutine may push and pop.
type queue struct {
	n          atomic.Int64
	mu         sync.Mutex // guards the list
	head, tail *entry
}

func (q *queue) len() int { return int(q.n.Load()) }

func (q *queue) push(e *entry) {
	q.mu.Lock()
	if q.tail == nil {
		q.head = e
	} else {
		q.tail.next = e
	}
	q.tail = e
	q.n.Add(1)
	q.mu.Unlock()
}

func (q *queue) pop() *entry {
	if q.n.Load() == 0 {
		return nil
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	e := q.head
	if e == nil {
		return nil
	}
	if q.head = e.next; q.head == nil {
		q.tail = nil
	}
	e.next = nil
	q.n.Add(-1)
	return e
}
