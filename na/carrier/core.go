package carrier

import "time"

// A Core is a context as its Carrier sees it. It is implemented by package na.
type Core interface {
	// ID is the target id by which peers reach the context.
	ID() int
	// Now reads the clock of the class: monotonic, never zero.
	Now() time.Duration

	// Lock takes the lock of the context; the carrier calls methods of Session under it.
	Lock()
	// Unlock sends what was queued, unless it is held back to leave together, and returns the lock. It returns the lock for a while
	// before that, too: what comes before it has to leave everything in order.
	Unlock()
	// Pause returns the lock around a system call or a copy, and sends nothing. Lock follows. It may be called inside Carrier.Flush, and between
	// Lock and UnlockInput; nowhere else that is Locked. Meanwhile a session may be cut: look at Session.Conn, or your record of it, again.
	Pause()
	// UnlockInput is Unlock after bytes of a peer were handled, and is deferred: a panic under the lock ends the context, which is logged, and
	// not the process.
	UnlockInput()
	// UnlockAfter is UnlockInput for a deferred function that finds out first which context is locked: v is what recover has returned.
	UnlockAfter(v any)
	// Rescue ends a panic of a goroutine that handles what a peer has sent, with no lock held. It is deferred. cut ends the connection,
	// and nothing else.
	Rescue(cut func(err error))

	// Admit takes in a peer that connected and sent g. verified says that the machine it connected from is the one that g.Listen
	// names, so that operations to that name may use this session. conn becomes the session's Conn. An error is what the carrier
	// tells the peer before it closes the connection: ByeOf(err). Locked.
	Admit(c Carrier, conn any, g *Greeting, verified bool) (Session, error)
	// HandshakeFailed counts and logs a TLS handshake of a peer that connected, and failed. Called with no lock held.
	HandshakeFailed(peer, why string)
	// Messages counts those that were sent and received. Locked.
	Messages() uint64

	// Poller watches descriptors; nil if Config.Poller is false.
	Poller() Poller
	// PollSoon has the leader call Carrier.Poll again before the time that it said, also if it sleeps or is about to; if nobody leads, a
	// goroutine of the library does within milliseconds, unless Network.Unassisted is set. It takes no lock and does not wait: a carrier
	// whose work comes from other goroutines, and not from a descriptor, needs nothing else.
	PollSoon()
	// FlushSoon has frames that are held back leave within milliseconds although nobody drives. It takes no lock.
	FlushSoon()
}

// A Session is the connection between this context and one context of one peer, as its carrier sees it. It is implemented by
// package na. All methods are called Locked. A session is never used again once it is down: the next operation to the same peer makes a new one.
type Session interface {
	// Conn returns what SetConn has kept: the carrier's own record of the connection.
	Conn() any
	SetConn(conn any)

	// Name is the canonical name to dial, and Target the context there that is wanted.
	Name() string
	Target() int
	// Host is the name of the host that the peer must prove to be, when Name alone does not say it; else empty.
	Host() string
	// Up reports whether the session is established, Down whether it has ended.
	Up() bool
	Down() bool
	// Incarnation is that of the peer of a session that is up.
	Incarnation() [16]byte

	// Hello appends to dst what the HELLO says, and returns it: as often as the carrier likes, it changes nothing. label is
	// the carrier's own, for its other side. lane is that of the connection.
	Hello(lane Lane, dst, label []byte) []byte
	// Greet takes the HELLO with which the peer answers. An error means that it cannot be accepted: the carrier calls Fail with it.
	Greet(g *Greeting) error
	// Meets reports whether this session, and the connection that its peer makes with g, would both be turned away with an offer. Then
	// neither may stay.
	Meets(g *Greeting) bool
	// Unproven says that the HELLO which Admit took may have come from anywhere. Until a frame follows there is no peer that could be lost.
	Unproven()

	// Pull gives w frames of a lane while it has room, and reports whether any are left.
	Pull(lane Lane, w Writer) (more bool)
	// Sends reports whether anything waits to be pulled, from either lane.
	Sends() bool
	// Sent ends a View that Writer.Piece was given: it is on its way, complete, or nothing more of it will be. A view whose memory was
	// gone in between was filled with zeroes by a stream: the peer is told that they are no data. Nothing borrows v any more.
	Sent(v View)
	// Faulted is called when the memory of v could not be read, before anything is sent in its place. Sent still follows.
	Faulted(v View)
	// Waits is called by a WriteMeter when something begins to wait for the peer to take it.
	Waits()

	// Deliver takes a frame that has arrived whole. payload is valid during the call only. An error means that the peer broke the
	// protocol: the carrier calls Fail with it.
	Deliver(h *Header, payload []byte) error
	// Place returns where the payload of a piece of bulk data goes, or that of a message which the carrier does not have whole; the
	// carrier reads it there and calls Placed when it is complete. Until then it delivers nothing else of that lane if it is a
	// message. An error is that of Deliver.
	Place(h *Header) (View, error)
	// Placed ends a View of Place: the payload has been read, all of it, and was not damaged. An error is that of Deliver.
	Placed(v View) error
	// PlaceOwn is Place for the n bytes at at of a get that a Reacher serves, of which the peer knows nothing; nil if it has ended.
	PlaceOwn(id uint64, at, n int64) View
	// PlacedOwn ends PlaceOwn. valid is whether the bytes were still the owner's to give when they had been read.
	PlacedOwn(v View, valid bool)

	// Heard notes that bytes of the peer have arrived: of bulk data whose front was verified, or of a message that may not be
	// complete. It keeps a peer that sends slowly from being taken for silent; Deliver and Place do that by themselves.
	Heard(bulk bool)
	// Confirmed notes that the peer has everything that was sent, for a carrier that knows.
	Confirmed()
	// Silent is Fail of a peer that does not answer any more: what was sent to it may still wait there.
	Silent(err error)
	// Refused is called when the peer ends the session, or refuses it, and says why.
	Refused(bye Bye)
	// Fail ends the session, or the attempt to make one, because of err: the connection is cut (Carrier.Cut) and every operation ends, with
	// codes.ErrPeerLost if the session was up and codes.ErrUnreachable else. An attempt that fails with codes.ErrAgain or codes.ErrPeerLost
	// is made again after a pause: somebody was there and may accept soon. It does nothing to a session that is down.
	Fail(err error)

	// LaneUp opens the lane Bulk for the puts and gets that begin from now on. LaneDown ends it, and the session with it because
	// of err, if it was up.
	LaneUp()
	LaneDown(err error)
}

