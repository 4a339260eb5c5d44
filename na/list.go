package na

import (
	"math/bits"
	"slices"
)

// A fifo is a queue of values. The zero value is an empty queue.
type fifo[T any] struct {
	list []T
	at   int // index of the first value
}

func (q *fifo[T]) len() int { return len(q.list) - q.at }

// all returns the queued values. The slice is valid until the queue is next modified.
func (q *fifo[T]) all() []T { return q.list[q.at:] }

func (q *fifo[T]) push(v T) {
	if q.at > 64 && q.at*2 > len(q.list) {
		n := copy(q.list, q.list[q.at:])
		clear(q.list[n:])
		q.list, q.at = q.list[:n], 0
	}
	q.list = append(q.list, v)
}

// pop removes and returns the first value. The queue must not be empty.
func (q *fifo[T]) pop() T {
	var zero T
	v := q.list[q.at]
	q.list[q.at] = zero
	if q.at++; q.at == len(q.list) {
		q.list, q.at = q.list[:0], 0
	}
	return v
}

// unpopFront puts v, which pop returned last, back at the front of the queue.
func (q *fifo[T]) unpopFront(v T) {
	if q.len() == 0 {
		q.push(v)
		return
	}
	q.at--
	q.list[q.at] = v
}

// remove removes the value at index i of the slice that all returns.
func (q *fifo[T]) remove(i int) { q.list = slices.Delete(q.list, q.at+i, q.at+i+1) }

// An opList is a queue of operations. An operation is in at most one opList. The zero value is an
// empty queue.
type opList struct {
	head, tail *Op
	n          int
}

func (q *opList) push(o *Op) {
	o.list, o.prev, o.next = q, q.tail, nil
	if q.tail == nil {
		q.head = o
	} else {
		q.tail.next = o
	}
	q.tail = o
	q.n++
}

func (q *opList) remove(o *Op) {
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

func (q *opList) pop() *Op {
	o := q.head
	if o != nil {
		q.remove(o)
	}
	return o
}

// A postedTable is a hash table of posted receives, keyed by tag. The zero value is an empty table.
type postedTable struct {
	rows  []*Op // lists linked by Op.hashNext; the length is a power of two and at least n
	shift uint  // 64 minus the number of bits in an index into rows
	n     int
}

func (t *postedTable) row(tag Tag) **Op {
	// Use Fibonacci hashing, because tags may differ in any of their bits.
	return &t.rows[uint64(tag)*0x9e3779b97f4a7c15>>t.shift]
}

func (t *postedTable) find(tag Tag) *Op {
	if t.n == 0 {
		return nil
	}
	o := *t.row(tag)
	for o != nil && o.tag != tag {
		o = o.hashNext
	}
	return o
}

func (t *postedTable) add(o *Op) {
	if t.n == len(t.rows) {
		old := t.rows
		t.rows = make([]*Op, max(8, 2*len(old)))
		t.shift = uint(64 - bits.TrailingZeros(uint(len(t.rows))))
		for _, o := range old {
			for o != nil {
				next := o.hashNext
				t.put(o)
				o = next
			}
		}
	}
	t.put(o)
	t.n++
}

func (t *postedTable) put(o *Op) {
	at := t.row(o.tag)
	o.hashNext, *at = *at, o
}

func (t *postedTable) remove(o *Op) {
	at := t.row(o.tag)
	for *at != o {
		at = &(*at).hashNext
	}
	*at, o.hashNext = o.hashNext, nil
	t.n--
}

// An idTable assigns operations their wire IDs, which consist of a slot and a generation. The ID in
// a late response has an old generation and therefore matches no operation.
type idTable struct {
	slots []idSlot
	free  []uint32
}

type idSlot struct {
	o   *Op
	gen uint32
}

func (t *idTable) add(o *Op) uint64 {
	var slot uint32
	if n := len(t.free); n > 0 {
		slot, t.free = t.free[n-1], t.free[:n-1]
	} else {
		slot = uint32(len(t.slots))
		t.slots = append(t.slots, idSlot{gen: 1})
	}
	t.slots[slot].o = o
	return uint64(t.slots[slot].gen)<<32 | uint64(slot)
}

func (t *idTable) get(id uint64) *Op {
	slot := uint32(id)
	if uint64(slot) >= uint64(len(t.slots)) || t.slots[slot].gen != uint32(id>>32) {
		return nil
	}
	return t.slots[slot].o
}

// remove invalidates an ID. A slot that has used all of its generations is not reused.
func (t *idTable) remove(id uint64) {
	if t.get(id) == nil {
		return
	}
	s := &t.slots[uint32(id)]
	s.o = nil
	if s.gen++; s.gen != 0 {
		t.free = append(t.free, uint32(id))
	}
}

// spares is a free list of up to 1,024 zero values.
type spares[T any] struct{ spare []*T }

func (p *spares[T]) get() *T {
	last := len(p.spare) - 1
	if last < 0 {
		return new(T)
	}
	v := p.spare[last]
	p.spare = p.spare[:last]
	return v
}

func (p *spares[T]) put(v *T) {
	var zero T
	*v = zero
	if len(p.spare) < 1024 {
		p.spare = append(p.spare, v)
	}
}
