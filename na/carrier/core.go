package carrier

import "time"

// A Core is a context, as its Carrier sees it. Package na implements it.
type Core interface {
	// ID returns the target id by which peers address the context.
	ID() int
	// Now returns the time of the class's clock: monotonic, never zero.
	Now() time.Duration

	// Lock takes the lock of the context; the carrier calls methods of Session with it held.
	Lock()
	// Unlock sends queued frames, unless they are held back to be batched, and releases the lock.
	// It also releases the lock for some time before that: the caller must leave everything in a
	// consistent state first.
	Unlock()
	// Pause releases the lock around a system call or a copy, and sends nothing. Lock follows. It
	// may be called inside Carrier.Flush, and between Lock and UnlockInput, but nowhere else in
	// methods marked Locked. A session may be cut during the pause: check Session.Conn, or your
	// record of it, again.
	Pause()
	// UnlockInput is Unlock for code that has handled bytes of a peer. It is deferred: a panic
	// under the lock ends the context, which is logged, and not the process.
	UnlockInput()
	// UnlockAfter is UnlockInput for a deferred function that has to determine first which context
	// is locked: v is the result of recover.
	UnlockAfter(v any)
	// Rescue recovers from a panic of a goroutine that handles data of a peer with no lock held. It
	// is deferred. cut ends the connection, and nothing else.
	Rescue(cut func(err error))

	// Admit accepts a peer that connected and sent g. verified means that the machine from which it
	// connected is the one that g.Listen names, so that operations to that name may use this
	// session. conn becomes the session's Conn. If Admit returns an error, the carrier sends
	// ByeOf(err) to the peer and closes the connection. Locked.
	Admit(c Carrier, conn any, g *Greeting, verified bool) (Session, error)
	// HandshakeFailed counts and logs a failed TLS handshake of a peer that connected. It is called
	// with no lock held.
	HandshakeFailed(peer, why string)
	// Messages returns how many messages were sent and received. Locked.
	Messages() uint64

	// Poller returns the poller of the context's descriptors; nil if Config.Poller is false.
	Poller() Poller
	// PollSoon makes the leader call Carrier.Poll before the time that Poll has returned, also if
	// the leader sleeps or is about to. If no goroutine leads, one of the library polls within
	// milliseconds, unless Network.Unassisted is set. It takes no lock and does not wait. A carrier
	// whose work is produced by other goroutines, and not by a descriptor, needs nothing else.
	PollSoon()
	// FlushSoon makes frames that are held back leave within milliseconds even if no goroutine
	// drives. It takes no lock.
	FlushSoon()
}

// A Session is the connection between this context and one context of one peer, as its carrier sees
// it. Package na implements it. All methods are called Locked. A session that is down is never used
// again: the next operation to the same peer makes a new one.
type Session interface {
	// Conn returns the value of SetConn: the carrier's own record of the connection.
	Conn() any
	SetConn(conn any)

	// Name returns the canonical name to dial, and Target the id of the context there.
	Name() string
	Target() int
	// Host returns the host name that the peer must prove, if Name alone does not determine it;
	// else empty.
	Host() string
	// Up reports whether the session is established, Down whether it has ended.
	Up() bool
	Down() bool
	// Incarnation returns that of the peer of a session that is up.
	Incarnation() [16]byte

	// Hello appends the HELLO of this side to dst, and returns it. It may be called repeatedly; it
	// changes nothing. label is for the carrier of the peer. lane is that of the connection.
	Hello(lane Lane, dst, label []byte) []byte
	// Greet handles the HELLO with which the peer answers. An error means that it cannot be
	// accepted: the carrier calls Fail with it.
	Greet(g *Greeting) error
	// Meets reports whether this session, and the connection that its peer opens with g, would both
	// be rejected with an offer. Then neither may stay.
	Meets(g *Greeting) bool
	// Unproven reports to na that the HELLO given to Admit may have a forged source. Until a frame
	// follows, the peer may not exist, and cannot be lost.
	Unproven()

	// Pull passes frames of a lane to w while it has room, and reports whether any are left.
	Pull(lane Lane, w Writer) (more bool)
	// Sends reports whether frames wait to be pulled, on either lane.
	Sends() bool
	// Sent ends a View that Writer.Piece was given: its payload was sent completely, or no more of
	// it will be. If the memory was withdrawn while a byte stream was in the middle of a piece, the
	// rest was sent as zeros: the peer is notified that these are not data. The carrier no longer
	// borrows v.
	Sent(v View)
	// Faulted is called when the memory of v could not be read, before anything is sent in its
	// place. Sent still follows.
	Faulted(v View)
	// Waits is called by a WriteMeter when data begins to wait for the peer to take it.
	Waits()

	// Deliver handles a frame that has arrived whole. payload is valid during the call only. An
	// error means that the peer broke the protocol: the carrier calls Fail with it.
	Deliver(h *Header, payload []byte) error
	// Place returns the destination of the payload of a piece of bulk data, or of a message that
	// the carrier does not have whole. The carrier reads the payload into it and calls Placed when
	// it is complete. For a message it delivers nothing else of that lane until then. An error is
	// that of Deliver.
	Place(h *Header) (View, error)
	// Placed ends a View of Place: the whole payload was read, and was not damaged. An error is
	// that of Deliver.
	Placed(v View) error
	// PlaceOwn is Place for the n bytes at at of a get that a Reacher serves without the peer; nil
	// if the get has ended.
	PlaceOwn(id uint64, at, n int64) View
	// PlacedOwn ends PlaceOwn. valid reports whether the bytes were still registered when they had
	// been read.
	PlacedOwn(v View, valid bool)

	// Heard records that bytes of the peer have arrived: bulk data whose header was verified, or a
	// part of a message. It keeps a peer that sends slowly from being taken for silent; Deliver and
	// Place do that by themselves.
	Heard(bulk bool)
	// Confirmed records that the peer has received everything that was sent, if the carrier knows
	// that.
	Confirmed()
	// Silent is Fail for a peer that no longer responds: data that was sent to it may still wait
	// there.
	Silent(err error)
	// Refused is called when the peer ends the session, or rejects it, with a BYE.
	Refused(bye Bye)
	// Fail ends the session, or the attempt to make one, because of err: the connection is cut
	// (Carrier.Cut) and every operation ends, with codes.ErrPeerLost if the session was up and
	// codes.ErrUnreachable otherwise. An attempt that fails with codes.ErrAgain or
	// codes.ErrPeerLost is repeated after a pause: the peer exists and may accept soon. It does
	// nothing to a session that is down.
	Fail(err error)

	// LaneUp opens the lane Bulk for the puts and gets that begin from now on. LaneDown closes it
	// because of err; if it was up the session ends, too.
	LaneUp()
	LaneDown(err error)
}

