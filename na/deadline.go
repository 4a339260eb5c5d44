package na

import (
	"encoding/binary"
	"math"
	"time"
)

// MaxBudget is the largest value of the time that is left in a message, in microseconds; it stands
// for longer times too. It is about 71 minutes and 35 seconds.
const MaxBudget = math.MaxUint32

// A Deadline is the deadline of an unexpected message. The zero value means none.
//
// The two ends have no common clock, so a message carries the time that is left. It shrinks while
// the message waits to be sent; so it is written when the message is sent, into the message itself,
// whose layout only the sender knows.
type Deadline struct {
	// At is the deadline, by Context.Now. A message that has not been sent by then is never sent.
	At time.Duration
	// Field is the offset in the message of the time that is left: 4 bytes, little-endian, in
	// microseconds, at least 1 and at most MaxBudget.
	Field int
}

// checkField returns an error if Field lies outside of the message.
func (d Deadline) checkField(msg []byte) error {
	if d.At != 0 && (d.Field < 0 || d.Field > len(msg)-4) {
		return outOfRange("the message", int64(d.Field), 4, int64(len(msg)))
	}
	return nil
}

// stampMessage writes the time that is left into a message that is sent now. It reports false if no
// time is left.
func (d Deadline) stampMessage(buf []byte, now time.Duration) bool {
	left := d.At - now
	if left <= 0 {
		return false
	}
	// rounded up, so that the sender's deadline comes first
	us := min((left+time.Microsecond-1)/time.Microsecond, MaxBudget)
	binary.LittleEndian.PutUint32(buf[d.Field:], uint32(us))
	return true
}
