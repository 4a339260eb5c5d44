package happyeyeballs

import "time"

// Delay is how long an attempt has before the next one begins beside it (RFC 8305, section 5).
const Delay = 250 * time.Millisecond

// A Race says when each of several addresses is dialed: the next one as soon as the last attempt is Delay old or an attempt has failed. The
// zero Race has no addresses. Times are those of any one clock.
type Race struct {
	addresses int
	started   int
	failed    int
	delay     time.Duration
	due       time.Duration // of the next attempt
}

// New returns the race of a number of addresses, the first of which is due now. All attempts begin within the first half of timeout.
func New(addresses int, now, timeout time.Duration) Race {
	return Race{addresses: addresses, due: now, delay: min(Delay, timeout/2/time.Duration(max(addresses, 1)))}
}

// Next returns the number of the address whose attempt begins now. ok is false if none does.
func (r *Race) Next(now time.Duration) (i int, ok bool) {
	if r.started == r.addresses || now < r.due {
		return 0, false
	}
	r.due = now + r.delay
	r.started++
	return r.started - 1, true
}

// Fail notes that an attempt has failed. The next one is due now.
func (r *Race) Fail(now time.Duration) {
	r.failed++
	r.due = min(r.due, now)
}

// Due returns when Next has to be called again; ok is false when all attempts have begun.
func (r *Race) Due() (at time.Duration, ok bool) { return r.due, r.started < r.addresses }

// Lost reports whether every attempt has begun and failed.
func (r *Race) Lost() bool { return r.failed == r.addresses }
