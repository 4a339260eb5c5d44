package na

import (
	"time"

	"github.com/quicksilver-rpc/quicksilver/internal/frame"
)

var errTooLong = WithText(ErrMsgSize, "message exceeds the peer's limit")

// fitsPeer reports whether o's message is short enough for the peer to receive.
func (l *session) fitsPeer(o *Op) bool { return len(o.buf) <= max(l.eager, o.most) || o.room > 0 }

// unsendableError returns an error if a message can no longer be sent. If the message has a
// deadline and can be sent, unsendableError writes the remaining time into it.
func (l *session) unsendableError(o *Op) error {
	if !l.fitsPeer(o) { // it was queued before the peer's HELLO arrived
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

// arrivalTime returns the current time if the unexpected message with header h was sent with a
// deadline, and 0 otherwise.
func (l *session) arrivalTime(h *frame.Header) time.Duration {
	if h.Flags&frame.FlagTimed == 0 {
		return 0
	}
	l.e.readClock()
	return max(l.e.now, 1)
}
