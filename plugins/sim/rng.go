package sim

import (
	"math/bits"
	"math/rand/v2"
	"time"
)

// A rng is a stream of random numbers. It uses only integer arithmetic, so its results do not
// depend on the machine.
type rng struct{ pcg rand.PCG }

func newRNG(seed, stream uint64) rng {
	var d rng
	d.pcg.Seed(seed, mixHash(stream, 0x6e6f6973))
	return d
}

// intn returns a random number from 0 to n-1.
func (d *rng) intn(n int) int {
	if n <= 1 {
		return 0
	}
	hi, _ := bits.Mul64(d.pcg.Uint64(), uint64(n))
	return int(hi)
}

// hit reports whether an event with rate p, scaled to 32 bits, happens.
func (d *rng) hit(p uint64) bool { return p > 0 && d.pcg.Uint64()>>32 < p }

// expDuration returns a random duration from an approximately exponential distribution: the
// logarithm is interpolated linearly between powers of two.
func (d *rng) expDuration(mean time.Duration) time.Duration {
	if mean <= 0 {
		return 0
	}
	u := d.pcg.Uint64() | 1
	lz := bits.LeadingZeros64(u)
	frac := (u << lz << 1) >> 32
	log2 := uint64(lz+1)<<32 - frac // log2 of 1/u, in 32.32 fixed point
	// The exact factor would be ln 2 = 0.69. With this approximate logarithm, 2/3 yields the
	// correct mean.
	hi, lo := bits.Mul64(uint64(mean), log2/3*2)
	return time.Duration(hi<<32 | lo>>32)
}

// logUniform maps u to a duration between lo and hi, such that each power of two is equally likely.
func logUniform(lo, hi time.Duration, u uint64) time.Duration {
	if hi <= 0 {
		return 0
	}
	lo = max(lo, 1)
	steps := max(bits.Len64(uint64(hi/lo))-1, 1)
	shift := int(u % uint64(steps))
	low := lo << shift
	high := low * 2
	if shift == steps-1 {
		high = hi
	}
	if high <= low {
		return low
	}
	return low + time.Duration((u>>8)%uint64(high-low+1))
}
