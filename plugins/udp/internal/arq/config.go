package arq

import (
	"fmt"
	"time"
)

// A Profile says how lost packets are made good.
type Profile uint8

const (
	// Modern keeps what comes out of order, acknowledges it selectively, and finds losses as RFC 9002 does. It has a congestion window and
	// pacing.
	Modern Profile = iota
	// Seed drops what comes out of order and goes back n, on both lanes; its window is its queue.
	Seed
)

// An AckMode says when packets are acknowledged that nothing goes back with.
type AckMode uint8

const (
	// Adaptive acknowledges every second message packet and every eighth of bulk data, at once at the end of a burst, and
	// after 1 ms.
	Adaptive AckMode = iota
	// Lazy acknowledges only what is out of order, repeated, or asks for it. All else waits for a packet to go with.
	Lazy
	// Eager acknowledges whatever has arrived, once for each batch.
	Eager
)

// Config is what all associations of a Machine have in common. Zero fields mean the default.
type Config struct {
	Profile Profile
	Ack     AckMode

	Window  int // packets under way on a lane: 256, at most 1024
	Size    int // the largest datagram that this side receives, in bytes: MaxSize
	DupAcks int // packets sent later that have come, so that one which has not is lost: 3; Seed: 1

	InitialRTO, MinRTO, MaxRTO time.Duration // 50 ms, 10 ms, 2 s; Modern asks twice before MinRTO
	MaxRetries                 int           // timeouts in a row before the peer is lost: 12
	DialRetries                int           // the same of a dial: MaxRetries
	FinRetries                 int           // the same after Finish of an Assoc or of the Machine: 8
	FinTimeout                 time.Duration // how long Finish takes at most, without its linger: 1 s

	// Receive returns how many bytes of the socket's receive buffer are this Machine's, to be shared by all peers as permission to
	// send: 3 MiB.
	Receive     func() int
	MaxRetained int64 // bytes of packets that are kept until acknowledged, of all associations: 16 MiB
	HalfOpen    int   // peers that have not shown that they receive, above which HELLO needs a cookie: 64
	MaxPeers    int   // associations: 1<<18 - 1, which is also the most

	Overhead int  // bytes that the user adds to each packet: 0
	Proven   bool // the user knows who is at an address: no HELLO needs a cookie

	// WrongVersion returns the words, up to 256 bytes, with which a peer is turned away that speaks no common version of packets, but those from
	// oldest to newest. nil: it has no answer.
	WrongVersion   func(oldest, newest uint8) []byte
	oldest, newest uint8 // versions that this side speaks: OldestVersion, Version

	Context uint8 // which of those that share the address this is
	// Session returns a number that is greater than any before it, of earlier processes at this address too: it begins with
	// the nanoseconds of the clock, for instance.
	Session func() uint64
	// Rand fills b with random bytes that nobody can guess.
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

// ParseProfile returns the profile of that name: modern, which is also that of no name, or seed.
func ParseProfile(s string) (Profile, error) {
	switch s {
	case "", "modern":
		return Modern, nil
	case "seed":
		return Seed, nil
	}
	return 0, fmt.Errorf("profile %q is neither modern nor seed", s)
}

// ParseAckMode returns the mode of that name: adaptive, which is also that of no name, lazy or eager.
func ParseAckMode(s string) (AckMode, error) {
	switch s {
	case "", "adaptive":
		return Adaptive, nil
	case "lazy":
		return Lazy, nil
	case "eager":
		return Eager, nil
	}
	return 0, fmt.Errorf("acknowledgment mode %q is none of adaptive, lazy and eager", s)
}
