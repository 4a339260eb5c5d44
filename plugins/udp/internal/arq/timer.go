package arq

// queue is the associations that may have something to send, in the order of their turns.
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

func (q *queue) rotate() {
	if a := q.first; a.next != nil {
		q.pop()
		q.push(a)
	}
}

// heap is the associations that have something to do at some time, the earliest first.
type heap []*Assoc

// set moves a to its place by a.due.
func (h *heap) set(a *Assoc) {
	if a.place == 0 {
		*h = append(*h, a)
		a.place = int32(len(*h))
	}
	h.down(h.up(int(a.place - 1)))
}

func (h *heap) remove(a *Assoc) {
	i, last := int(a.place-1), len(*h)-1
	if i < 0 {
		return
	}
	h.put(i, (*h)[last])
	(*h)[last] = nil
	*h = (*h)[:last]
	a.place = 0
	if i < last {
		h.down(h.up(i))
	}
}

func (h heap) put(i int, a *Assoc) { h[i], a.place = a, int32(i+1) }

func (h heap) up(i int) int {
	for i > 0 && h[i].due < h[(i-1)/2].due {
		h.swap(i, (i-1)/2)
		i = (i - 1) / 2
	}
	return i
}

func (h heap) down(i int) {
	for {
		least := i
		for c := 2*i + 1; c <= 2*i+2 && c < len(h); c++ {
			if h[c].due < h[least].due {
				least = c
			}
		}
		if least == i {
			return
		}
		h.swap(i, least)
		i = least
	}
}

func (h heap) swap(i, j int) {
	a, b := h[i], h[j]
	h.put(i, b)
	h.put(j, a)
}
