package arq

// queue is the associations that may have something to send, in the order of their turns. One is in it once at most. It is a list
// through the associations themselves: to be in it costs no memory, and thousands may be idle.
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

// rotate ends the turn of the first.
func (q *queue) rotate() {
	if a := q.first; a.next != nil {
		q.pop()
		q.push(a)
	}
}
