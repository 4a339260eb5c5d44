package sim

import (
	"errors"
	"fmt"
	"github.com/quicksilver-rpc/quicksilver/na/codes"
	"math/rand/v2"
	"time"
)

// Faults configures faults and their rates. The zero value is a network without faults. A rate is a
// probability from 0 to 1 that is drawn for each segment that is delivered, unless stated
// otherwise; the sum of the rates per segment is at most 1.
type Faults struct {
	// Jitter is the mean of an exponentially distributed delay on top of Config.Latency.
	Jitter time.Duration
	// Refuse is the rate at which dials are refused although a class listens.
	Refuse float64
	// Reset is the rate at which a connection ends; the segments in flight are lost, and both ends
	// get a reset.
	Reset float64
	// Corrupt is the rate at which a byte is damaged. Only bytes that a checksum covers are: the
	// session ends, and no wrong byte reaches a program. Bulk data has no checksum on a stream;
	// with CorruptBulk it is damaged like the rest.
	Corrupt     float64
	CorruptBulk bool
	// Clog is the rate at which one direction of a connection falls silent, for ClogFor on average.
	Clog    float64
	ClogFor time.Duration
	// Pause is the rate at which the receiving node stops, for PauseFor on average: see Node.Pause.
	Pause    float64
	PauseFor time.Duration
	// Partition is the rate at which nothing more passes from the sending to the receiving node,
	// for PartitionFor on average; in half of the cases nothing passes in the other direction
	// either.
	Partition    float64
	PartitionFor time.Duration
	// Narrow, from 0 to 1, narrows the window of each new connection by a drawn power of two, at 1
	// down to a 1024th, below 0.1 not at all.
	Narrow float64
	// Stall is the mean delay after which a coroutine resumes that could resume at once: with some
	// milliseconds of it programs make slow progress, while messages that need no callback are
	// served without the delay.
	Stall time.Duration
	// Silence is the probability, drawn for each crash, that the node's peers receive nothing, not
	// even a reset, as if its power or network had failed.
	Silence float64
	// Loss is the rate, drawn for each segment that is sent and each dial, at which it is lost on
	// the way. Connections are reliable: it is sent again, after a round trip and at least 1 ms,
	// and if it is lost again after twice that time, and so on; segments that were sent after it
	// wait. A program sees delays, and at times a peer that is silent for too long.
	Loss float64
	// Duplicate is the rate, drawn as Loss is, at which a segment is sent twice. The receiver drops
	// the second one: that costs bandwidth, if there is a limit.
	Duplicate float64
	// Reorder is the rate, drawn as Loss is, at which later segments overtake a segment, which
	// takes longer by ReorderFor on average. They are put back in order: they wait for it and come
	// together. The three rates are together at most 1.
	Reorder    float64
	ReorderFor time.Duration
	// Again is the rate, drawn for each post, at which it fails with codes.ErrAgain or
	// codes.ErrNoMemory. See Node.FailPost.
	Again float64
}

// Storm returns the most that random tests draw.
func Storm() Faults {
	return Faults{
		Jitter: 50 * time.Millisecond, Refuse: 0.3, Reset: 0.01, Corrupt: 0.01,
		Clog: 0.02, ClogFor: 5 * time.Second, Pause: 0.002, PauseFor: 30 * time.Second,
		Partition: 0.002, PartitionFor: 10 * time.Second, Narrow: 1, Stall: 5 * time.Millisecond, Silence: 1,
		Loss: 0.3, Duplicate: 0.5, Reorder: 0.2, ReorderFor: 50 * time.Millisecond, Again: 0.03,
	}
}

// Draw returns faults of which each class is on with probability 1/2 and then of a strength up to
// that of f: rates uniform, durations log-uniform down to a 4096th.
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

// validate reports every bad field.
func (f *Faults) validate() error {
	var errs []error
	sum := 0.0
	for _, r := range []struct {
		name string
		v    float64
		each bool // per segment
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
