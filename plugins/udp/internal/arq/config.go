package arq

import (
	"fmt"
	"time"
)

// A Profile selects how losses are detected and repaired.
type Profile uint8

const (
	// Modern keeps packets that arrive out of order, acknowledges them selectively, and detects
	// losses as in RFC 9002. It has a congestion window and pacing.
	Modern Profile = iota
	// Seed drops packets that arrive out of order, and repairs losses by go-back-n on both lanes.
	// It has no congestion window.
	Seed
)

// An AckMode selects when packets are acknowledged if there is no data to carry the acknowledgment.
type AckMode uint8

const (
	// Adaptive acknowledges every second message packet and every eighth of bulk data, at once at
	// the end of a burst, and all others after 1 ms.
	Adaptive AckMode = iota
	// Lazy acknowledges at once only packets that are out of order, repeated, or request it. Others
	// are acknowledged with data.
	Lazy
	// Eager acknowledges all packets that have arrived, once per batch.
	Eager
)

// Config configures a Machine. A zero field means the default in its comment.
type Config struct {
	Profile Profile
	Ack     AckMode

	Window  int // limits the packets in flight on a lane; default 256, at most 1024
	Size    int // the largest datagram that this side receives, in bytes; default MaxSize
	DupAcks int // a packet is lost when this many later ones have arrived; default 3, or 1 for Seed

	// default 50 ms, 10 ms, 2 s; the first two probes of Modern ignore MinRTO
	InitialRTO, MinRTO, MaxRTO time.Duration
	MaxRetries                 int // timeouts in a row after which the peer is lost; default 12
	DialRetries                int // timeouts in a row after which a dial fails; default MaxRetries
	// replaces MaxRetries after Finish of an Assoc or of the Machine; default 8
	FinRetries int
	FinTimeout time.Duration // limits the duration of Finish, without its linger; default 1 s

	// Receive returns how many bytes of the socket's receive buffer belong to this Machine. They
	// are divided among all peers as their permission to send. Default 3 MiB.
	Receive func() int
	// limits the bytes of packets that all associations keep until they are acknowledged; default
	// 16 MiB
	MaxRetained int64
	HalfOpen    int // with more half-open associations a HELLO needs a cookie; default 64
	MaxPeers    int // limits the associations; default and maximum 1<<18 - 1

	Overhead int  // the bytes that the user adds to each packet; default 0
	Proven   bool // the user has authenticated the addresses of peers: no HELLO needs a cookie

	// WrongVersion returns the message, up to 256 bytes, that refuses a peer whose versions of
	// packets, from oldest to newest, this side does not speak. nil: such a peer gets no answer.
	WrongVersion   func(oldest, newest uint8) []byte
	oldest, newest uint8 // the versions that this side speaks; default OldestVersion and Version

	Context uint8 // the number of this context among those that share the address
	// Session returns a number that is greater than all earlier ones, also those of earlier
	// processes at this address: it may start at the clock's nanoseconds.
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

// ParseProfile returns the profile with a name: modern, the default for "", or seed.
func ParseProfile(s string) (Profile, error) {
	switch s {
	case "", "modern":
		return Modern, nil
	case "seed":
		return Seed, nil
	}
	return 0, fmt.Errorf("invalid profile %q, want modern or seed", s)
}

// ParseAckMode returns the mode with a name: adaptive, the default for "", lazy or eager.
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
