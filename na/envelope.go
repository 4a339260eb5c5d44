package na

import (
	"sync/atomic"
	"time"
)

// An Envelope is an unexpected message in the room that was guaranteed to its sender. Data and Body are valid until Free.
//
//	RecvUnexpected ─► Envelope ─ Accept: the sender may use the room again ─► Free: the bytes go back
//	                     └─ the sender withdraws or abandons it: Accept reports false
type Envelope struct {
	Data []byte
	Body []byte // that came beside it; nil without
	From Addr   // bound to the session that it came on
	Tag  Tag

	// Arrived is when it came, by Context.Now, if it was sent with a deadline; else 0.
	Arrived time.Duration

	// Load is a counter for the session that belongs to the layer above.
	Load *atomic.Int64

	Next      *Envelope // of those that Take has returned
	task      Task
	Owner     Endpoint // plugin's
	Link      any      // plugin's
	ID        uint64   // plugin's: number in the session
	Accepted  bool     // plugin's
	Withdrawn bool     // plugin's
	Watched   bool     // plugin's
	Inbox     bool     // plugin's: no receive has taken it
	Buf       []byte   // plugin's: a buffer for messages that need no room
	Room      []byte   // plugin's: the buffer under Data of one that does
	Slab      []byte   // plugin's: the buffer under Body
	Taken     int      // plugin's: bytes of room that go back with Free
}

// Accept takes the message for good, and returns the guaranteed room to the sender. It reports false when the sender has
// withdrawn the message: it was promised that nothing comes of it. Free accepts too.
func (e *Envelope) Accept() bool { return e.Owner.AcceptEnvelope(e) }

// IsWithdrawn reports whether Accept will report false.
func (e *Envelope) IsWithdrawn() bool { return e.Owner.EnvelopeWithdrawn(e) }

// Watch has Context.OnAbandon called if the sender takes the message back before it is accepted. It reports false when the sender has.
func (e *Envelope) Watch() bool { return e.Owner.WatchEnvelope(e) }

// Identity says what is known of the sender, also when the session has ended meanwhile.
func (e *Envelope) Identity() Identity { return e.Owner.IdentifyEnvelope(e) }

// Free ends the use of Data and Body. It is called exactly once.
func (e *Envelope) Free() { e.Owner.FreeEnvelope(e) }
