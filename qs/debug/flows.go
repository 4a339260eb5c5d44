package debug

import (
	"time"

	"github.com/quicksilver-rpc/quicksilver/hg"
	"github.com/quicksilver-rpc/quicksilver/hg/inspect"
)

// A streamKey identifies a stream in flight.
type streamKey struct {
	source  source
	context int
	kind    inspect.EventKind
	peer    hg.Addr
	id      uint64
}

// A streamMark records the progress of a stream when a Snapshot is taken.
type streamMark struct {
	at           time.Duration
	items, bytes int64
}

// countStreams adds the items and bytes that each stream in flight has transferred since the last
// Snapshot, or since the stream began, to the counters of its method. Data that is transferred
// between the last Snapshot and the completion of a stream is not counted.
func (p *Page) countStreams(from []contextOrigin, data []contextData, now time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	marks := make(map[streamKey]streamMark, len(p.streamMarks))
	for i := range data {
		for j := range data[i].calls {
			c := &data[i].calls[j]
			if c.Flow == nil {
				continue
			}
			key := streamKey{from[i].source, from[i].number, c.Kind, c.Peer, c.ID}
			mark := streamMark{now, c.Flow.Items, c.Flow.Bytes}
			was, seen := p.streamMarks[key]
			switch {
			case !seen:
				was.at = now - c.Age
			case was.items > mark.items || was.bytes > mark.bytes: // a concurrent Snapshot taken later has already counted them
				marks[key] = was
				continue
			}
			marks[key] = mark
			p.collector.methodCounter(methodKey{c.Kind, c.RPC}).addStream(c.Kind, was, mark)
		}
	}
	p.streamMarks = marks
}

// addStream counts the items and bytes transferred by a stream between two marks, and distributes
// them evenly over the slots between the marks.
func (m *methodCounter) addStream(kind inspect.EventKind, from, to streamMark) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.advanceLocked(to.at)
	m.slots.slotAt(to.at)
	// upTo returns how many of n were transferred by the end of slot.
	upTo := func(n int64, slot int64) int64 {
		end := min(time.Duration(slot+1)*slotTime, to.at)
		if end <= from.at || to.at <= from.at {
			return 0
		}
		return int64(float64(n) * float64(end-from.at) / float64(to.at-from.at))
	}
	items, bytes := to.items-from.items, to.bytes-from.bytes
	last := int64(to.at / slotTime)
	for n := max(last-int64(len(m.slots.slots))+1, 0); n <= last; n++ {
		slot := m.slots.slotNumber(n)
		if slot == nil {
			continue
		}
		moved := upTo(bytes, n) - upTo(bytes, n-1)
		slot.items += upTo(items, n) - upTo(items, n-1)
		if kind == inspect.EventTarget {
			slot.sent += moved
		} else {
			slot.received += moved
		}
	}
}
