package timeheap

import (
	"iter"
	"time"
)

// A Heap holds values by the time at which they are due; those of one time in the order in which they were set. The zero value is
// empty.
type Heap[T any] struct {
	slots []slot[T]
	seq   uint64
}

type slot[T any] struct {
	v     *T
	place *Place
	at    time.Duration
	seq   uint64
}

// A Place is where a value is in its heap, counted from 1, and belongs to the value; 0 when it is in none.
type Place int32

// keep is how many values an empty heap keeps room for.
const keep = 64

// First returns the value that is due first, and when; nil and 0 if there is none.
func (h *Heap[T]) First() (v *T, at time.Duration) {
	if len(h.slots) == 0 {
		return nil, 0
	}
	return h.slots[0].v, h.slots[0].at
}

// All gives the values in no order.
func (h *Heap[T]) All() iter.Seq[*T] {
	return func(yield func(*T) bool) {
		for i := range h.slots {
			if !yield(h.slots[i].v) {
				return
			}
		}
	}
}

// Set adds v, whose place is place, or moves it if it is there.
func (h *Heap[T]) Set(v *T, place *Place, at time.Duration) {
	h.seq++
	s := slot[T]{v, place, at, h.seq}
	if *place == 0 {
		h.slots = append(h.slots, s)
		*place = Place(len(h.slots))
	}
	h.put(int(*place-1), s)
}

// Remove takes out the value whose place is place, if it is there.
func (h *Heap[T]) Remove(place *Place) {
	i, last := int(*place-1), len(h.slots)-1
	if i < 0 {
		return
	}
	s := h.slots[last]
	h.slots[last] = slot[T]{}
	h.slots = h.slots[:last]
	if *place = 0; i < last {
		h.put(i, s)
	} else if last == 0 && cap(h.slots) > keep {
		h.slots = nil
	}
}

// put has s find its place from i on, where what is there goes.
func (h *Heap[T]) put(i int, s slot[T]) {
	for i > 0 && s.before(&h.slots[(i-1)/2]) {
		h.fill(i, h.slots[(i-1)/2])
		i = (i - 1) / 2
	}
	for {
		child := 2*i + 1
		if child+1 < len(h.slots) && h.slots[child+1].before(&h.slots[child]) {
			child++
		}
		if child >= len(h.slots) || s.before(&h.slots[child]) {
			break
		}
		h.fill(i, h.slots[child])
		i = child
	}
	h.fill(i, s)
}

func (h *Heap[T]) fill(i int, s slot[T]) {
	h.slots[i] = s
	*s.place = Place(i + 1)
}

func (s *slot[T]) before(o *slot[T]) bool { return s.at < o.at || s.at == o.at && s.seq < o.seq }
