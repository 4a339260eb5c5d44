package happyeyeballs

import "time"

// Delay is the time after which the next attempt starts while the previous one is still in progress
// (RFC 8305, section 5).
const Delay = 250 * time.Millisecond

// A Race decides when to dial each of several addresses. The next attempt starts when the previous
// one is Delay old or an attempt has failed. The zero Race has no addresses. The caller must take
// all times from the same clock.
type Race struct {
	addresses int
	started   int
	failed    int
	delay     time.Duration
	nextAt    time.Duration // earliest start time of the next attempt
}

// New returns a Race of n addresses. The first one is to be dialed immediately. The delay between
// attempts is shortened if necessary, so that all of them start within the first half of timeout.
func New(addresses int, now, timeout time.Duration) Race {
	return Race{addresses: addresses, nextAt: now, delay: min(Delay, timeout/2/time.Duration(max(addresses, 1)))}
}

// Next returns the index of the address to dial now. If it is too early for the next attempt, or
// none is left, ok is false.
func (r *Race) Next(now time.Duration) (i int, ok bool) {
	if r.started == r.addresses || now < r.nextAt {
		return 0, false
	}
	r.nextAt = now + r.delay
	r.started++
	return r.started - 1, true
}

// Fail records that an attempt has failed. The next call of Next then returns the next address
// without waiting for Delay.
func (r *Race) Fail(now time.Duration) {
	r.failed++
	r.nextAt = min(r.nextAt, now)
}

// Due returns the time at which to call Next again. ok is false once all attempts have started.
func (r *Race) Due() (at time.Duration, ok bool) { return r.nextAt, r.started < r.addresses }

// Lost reports whether all attempts have failed.
func (r *Race) Lost() bool { return r.failed == r.addresses }
