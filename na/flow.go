package na

import (
	"fmt"
	"github.com/quicksilver-rpc/quicksilver/internal/frame"
)

// Flow control of unexpected messages is by Guaranteed Envelope Resources (GER), as LAM defined
// them for MPI. Each side guarantees each of its peers envelopes for a number of unexpected
// messages, admits a peer only if its budget has the memory for them, and a sender stops when it
// has used all envelopes.
//
//	source                                             destination
//	SendUnexpected ─ free envelope? ─ yes ─► message ─► envelope ─► receive ─► Accept
//	                    │ no                                                     │
//	                    │ Queue: waits here                                      │
//	                    │ Fail:  ErrNoCredit      ◄───── credit ─────────────────┘
//	                    └ Block: ErrNoCredit, but a patient Op waits

// EnvelopeOverhead is the number of bytes that are accounted for each envelope in addition to
// Config.Eager.
const EnvelopeOverhead = 64

// ExpeditedEnvelopes is the number of envelopes that each peer has beyond the guaranteed ones. They
// are for expedited messages only, so that these can be sent when ordinary messages have used all
// the others. See Op.SetExpedited.
const ExpeditedEnvelopes = frame.ExpeditedEnvelopes

// GuaranteedBytes returns the memory in bytes of the envelopes of peers, each for a message of
// eager bytes, including their ExpeditedEnvelopes: the value of Stats.Reserved when so many peers
// are connected.
func GuaranteedBytes(peers, envelopes, eager int) int64 {
	return int64(peers) * int64(envelopes+ExpeditedEnvelopes) * envelopeBytes(eager)
}

// envelopeBytes returns the memory in bytes that is accounted for one envelope for a message of
// eager bytes.
func envelopeBytes(eager int) int64 { return int64(eager + EnvelopeOverhead) }

// A Policy selects what happens to an unexpected message for which the peer has no free envelope.
type Policy uint8

// The policies.
const (
	Queue Policy = iota // it waits at the source, within Config.SendQueue
	Fail                // it fails with ErrNoCredit, after the received frames have been checked for credit
	Block               // like Fail, but a patient message waits: Op.SetPatient
)

// String returns the name of the policy.
func (p Policy) String() string { return nameOf(p, "Queue", "Fail", "Block") }

// A Reserve selects which sends may use the last free envelope of a peer. LAM's rule reserves it
// for patient sends, which then end only when the peer has a free envelope again, so that a sender
// never gets ahead of the peer.
type Reserve uint8

// The reserves.
const (
	NoReserve Reserve = iota // all sends may use it
	// HonestReserve follows LAM's rule with one envelope beyond the advertised ones, so that a
	// program which uses as many as were advertised never waits. The peer needs the same setting;
	// with a peer that has another one it is NoReserve.
	HonestReserve
	// LiteralReserve follows LAM's rule with the advertised envelopes, for comparison. Two sides
	// that each send as many messages as were advertised before they receive wait forever, and with
	// one envelope only patient sends are possible.
	LiteralReserve
)

// String returns the name of the reserve.
func (r Reserve) String() string { return nameOf(r, "NoReserve", "HonestReserve", "LiteralReserve") }

func nameOf[T ~uint8](v T, names ...string) string {
	if int(v) < len(names) {
		return names[v]
	}
	return fmt.Sprintf("unknown value %d", v)
}

// PeerStats are the gauges of one session: the envelopes that this side guarantees to the peer, and
// those of the peer.
type PeerStats struct {
	Addr Addr `json:"-" msgpack:"-"` // the peer, bound to the session

	Transport, Why  string // as in Identity
	Process, Remote string // as in Identity

	Offered int   // envelopes that the peer may use here, beside ExpeditedEnvelopes
	Held    int   // envelopes of these in use: messages that were not accepted
	HeldMax int   // the highest value of Held so far
	Bytes   int64 // memory reserved for Offered and ExpeditedEnvelopes

	// bytes that the peer may use here for messages longer than an envelope, reserved beside Bytes
	Room     int64
	RoomHeld int64 // bytes of Room in use by messages that are not freed
	RoomFree int64 // bytes of such room at the peer that are free, as far as this side knows

	Promised int // envelopes that the peer guarantees to this side, beside ExpeditedEnvelopes
	Free     int // envelopes of these that are free, as far as this side knows
	Queued   int // messages that wait here for an envelope
	// HeldBy is the peer's last report of what requests wait for there; empty if they do not wait:
	// see Held.
	HeldBy string
	// HighWater is the highest number of messages to the peer so far that were waiting here, or
	// sent and not known to be accepted: the number of envelopes that this program needs of the
	// peer.
	HighWater int
	Stalls    int64 // messages that had to wait here for an envelope, or failed because there was none

	Load int64 `json:"-" msgpack:"-"` // Envelope.Load of the session's messages
}

