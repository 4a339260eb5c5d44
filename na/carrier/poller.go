package carrier

// A Poller is the set of descriptors of a context (epoll, on Linux). Its methods may be called from
// any goroutine and do not wait.
type Poller interface {
	// Add watches fd for reading. The caller still owns fd and must call Remove before closing it.
	Add(fd int, to Pollable) (PollID, error)
	// AddEdge is like Add, but edge-triggered: Ready is called once each time fd becomes readable, and
	// need not read fd. It is meant for eventfds. Watch must not be called for a descriptor added by
	// AddEdge.
	AddEdge(fd int, to Pollable) (PollID, error)
	// AddShared is like Add, for a descriptor that the pollers of other contexts also watch. An event
	// wakes only one of the sleeping pollers. Watch must not be called for a descriptor added by
	// AddShared.
	AddShared(fd int, to Pollable) (PollID, error)
	// Watch sets whether Ready is called when fd becomes readable and when it becomes writable.
	Watch(fd int, id PollID, readable, writable bool) error
	// Remove stops watching fd. Events that have not been delivered are dropped.
	Remove(fd int, id PollID)
	// AddInlet adds a source that is not a descriptor. It must be called while NewCarrier runs.
	AddInlet(in Inlet)
}

// A PollID identifies a descriptor in a Poller.
type PollID struct{ Slot, Generation int32 }

// A Pollable handles the readiness of a descriptor. Ready is called when the descriptor is ready,
// by the goroutine that currently polls for the context, with no lock held.
type Pollable interface {
	Ready(readable, writable bool)
}

// A Peeker is a Pollable that can check by itself whether bytes have arrived, which is cheaper than
// a system call for all descriptors. Peek is called like Ready and reports whether there were any
// bytes.
type Peeker interface {
	Peek() bool
}

// A Cutter is a Pollable or Inlet that can close its connection, and no other, after a panic in its
// methods. Cut is called on the leading goroutine, with no lock held.
type Cutter interface {
	Cut(err error)
}

// An Inlet delivers work that no file descriptor announces, such as messages that a peer writes to
// shared memory. Its methods are called only by the goroutine that leads Progress, or by the
// background poller in its place, with no lock held. They must not wait.
//
// A bell is a descriptor in the context's poller that an armed Inlet makes ready when work appears.
// If work appears between Arm and the end of the leader's sleep, or of the background poller's
// pause, the bell must ring.
type Inlet interface {
	// Peek handles some of the work and reports whether there was any. A polling leader calls it
	// repeatedly, so without work it should cost only a few loads.
	Peek() bool
	// Arm makes the bell ring when work appears, and reports whether there is work already. If so,
	// the bell may stay silent, and Peek is called next. To miss no work, Arm must first notify peers
	// and then check for work. It is called before each sleep, even if the bell is still armed. A
	// bell that has rung is no longer armed. Until Disarm, peers that connect later are armed as
	// well.
	Arm() bool
	// Disarm announces that the Inlet is being polled, so that the bell need not ring. If it rings
	// anyway, no harm is done. Peers that have long been idle may stay armed if the Ready method of
	// their bells makes Peek check them. An Inlet is initially disarmed.
	Disarm()
}
