package sim

import "time"

// Partition stops everything from node a to node b, and with both set also from b to a. Nothing is lost: what is sent
// waits, as for a connection that retransmits.
func (w *World) Partition(a, b string, both bool) {
	w.takeTurn()
	defer w.give()
	from, to := w.nodeNamed(a), w.nodeNamed(b)
	w.partition(from, to, nil)
	if both {
		w.partition(to, from, nil)
	}
}

// partition begins a partition; by ends it, if that is not nil.
func (w *World) partition(from, to *Node, by *parting) {
	w.parted[[2]*Node{from, to}] = by
	w.stats.Partitions++
	w.trace("partition", from.name+"|"+to.name, from.id, to.id)
}

// partitionFor is a partition that ends by itself.
func (w *World) partitionFor(from, to *Node, d time.Duration) {
	heal := &parting{w: w, from: from, to: to}
	w.partition(from, to, heal)
	heal.ev = event{act: heal, slow: true}
	w.events.set(&heal.ev, w.after(d))
}

// Heal ends every partition, clog and pause. Faults go on being drawn: see SetFaults.
func (w *World) Heal() {
	w.takeTurn()
	defer w.give()
	w.trace("heal", "all", 0, 0)
	clear(w.parted)
	for _, c := range w.open {
		for i := range c.pipes {
			p := &c.pipes[i]
			if p.clogged > w.Now() {
				p.clogged = 0
				if p.ev.place != 0 && len(p.segs) > 0 {
					p.ev.slow = false
					w.events.set(&p.ev, max(p.segs[0].at, w.Now()))
				}
			}
		}
	}
	w.unhold()
	for _, n := range w.nodes {
		n.wake()
	}
}

// blocked reports whether nothing passes from one node to another.
func (w *World) blocked(from, to *Node) bool {
	if len(w.parted) == 0 {
		return false
	}
	_, ok := w.parted[[2]*Node{from, to}]
	return ok
}

// hold keeps an event until a partition ends.
func (w *World) hold(ev *event) { w.held = append(w.held, ev) }

// unhold lets the held events happen; those that are still behind a partition are held again.
func (w *World) unhold() {
	for i, ev := range w.held {
		if ev.place == 0 {
			w.events.set(ev, w.after(w.delay()))
		}
		w.held[i] = nil
	}
	w.held = w.held[:0]
}

// A parting is a partition that ends by itself.
type parting struct {
	w        *World
	from, to *Node
	ev       event
}

func (p *parting) fire(*event) {
	key := [2]*Node{p.from, p.to}
	if by, ok := p.w.parted[key]; !ok || by != p {
		return // it was healed, or is another one by now
	}
	delete(p.w.parted, key)
	p.w.trace("heal", p.from.name+"|"+p.to.name, p.from.id, p.to.id)
	p.w.unhold()
}