// A Writer takes the frames of one Pull. Its methods are called Locked, and do not wait. What it has taken cannot be taken back. They may
// call Session.Fail, which may come true when the method has returned.
type Writer interface {
	// Room is asked before each frame: the payload of the largest frame that fits now, -1 when not even one without fits, and
	// how many bytes of a piece of bulk data, 0 when none. Pull stays within.
	Room() (whole, piece int)
	// Frame sends a frame. h and payload are valid during the call only.
	Frame(h *Header, payload []byte)
	// Piece sends a frame whose payload is v, which is the carrier's until it calls Sent: it borrows v for each copy, system
	// call or retransmission. h is valid during the call only.
	Piece(h *Header, v View)
}

// A View is the memory that a frame's payload is read from or placed into. It is not copied: the operation that owns the memory may be
// canceled at any moment, and each use borrows it anew. It is not used after Sent, Placed or PlacedOwn. One goroutine at a time uses it.
type View interface {
	// Len is the number of bytes.
	Len() int
	// Discard reports that the payload has no destination: its bytes are read and dropped.
	Discard() bool
	// Borrow reports whether the memory may be touched, until Return. It is short: one copy, or one system call that does
	// not wait. Once it has reported false the View is gone for good: a stream in the middle of a piece sends zeroes, any other
	// sender nothing more of it, and a receiver drops the bytes.
	//
	// Borrow, Return and what is between may run with the lock or without: what was borrowed before Pause stays until Return, even if
	// the session is cut meanwhile. A View itself may be used after Pause only if its session was not cut.
	Borrow() bool
	// Return ends a Borrow that reported true.
	Return()
	// Slice returns the memory of the n bytes at from within the view, or of the first of them that lie in one piece. Only between Borrow and Return.
	Slice(from, n int) []byte
	// CopyIn copies b to the memory at from within the view, if that may be touched. Memory that cannot be written is a Fault.
	CopyIn(from int, b []byte)
	// CopyOut copies all of the memory to b, and reports false if it may not be touched, or cannot be read, which is a Fault.
	CopyOut(b []byte) (ok bool)
	// Fault says that the memory could not be read or written: a mapped file was truncated, most likely. The View is gone
	// for good, and so is the operation that it is a piece of.
	Fault()
	// Faulted reports whether Fault was called.
	Faulted() bool
	// Shelved reports whether the memory is in the Shelf of the session, and where: then the carrier need not copy it, and the peer
	// reads it there until Sent. Such a View may be longer than Room allows.
	Shelved() (at int64, ok bool)
}

// Slices appends to dst the memory of the n bytes at from within v, in at most most pieces. It is called between Borrow and Return.
func Slices(dst [][]byte, v View, from, n, most int) [][]byte {
	for ; n > 0 && most > 0; most-- {
		b := v.Slice(from, n)
		dst = append(dst, b)
		from += len(b)
		n -= len(b)
	}
	return dst
}
