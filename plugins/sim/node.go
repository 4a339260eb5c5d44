package sim

import (
	"time"

	"github.com/quicksilver-rpc/quicksilver/na"
)

// A Node is a machine with one process: the classes that live on it and the coroutines that run on it.
type Node struct {
	w         *World
	name      string
	id        uint64
	instances []*instance
	cos       []*coroutine
	made      int  // coroutines made so far
	paused    bool // stopped, as by SIGSTOP
	dark      bool // went silently, and nothing has been opened on it since
	resume    event
}

// Node returns the node of that name, made if need be.
func (w *World) Node(name string) *Node {
	w.take()
	defer w.give()
	return w.nodeNamed(name)
}

func (w *World) nodeNamed(name string) *Node {
	n := w.nodes[name]
	if n == nil {
		n = &Node{w: w, name: name, id: uint64(len(w.node) + 1)}
		n.resume = event{act: n, slow: true}
		w.nodes[name] = n
		w.node = append(w.node, n)
	}
	return n
}

// Name returns the name of the node.
func (n *Node) Name() string { return n.name }

// Plugin returns the plugin of the world for classes that live on n.
func (n *Node) Plugin() na.Plugin { return &plugin{w: n.w, node: n} }

// forget takes out an instance that was closed.
func (n *Node) forget(in *instance) {
	for i, o := range n.instances {
		if o == in {
			n.instances = append(n.instances[:i], n.instances[i+1:]...)
			return
		}
	}
}

// Pause stops the node for d, as SIGSTOP does: its coroutines do not resume, and what arrives for it waits in windows
// that fill up. Connections are still accepted for it, as a kernel does. A longer pause replaces a shorter one. If d is
// not positive, the pause lasts until Resume or Heal.
func (n *Node) Pause(d time.Duration) {
	n.w.take()
	defer n.w.give()
	n.pause(d)
}

func (n *Node) pause(d time.Duration) {
	w := n.w
	until := forever
	if d > 0 {
		until = w.deadline(d)
	}
	if n.paused && (n.resume.pos == 0 || n.resume.at >= until) {
		return
	}
	n.paused = true
	w.stats.Pauses++
	w.trace(tracePause, n.name, n.id, uint64(d))
	if until == forever {
		w.events.unset(&n.resume)
		return
	}
	w.events.set(&n.resume, until)
}

// Resume ends a pause.
func (n *Node) Resume() {
	n.w.take()
	defer n.w.give()
	n.wake()
}

func (n *Node) fire(*event) { n.wake() }

// wake lets a paused node go on.
func (n *Node) wake() {
	if !n.paused {
		return
	}
	w := n.w
	n.paused = false
	w.events.unset(&n.resume)
	w.trace(traceUnpause, n.name, n.id, 0)
	for _, in := range n.instances {
		for _, p := range in.ports {
			p.serve()
		}
	}
	for _, c := range n.cos {
		if c.state == coFrozen {
			w.enqueue(c)
		}
	}
}

// Crash ends the node's process without a farewell: its coroutines never resume, its classes are gone and their names
// free. Peers hear a reset of every connection, or, with the probability Faults.Silence, nothing until something is
// opened on the node again. To restart it, open a class under the same name: it is a new incarnation.
//
// A coroutine that is ended so runs its deferred calls; what they send is lost. One that crashes its own node goes on
// until it next waits.
func (n *Node) Crash() {
	n.w.take()
	defer n.w.give()
	n.crash(n.w.chance.chance(n.w.odds.silence))
}

// PowerOff is a Crash of which peers hear nothing.
func (n *Node) PowerOff() {
	n.w.take()
	defer n.w.give()
	n.crash(true)
}

func (n *Node) crash(silent bool) {
	w := n.w
	w.stats.Crashes++
	how := n.id << 1
	if silent {
		how++
	}
	w.trace(traceCrash, n.name, uint64(len(n.cos)), how)
	n.paused, n.dark = false, silent
	w.events.unset(&n.resume)
	for _, in := range n.instances {
		in.dead = true
		if w.named[in.name] == in {
			delete(w.named, in.name)
			w.lost[in.name] = n
		}
		for _, p := range in.ports {
			p.crash(silent)
		}
	}
	n.instances = nil
	for _, c := range n.cos {
		w.doom(c)
	}
	n.cos = nil
}

// crash takes a port away from its connections.
func (p *port) crash(silent bool) {
	p.shut.Store(true)
	p.gone.Store(true)
	p.w.events.unset(&p.timer)
	for len(p.ends) > 0 {
		en := p.ends[len(p.ends)-1]
		en.cut.Store(true)
		en.vanish(silent)
	}
	p.Wake()
}

