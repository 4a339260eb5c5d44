package na

import (
	"time"

	"github.com/quicksilver-rpc/quicksilver/internal/frame"
)

var errTooLong = WithText(ErrMsgSize, "message exceeds the peer's limit")

// canTake reports whether the peer takes a message of the length of o.
func (l *session) canTake(o *Op) bool { return len(o.buf) <= max(l.eager, o.most) || o.room > 0 }

// unsendableError returns an error if a message cannot be sent when its turn comes. It writes the
// time that is left into one with a deadline: the clock is read for such messages only, here and
// when they arrive.
func (l *session) unsendableError(o *Op) error {
	if !l.canTake(o) { // it was queued before the HELLO of the peer
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
	return WithText(ErrTimeout, "deadline exceeded before the message was sent")
}

// arrivalTime returns the current time if the unexpected message of h was sent with a deadline,
// otherwise 0.
func (l *session) arrivalTime(h *frame.Header) time.Duration {
	if h.Flags&frame.FlagTimed == 0 {
		return 0
	}
	l.e.readClock()
	return max(l.e.now, 1)
}
