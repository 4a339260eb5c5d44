package na

import (
	"sync"
	"sync/atomic"
)

// queue is the completion queue: operations in the order in which they ended. Any goroutine may push and pop.
type queue struct {
	n    atomic.Int64
	mu   sync.Mutex // guards the list
	head *Op
	tail *Op
}

func (q *queue) len() int64 { return q.n.Load() }

func (q *queue) push(op *Op) {
	q.mu.Lock()
	if q.tail == nil {
		q.head = op
	} else {
		q.tail.next = op
	}
	q.tail = op
	q.n.Add(1)
	q.mu.Unlock()
}

func (q *queue) pop() *Op {
	if q.n.Load() == 0 {
		return nil
	}
	q.mu.Lock()
	op := q.head
	if op != nil {
		if q.head = op.next; q.head == nil {
			q.tail = nil
		}
		op.next = nil
		q.n.Add(-1)
	}
	q.mu.Unlock()
	return op
}
