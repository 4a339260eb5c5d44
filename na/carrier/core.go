package carrier

import "time"

// A Core is a context as seen by its Carrier. It is implemented by package na.
type Core interface {
	// ID returns the target ID by which peers address the context.
	ID() int
	// Now returns the time on the class's clock, which is monotonic and never zero.
	Now() time.Duration

	// Lock locks the context. The carrier must hold this lock when it calls methods of Session.
	Lock()
	// Unlock sends queued frames, unless they are held back for batching, and unlocks the context. It
	// may release the lock temporarily while sending, so the caller must leave all state consistent
	// first.
	Unlock()
	// Pause releases the lock around a system call or a copy, without sending anything. The caller
	// must call Lock afterward. Pause may be called from Carrier.Flush and between Lock and
	// UnlockInput, but not from other methods marked Locked. A session may be cut during the pause, so
	// the caller must check Session.Conn again.
	Pause()
	// UnlockInput is like Unlock, for code that has handled bytes from a peer. It must be deferred: a
	// panic under the lock closes the context and is logged, but does not end the process.
	UnlockInput()
	// UnlockAfter is like UnlockInput, for a deferred function that must first determine which
	// context is locked. v is the result of recover.
	UnlockAfter(v any)
	// Rescue recovers a panic of a goroutine that handles data from a peer without holding a lock. It
	// must be deferred. cut must close the connection and nothing else.
	Rescue(cut func(err error))

	// Admit accepts a peer that has connected and sent g. verified reports whether the machine from
	// which it connected is the one named by g.Listen, in which case operations to that name may use
	// this session. conn becomes the session's Conn. If Admit returns an error, the carrier must send
	// ByeOf(err) to the peer and close the connection. Locked.
	Admit(c Carrier, conn any, g *Greeting, verified bool) (Session, error)
	// HandshakeFailed counts and logs a failed TLS handshake of a peer that connected. It must be
	// called without holding a lock.
	HandshakeFailed(peer, why string)
	// Messages returns the number of messages sent and received. Locked.
	Messages() uint64

	// Poller returns the poller for the context's descriptors, or nil if Config.Poller is false.
	Poller() Poller
	// PollSoon makes the leader, which is the goroutine that currently polls for the context, call
	// Carrier.Poll before the time last returned by Poll, even if the leader is sleeping or about to
	// sleep. If no goroutine leads, a goroutine of the library polls within milliseconds, unless
	// Network.Unassisted is set. PollSoon takes no lock and does not wait. A carrier whose work is
	// produced by other goroutines, rather than announced by a descriptor, needs no other way to be
	// polled.
	PollSoon()
	// FlushSoon ensures that frames that are held back for batching are sent within milliseconds, even
	// if no goroutine drives the context. It takes no lock.
	FlushSoon()
}

// A Session is the connection between this context and one context of a peer, as seen by its
// carrier. It is implemented by package na. All methods are called Locked. A session that is down
// is never reused: the next operation to the same peer creates a new one.
type Session interface {
	// Conn returns the value passed to SetConn, which is the carrier's record of the connection.
	Conn() any
	SetConn(conn any)

	// Name returns the canonical name to dial, and Target the ID of the context there.
	Name() string
	Target() int
	// Host returns the host name that the peer must prove if Name alone does not determine it.
	// Otherwise it returns "".
	Host() string
	// Up reports whether the session is established. Down reports whether it has been closed.
	Up() bool
	Down() bool
	// Incarnation returns the incarnation of the peer of a session that is up.
	Incarnation() [16]byte

	// Hello appends this side's HELLO to dst and returns the result. It has no side effects and may
	// be called repeatedly. label is data for the peer's carrier. lane is the lane of the
	// connection.
	Hello(lane Lane, dst, label []byte) []byte
	// Greet handles the HELLO with which the peer answers. If it returns an error, the HELLO cannot
	// be accepted, and the carrier must call Fail with the error.
	Greet(g *Greeting) error
	// Meets reports whether this session, and a connection that its peer opens with g, would both be
	// rejected with an offer. In that case neither may stay.
	Meets(g *Greeting) bool
	// Unproven informs the session that the source address of the HELLO passed to Admit may be forged.
	// Until another frame arrives, the peer may not exist, so the end of the session is not reported
	// as the loss of a peer.
	Unproven()

	// Pull passes a lane's frames to w while w has room, and reports whether any frames are left.
	Pull(lane Lane, w Writer) (more bool)
	// Sends reports whether frames are waiting to be pulled on either lane.
	Sends() bool
	// Sent ends v, which was passed to Writer.Piece. The carrier calls it when the payload has been
	// sent completely or no more of it will be sent. If the memory became inaccessible while the piece
	// was being sent over a byte stream, the carrier must have sent zeros in place of the rest, and
	// package na notifies the peer that these are not data. The carrier must not use v afterward.
	Sent(v View)
	// Faulted reports that the memory of v could not be read. The carrier must call it before it sends
	// anything in place of the memory, and must still call Sent afterward.
	Faulted(v View)
	// Waits reports that sent data has begun to wait for the peer to read it. It is called by a
	// WriteMeter.
	Waits()

	// Deliver handles a frame that has arrived completely. payload is valid only during the call. If
	// Deliver returns an error, the peer has violated the protocol, and the carrier must call Fail
	// with the error.
	Deliver(h *Header, payload []byte) error
	// Place returns the destination for the payload of a piece of bulk data, or of a message that has
	// not arrived completely. The carrier reads the payload into it and calls Placed when it is
	// complete. In the case of a message, it delivers nothing else from that lane until then. Errors
	// are handled as for Deliver.
	Place(h *Header) (View, error)
	// Placed ends a View returned by Place, after the whole payload has been read without damage.
	// Errors are handled as for Deliver.
	Placed(v View) error
	// PlaceOwn is like Place, for the n bytes at offset at of a get that a Reacher serves without the
	// peer. It returns nil if the get is no longer in progress.
	PlaceOwn(id uint64, at, n int64) View
	// PlacedOwn ends a View returned by PlaceOwn. valid reports whether the bytes were still
	// registered after they had been read.
	PlacedOwn(v View, valid bool)

	// Heard records that bytes from the peer have arrived, either bulk data whose header has been
	// verified or part of a message. It keeps a slow peer from being considered silent. Deliver and
	// Place imply it.
	Heard(bulk bool)
	// Confirmed records that the peer has received everything that was sent. It is called by carriers
	// that receive acknowledgments.
	Confirmed()
	// Silent is like Fail, for a peer that has stopped responding. Unlike Fail, it implies that the
	// peer may not have received data that was sent to it.
	Silent(err error)
	// Refused closes the session because the peer has closed or rejected it by sending bye.
	Refused(bye Bye)
	// Fail closes the session, or the attempt to establish one, because of err. The connection is
	// cut (Carrier.Cut), and every operation fails, with codes.ErrPeerLost if the session was up and
	// codes.ErrUnreachable otherwise. An attempt that fails with codes.ErrAgain or
	// codes.ErrPeerLost is repeated after a pause, because the peer exists and may accept soon. Fail
	// does nothing if the session is down.
	Fail(err error)

	// LaneUp opens the Bulk lane for puts and gets that start afterward. LaneDown closes it because
	// of err and, if it was up, closes the session as well.
	LaneUp()
	LaneDown(err error)
}

