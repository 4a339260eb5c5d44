package engine

// opList is a queue of operations; an op is in at most one. The zero value is empty.
type opList struct {
	head, tail *op
	n          int
}

func (q *opList) push(o *op) {
	o.list, o.prev, o.next = q, q.tail, nil
	if q.tail == nil {
		q.head = o
	} else {
		q.tail.next = o
	}
	q.tail = o
	q.n++
}

func (q *opList) remove(o *op) {
	if o.prev == nil {
		q.head = o.next
	} else {
		o.prev.next = o.next
	}
	if o.next == nil {
		q.tail = o.prev
	} else {
		o.next.prev = o.prev
	}
	o.list, o.prev, o.next = nil, nil, nil
	q.n--
}

func (q *opList) pop() *op {
	o := q.head
	if o != nil {
		q.remove(o)
	}
	return o
}
