package na

import (
	"sync/atomic"
	"time"

	"github.com/quicksilver-rpc/quicksilver/internal/heldby"
)

// An Envelope is an unexpected message in the room that was guaranteed to its sender. Data and Body are valid until Free.
//
//	RecvUnexpected ─► Envelope ─ Accept: the sender may use the room again ─► Free: the bytes go back
//	                     │          └─ the sender abandons it: OnAbandon
//	                     └─ the sender withdraws or abandons it: Accept reports false
//
// From its arrival to Free its session finds it by its number. The zero value is one for upper.Records.
type Envelope struct {
	Data []byte
	Body []byte // that came beside it; nil without
	From Addr   // bound to the session that it came on
	Tag  Tag

	// Arrived is when it came, by Context.Now, if it was sent with a deadline; else 0.
	Arrived time.Duration

	// Load is a counter for the session that belongs to the layer above.
	Load *atomic.Int64

	// Record is what a layer above has that the Envelope is part of: see upper.Records. na does not use it.
	Record any

	next      *Envelope // in endpoint.inbox, or of those that takeArrived has returned
	prev      *Envelope // in endpoint.inbox
	task      Task
	owner     *endpoint
	session   *session // that it came on; nil once it is freed
	id        uint64   // number in the session
	accepted  bool
	withdrawn bool
	watched   bool
	holder    heldby.Holder  // what has taken it and not accepted it; nil: nobody has said
	inbox     bool           // no receive has taken it
	made      bool           // by upper.Records
	buf       *messageBuffer // under Data
	slab      []byte         // the buffer under Body
	taken     int            // bytes of room that go back with Free
}

// Accept takes the message for good, and returns the guaranteed room to the sender. It reports false when the sender has
// withdrawn the message: it was promised that nothing comes of it. Free accepts too.
func (e *Envelope) Accept() bool { return e.owner.acceptEnvelope(e) }

// IsWithdrawn reports whether Accept will report false.
func (e *Envelope) IsWithdrawn() bool { return e.owner.isWithdrawn(e) }

// Watch has upper.OnAbandon called if the sender takes the message back before it is accepted. It reports false when the sender has. A sender
// whose message waits is told what by says, if that is not nil; it counts until the next Watch.
func (e *Envelope) Watch(by heldby.Holder) bool { return e.owner.watchEnvelope(e, by) }

// Identity says what is known of the sender, also when the session has ended meanwhile.
func (e *Envelope) Identity() Identity { return e.owner.identifyEnvelope(e) }

// Free ends the use of Data and Body. It is called exactly once.
func (e *Envelope) Free() { e.owner.freeEnvelope(e) }
