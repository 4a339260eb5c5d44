package engine

import (
	"time"

	"github.com/quicksilver-rpc/quicksilver/na"
	"github.com/quicksilver-rpc/quicksilver/plugins/internal/frame"
)

// A Carrier moves frames between one Endpoint and its peers. It decides how they look on the way: frames come to it as headers
// and payloads, not as bytes. "Locked" methods are called with the endpoint locked and do not wait; the others are called
// without the lock. None calls user code.
type Carrier interface {
	// Dial begins to connect l, whose Name says where. The carrier then sends l.Hello and gives the peer's to l.Greet, or
	// calls l.Fail. Locked; it does not call Fail from inside.
	Dial(l *Link)
	// Flush pulls what each of ls has, on both flows, and sends it as far as that goes without waiting; what finds no room is
	// pulled when there is some. Called Locked and returns Locked, and may Pause around a system call or a copy: so several run
	// at once, and of one connection, or socket, one sends and the others leave theirs to it. ls is the engine's again
	// afterwards. A link without a connection has nothing.
	Flush(ls []*Link)
	// Cut drops l in any state, without a connection too. After it nothing is delivered for l, and every View of l is dropped
	// unreported. It tells the peer bye if that needs no waiting; with na.OK it says nothing. Locked.
	Cut(l *Link, bye frame.Bye)
	// Poll does what is due, and returns when it has something to do again: 0 for never, now when work is left. Something that
	// is due earlier than it said needs Host.PollSoon. Called by the goroutine that leads Progress.
	Poll(now time.Duration) (next time.Duration)
	// Shut lets no peer in from now on. Locked.
	Shut()
	// Lingering reports whether last words are still owed to peers, for a bounded time: until then it is polled. Called after Shut,
	// from anywhere, without the lock.
	Lingering(now time.Duration) bool
	// Release frees what is left. The goroutine that leads calls it; nothing of the carrier is used afterwards.
	Release()
}

// Names are what a transport calls peers. Its methods may be called from any goroutine, and do not wait.
type Names interface {
	// Check reports why name could not be dialled. Locked.
	Check(name string) error
	// Resolve turns the text of an address into a canonical name, and calls done once, from any goroutine, unless the
	// returned cancel was called before. It may call done before it returns. cancel may be nil.
	Resolve(text string, done func(name string, err error)) (cancel func())
}

// A Certifier is Names of a transport whose peers have certificates. Its methods may be called from any goroutine, and do not wait.
type Certifier interface {
	// Host returns the host in the text of an address that the peer's certificate must carry; empty for the address itself.
	Host(text string) string
	// Carries reports why the certificate in id, nil for none, is not that of host, or of the address name where host is empty.
	Carries(id *na.Identity, name, host string) error
}

// A Flow is one of the two ways on which the frames of a link leave.
//
// What a flow promises: frames other than DATA arrive once, in their order, and none is missing while the link is up. Each byte
// of DATA arrives once and never before the PUT or GET that opened its operation; over an Exact carrier in any order, and a
// CANCEL or DONE may overtake it, over a stream in the order of the frames. Between two flows nothing is promised. Damage or
// loss that cannot be made good is the end of the session: Link.Fail.
type Flow uint8

const (
	FlowMessages Flow = iota // messages, control, small puts and gets
	FlowBulk                 // puts and gets of BulkMin bytes or more, while it is up
	flows
)

const (
	// PieceSize is the largest payload of one piece of bulk data in bytes.
	PieceSize = 256 << 10
	// BulkMin is the length in bytes from which a put or get uses FlowBulk.
	BulkMin = 64 << 10
)

// A Writer takes the frames of one Pull. Its methods are called with the endpoint locked, and do not wait. What it has taken
// cannot be taken back.
type Writer interface {
	// Room is asked before each frame: the payload of the largest frame that fits now, -1 when not even one without fits, and
	// how many bytes of a piece of bulk data, 0 when none. The engine stays within.
	Room() (whole, piece int)
	// Frame sends a frame. h and payload are the engine's and valid during the call only.
	Frame(h *frame.Header, payload []byte)
	// Piece sends a frame whose payload is v, which is the carrier's until it calls Sent: it borrows v for each copy, system
	// call or retransmission. h is valid during the call only.
	Piece(h *frame.Header, v View)
}
