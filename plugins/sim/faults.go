package sim

import (
	"errors"
	"fmt"
	"github.com/quicksilver-rpc/quicksilver/na/codes"
	"math/rand/v2"
	"time"
)

// Faults specifies faults and their rates. The zero value is a network without faults. A rate is a
// probability from 0 to 1, drawn for each delivered segment unless stated otherwise. The rates per
// delivered segment must not add up to more than 1.
type Faults struct {
	// Jitter is the mean of an exponentially distributed delay that is added to Config.Latency.
	Jitter time.Duration
	// Refuse is the rate, per dial, at which dials are refused although a class is listening.
	Refuse float64
	// Reset is the rate at which a connection is reset. The segments in flight are lost, and both
	// ends receive a reset.
	Reset float64
	// Corrupt is the rate at which a byte is corrupted. By default only bytes covered by a checksum
	// are, so that the session ends and no wrong byte reaches a program. Bulk data has no checksum
	// on a stream. With CorruptBulk, it is corrupted as well.
	Corrupt     float64
	CorruptBulk bool
	// Clog is the rate at which one direction of a connection stops delivering, for ClogFor on
	// average.
	Clog    float64
	ClogFor time.Duration
	// Pause is the rate at which the receiving node is paused, for PauseFor on average. See
	// Node.Pause.
	Pause    float64
	PauseFor time.Duration
	// Partition is the rate at which delivery from the sending node to the receiving node stops,
	// for PartitionFor on average. In half of the cases, delivery in the other direction stops as
	// well.
	Partition    float64
	PartitionFor time.Duration
	// Narrow, from 0 to 1, narrows the window of each new connection by a random power of two. A
	// value of 1 narrows it to as little as 1/1024. Values below 0.1 have no effect.
	Narrow float64
	// Stall is the mean delay before a coroutine that could resume immediately does so. A value of
	// a few milliseconds makes programs progress slowly, while messages that require no callback
	// are served without delay.
	Stall time.Duration
	// Silence is the probability, drawn for each crash, that the node's peers receive nothing at
	// all, not even a reset, as after a failure of its power or network.
	Silence float64
	// Loss is the rate, drawn for each segment sent and each dial, at which it is lost. Connections
	// are reliable: the segment is retransmitted after a round trip, but at least 1 ms, again after
	// twice that time if it is lost again, and so on. Segments sent after it wait. The program
	// observes delays and, occasionally, a peer that is silent for too long.
	Loss float64
	// Duplicate is the rate, drawn like Loss, at which a segment is sent twice. The receiver drops
	// the duplicate, which costs only bandwidth, if that is limited.
	Duplicate float64
	// Reorder is the rate, drawn like Loss, at which a segment is delayed by ReorderFor on average
	// and overtaken by later ones. The later segments wait for it and are delivered together with
	// it, in order. Loss, Duplicate and Reorder must not add up to more than 1.
	Reorder    float64
	ReorderFor time.Duration
	// Again is the rate, drawn for each post, at which the post fails with codes.ErrAgain or
	// codes.ErrNoMemory. See Node.FailPost.
	Again float64
}

// Storm returns the strongest faults that random tests use. Such a test weakens them at random with
// Draw.
func Storm() Faults {
	return Faults{
		Jitter: 50 * time.Millisecond, Refuse: 0.3, Reset: 0.01, Corrupt: 0.01,
		Clog: 0.02, ClogFor: 5 * time.Second, Pause: 0.002, PauseFor: 30 * time.Second,
		Partition: 0.002, PartitionFor: 10 * time.Second, Narrow: 1, Stall: 5 * time.Millisecond, Silence: 1,
		Loss: 0.3, Duplicate: 0.5, Reorder: 0.2, ReorderFor: 50 * time.Millisecond, Again: 0.03,
	}
}

// Draw returns random faults. Each class of faults is enabled with probability 1/2, with a strength
// of at most that in f. Rates are uniformly distributed. Durations are log-uniformly distributed
// between 1/4096 of those in f and those in f.
func (f Faults) Draw(r *rand.Rand) Faults {
	rate := func(v float64) float64 {
		on, u := r.Uint64()&1 == 1, r.Float64()
		if !on {
			return 0
		}
		return v * u
	}
	span := func(d time.Duration) time.Duration {
		on, u := r.Uint64()&1 == 1, r.Uint64()
		if !on || d <= 0 {
			return 0
		}
		return logUniform(d>>12, d, u)
	}
	always := func(d time.Duration) time.Duration { return logUniform(d>>12, d, r.Uint64()) }
	return Faults{
		Jitter: span(f.Jitter), Refuse: rate(f.Refuse), Reset: rate(f.Reset),
		Corrupt: rate(f.Corrupt), CorruptBulk: f.CorruptBulk && r.Uint64()&1 == 1,
		Clog: rate(f.Clog), ClogFor: always(f.ClogFor), Pause: rate(f.Pause), PauseFor: always(f.PauseFor),
		Partition: rate(f.Partition), PartitionFor: always(f.PartitionFor),
		Narrow: rate(f.Narrow), Stall: span(f.Stall), Silence: rate(f.Silence),
		Loss: rate(f.Loss), Duplicate: rate(f.Duplicate), Reorder: rate(f.Reorder), ReorderFor: always(f.ReorderFor),
		Again: rate(f.Again),
	}
}

// validate returns an error that reports every invalid field.
func (f *Faults) validate() error {
	var errs []error
	sum := 0.0
	for _, r := range []struct {
		name string
		v    float64
		each bool // the rate is per delivered segment
	}{
		{"Refuse", f.Refuse, false}, {"Reset", f.Reset, true}, {"Corrupt", f.Corrupt, true}, {"Clog", f.Clog, true},
		{"Pause", f.Pause, true}, {"Partition", f.Partition, true}, {"Narrow", f.Narrow, false}, {"Silence", f.Silence, false},
		{"Loss", f.Loss, false}, {"Duplicate", f.Duplicate, false}, {"Reorder", f.Reorder, false}, {"Again", f.Again, false},
	} {
		if !(r.v >= 0 && r.v <= 1) {
			errs = append(errs, fmt.Errorf("sim: faults: %s is %v, want 0 to 1: %w", r.name, r.v, codes.ErrInvalid))
		} else if r.each {
			sum += r.v
		}
	}
	if sent := f.Loss + f.Duplicate + f.Reorder; sent > 1 {
		errs = append(errs, fmt.Errorf("sim: faults: Loss, Duplicate and Reorder add up to %v, want at most 1: %w", sent, codes.ErrInvalid))
	}
	if sum > 1 {
		errs = append(errs, fmt.Errorf("sim: faults: the rates per segment add up to %v, want at most 1: %w", sum, codes.ErrInvalid))
	}
	for _, d := range []struct {
		name string
		v    time.Duration
	}{
		{"Jitter", f.Jitter}, {"ClogFor", f.ClogFor}, {"PauseFor", f.PauseFor}, {"PartitionFor", f.PartitionFor}, {"Stall", f.Stall},
		{"ReorderFor", f.ReorderFor},
	} {
		if d.v < 0 || d.v > time.Hour {
			errs = append(errs, fmt.Errorf("sim: faults: %s is %v, want 0 to 1h: %w", d.name, d.v, codes.ErrInvalid))
		}
	}
	return errors.Join(errs...)
}
