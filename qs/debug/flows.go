package debug

import (
	"time"

	"github.com/quicksilver-rpc/quicksilver/hg"
	"github.com/quicksilver-rpc/quicksilver/hg/inspect"
)

// A flowKey is what a stream is known by while it is under way.
type flowKey struct {
	source  source
	context int
	kind    inspect.EventKind
	peer    hg.Addr
	id      uint64
}

// A flowMark is how far a stream was when somebody looked.
type flowMark struct {
	at           time.Duration
	items, bytes int64
}

// countFlows counts for its method what each stream under way has moved since the last look, or since it began. What it moves between the last look and
// its end is not counted.
func (p *Page) countFlows(from []place, data []contextData, now time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	marks := make(map[flowKey]flowMark, len(p.flows))
	for i := range data {
		for j := range data[i].calls {
			c := &data[i].calls[j]
			if c.Flow == nil {
				continue
			}
			key := flowKey{from[i].source, from[i].number, c.Kind, c.Peer, c.ID}
			mark := flowMark{now, c.Flow.Items, c.Flow.Bytes}
			was, seen := p.flows[key]
			switch {
			case !seen:
				was.at = now - c.Age
			case was.items > mark.items || was.bytes > mark.bytes: // by another look, which was later
				marks[key] = was
				continue
			}
			marks[key] = mark
			p.counted.method(methodKey{c.Kind, c.RPC}).addFlow(c.Kind, was, mark)
		}
	}
	p.flows = marks
}

// addFlow counts what a stream has moved between two marks, evenly for the time between them.
func (m *methodCounter) addFlow(kind inspect.EventKind, from, to flowMark) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.advance(to.at)
	m.slots.at(to.at)
	// upTo returns how much of n was moved until the end of a slot.
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
		slot := m.slots.numbered(n)
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