// vanish closes an end of a node that has crashed.
func (en *end) vanish(silent bool) {
	c := en.c
	en.closed, en.up = true, false
	en.port.drop(en)
	en.serve() // what waits for this end gets its answer, if any
	switch {
	case c.phase == connDialing, c.phase == connRefused, en.other().closed:
		c.end()
		return
	case c.phase == connAccepted && en.side == 0:
		c.w.events.unset(&c.ev)
	}
	if !silent && (en.side == 1 || c.phase == connConnected || c.phase == connAccepted) {
		en.outgoing().push(segment{kind: segmentReset})
	}
}

// Partition stops everything from node a to node b, and with both set also from b to a. Nothing is lost: what is sent
// waits, as for a connection that retransmits.
func (w *World) Partition(a, b string, both bool) {
	w.take()
	defer w.give()
	from, to := w.nodeNamed(a), w.nodeNamed(b)
	w.part(from, to)
	if both {
		w.part(to, from)
	}
}

func (w *World) part(from, to *Node) {
	w.parted[[2]*Node{from, to}] = true
	w.stats.Partitions++
	w.trace(tracePartition, from.name+"|"+to.name, from.id, to.id)
}

// Heal ends every partition, clog and pause. Faults go on being drawn: see SetFaults.
func (w *World) Heal() {
	w.take()
	defer w.give()
	w.trace(traceHeal, "all", 0, 0)
	clear(w.parted)
	for _, c := range w.open {
		for i := range c.pipes {
			p := &c.pipes[i]
			if p.clogged > w.Now() {
				p.clogged = 0
				if p.ev.pos != 0 {
					p.ev.slow = false
					w.events.set(&p.ev, max(p.segs[p.first].at, w.Now()))
				}
			}
		}
	}
	w.unhold()
	for _, n := range w.node {
		n.wake()
	}
}

// blocked tells whether nothing passes from one node to another.
func (w *World) blocked(from, to *Node) bool {
	return len(w.parted) > 0 && w.parted[[2]*Node{from, to}]
}

// hold keeps an event until a partition ends.
func (w *World) hold(ev *event) { w.held = append(w.held, ev) }

// unhold lets the held events happen; those that are still behind a partition are held again.
func (w *World) unhold() {
	for i, ev := range w.held {
		if ev.pos == 0 {
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
	if !p.w.parted[key] {
		return
	}
	delete(p.w.parted, key)
	p.w.trace(traceHeal, p.from.name+"|"+p.to.name, p.from.id, p.to.id)
	p.w.unhold()
}

// strike draws what happens to the first segment of a pipe, and reports whether it is not delivered now.
func (w *World) strike(p *pipe, from, to *end) bool {
	u := w.chance.pcg.Uint64() >> 32
	if u >= w.odds.partition {
		return false
	}
	who := to.port.inst.name
	switch {
	case u < w.odds.reset:
		w.stats.Resets++
		w.trace(traceReset, who, p.c.id, 1)
		p.c.reset()
	case u < w.odds.corrupt:
		w.corrupt(p, who)
		return false
	case u < w.odds.clog:
		d := w.chance.exp(w.faults.ClogFor)
		w.stats.Clogs++
		w.trace(traceClog, who, p.c.id, uint64(d))
		p.clogged = w.after(d)
		p.ev.slow = true
		w.events.set(&p.ev, p.clogged)
	case u < w.odds.pause:
		to.port.inst.node.pause(max(w.chance.exp(w.faults.PauseFor), 1))
		p.due = true
	default:
		from, to := from.port.inst.node, to.port.inst.node
		if from == to {
			return false
		}
		w.part(from, to)
		heal := &parting{w: w, from: from, to: to}
		heal.ev = event{act: heal, slow: true}
		w.events.set(&heal.ev, w.after(max(w.chance.exp(w.faults.PartitionFor), 1)))
		w.hold(&p.ev)
	}
	return true
}

// corrupt damages a byte of the first segment of a pipe, if there is one that may be.
func (w *World) corrupt(p *pipe, who string) {
	s := &p.segs[p.first]
	n := s.covered
	if w.faults.CorruptBulk {
		n = len(s.b)
	}
	if n == 0 {
		return
	}
	i := w.chance.below(n)
	s.b[i] ^= byte(1 + w.chance.below(255))
	w.stats.Corrupted++
	w.trace(traceCorrupt, who, p.c.id, uint64(i))
}
