package carrier

// A Poller is the set of descriptors of a context (epoll, on Linux). Its methods may be called from anywhere, and do not wait.
type Poller interface {
	// Add watches fd for reading. The caller keeps the descriptor, and calls Remove before it closes it.
	Add(fd int, to Pollable) (PollID, error)
	// AddEdge watches fd as Add does, but tells of each new readiness once: nothing needs to be read. It suits eventfds. Watch is not for these.
	AddEdge(fd int, to Pollable) (PollID, error)
	// AddShared watches fd as Add does, beside the pollers of other contexts: of those that sleep one is told. Watch is not for these.
	AddShared(fd int, to Pollable) (PollID, error)
	// Watch says which readiness of fd is of interest from now on.
	Watch(fd int, id PollID, readable, writable bool) error
	// Remove stops watching fd. An event that was under way is dropped.
	Remove(fd int, id PollID)
	// AddInlet adds a source that is no descriptor. It is called while NewCarrier runs.
	AddInlet(in Inlet)
}

// A PollID names a descriptor in a Poller.
type PollID struct{ Slot, Generation int32 }

// A Pollable is called when its descriptor is ready, on the goroutine that leads Progress, with no lock held.
type Pollable interface {
	Ready(readable, writable bool)
}

// A Peeker is a Pollable that can be asked whether bytes have come without the system having said so: cheaper than
// asking the system about every descriptor. It runs as Ready does, and reports whether there were any.
type Peeker interface {
	Peek() bool
}

// A Cutter is a Pollable or Inlet that ends the connection which it is for, and no other, because of a panic of its own. It is
// called on the goroutine that leads, with no lock held.
type Cutter interface {
	Cut(err error)
}

// An Inlet delivers work that no file descriptor announces, such as what a peer writes to shared memory. Only the goroutine that leads
// Progress, or the background poller in its place, calls its methods, with no lock held. They do not wait.
//
// A bell is a descriptor in the context's poller that an armed Inlet makes ready when work appears. Between Arm and the end of the
// leader's sleep, or of the background poller's rest, a bell rings or nothing has come.
type Inlet interface {
	// Peek takes in some of what has come, and reports whether anything had. A leader that polls calls it again and again: when
	// nothing has come it costs a few loads.
	Peek() bool
	// Arm makes the bell ring at the next work, and reports whether there is some already: then the bell may stay silent, and Peek
	// follows. It tells peers first and looks for work then. It is called before each sleep, also for a bell that is still armed: a
	// bell that has rung is not. Peers that come later are armed as well, until Disarm.
	Arm() bool
	// Disarm says that the Inlet is being polled. A late ring is harmless. Peers that have long been idle may stay armed if the Ready
	// of their bells makes Peek look at them. An Inlet begins disarmed.
	Disarm()
}
