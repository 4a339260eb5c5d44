package protocol

import (
	"cmp"
	"math"
	"slices"
)

// A part is what one client has submitted under a label. data is not nil, even if it is empty.
type part struct {
	rank int
	data []byte
}

// A pending set has not been sent: a client may still submit a part.
type pending struct {
	label Label
	parts []part // in the order of their arrival
	bytes int
}

// ended is the progress of a client that submits no more labels.
const ended = math.MaxInt64

// A collection sorts parts into sets, and knows which sets are complete. Clients submit labels in ascending order, so a
// client that has submitted a label, or has ended, submits nothing below it: a set is complete once every client is at its
// label or beyond. Sets become complete in ascending order of their labels, for the same reason.
type collection struct {
	limits Limits
	at     []int64 // by rank: the last label submitted, or ended
	labels []int   // by rank: how many
	sets   []*pending
	total  int
}

func newCollection(size int, limits Limits) collection {
	return collection{limits: limits, at: make([]int64, size), labels: make([]int, size)}
}

// submit takes a part, of which it keeps a copy. Nothing is kept if it returns an error.
func (c *collection) submit(rank int, label Label, data []byte) error {
	i, found := slices.BinarySearchFunc(c.sets, label, func(s *pending, l Label) int { return cmp.Compare(s.label, l) })
	bytes := 0
	if found {
		bytes = c.sets[i].bytes
	}
	switch {
	case label <= 0:
		return violation("label %v", label)
	case int64(label) <= c.at[rank]:
		return violation("label %v after label %v", label, Label(c.at[rank]))
	case len(data) > c.limits.Part:
		return violation("label %v: a part of %d bytes, at most %d allowed", label, len(data), c.limits.Part)
	case c.labels[rank] >= c.limits.Labels:
		return violation("label %v: more than %d labels", label, c.limits.Labels)
	case len(data) > c.limits.Set-bytes:
		return violation("label %v: more than %d bytes from all", label, c.limits.Set)
	case len(data)+partOverhead > c.limits.Total-c.total:
		return violation("label %v: more than %d bytes in all labels", label, c.limits.Total)
	}
	if !found {
		c.sets = slices.Insert(c.sets, i, &pending{label: label})
	}
	s := c.sets[i]
	s.parts = append(s.parts, part{rank, append(make([]byte, 0, len(data)), data...)})
	s.bytes += len(data)
	c.total += len(data) + partOverhead
	c.at[rank] = int64(label)
	c.labels[rank]++
	return nil
}

// end notes that rank submits no more.
func (c *collection) end(rank int) { c.at[rank] = ended }

// complete takes the next complete set, its parts in ascending order of rank. It returns nil if there is none.
func (c *collection) complete() *pending {
	if len(c.sets) == 0 {
		return nil
	}
	s := c.sets[0]
	for _, at := range c.at {
		if at < int64(s.label) {
			return nil
		}
	}
	c.sets = c.sets[1:]
	slices.SortFunc(s.parts, func(a, b part) int { return cmp.Compare(a.rank, b.rank) })
	return s
}

// finished reports whether every client has ended and no set is left.
func (c *collection) finished() bool {
	return len(c.sets) == 0 && len(c.undone()) == 0
}

func (c *collection) undone() (ranks []int) {
	for rank, at := range c.at {
		if at != ended {
			ranks = append(ranks, rank)
		}
	}
	return ranks
}

// waiting lists who is missing, for each incomplete set.
func (c *collection) waiting() (list []Waiting) {
	for _, s := range c.sets {
		w := Waiting{Label: s.label}
		for rank, at := range c.at {
			if at < int64(s.label) {
				w.Missing = append(w.Missing, rank)
			}
		}
		list = append(list, w)
	}
	return list
}
