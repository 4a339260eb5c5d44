package carrier

import (
	"time"

	"github.com/quicksilver-rpc/quicksilver/internal/pool"
)

// A Carrier moves frames between one context and its peers. Frames come to it as headers and payloads, not as bytes.
type Carrier interface {
	// Dial begins to connect s, whose Name says where. The carrier then sends s.Hello and gives the peer's to s.Greet, or
	// calls s.Fail. Locked; it does not call Fail from inside.
	Dial(s Session)
	// Flush pulls what each of the sessions has, on both lanes, and sends it as far as that goes without waiting; what finds no
	// room is pulled when there is some. Called locked, it returns locked, and may Pause around a system call or a copy: so several run
	// at once, and of one connection, or socket, one sends and the others leave theirs to it. The slice is the caller's again
	// afterwards. A session without a connection has nothing.
	Flush(sessions []Session)
	// Cut drops s in any state, without a connection too. After it nothing is delivered for s, and every View of s is dropped
	// without Sent or Placed. It sends the peer bye if that needs no waiting; with codes.OK it sends nothing. Locked.
	Cut(s Session, bye Bye)
	// Poll does what is due, and returns when it has something to do again: 0 for never, now when work is left. Something that
	// is due earlier than it said needs Core.PollSoon. Called by the goroutine that leads Progress.
	Poll(now time.Duration) (next time.Duration)
	// Shut admits no peer from now on. Locked.
	Shut()
	// Lingering reports whether last frames are still owed to peers, for a bounded time: until then it is polled. Called after
	// Shut, from anywhere, without the lock.
	Lingering(now time.Duration) bool
	// Release frees what is left. The goroutine that leads calls it; nothing of the carrier is used afterwards.
	Release()
}

// A Drainer is a Carrier whose listening socket other processes may have, too. Drain has it leave peers that connect from now on
// to them, and refuse none. It is called once, before Shut, if at all. Locked.
type Drainer interface{ Drain() }

// A Stager is a Carrier that can take a message when it is given, to send it with the next Flush.
type Stager interface {
	// Stage returns what takes a message of s now, within its Room; nil if nothing does. Locked.
	Stage(s Session) Writer
}

// A WriteMeter is a Carrier that knows what a peer takes of what is sent to it. A peer that takes nothing for Network.WriteTimeout,
// while there is something for it, is lost, although it may still send.
type WriteMeter interface {
	// Taken returns a count that grows whenever the peer takes something of a lane of s, and reports whether any waits for that
	// now. Locked.
	Taken(s Session, lane Lane) (count uint64, waits bool)
}

// A Shelver is a Carrier with room for bodies and for bytes of streams, which peers read there.
type Shelver interface {
	// Shelf returns that for the peer of s; nil if there is none. Locked.
	Shelf(s Session) Shelf
}

// A Shelf has room that the peer of a session can read. It may be used when its session is down, too, but for Reserve and Fill. Its methods are
// called Locked, and do not wait.
type Shelf interface {
	// Reserve returns n bytes, and what finds them; nil if there are none. A BODY frame whose tail has at and n gives them to the carrier, or
	// Drop gives them back. Before, a View that is Shelved shows some of them to the peer.
	Reserve(n int) (room []byte, at int64)
	Drop(at int64, n int)
	// Fill says that what was reserved is written without the lock until Filled is called, once for each Fill. The memory stays so long,
	// whatever becomes of the session.
	Fill()
	Filled()
}

// A Reacher is a Carrier that reads some memory of peers by itself: no frame goes to the peer, which may be stopped.
type Reacher interface {
	// Fetch reports whether the carrier reads the n bytes at off of r for the get with that identity. Locked.
	Fetch(s Session, id uint64, r Region, off, n int64) bool
	// View returns those bytes where they are. end, which is called once, without the lock, reports whether they were the owner's to give
	// until then. Locked, though not while it looks whether they are there.
	View(s Session, r Region, off, n int64) (b []byte, end func() bool)
}

// A Region is registered memory of a peer that this process may find by itself.
type Region struct {
	Token [16]byte
	Place pool.Place
}

// A Finisher is a Carrier that repeats what is lost. Finish has it give up a peer after fewer repetitions: the context waits for
// peers to confirm the last messages. Locked.
type Finisher interface{ Finish() }

// A Lane is one of the two ways on which the frames of a session leave.
type Lane uint8

const (
	Messages Lane = iota // messages, control, small puts and gets
	Bulk                 // puts and gets of BulkMin bytes or more, while it is up
	Lanes
)

const (
	// PieceSize is the largest payload of one piece of bulk data in bytes.
	PieceSize = 256 << 10
	// BulkMin is the length in bytes from which a put or get uses the lane Bulk.
	BulkMin = 64 << 10
)