// A Writer takes the frames of one Pull. Its methods are called Locked, and do not wait. Frames
// that it has taken cannot be revoked. They may call Session.Fail, which may take effect after the
// method has returned.
type Writer interface {
	// Room is called before each frame. It returns the payload of the largest frame that fits now,
	// -1 if not even one without payload fits, and how many bytes of a piece of bulk data fit, 0 if
	// none. Pull stays within these limits.
	Room() (whole, piece int)
	// Frame sends a frame. h and payload are valid during the call only.
	Frame(h *Header, payload []byte)
	// Piece sends a frame whose payload is v. The carrier uses v until it calls Sent: it borrows v
	// for each copy, system call or retransmission. h is valid during the call only.
	Piece(h *Header, v View)
}

// A View is the memory that a frame's payload is read from or placed into. The memory is not
// copied: the operation that owns it may be canceled at any moment, so each use borrows it again. A
// View is not used after Sent, Placed or PlacedOwn, and by one goroutine at a time.
type View interface {
	// Len returns the number of bytes.
	Len() int
	// Discard reports that the payload has no destination: its bytes are read and dropped.
	Discard() bool
	// Borrow reports whether the memory may be accessed, until Return. That should be short: one
	// copy, or one system call that does not wait. Once Borrow has returned false it always does: a
	// byte stream in the middle of a piece then sends zeros, any other sender nothing more of it,
	// and a receiver drops the bytes.
	//
	// Borrow, Return and the access may run with the lock or without: memory that was borrowed
	// before Pause stays until Return, even if the session is cut during the pause. A View itself
	// may be used after Pause only if its session was not cut.
	Borrow() bool
	// Return ends a Borrow that returned true.
	Return()
	// Slice returns the memory of the n bytes at from within the view, or of the first of them that
	// are contiguous. It may be called only between Borrow and Return.
	Slice(from, n int) []byte
	// CopyIn copies b to the memory at from within the view, if the memory may be accessed. A
	// failed access is a Fault.
	CopyIn(from int, b []byte)
	// CopyOut copies all of the memory to b. It returns false if the memory may not be accessed, or
	// cannot be read, which is a Fault.
	CopyOut(b []byte) (ok bool)
	// Fault reports to na that the memory could not be read or written, most likely because a
	// mapped file was truncated. It ends the View and the operation of which it is a piece.
	Fault()
	// Faulted reports whether Fault was called.
	Faulted() bool
	// Shelved reports whether the memory is in the Shelf of the session, and at which offset: then
	// the carrier need not copy it, and the peer reads it there until Sent. Such a View may be
	// longer than Room allows.
	Shelved() (at int64, ok bool)
}

// Slices appends to dst the memory of the n bytes at from within v, in most slices at most. It is
// called between Borrow and Return.
func Slices(dst [][]byte, v View, from, n, most int) [][]byte {
	for ; n > 0 && most > 0; most-- {
		b := v.Slice(from, n)
		dst = append(dst, b)
		from += len(b)
		n -= len(b)
	}
	return dst
}
