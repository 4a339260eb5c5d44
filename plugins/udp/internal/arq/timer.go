package arq

// A queue is a linked list of associations that may have packets to send, in the order of their
// turns. It contains each association at most once. The links are the next fields of the
// associations.
type queue struct{ first, last *Assoc }

func (q *queue) push(a *Assoc) {
	if a.queued {
		return
	}
	a.queued = true
	if q.first == nil {
		q.first = a
	} else {
		q.last.next = a
	}
	q.last = a
}

func (q *queue) pop() {
	a := q.first
	q.first, a.next, a.queued = a.next, nil, false
}

// rotate moves the first association to the end of the queue.
func (q *queue) rotate() {
	if a := q.first; a.next != nil {
		q.pop()
		q.push(a)
	}
}
