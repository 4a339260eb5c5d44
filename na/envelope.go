package na

import (
	"sync/atomic"
	"time"

	"github.com/quicksilver-rpc/quicksilver/internal/heldby"
)

// An Envelope is a received unexpected message, in the memory that was guaranteed to its sender.
// Data and Body are valid until Free.
//
//	RecvUnexpected ─► Envelope ─ Accept: the sender may use the envelope again ─► Free: its memory is released
//	                     │          └─ the sender abandons it: OnAbandon
//	                     └─ the sender withdraws or abandons it: Accept reports false
//
// From its arrival to Free its session finds it by its number. The zero value is for upper.Records.
type Envelope struct {
	Data []byte
	Body []byte // the body that was sent beside it, or nil
	From Addr   // the sender, bound to the session that the message came on
	Tag  Tag

	// Arrived is when the message arrived, by Context.Now, if it was sent with a deadline;
	// otherwise 0.
	Arrived time.Duration

	// Load is a counter of the session, for use by the layer above.
	Load *atomic.Int64

	// Record is the record of a layer above that the Envelope is a part of: see upper.Records.
	// Package na does not use it.
	Record any

	next      *Envelope // in endpoint.inbox, or in the list that takeArrived has returned
	prev      *Envelope // in endpoint.inbox
	task      Task
	owner     *endpoint
	session   *session // nil: it was freed
	id        uint64   // its number in the session
	accepted  bool
	withdrawn bool
	watched   bool
	holder    heldby.Holder  // the reason why it is not accepted yet; nil: it is not known
	inbox     bool           // no receive has taken it
	made      bool           // upper.Records has made it
	buf       *messageBuffer // the buffer of Data
	slab      []byte         // the buffer of Body, if it comes from a slab
	taken     int            // bytes of room that Free releases
}

// Accept accepts the message, and returns the envelope to the sender. It reports false if the
// sender has withdrawn the message: the caller must not act on it then. Free accepts too.
func (e *Envelope) Accept() bool { return e.owner.acceptEnvelope(e) }

// IsWithdrawn reports whether Accept will report false.
func (e *Envelope) IsWithdrawn() bool { return e.owner.isWithdrawn(e) }

// Watch makes upper.OnAbandon be called if the sender withdraws the message before it is accepted.
// It reports false if the sender has done so already. by, if not nil, is the reason that is
// reported to a sender whose messages wait; it is valid until the next Watch.
func (e *Envelope) Watch(by heldby.Holder) bool { return e.owner.watchEnvelope(e, by) }

// Identity returns what is known of the sender, also if the session has ended.
func (e *Envelope) Identity() Identity { return e.owner.identifyEnvelope(e) }

// Free ends the use of Data and Body. It is called exactly once.
func (e *Envelope) Free() { e.owner.freeEnvelope(e) }
