package carrier

import (
	"time"

	"github.com/quicksilver-rpc/quicksilver/internal/pool"
)

// A Carrier moves frames between one context and its peers. It gets and gives frames as headers and
// payloads, not as bytes.
type Carrier interface {
	// Dial starts to connect to the peer s.Name. The carrier then sends s.Hello and passes the
	// peer's HELLO to s.Greet, or calls s.Fail. Locked; it does not call Fail before it returns.
	Dial(s Session)
	// Flush pulls the frames of each of the sessions, on both lanes, and sends as many as possible
	// without waiting; frames that do not fit are pulled later, when there is room. It is called
	// locked and returns locked, and may Pause around a system call or a copy: so several calls run
	// at once, but only one sends on a connection, or socket, and the others leave their frames to
	// it. The slice is the caller's again when Flush returns. It ignores sessions without a
	// connection.
	Flush(sessions []Session)
	// Cut drops s in any state, also without a connection. After it nothing is delivered for s, and
	// every View of s is dropped without Sent or Placed. Unless bye.Code is codes.OK it sends bye
	// to the peer, if that needs no waiting. Locked.
	Cut(s Session, bye Bye)
	// Poll does the work that is due, and returns when it is to be called again: 0 for never, now
	// if work is left. For work that becomes due earlier the carrier calls Core.PollSoon. It is
	// called by the goroutine that leads Progress.
	Poll(now time.Duration) (next time.Duration)
	// Shut makes the carrier reject new peers. Locked.
	Shut()
	// Lingering reports whether last frames have still to be sent to peers, which takes a bounded
	// time; until then the carrier is polled. It is called after Shut, from any goroutine, without
	// the lock.
	Lingering(now time.Duration) bool
	// Release frees all resources. The goroutine that leads calls it; the carrier is not used
	// afterwards.
	Release()
}

// A Drainer is a Carrier whose listening socket may be shared with other processes. After Drain it
// leaves new connections to them, and rejects none. Drain is called at most once, before Shut.
// Locked.
type Drainer interface{ Drain() }

// A Stager is a Carrier that can accept a message at once, to send it with the next Flush.
type Stager interface {
	// Stage returns a Writer for a message of s, if it fits its Room; nil if none is possible now.
	// Locked.
	Stage(s Session) Writer
}

// A WriteMeter is a Carrier that knows how much of the sent data a peer has taken. A peer that
// takes nothing for Network.WriteTimeout, while data waits for it, is lost, although it may still
// send.
type WriteMeter interface {
	// Taken returns a count that grows whenever the peer takes data of a lane of s, and reports
	// whether data waits for that now. Locked.
	Taken(s Session, lane Lane) (count uint64, waits bool)
}

// A Shelver is a Carrier with shared room for bodies and for data of streams, which the peers read
// in place.
type Shelver interface {
	// Shelf returns the Shelf for the peer of s; nil if there is none. Locked.
	Shelf(s Session) Shelf
}

// A Shelf is memory that the peer of one session can read. When the session is down, all methods
// but Reserve and Fill may still be called. They are called Locked, and do not wait.
type Shelf interface {
	// Reserve returns n bytes and their offset; nil if there are none. A BODY frame whose tail has
	// at and n passes them to the carrier, or Drop frees them. Before that, a View that is Shelved
	// lets the peer read some of them.
	Reserve(n int) (room []byte, at int64)
	Drop(at int64, n int)
	// Fill announces that reserved memory is written without the lock until Filled, which is called
	// once for each Fill. The memory is kept that long, also if the session ends.
	Fill()
	Filled()
}

// A Reacher is a Carrier that can read some memory of peers by itself: no frame is sent to the
// peer, which may be stopped.
type Reacher interface {
	// Fetch reports whether the carrier reads the n bytes at off of r for the get with the identity
	// id. Locked.
	Fetch(s Session, id uint64, r Region, off, n int64) bool
	// View returns these bytes in place. end must be called once, without the lock; it reports
	// whether the bytes were registered until then. Locked, except while it checks whether the
	// bytes are accessible.
	View(s Session, r Region, off, n int64) (b []byte, end func() bool)
}

// A Region is registered memory of a peer that this process may access by itself.
type Region struct {
	Token [16]byte
	Place pool.Place
}

// A Finisher is a Carrier that retransmits. After Finish it gives up a peer after fewer
// retransmissions: the context waits for peers to acknowledge the last messages. Locked.
type Finisher interface{ Finish() }

// A Lane is one of the two queues through which the frames of a session are sent.
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
