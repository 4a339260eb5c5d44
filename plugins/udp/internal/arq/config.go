package arq

import (
	"fmt"
	"time"
)

// A Profile selects how losses are detected and repaired.
type Profile uint8

const (
	// Modern keeps packets that arrive out of order, acknowledges them selectively, and detects
	// losses as in RFC 9002. It uses a congestion window and pacing.
	Modern Profile = iota
	// Seed drops packets that arrive out of order, and repairs losses by go-back-n on both lanes.
	// It does not use a congestion window.
	Seed
)

// An AckMode selects when packets are acknowledged if there is no data to carry the acknowledgment.
type AckMode uint8

const (
	// Adaptive acknowledges every second message packet and every eighth packet of bulk data. It
	// also acknowledges immediately at the end of a burst, and all other packets after 1 ms.
	Adaptive AckMode = iota
	// Lazy acknowledges a packet immediately only if the packet is out of order, is repeated, or
	// requests an immediate acknowledgment. Other packets are acknowledged together with data.
	Lazy
	// Eager acknowledges all packets that have arrived, once per batch.
	Eager
)

// Config configures a Machine. A zero field means the default given in its comment.
type Config struct {
	Profile Profile
	Ack     AckMode

	Window  int // maximum number of packets in flight on a lane; default 256, maximum 1024
	Size    int // size in bytes of the largest datagram that this side receives; default MaxSize
	DupAcks int // number of later packets whose arrival makes a packet lost; default 3, or 1 for Seed

	// InitialRTO is the retransmission timeout before the first round-trip sample. MinRTO and
	// MaxRTO limit the timeout, except that the first two probes of Modern ignore MinRTO. The
	// defaults are 50 ms, 10 ms and 2 s.
	InitialRTO, MinRTO, MaxRTO time.Duration
	MaxRetries                 int // number of consecutive timeouts after which the peer counts as lost; default 12
	DialRetries                int // number of consecutive timeouts after which a dial fails; default MaxRetries
	// FinRetries replaces MaxRetries after Finish of an Assoc or of the Machine. The default is 8.
	FinRetries int
	FinTimeout time.Duration // maximum duration of Finish, excluding lingering; default 1 s

	// Receive returns the number of bytes of the socket's receive buffer that belong to this
	// Machine. They are divided among all peers as permission to send. The default is 3 MiB.
	Receive func() int
	// MaxRetained is the maximum number of bytes in packets that all associations retain until they
	// are acknowledged. The default is 16 MiB.
	MaxRetained int64
	HalfOpen    int // number of half-open associations above which a HELLO needs a cookie; default 64
	MaxPeers    int // maximum number of associations; default and upper limit 1<<18 - 1

	Overhead int  // number of bytes that the user adds to each packet; default 0
	Proven   bool // whether the user has authenticated the peers' addresses, so that no HELLO needs a cookie

	// WrongVersion returns the message, of up to 256 bytes, that rejects a peer with which this
	// side has no packet version in common. oldest and newest are the peer's versions. If
	// WrongVersion is nil, such a peer receives no reply.
	WrongVersion   func(oldest, newest uint8) []byte
	oldest, newest uint8 // versions supported by this side; default OldestVersion and Version

	Context uint8 // number of this context among those that share the address
	// Session returns a number greater than all earlier ones, including those returned in earlier
	// processes at this address. It may, for example, start at the current time in nanoseconds.
	Session func() uint64
	// Rand fills b with cryptographically secure random bytes.
	Rand func(b []byte)
}

func (c Config) withDefaults() Config {
	def := func(v *int, to int) {
		if *v == 0 {
			*v = to
		}
	}
	after := func(v *time.Duration, to time.Duration) {
		if *v == 0 {
			*v = to
		}
	}
	if c.newest == 0 {
		c.oldest, c.newest = OldestVersion, Version
	}
	def(&c.Window, 256)
	c.Window = min(c.Window, maxAhead)
	def(&c.Size, MaxSize-c.Overhead)
	def(&c.DupAcks, 3-2*int(c.Profile))
	after(&c.InitialRTO, 50*time.Millisecond)
	after(&c.MinRTO, 10*time.Millisecond)
	after(&c.MaxRTO, 2*time.Second)
	def(&c.MaxRetries, 12)
	def(&c.DialRetries, c.MaxRetries)
	def(&c.FinRetries, 8)
	after(&c.FinTimeout, time.Second)
	if c.Receive == nil {
		c.Receive = func() int { return 3 << 20 }
	}
	if c.MaxRetained == 0 {
		c.MaxRetained = 16 << 20
	}
	def(&c.HalfOpen, 64)
	def(&c.MaxPeers, slotMask)
	return c
}

// ParseProfile returns the profile named s, which is "modern" or "seed". The default for "" is
// Modern.
func ParseProfile(s string) (Profile, error) {
	switch s {
	case "", "modern":
		return Modern, nil
	case "seed":
		return Seed, nil
	}
	return 0, fmt.Errorf("invalid profile %q, want modern or seed", s)
}

// ParseAckMode returns the mode named s, which is "adaptive", "lazy" or "eager". The default for ""
// is Adaptive.
func ParseAckMode(s string) (AckMode, error) {
	switch s {
	case "", "adaptive":
		return Adaptive, nil
	case "lazy":
		return Lazy, nil
	case "eager":
		return Eager, nil
	}
	return 0, fmt.Errorf("invalid acknowledgment mode %q, want adaptive, lazy or eager", s)
}
