package carrier

// A Poller is the set of descriptors of a context (epoll, on Linux). Its methods may be called from
// any goroutine, and do not wait.
type Poller interface {
	// Add watches fd for reading. The caller keeps the descriptor, and calls Remove before it
	// closes it.
	Add(fd int, to Pollable) (PollID, error)
	// AddEdge watches fd as Add does, but edge-triggered: it reports each new readiness once, and
	// nothing needs to be read. It suits eventfds. Do not use Watch for it.
	AddEdge(fd int, to Pollable) (PollID, error)
	// AddShared watches fd, which other contexts watch as well, as Add does: only one of the
	// sleeping pollers is woken. Do not use Watch for it.
	AddShared(fd int, to Pollable) (PollID, error)
	// Watch sets the readiness of fd to report.
	Watch(fd int, id PollID, readable, writable bool) error
	// Remove stops watching fd. An event that was not delivered yet is dropped.
	Remove(fd int, id PollID)
	// AddInlet adds a source that is not a descriptor. It is called while NewCarrier runs.
	AddInlet(in Inlet)
}

// A PollID identifies a descriptor in a Poller.
type PollID struct{ Slot, Generation int32 }

// A Pollable is called when its descriptor is ready, on the goroutine that leads Progress, with no
// lock held.
type Pollable interface {
	Ready(readable, writable bool)
}

// A Peeker is a Pollable that can check by itself whether bytes have arrived, which is cheaper than
// a system call for all descriptors. Peek runs as Ready does, and reports whether there were any.
type Peeker interface {
	Peek() bool
}

// A Cutter is a Pollable or Inlet that ends its connection, and no other, after a panic in its own
// methods. Cut is called on the goroutine that leads, with no lock held.
type Cutter interface {
	Cut(err error)
}

// An Inlet delivers work that no file descriptor announces, such as messages that a peer writes to
// shared memory. Only the goroutine that leads Progress, or the background poller in its place,
// calls its methods, with no lock held. They do not wait.
//
// A bell is a descriptor in the context's poller that an armed Inlet makes ready when work appears.
// Between Arm and the end of the leader's sleep, or of the background poller's rest, a bell rings
// or no work has appeared.
type Inlet interface {
	// Peek handles some of the work, and reports whether there was any. A leader that polls calls
	// it repeatedly: without work it costs a few loads.
	Peek() bool
	// Arm makes the bell ring at the next work, and reports whether there is some already: then the
	// bell may stay silent, and Peek follows. To miss none, it notifies peers first and checks for
	// work afterwards. It is called before each sleep, also for a bell that is still armed; a bell
	// that has rung is not armed. Peers that connect later are armed as well, until Disarm.
	Arm() bool
	// Disarm announces that the Inlet is being polled. A late ring is harmless. Peers that have
	// been idle for long may stay armed if the Ready of their bells makes Peek check them. An Inlet
	// begins disarmed.
	Disarm()
}