// A Writer accepts the frames of one Pull. Its methods are called Locked and do not wait. Frames
// that it has accepted cannot be revoked. Its methods may call Session.Fail, which may take effect
// after the method has returned.
type Writer interface {
	// Room returns the maximum size of the next frame. whole is the maximum payload of a frame passed
	// to Frame, or -1 if not even a frame without payload fits. piece is the maximum payload of a
	// frame passed to Piece, or 0 if none fits. Pull calls Room before each frame and stays within
	// these limits.
	Room() (whole, piece int)
	// Frame sends a frame. h and payload are valid only during the call.
	Frame(h *Header, payload []byte)
	// Piece sends a frame whose payload is v. The carrier may use v until it calls Sent, borrowing it
	// for each copy, system call, or retransmission. h is valid only during the call.
	Piece(h *Header, v View)
}

// A View is the memory that a frame's payload is read from or placed into. The memory is not
// copied. The operation that owns it may be canceled at any time, so each use must borrow it again.
// A View must not be used after Sent, Placed, or PlacedOwn. It is not safe for concurrent use.
type View interface {
	// Len returns the length in bytes.
	Len() int
	// Discard reports whether the payload has no destination. If so, the carrier must read its bytes
	// and drop them.
	Discard() bool
	// Borrow reports whether the caller may access the memory. If it returns true, the caller must
	// call Return after no more than one copy or one system call that does not wait. Once Borrow has
	// returned false, it always does. A carrier that is sending a piece over a byte stream must then
	// send zeros in place of the rest, any other carrier must send no more of the piece, and a
	// receiver must drop the bytes.
	//
	// Borrow, Return, and the access may happen with or without the lock. Memory borrowed before
	// Pause remains available until Return, even if the session is cut during the pause. The View
	// itself may be used after Pause only if its session has not been cut.
	Borrow() bool
	// Return ends a Borrow that returned true.
	Return()
	// Slice returns the memory of the n bytes at offset from in the view. If these are not contiguous,
	// it returns only the first of them that are. Slice may be called only between Borrow and Return.
	Slice(from, n int) []byte
	// CopyIn copies b to offset from in the view. It does nothing if the memory may not be accessed.
	// If the access fails, CopyIn calls Fault.
	CopyIn(from int, b []byte)
	// CopyOut copies the whole view to b. It returns false if the memory may not be accessed or cannot
	// be read. In the latter case it calls Fault.
	CopyOut(b []byte) (ok bool)
	// Fault reports that the memory could not be read or written, most likely because a mapped file
	// was truncated. It ends the View and the operation to which it belongs.
	Fault()
	// Faulted reports whether Fault has been called.
	Faulted() bool
	// Shelved reports whether the memory is in the session's Shelf, and returns its offset there. If
	// it is, the carrier need not copy the memory: the peer reads it in place until Sent is called.
	// Such a View may be longer than Room allows.
	Shelved() (at int64, ok bool)
}

// Slices appends to dst the memory of the n bytes at offset from in v, in no more than most slices.
// It must be called between Borrow and Return.
func Slices(dst [][]byte, v View, from, n, most int) [][]byte {
	for ; n > 0 && most > 0; most-- {
		b := v.Slice(from, n)
		dst = append(dst, b)
		from += len(b)
		n -= len(b)
	}
	return dst
}
