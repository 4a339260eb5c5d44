package na

import (
	"time"

	"github.com/quicksilver-rpc/quicksilver/internal/frame"
)

// A backoff delays the next dial of a name after a failure. Operations that start before until fail
// immediately with why.
type backoff struct {
	until time.Duration
	step  time.Duration
	why   error
}

// Limits of the backoff. backoffLast also bounds the delay until a restarted process is reached
// again.
const (
	backoffFirst = 10 * time.Millisecond
	backoffLast  = 250 * time.Millisecond
	backoffNames = 1024
)

// dialAgain schedules another dial after pause, within ConnectTimeout.
func (l *session) dialAgain(why error, pause time.Duration) {
	l.cutConnection(frame.Bye{})
	l.usePrimary() // an offer is valid for one attempt
	l.state, l.refusal = stateWaiting, why
	l.e.readClock()
	l.since = l.e.now + pause
	l.e.tickNoLaterThan(l.since)
}

// lengthenBackoff doubles the backoff of a name and returns the new value.
func (e *endpoint) lengthenBackoff(name Addr, why error) time.Duration {
	e.readClock()
	w := e.waits[name]
	if w == nil {
		if len(e.waits) >= backoffNames {
			for n, old := range e.waits {
				if old.until <= e.now {
					delete(e.waits, n)
				}
			}
			if len(e.waits) >= backoffNames {
				return backoffFirst
			}
		}
		w = &backoff{}
		e.waits[name] = w
	}
	w.step = min(max(w.step*2, backoffFirst), backoffLast, e.dom.cfg.ConnectTimeout/4)
	w.until, w.why = e.now+w.step, why
	return w.step
}
