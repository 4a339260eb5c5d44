package sim

import (
	"math/bits"
	"math/rand/v2"
	"time"
)

// A rng is one stream of random numbers. Everything is computed with integers: no two machines differ.
type rng struct{ pcg rand.PCG }

func newRNG(seed, stream uint64) rng {
	var d rng
	d.pcg.Seed(seed, mixHash(stream, 0x6e6f6973))
	return d
}

// intn draws from 0 to n-1.
func (d *rng) intn(n int) int {
	if n <= 1 {
		return 0
	}
	hi, _ := bits.Mul64(d.pcg.Uint64(), uint64(n))
	return int(hi)
}

// hit draws whether an event of the given rates happens.
func (d *rng) hit(p uint64) bool { return p > 0 && d.pcg.Uint64()>>32 < p }

// expDuration draws from a distribution that is nearly exponential: the logarithm is linear between
// powers of two.
func (d *rng) expDuration(mean time.Duration) time.Duration {
	if mean <= 0 {
		return 0
	}
	u := d.pcg.Uint64() | 1
	lz := bits.LeadingZeros64(u)
	frac := (u << lz << 1) >> 32
	log2 := uint64(lz+1)<<32 - frac // of 1/u, in 32.32
	// ln 2 = 0.69 of the true logarithm; 2/3 of this one has the right mean
	hi, lo := bits.Mul64(uint64(mean), log2/3*2)
	return time.Duration(hi<<32 | lo>>32)
}

// logUniform maps u to a duration between lo and hi, each power of two as likely as any other.
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
