package na

import (
	"sync/atomic"
	"time"

	"github.com/quicksilver-rpc/quicksilver/internal/heldby"
)

// An Envelope is a received unexpected message, held in memory that was guaranteed to its sender.
// Data and Body are valid until Free is called.
//
// Accept returns the envelope to the sender, which may then send another message. Free releases
// the memory of the message. If the sender withdraws or abandons the message before it is
// accepted, Accept returns false. If the sender abandons it between Accept and Free, the function
// set by upper.OnAbandon is called.
//
// Until Free is called, the session can find the Envelope by the message's number. The zero value
// is for use with upper.Records.
type Envelope struct {
	Data []byte
	Body []byte // body that was sent separately, or nil
	From Addr   // sender, bound to the session on which the message arrived
	Tag  Tag

	// Arrived is the time on the clock of Context.Now at which the message arrived. It is 0 if the
	// message was sent without a deadline.
	Arrived time.Duration

	// Load is a per-session counter for use by the layer above.
	Load *atomic.Int64

	// Record is the higher layer's record that contains the Envelope (see upper.Records). Package
	// na does not use it.
	Record any

	next      *Envelope // in endpoint.inbox, or in the list returned by takeArrived
	prev      *Envelope // in endpoint.inbox
	task      Task
	owner     *endpoint
	session   *session // nil once the envelope has been freed
	id        uint64   // number of the envelope in the session
	accepted  bool
	withdrawn bool
	watched   bool
	holder    heldby.Holder  // reason why the message has not been accepted yet; nil if unknown
	inbox     bool           // set while no receive has taken the message
	made      bool           // created by upper.Records
	buf       *messageBuffer // buffer that holds Data
	slab      []byte         // buffer that holds Body, if it comes from a slab
	taken     int            // bytes of room that Free releases
}

// Accept accepts the message and returns the envelope to the sender. It returns false if the sender
// has withdrawn the message, in which case the caller must not act on it. Free accepts a message
// that has not been accepted.
func (e *Envelope) Accept() bool { return e.owner.acceptEnvelope(e) }

// IsWithdrawn reports whether the sender has withdrawn the message, so that Accept would return
// false.
func (e *Envelope) IsWithdrawn() bool { return e.owner.isWithdrawn(e) }

// Watch causes the function set by upper.OnAbandon to be called if the sender withdraws the
// message before it is accepted. It returns false if the sender has already withdrawn it. If by is
// not nil, by.HeldBy provides the reason that is reported to a sender whose messages are waiting.
// It may be called until the next call to Watch or Free.
func (e *Envelope) Watch(by heldby.Holder) bool { return e.owner.watchEnvelope(e, by) }

// Identity returns the identity of the sender. It may be called even after the session has ended.
func (e *Envelope) Identity() Identity { return e.owner.identifyEnvelope(e) }

// Free releases the memory of Data and Body. It must be called exactly once.
func (e *Envelope) Free() { e.owner.freeEnvelope(e) }
