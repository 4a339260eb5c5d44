package na

import (
	"fmt"
	"github.com/quicksilver-rpc/quicksilver/internal/frame"
)

// Flow control of unexpected messages: Guaranteed Envelope Resources, as LAM defined them for MPI. Each side guarantees
// each of its peers room for a number of unexpected messages, takes in a peer only with that room reserved in its budget,
// and the peer stops at its own end when the room is used.
//
//	source                                             destination
//	SendUnexpected ─ free envelope? ─ yes ─► message ─► envelope ─► receive ─► Accept
//	                    │ no                                                     │
//	                    │ Queue: waits here                                      │
//	                    │ Fail:  ErrNoCredit      ◄───── credit ─────────────────┘
//	                    └ Block: ErrNoCredit, but a patient Op waits

// EnvelopeOverhead is accounted for each envelope beside Config.Eager, in bytes.
const EnvelopeOverhead = 64

// ExpeditedEnvelopes is how many envelopes each peer gets beyond those that it is promised: for expedited messages alone, so that
// these get through when ordinary messages have used all the others. See Op.SetExpedited.
const ExpeditedEnvelopes = frame.ExpeditedEnvelopes

// GuaranteedBytes is the memory in bytes that envelopes for peers take, each for a message of eager bytes, and the
// ExpeditedEnvelopes of these peers with them: what Stats.Reserved shows when so many peers are connected.
func GuaranteedBytes(peers, envelopes, eager int) int64 {
	return int64(peers) * int64(envelopes+ExpeditedEnvelopes) * envelopeBytes(eager)
}

// envelopeBytes is the memory in bytes that is accounted for one envelope for a message of eager bytes.
func envelopeBytes(eager int) int64 { return int64(eager + EnvelopeOverhead) }

// A Policy says what becomes of an unexpected message for which the peer has no envelope free.
type Policy uint8

// The policies.
const (
	Queue Policy = iota // it waits at the source, within Config.SendQueue
	Fail                // it fails with ErrNoCredit, after a look at what has arrived
	Block               // the same, but messages whose senders wait for them wait here: Op.SetPatient
)

// String names the policy.
func (p Policy) String() string { return nameOf(p, "Queue", "Fail", "Block") }

// A Reserve says who may use the last envelope that a peer has free. LAM's rule gives it to sends that wait only, which
// then end when the peer has room again, so that a sender never outruns what it knows.
type Reserve uint8

// The reserves.
const (
	NoReserve Reserve = iota // everybody may
	// HonestReserve follows LAM's rule with one envelope beyond those that are advertised, so that a program which uses as
	// many as it was promised never waits. The peer needs the same setting; towards one that has another it is NoReserve.
	HonestReserve
	// LiteralReserve follows LAM's rule with the envelopes that are advertised, for comparison: two sides that each send as
	// many as they were promised before they receive wait for ever, and of one envelope only waiting sends get anything.
	LiteralReserve
)

// String names the reserve.
func (r Reserve) String() string { return nameOf(r, "NoReserve", "HonestReserve", "LiteralReserve") }

func nameOf[T ~uint8](v T, names ...string) string {
	if int(v) < len(names) {
		return names[v]
	}
	return fmt.Sprintf("%d, which has no name", v)
}

// PeerStats are the gauges of one session: what this side has promised the peer, and what the peer has promised.
type PeerStats struct {
	Addr Addr `json:"-" msgpack:"-"` // bound to the session

	Transport, Why  string // as in Identity
	Process, Remote string // likewise

	Offered int   // envelopes that the peer may use here, beside ExpeditedEnvelopes
	Held    int   // of these, messages that nobody has accepted
	HeldMax int   // the most that were held at a time
	Bytes   int64 // reserved for them, and for ExpeditedEnvelopes

	Room     int64 // bytes for messages longer than an envelope that the peer may use here, reserved beside Bytes
	RoomHeld int64 // of these, taken by messages that are not freed
	RoomFree int64 // bytes of such room at the peer, as far as this side knows

	Promised int // envelopes that the peer guarantees to this side, beside ExpeditedEnvelopes
	Free     int // of these, as far as this side knows
	Queued   int // messages that wait here for one
	// HeldBy is what requests to the peer wait for there, as it has said last; empty when they do not wait: see Held.
	HeldBy string
	// HighWater is the most messages to the peer that were at a time sent and not known to be accepted, or waiting here:
	// the envelopes that this program really needs of the peer.
	HighWater int
	Stalls    int64 // messages that had to wait here for an envelope, or failed for want of one

	Load int64 `json:"-" msgpack:"-"` // Envelope.Load of its messages
}

