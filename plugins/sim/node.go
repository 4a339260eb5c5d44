package sim

import (
	"github.com/quicksilver-rpc/quicksilver/na/carrier"
	"time"
)

// A Node is a machine with one process: the classes that live on it and the coroutines that run on it.
type Node struct {
	w         *World
	name      string
	id        uint64
	instances []*instance
	started   int  // coroutines made so far
	isPaused  bool // stopped, as by SIGSTOP
	isSilent  bool // stopped without closing its connections, and not reopened since
	resume    event
	posts     postCounter
}

// Node returns the node of that name, made if need be.
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

// Name returns the name of the node.
func (n *Node) Name() string { return n.name }

// Plugin returns the plugin of the world for classes that live on n.
func (n *Node) Plugin() carrier.Plugin { return &plugin{w: n.w, node: n} }

// Pause stops the node for d, as SIGSTOP does: its coroutines do not resume, and what arrives for
// it waits in windows that fill up. Connections are still accepted for it, as a kernel does. A
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

// coroutines returns those of n that have not been killed.
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

// unpause resumes a paused node.
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

// Crash ends the node's process without a farewell: its coroutines never resume, its classes are
// gone and their names free. Peers hear a reset of every connection, or, with the probability
// Faults.Silence, nothing until something is opened on the node again. To restart it, open a class
// under the same name: it is a new incarnation.
//
// A coroutine that is ended so runs its deferred calls; what they send is lost. One that crashes
// its own node continues until it next waits.
func (n *Node) Crash() {
	n.w.takeTurn()
	defer n.w.releaseTurn()
	n.crash(n.w.faultRNG.hit(n.w.rates.silence))
}

// PowerOff is a Crash without notification of the peers: their connections stay silent.
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
