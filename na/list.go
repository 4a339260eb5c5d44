package na

import (
	"math/bits"
	"slices"
)

// A fifo is values in order. The zero value is empty.
type fifo[T any] struct {
	list []T
	at   int // of the first
}

func (q *fifo[T]) len() int { return len(q.list) - q.at }

// all returns the values; the slice is valid until the next change.
func (q *fifo[T]) all() []T { return q.list[q.at:] }

func (q *fifo[T]) push(v T) {
	if q.at > 64 && q.at*2 > len(q.list) {
		n := copy(q.list, q.list[q.at:])
		clear(q.list[n:])
		q.list, q.at = q.list[:n], 0
	}
	q.list = append(q.list, v)
}

// pop takes the first value of a fifo that is not empty.
func (q *fifo[T]) pop() T {
	var zero T
	v := q.list[q.at]
	q.list[q.at] = zero
	if q.at++; q.at == len(q.list) {
		q.list, q.at = q.list[:0], 0
	}
	return v
}

// unpopFront puts back what pop has taken, if nothing else was done since.
func (q *fifo[T]) unpopFront(v T) {
	if q.len() == 0 {
		q.push(v)
		return
	}
	q.at--
	q.list[q.at] = v
}

// remove takes out the value with index i of all.
func (q *fifo[T]) remove(i int) { q.list = slices.Delete(q.list, q.at+i, q.at+i+1) }

// opList is a queue of operations; an op is in at most one. The zero value is empty.
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

// postedTable finds the receives that are posted by their tags. The zero value is empty.
type postedTable struct {
	rows  []*Op // each a list by op.hashNext; as many as a power of two, which is at least n
	shift uint  // 64 less the bits of a row's number
	n     int
}

func (t *postedTable) row(tag Tag) **Op {
	return &t.rows[uint64(tag)*0x9e3779b97f4a7c15>>t.shift] // tags may differ in any of their bits
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

// idTable gives operations their wire identity: slot and generation, so that a late answer meets a dead generation.
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

// remove ends the identity. A slot whose generations are used up is not used again.
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

// spares are spare values that are used again, which are zero; 1,024 at most.
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