// validateFlow reports invalid fields of flow control; envelopeContract checks them against each
// other.
func (c *Config) validateFlow(bad func(field string, v any, want string)) {
	for _, f := range []struct {
		field          string
		v, least, most int
		want           string
	}{
		{"MinEnvelopes", c.MinEnvelopes, 0, 4096, "1 to 4096, or 0"},
		{"Peers", c.Peers, 0, 1 << 24, "at most 16777216 peers, or 0 for no fixed number"},
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
		bad("OnNoCredit", c.OnNoCredit, "Fail or Block if Reserve is set")
	}
	if c.Probe < 0 {
		bad("Probe", c.Probe, "a duration, or 0 for 200ms")
	}
}

// envelopeContract sets the number of envelopes that each peer is offered, in a Config with its
// defaults: Envelopes, or fewer if Budget must be sufficient for Peers. It returns an error if
// there are too few.
func (c *Config) envelopeContract() error {
	if c.CreditBatch > c.Envelopes {
		return fmt.Errorf("na: config: CreditBatch is %d, want at most Envelopes, %d: %w", c.CreditBatch, c.Envelopes, ErrInvalid)
	}
	if c.MinEnvelopes > c.Envelopes {
		return fmt.Errorf("na: config: MinEnvelopes is %d, want at most Envelopes, %d: %w", c.MinEnvelopes, c.Envelopes, ErrInvalid)
	}
	if c.guaranteedEnvelopes(c.Envelopes) > 4096 {
		return fmt.Errorf("na: config: Envelopes is %d, want at most 4095 with HonestReserve: %w", c.Envelopes, ErrInvalid)
	}
	if c.Reserve == LiteralReserve {
		c.logger().Warn("na: LiteralReserve: one envelope of each peer is reserved for sends that wait",
			"envelopes", c.Envelopes)
	}
	least := c.MinEnvelopes
	defaultTo(&least, c.Envelopes)
	defaultTo(&c.MinEnvelopes, 1)
	if one := GuaranteedBytes(1, c.guaranteedEnvelopes(c.MinEnvelopes), c.Eager); one > c.Budget {
		return fmt.Errorf("na: config: Budget is %d, want at least %d for one peer: raise Budget, "+
			"or lower MinEnvelopes (%d) or Eager: %w", c.Budget, one, c.MinEnvelopes, ErrNoMemory)
	}
	if bytes := c.guaranteedBytes(c.Envelopes); bytes > c.Budget && c.Peers > 0 {
		n := int(c.Budget/(int64(c.Peers)*envelopeBytes(c.Eager))) - c.guaranteedEnvelopes(0) - ExpeditedEnvelopes
		if n < least {
			return fmt.Errorf("na: config: Budget is %d, want %d for %d peers with %d envelopes of %d bytes and one for "+
				"expedited messages each: raise Budget, or lower Peers, Envelopes, MinEnvelopes (%d) or Eager: %w",
				c.Budget, bytes, c.Peers, c.Envelopes, c.Eager+EnvelopeOverhead, least, ErrNoMemory)
		}
		c.Envelopes = n
		c.CreditBatch = min(c.CreditBatch, n)
	}
	return nil
}

// guaranteedEnvelopes returns how many envelopes a peer gets if n are advertised: HonestReserve
// adds one.
func (c *Config) guaranteedEnvelopes(n int) int {
	if c.Reserve == HonestReserve {
		n++
	}
	return n
}

// guaranteedBytes returns the memory in bytes of n advertised envelopes for each of Peers.
func (c *Config) guaranteedBytes(n int) int64 {
	return GuaranteedBytes(c.Peers, c.guaranteedEnvelopes(n), c.Eager)
}

// Peers returns the gauges of every session that is up, in the order in which they began.
func (c *Context) Peers() []PeerStats { return c.ep.peerStats() }