// validateFlow reports bad fields of flow control. contract settles the rest.
func (c *Config) validateFlow(bad func(field string, v any, want string)) {
	for _, f := range []struct {
		field          string
		v, least, most int
		want           string
	}{
		{"MinEnvelopes", c.MinEnvelopes, 0, 4096, "1 to 4096, or 0"},
		{"Peers", c.Peers, 0, 1 << 24, "at most 16777216 peers, or 0 to admit them as they come"},
		{"Need", c.Need, 0, 4096, "1 to 4096, or 0 for as many as the peer offers"},
		{"Want", c.Want, max(c.Need, 0), 4096, fmt.Sprintf("Need, which is %d, to 4096, or 0 for as many as the peer offers", c.Need)},
		{"CreditBatch", c.CreditBatch, 0, 4096, "1 to Envelopes, or 0 for a quarter of them"},
	} {
		if f.v != 0 && (f.v < f.least || f.v > f.most) {
			bad(f.field, f.v, f.want)
		}
	}
	if c.OnNoCredit > Block {
		bad("OnNoCredit", c.OnNoCredit, "Queue, Fail or Block")
	}
	if c.Reserve > LiteralReserve {
		bad("Reserve", c.Reserve, "NoReserve, HonestReserve or LiteralReserve")
	}
	if c.Reserve != NoReserve && c.OnNoCredit == Queue {
		bad("OnNoCredit", c.OnNoCredit, "Fail or Block, because Reserve keeps the last envelope for sends that wait")
	}
	if c.Probe < 0 {
		bad("Probe", c.Probe, "a duration, or 0 for 200ms")
	}
}

// envelopeContract settles how many envelopes each peer is offered, with the defaults filled in: as many as Envelopes says, and
// where Peers says for how many peers Budget must do, as many as it does for. It is an error when these are too few.
func (c *Config) envelopeContract() error {
	if c.CreditBatch > c.Envelopes {
		return fmt.Errorf("na: config: CreditBatch is %d, want at most Envelopes, which is %d: a peer would never hear of "+
			"the last of them: %w", c.CreditBatch, c.Envelopes, ErrInvalid)
	}
	if c.MinEnvelopes > c.Envelopes {
		return fmt.Errorf("na: config: MinEnvelopes is %d, want at most Envelopes, which is %d: %w", c.MinEnvelopes, c.Envelopes, ErrInvalid)
	}
	if c.guaranteedEnvelopes(c.Envelopes) > 4096 {
		return fmt.Errorf("na: config: Envelopes is %d, want at most 4095: HonestReserve adds one: %w", c.Envelopes, ErrInvalid)
	}
	if c.Reserve == LiteralReserve {
		c.logger().Warn("na: LiteralReserve: of the envelopes that a peer guarantees one less can be used by sends that do not wait",
			"envelopes", c.Envelopes)
	}
	least := c.MinEnvelopes
	defaultTo(&least, c.Envelopes)
	defaultTo(&c.MinEnvelopes, 1)
	if one := GuaranteedBytes(1, c.guaranteedEnvelopes(c.MinEnvelopes), c.Eager); one > c.Budget {
		return fmt.Errorf("na: config: Budget is %d, and one peer needs %d bytes for the fewest envelopes that it is offered: raise Budget, "+
			"or lower MinEnvelopes (%d) or Eager: %w", c.Budget, one, c.MinEnvelopes, ErrNoMemory)
	}
	if bytes := c.guaranteedBytes(c.Envelopes); bytes > c.Budget && c.Peers > 0 {
		n := int(c.Budget/(int64(c.Peers)*envelopeBytes(c.Eager))) - c.guaranteedEnvelopes(0) - ExpeditedEnvelopes
		if n < least {
			return fmt.Errorf("na: config: %d envelopes of %d bytes for each of %d peers, with one more for expedited messages, need %d bytes, Budget is %d, enough "+
				"for %d: raise Budget, or lower Peers, Envelopes, MinEnvelopes (%d) or Eager: %w",
				c.Envelopes, c.Eager+EnvelopeOverhead, c.Peers, bytes, c.Budget, max(n, 0), least, ErrNoMemory)
		}
		c.Envelopes = n
		c.CreditBatch = min(c.CreditBatch, n)
	}
	return nil
}

// guaranteedEnvelopes is how many envelopes a peer gets when n are advertised: HonestReserve adds the hidden one.
func (c *Config) guaranteedEnvelopes(n int) int {
	if c.Reserve == HonestReserve {
		n++
	}
	return n
}

// guaranteedBytes is what n advertised envelopes for each of Peers take.
func (c *Config) guaranteedBytes(n int) int64 {
	return GuaranteedBytes(c.Peers, c.guaranteedEnvelopes(n), c.Eager)
}

// Peers returns the gauges of every session that is up, in the order in which they began.
func (c *Context) Peers() []PeerStats { return c.ep.peerStats() }
