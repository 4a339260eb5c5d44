package na

import (
	"fmt"
	"github.com/quicksilver-rpc/quicksilver/internal/frame"
)

// Flow control of unexpected messages uses Guaranteed Envelope Resources (GER), as defined by LAM
// for MPI. Each side guarantees each of its peers envelopes for a number of unexpected messages,
// and admits a peer only if its budget has the memory for them. A sender may send a message only
// if one of its envelopes at the peer is free. The envelope becomes free again when the receiver
// accepts the message.
//
// If no envelope is free, the sender's Policy determines whether the message waits or fails with
// ErrNoCredit.

// EnvelopeOverhead is the number of bytes charged for each envelope in addition to Config.Eager.
const EnvelopeOverhead = 64

// ExpeditedEnvelopes is the number of envelopes that each peer has in addition to the guaranteed
// ones. They are reserved for expedited messages, so that these can be sent even when ordinary
// messages have used all other envelopes. See Op.SetExpedited.
const ExpeditedEnvelopes = frame.ExpeditedEnvelopes

// GuaranteedBytes returns the memory in bytes that is reserved for the given number of peers, each
// with the given number of envelopes for messages of eager bytes, including ExpeditedEnvelopes. It
// is the value of Stats.Reserved when that many peers are connected.
func GuaranteedBytes(peers, envelopes, eager int) int64 {
	return int64(peers) * int64(envelopes+ExpeditedEnvelopes) * envelopeBytes(eager)
}

// envelopeBytes returns the memory in bytes charged for one envelope for a message of eager bytes.
func envelopeBytes(eager int) int64 { return int64(eager + EnvelopeOverhead) }

// A Policy determines what happens to an unexpected message when the peer has no free envelope for
// it.
type Policy uint8

// Policy values.
const (
	Queue Policy = iota // the message waits at the source, within Config.SendQueue
	Fail                // the message fails with ErrNoCredit, after received frames have been checked for credit
	Block               // like Fail, but a patient message waits; see Op.SetPatient
)

// String returns the name of the policy.
func (p Policy) String() string { return nameOf(p, "Queue", "Fail", "Block") }

// A Reserve determines which sends may use a peer's last free envelope. LAM's rule reserves it for
// patient sends, which then complete only when the peer has a free envelope again, so that a sender
// never gets ahead of the peer.
type Reserve uint8

// Reserve values.
const (
	NoReserve Reserve = iota // all sends may use it
	// HonestReserve applies LAM's rule to one envelope in addition to the advertised ones, so that
	// a program that uses no more than the advertised number never waits. Both sides must use this
	// setting. With a peer that uses another one, it is equivalent to NoReserve.
	HonestReserve
	// LiteralReserve applies LAM's rule to the advertised envelopes, for comparison. If both sides
	// send as many messages as were advertised before they receive any, they wait forever. With a
	// single envelope only patient sends are possible.
	LiteralReserve
)

// String returns the name of the reserve setting.
func (r Reserve) String() string { return nameOf(r, "NoReserve", "HonestReserve", "LiteralReserve") }

func nameOf[T ~uint8](v T, names ...string) string {
	if int(v) < len(names) {
		return names[v]
	}
	return fmt.Sprintf("unknown value %d", v)
}

// PeerStats holds the gauges of a session: the envelopes that this side guarantees to the peer, and
// those that the peer guarantees to this side.
type PeerStats struct {
	Addr Addr `json:"-" msgpack:"-"` // the peer, bound to the session

	Transport, Why  string // as in Identity
	Process, Remote string // as in Identity

	Offered int   // envelopes that the peer may use here, excluding ExpeditedEnvelopes
	Held    int   // number of Offered envelopes in use by messages that have not been accepted
	HeldMax int   // maximum value of Held so far
	Bytes   int64 // bytes of memory reserved for Offered and ExpeditedEnvelopes

	// bytes that the peer may use here for messages longer than an envelope, in addition to Bytes
	Room     int64
	RoomHeld int64 // bytes of Room in use by messages that have not been freed
	RoomFree int64 // bytes of the peer's room for this side that are free, as far as this side knows

	Promised int // envelopes that the peer guarantees to this side, excluding ExpeditedEnvelopes
	Free     int // number of Promised envelopes that are free, as far as this side knows
	Queued   int // messages waiting here for an envelope
	// HeldBy is the reason that the peer last reported for not yet accepting this side's messages.
	// It is empty if none are waiting. See Held.
	HeldBy string
	// HighWater is the maximum number of messages to the peer so far that were waiting here, or
	// were sent but not known to be accepted. It is the number of envelopes that this program needs
	// from the peer.
	HighWater int
	Stalls    int64 // messages that had to wait here for an envelope, or failed for lack of one

	Load int64 `json:"-" msgpack:"-"` // Envelope.Load of the session's messages
}

// validateFlow calls bad for each invalid flow control field. envelopeContract checks the fields
// against each other.
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

// envelopeContract sets the number of envelopes offered to each peer. That is Envelopes, or fewer
// if Budget must suffice for Peers. c must have its defaults filled in. envelopeContract returns
// an error if the fields contradict each other, or if Budget is too small.
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

// guaranteedEnvelopes returns the number of envelopes that a peer is guaranteed if n are
// advertised. HonestReserve adds one.
func (c *Config) guaranteedEnvelopes(n int) int {
	if c.Reserve == HonestReserve {
		n++
	}
	return n
}

// guaranteedBytes returns the memory in bytes needed to advertise n envelopes to each of Peers.
func (c *Config) guaranteedBytes(n int) int64 {
	return GuaranteedBytes(c.Peers, c.guaranteedEnvelopes(n), c.Eager)
}

// Peers returns the gauges of every session that is up, in the order in which the sessions began.
func (c *Context) Peers() []PeerStats { return c.ep.peerStats() }
