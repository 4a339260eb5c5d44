package timeheap

import (
	"iter"
	"time"
)

// A Heap holds values ordered by time. Values with equal times are in the order of their Set calls.
// The zero value is an empty heap.
type Heap[T any] struct {
	slots []slot[T]
	seq   uint64
}

// A slot is one entry of a Heap.
type slot[T any] struct {
	value *T
	index *Index
	at    time.Duration
	seq   uint64
}

// An Index is the position of a value in its heap, starting at 1, or 0 if it is not in a heap. The
// value stores it, and the Heap sets it.
type Index int32

// maxIdleCap is the maximum capacity, in values, that an empty heap retains.
const maxIdleCap = 64

// First returns the value with the earliest time, and that time. It returns nil and 0 if the heap
// is empty.
func (h *Heap[T]) First() (v *T, at time.Duration) {
	if len(h.slots) == 0 {
		return nil, 0
	}
	return h.slots[0].value, h.slots[0].at
}

// All returns an iterator over the values, in unspecified order.
func (h *Heap[T]) All() iter.Seq[*T] {
	return func(yield func(*T) bool) {
		for i := range h.slots {
			if !yield(h.slots[i].value) {
				return
			}
		}
	}
}

// Set adds v with time at, or changes its time if it is already in the heap. index points to the
// Index stored in v.
func (h *Heap[T]) Set(v *T, index *Index, at time.Duration) {
	h.seq++
	s := slot[T]{v, index, at, h.seq}
	if *index == 0 {
		h.slots = append(h.slots, s)
		*index = Index(len(h.slots))
	}
	h.siftFrom(int(*index-1), s)
}

// Remove removes the value that stores index, if it is in the heap.
func (h *Heap[T]) Remove(index *Index) {
	i, last := int(*index-1), len(h.slots)-1
	if i < 0 {
		return
	}
	s := h.slots[last]
	h.slots[last] = slot[T]{}
	h.slots = h.slots[:last]
	*index = 0
	if i < last {
		h.siftFrom(i, s)
	} else if last == 0 && cap(h.slots) > maxIdleCap {
		h.slots = nil
	}
}

// siftFrom inserts s at index i, whose slot is free, and moves it up or down to restore heap order.
func (h *Heap[T]) siftFrom(i int, s slot[T]) {
	for i > 0 && s.isBefore(&h.slots[(i-1)/2]) {
		h.setSlot(i, h.slots[(i-1)/2])
		i = (i - 1) / 2
	}
	for {
		child := 2*i + 1
		if child+1 < len(h.slots) && h.slots[child+1].isBefore(&h.slots[child]) {
			child++
		}
		if child >= len(h.slots) || s.isBefore(&h.slots[child]) {
			break
		}
		h.setSlot(i, h.slots[child])
		i = child
	}
	h.setSlot(i, s)
}

// setSlot stores s at index i and sets the Index of its value.
func (h *Heap[T]) setSlot(i int, s slot[T]) {
	h.slots[i] = s
	*s.index = Index(i + 1)
}

// isBefore reports whether s precedes o.
func (s *slot[T]) isBefore(o *slot[T]) bool { return s.at < o.at || s.at == o.at && s.seq < o.seq }
