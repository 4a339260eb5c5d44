package carrier

import (
	"time"

	"github.com/quicksilver-rpc/quicksilver/internal/pool"
)

// A Carrier moves frames between one context and its peers. It receives and returns frames as
// headers and payloads rather than as encoded bytes.
type Carrier interface {
	// Dial starts connecting to the peer s.Name. The carrier then sends s.Hello and passes the peer's
	// HELLO to s.Greet, or calls s.Fail. It must not call Fail before Dial returns. Locked.
	Dial(s Session)
	// Flush pulls the frames of each of the sessions, on both lanes, and sends as many as possible
	// without waiting. Frames that do not fit are pulled later, when there is room. Flush is called
	// locked and returns locked, and may Pause around a system call or a copy. Several calls may
	// therefore run concurrently, but only one of them sends on a given connection or socket, and the
	// others leave their frames to it. Flush ignores sessions without a connection. It must not
	// retain the slice.
	Flush(sessions []Session)
	// Cut drops s, whatever its state, even if it has no connection. After Cut returns, the carrier
	// must not deliver frames to s, and must drop every View of s without calling Sent or Placed.
	// Unless bye.Code is codes.OK, Cut sends bye to the peer if it can do so without waiting. Locked.
	Cut(s Session, bye Bye)
	// Poll does all pending work and returns the time at which it must be called again. It returns 0
	// if no call is necessary, or now if work is left. If work becomes pending before that time, the
	// carrier must call Core.PollSoon. Poll is called only by the leader, which is the goroutine that
	// currently polls for the context.
	Poll(now time.Duration) (next time.Duration)
	// Shut makes the carrier reject new peers. Locked.
	Shut()
	// Lingering reports whether final frames have yet to be sent to peers. The carrier is polled while
	// Lingering reports true, and must ensure that it reports false after a bounded time. Lingering is
	// called after Shut, from any goroutine, without the lock.
	Lingering(now time.Duration) bool
	// Release frees all resources of the carrier. It is called by the leader. No method is called
	// afterward.
	Release()
}

// A Drainer is a Carrier whose listening socket may be shared with other processes. Drain makes the
// carrier stop accepting connections, so that the other processes accept them. Drain is called at
// most once, before Shut. Locked.
type Drainer interface{ Drain() }

// A Stager is a Carrier that can accept a message immediately, to send it with the next Flush.
type Stager interface {
	// Stage returns a Writer for a message of s that fits the Writer's Room. It returns nil if a
	// message cannot be staged now. Locked.
	Stage(s Session) Writer
}

// A WriteMeter is a Carrier that tracks how much of the sent data a peer has read. If a peer reads
// nothing for Network.WriteTimeout while data is waiting for it, its session is closed, even if the
// peer still sends.
type WriteMeter interface {
	// Taken returns a count that grows whenever the peer reads data from a lane of s, and reports
	// whether data is waiting to be read. Locked.
	Taken(s Session, lane Lane) (count uint64, waits bool)
}

// A Shelver is a Carrier with shared memory for bodies and stream data, which peers read in place.
type Shelver interface {
	// Shelf returns the Shelf for the peer of s, or nil if there is none. Locked.
	Shelf(s Session) Shelf
}

// A Shelf is memory that the peer of one session can read. Once the session is down, all methods
// except Reserve and Fill may still be called. All methods are called Locked and do not wait.
type Shelf interface {
	// Reserve returns n bytes of the memory and their offset, or nil if they are not available. The
	// caller must either pass the bytes to the carrier in a BODY frame whose tail contains at and n,
	// or free them with Drop. Before that, it may let the peer read some of them by sending a Shelved
	// View.
	Reserve(n int) (room []byte, at int64)
	Drop(at int64, n int)
	// Fill announces that the caller is about to write to reserved memory without holding the lock.
	// Filled must be called once for each Fill when the caller has finished. The memory remains valid
	// until then, even if the session is closed.
	Fill()
	Filled()
}

// A Reacher is a Carrier that can read some of its peers' memory by itself. No frame is sent to the
// peer, which may even be stopped.
type Reacher interface {
	// Fetch starts reading the n bytes at offset off of r for the get with the given id. It reports
	// whether the carrier can do so. Locked.
	Fetch(s Session, id uint64, r Region, off, n int64) bool
	// View returns the n bytes at offset off of r in place, without copying them. The caller must call
	// end exactly once, without the lock. end reports whether the bytes have remained registered.
	// Locked, but View may release the lock while it checks whether the bytes are accessible.
	View(s Session, r Region, off, n int64) (b []byte, end func() bool)
}

// A Region is registered memory of a peer that this process may access by itself.
type Region struct {
	Token [16]byte
	Place pool.Place
}

// A Finisher is a Carrier that retransmits. Finish reduces the number of retransmissions after
// which the carrier gives up a peer, because the context is waiting for peers to acknowledge the
// last messages. Locked.
type Finisher interface{ Finish() }

// A Lane is one of the two queues through which a session's frames are sent.
type Lane uint8

const (
	Messages Lane = iota // messages, control frames, small puts and gets
	Bulk                 // puts and gets of at least BulkMin bytes, while the lane is up
	Lanes
)

const (
	// PieceSize is the maximum payload of one piece of bulk data, in bytes.
	PieceSize = 256 << 10
	// BulkMin is the minimum length, in bytes, of a put or get that uses the Bulk lane.
	BulkMin = 64 << 10
)
