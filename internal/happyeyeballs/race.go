package happyeyeballs

import "time"

// Delay is the time after which the next attempt starts while the last one is still in flight (RFC
// 8305, section 5).
const Delay = 250 * time.Millisecond

// A Race decides when each of several addresses is dialed: the next one as soon as the last attempt
// is Delay old or an attempt has failed. The zero Race has no addresses. All times are of one clock
// of the caller.
type Race struct {
	addresses int
	started   int
	failed    int
	delay     time.Duration
	nextAt    time.Duration // earliest start of the next attempt
}

// New returns a Race of n addresses. The first one is dialed at once. The delay is shortened so
// that all attempts start within the first half of timeout.
func New(addresses int, now, timeout time.Duration) Race {
	return Race{addresses: addresses, nextAt: now, delay: min(Delay, timeout/2/time.Duration(max(addresses, 1)))}
}

// Next returns the index of the address to dial now. ok is false if it is too early for the next.
func (r *Race) Next(now time.Duration) (i int, ok bool) {
	if r.started == r.addresses || now < r.nextAt {
		return 0, false
	}
	r.nextAt = now + r.delay
	r.started++
	return r.started - 1, true
}

// Fail records that an attempt has failed, so that Next returns the next address at once.
func (r *Race) Fail(now time.Duration) {
	r.failed++
	r.nextAt = min(r.nextAt, now)
}

// Due returns when to call Next again; ok is false when all attempts have started.
func (r *Race) Due() (at time.Duration, ok bool) { return r.nextAt, r.started < r.addresses }

// Lost reports whether every attempt has started and failed.
func (r *Race) Lost() bool { return r.failed == r.addresses }
