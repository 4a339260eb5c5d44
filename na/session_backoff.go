package na

import (
	"time"

	"github.com/quicksilver-rpc/quicksilver/internal/frame"
)

// A backoff delays the next dial of a name after a failure. Operations that start before the time
// until fail immediately with the error why.
type backoff struct {
	until time.Duration
	step  time.Duration
	why   error
}

// backoffFirst and backoffLast are the shortest and the longest delay, and backoffNames is the
// maximum number of names with a backoff. backoffLast also bounds the time until a restarted
// process is reached again.
const (
	backoffFirst = 10 * time.Millisecond
	backoffLast  = 250 * time.Millisecond
	backoffNames = 1024
)

// dialAgain closes l's connection and schedules another dial of the first transport after pause.
// why is the error of the failed dial. ConnectTimeout still counts from the first dial.
func (l *session) dialAgain(why error, pause time.Duration) {
	l.cutConnection(frame.Bye{})
	l.usePrimary() // an offer is valid for one attempt
	l.state, l.refusal = stateWaiting, why
	l.e.readClock()
	l.since = l.e.now + pause
	l.e.tickNoLaterThan(l.since)
}

// lengthenBackoff doubles the backoff of name, up to backoffLast or a quarter of ConnectTimeout,
// and returns the new delay. why is the error that operations return in the meantime.
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
