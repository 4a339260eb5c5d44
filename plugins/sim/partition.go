package sim

import "time"

// Partition stops all segments and dials from node a to node b and, if both is set, from b to a.
// Nothing is lost: they are delayed, as on a connection that retransmits.
func (w *World) Partition(a, b string, both bool) {
	w.takeTurn()
	defer w.releaseTurn()
	from, to := w.nodeNamed(a), w.nodeNamed(b)
	w.addPartition(from, to, nil)
	if both {
		w.addPartition(to, from, nil)
	}
}

// addPartition stops delivery in the direction from the first node to the second. A non-nil by is
// the timed partition whose event resumes delivery. Otherwise it stays stopped until Heal is called.
func (w *World) addPartition(from, to *Node, by *timedPartition) {
	w.partitions[[2]*Node{from, to}] = by
	w.stats.Partitions++
	w.addTrace("partition", from.name+"|"+to.name, from.id, to.id)
}

// addTimedPartition is like addPartition, but delivery resumes after d.
func (w *World) addTimedPartition(from, to *Node, d time.Duration) {
	heal := &timedPartition{w: w, from: from, to: to}
	w.addPartition(from, to, heal)
	heal.event = event{actor: heal, isTimer: true}
	w.events.schedule(&heal.event, w.timeAfter(d))
}

// Heal ends every partition, clog and pause. Faults are still drawn afterward; see SetFaults.
func (w *World) Heal() {
	w.takeTurn()
	defer w.releaseTurn()
	w.addTrace("heal", "all", 0, 0)
	clear(w.partitions)
	for _, c := range w.openConns {
		for i := range c.pipes {
			p := &c.pipes[i]
			if p.clogged > w.Now() {
				p.clogged = 0
				if p.arrival.heapIndex != 0 && len(p.segments) > 0 {
					p.arrival.isTimer = false
					w.events.schedule(&p.arrival, max(p.segments[0].at, w.Now()))
				}
			}
		}
	}
	w.releaseHeld()
	for _, n := range w.nodes {
		n.unpause()
	}
}

// isPartitioned reports whether a partition stops delivery in the direction from the first node to
// the second.
func (w *World) isPartitioned(from, to *Node) bool {
	if len(w.partitions) == 0 {
		return false
	}
	_, ok := w.partitions[[2]*Node{from, to}]
	return ok
}

// holdEvent delays ev until a partition ends.
func (w *World) holdEvent(ev *event) { w.heldEvents = append(w.heldEvents, ev) }

// releaseHeld reschedules the held events. An event that is still blocked by a partition is held
// again when it fires.
func (w *World) releaseHeld() {
	for i, ev := range w.heldEvents {
		if ev.heapIndex == 0 {
			w.events.schedule(ev, w.timeAfter(w.drawDelay()))
		}
		w.heldEvents[i] = nil
	}
	w.heldEvents = w.heldEvents[:0]
}

// A timedPartition is a partition that ends at a virtual time.
type timedPartition struct {
	w        *World
	from, to *Node
	event    event
}

func (p *timedPartition) fire(*event) {
	key := [2]*Node{p.from, p.to}
	if by, ok := p.w.partitions[key]; !ok || by != p {
		return // it was healed, or replaced by another partition
	}
	delete(p.w.partitions, key)
	p.w.addTrace("heal", p.from.name+"|"+p.to.name, p.from.id, p.to.id)
	p.w.releaseHeld()
}
