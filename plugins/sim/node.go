package sim

import (
	"github.com/quicksilver-rpc/quicksilver/na/carrier"
	"time"
)

// A Node is a simulated machine with a single process: the classes and coroutines that belong to
// it.
type Node struct {
	w         *World
	name      string
	id        uint64
	instances []*instance
	started   int  // number of coroutines ever created
	isPaused  bool // paused, as if by SIGSTOP
	isSilent  bool // crashed without closing its connections, and no class has been opened on it since
	resume    event
	posts     postCounter
}

// Node returns the node with the given name, creating it if necessary.
func (w *World) Node(name string) *Node {
	w.takeTurn()
	defer w.releaseTurn()
	return w.nodeNamed(name)
}

func (w *World) nodeNamed(name string) *Node {
	for _, n := range w.nodes {
		if n.name == name {
			return n
		}
	}
	n := &Node{w: w, name: name, id: uint64(len(w.nodes) + 1)}
	n.resume = event{actor: n, isTimer: true}
	w.nodes = append(w.nodes, n)
	return n
}

// Name returns the node's name.
func (n *Node) Name() string { return n.name }

// Plugin returns the world's plugin for classes that belong to n.
func (n *Node) Plugin() carrier.Plugin { return &plugin{w: n.w, node: n} }

// Pause stops the node for d, as SIGSTOP would. Its coroutines do not resume, and data that arrives
// for it waits in windows that fill up. As with a kernel, connections to it are still accepted. A
// longer pause replaces a shorter one. If d is not positive, the pause lasts until Resume or Heal.
func (n *Node) Pause(d time.Duration) {
	n.w.takeTurn()
	defer n.w.releaseTurn()
	n.pause(d)
}

func (n *Node) pause(d time.Duration) {
	w := n.w
	until := noDeadline
	if d > 0 {
		until = w.deadlineAfter(d)
	}
	if n.isPaused && (n.resume.heapIndex == 0 || n.resume.at >= until) {
		return
	}
	n.isPaused = true
	w.stats.Pauses++
	w.addTrace("pause", n.name, n.id, uint64(d))
	if until == noDeadline {
		w.events.cancel(&n.resume)
		return
	}
	w.events.schedule(&n.resume, until)
}

// coroutines returns n's coroutines that have not been killed.
func (n *Node) coroutines() (cos []*coroutine) {
	for _, c := range n.w.coroutines {
		if c.node == n && !c.isKilled {
			cos = append(cos, c)
		}
	}
	return cos
}

// Resume ends a pause.
func (n *Node) Resume() {
	n.w.takeTurn()
	defer n.w.releaseTurn()
	n.unpause()
}

func (n *Node) fire(*event) { n.unpause() }

// unpause resumes the node if it is paused.
func (n *Node) unpause() {
	if !n.isPaused {
		return
	}
	w := n.w
	n.isPaused = false
	w.events.cancel(&n.resume)
	w.addTrace("unpause", n.name, n.id, 0)
	for _, in := range n.instances {
		for _, p := range in.ports {
			p.serveDelayed()
		}
	}
	for _, c := range n.coroutines() {
		if c.state == coFrozen {
			w.enqueue(c)
		}
	}
}

// Crash ends the node's process abruptly. Its coroutines never resume, its classes cease to exist,
// and their names become available. Peers receive a reset on every connection or, with probability
// Faults.Silence, nothing until a class is opened on the node again. To restart the process, open a
// class with the same name; it is a new incarnation.
//
// The deferred calls of the node's coroutines run, but anything that they send is lost. A coroutine
// that crashes its own node continues until it next waits.
func (n *Node) Crash() {
	n.w.takeTurn()
	defer n.w.releaseTurn()
	n.crash(n.w.faultRNG.hit(n.w.rates.silence))
}

// PowerOff is like Crash, but peers are not notified and their connections remain silent.
func (n *Node) PowerOff() {
	n.w.takeTurn()
	defer n.w.releaseTurn()
	n.crash(true)
}

func (n *Node) crash(silent bool) {
	w := n.w
	cos := n.coroutines()
	w.stats.Crashes++
	how := n.id << 1
	if silent {
		how++
	}
	w.addTrace("crash", n.name, uint64(len(cos)), how)
	n.isPaused, n.isSilent = false, silent
	w.events.cancel(&n.resume)
	for _, in := range n.instances {
		in.dead = true
		if w.listeners[in.name] == in {
			delete(w.listeners, in.name)
			w.crashedNames[in.name] = n
		}
		for _, p := range in.ports {
			p.crash(silent)
		}
	}
	n.instances = nil
	for _, c := range cos {
		w.killCoroutine(c)
	}
}
