package na

import (
	"time"

	"github.com/quicksilver-rpc/quicksilver/internal/frame"
)

var errTooLong = WithText(ErrMsgSize, "message is longer than the peer takes")

// canTake reports whether the peer takes a message of that length.
func (l *session) canTake(o *Op) bool { return len(o.buf) <= max(l.eager, o.most) || o.room > 0 }

// unsendableError tells why a message cannot leave though its turn has come. One with a deadline is told the time that is left: the
// clock is read for such messages only, here and when they arrive.
func (l *session) unsendableError(o *Op) error {
	if !l.canTake(o) { // it was queued before the peer said what it takes
		return errTooLong
	}
	if o.by.At == 0 {
		return nil
	}
	l.e.readClock()
	if o.ticket().hold() {
		defer o.ticket().release()
		if o.by.stampMessage(o.buf, l.e.now) {
			return nil
		}
	}
	return WithText(ErrTimeout, "the deadline passed before the message could leave")
}

// arrivalTime is when the unexpected message of h came, if somebody will ask.
func (l *session) arrivalTime(h *frame.Header) time.Duration {
	if h.Flags&frame.FlagTimed == 0 {
		return 0
	}
	l.e.readClock()
	return max(l.e.now, 1)
}
