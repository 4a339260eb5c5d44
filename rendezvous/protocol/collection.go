package protocol

import (
	"cmp"
	"math"
	"slices"
)

// A part is the data that one client submitted under a label. data is never nil but may be empty.
type part struct {
	rank int
	data []byte
}

// A pendingSet is a set that is incomplete because clients may still submit parts.
type pendingSet struct {
	label Label
	parts []part // in order of arrival
	size  int    // total size of all parts in bytes
}

// noMoreLabels is the value of lastLabel for a client that will not submit further labels.
const noMoreLabels = math.MaxInt64

// A collection sorts parts into sets and determines which sets are complete. Clients submit labels in ascending
// order. A client that has submitted a label, or is done, therefore submits no part with a lower label, and a set is
// complete once every client's last label is at least the set's label. For the same reason, sets become complete in
// ascending order of their labels.
type collection struct {
	limits     Limits
	lastLabel  []int64       // by rank: the last label submitted, or noMoreLabels
	labelCount []int         // by rank: the number of labels submitted
	sets       []*pendingSet // ascending by label
	total      int           // total size of all parts in bytes, including partOverhead for each
}

func newCollection(size int, limits Limits) collection {
	return collection{limits: limits, lastLabel: make([]int64, size), labelCount: make([]int, size)}
}

// submit adds a copy of a part. If it returns an error, nothing has been added.
func (c *collection) submit(rank int, label Label, data []byte) error {
	i, found := slices.BinarySearchFunc(c.sets, label, func(s *pendingSet, l Label) int { return cmp.Compare(s.label, l) })
	bytes := 0
	if found {
		bytes = c.sets[i].size
	}
	switch {
	case label <= 0:
		return violationError("label %v", label)
	case int64(label) <= c.lastLabel[rank]:
		return violationError("label %v after label %v", label, Label(c.lastLabel[rank]))
	case len(data) > c.limits.Part:
		return violationError("label %v: part of %d bytes, limit %d", label, len(data), c.limits.Part)
	case c.labelCount[rank] >= c.limits.Labels:
		return violationError("label %v: more than %d labels", label, c.limits.Labels)
	case len(data) > c.limits.Set-bytes:
		return violationError("label %v: more than %d bytes in total", label, c.limits.Set)
	case len(data)+partOverhead > c.limits.Total-c.total:
		return violationError("label %v: more than %d bytes in all labels", label, c.limits.Total)
	}
	if !found {
		c.sets = slices.Insert(c.sets, i, &pendingSet{label: label})
	}
	s := c.sets[i]
	s.parts = append(s.parts, part{rank, append(make([]byte, 0, len(data)), data...)})
	s.size += len(data)
	c.total += len(data) + partOverhead
	c.lastLabel[rank] = int64(label)
	c.labelCount[rank]++
	return nil
}

// finishRank records that rank will not submit further labels.
func (c *collection) finishRank(rank int) { c.lastLabel[rank] = noMoreLabels }

// takeComplete removes and returns the next complete set, with its parts in ascending order of rank. It returns nil
// if there is none.
func (c *collection) takeComplete() *pendingSet {
	if len(c.sets) == 0 {
		return nil
	}
	s := c.sets[0]
	for _, at := range c.lastLabel {
		if at < int64(s.label) {
			return nil
		}
	}
	c.sets = c.sets[1:]
	slices.SortFunc(s.parts, func(a, b part) int { return cmp.Compare(a.rank, b.rank) })
	return s
}

// isFinished reports whether all clients have submitted their last label and no set is left.
func (c *collection) isFinished() bool {
	return len(c.sets) == 0 && len(c.unfinishedRanks()) == 0
}

// unfinishedRanks returns the ranks that may submit further labels, in ascending order.
func (c *collection) unfinishedRanks() (ranks []int) {
	for rank, at := range c.lastLabel {
		if at != noMoreLabels {
			ranks = append(ranks, rank)
		}
	}
	return ranks
}

// missingParts returns, for each incomplete set, the ranks that may still submit a part.
func (c *collection) missingParts() (list []Waiting) {
	for _, s := range c.sets {
		w := Waiting{Label: s.label}
		for rank, at := range c.lastLabel {
			if at < int64(s.label) {
				w.Missing = append(w.Missing, rank)
			}
		}
		list = append(list, w)
	}
	return list
}
