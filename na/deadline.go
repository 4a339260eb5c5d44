package na

import (
	"encoding/binary"
	"math"
	"time"
)

// MaxBudget is the time that is left, in microseconds, of a message that has so much or more: about 71 minutes and 35 seconds.
const MaxBudget = math.MaxUint32

// A Deadline is when an unexpected message is worth nothing any more. The zero value is none.
//
// The two ends have no common clock, so a message carries how much time is left. That shrinks while the message waits to
// leave; so it is written when it leaves, into the message itself, whose layout only the sender knows.
type Deadline struct {
	// At is the time by Context.Now. A message that has not left by then never will.
	At time.Duration
	// Field is where in the message the time that is left goes: 4 bytes, little-endian, in microseconds, at least 1;
	// MaxBudget stands for more, too.
	Field int
}

// checkField returns the error of a deadline whose Field is not in the message.
func (d Deadline) checkField(msg []byte) error {
	if d.At != 0 && (d.Field < 0 || d.Field > len(msg)-4) {
		return outOfRange("the message", int64(d.Field), 4, int64(len(msg)))
	}
	return nil
}

// stampMessage writes into a message that leaves now how much time is left. It reports false when there is none.
func (d Deadline) stampMessage(buf []byte, now time.Duration) bool {
	left := d.At - now
	if left <= 0 {
		return false
	}
	us := min((left+time.Microsecond-1)/time.Microsecond, MaxBudget) // rounded up: the sender's time is over first
	binary.LittleEndian.PutUint32(buf[d.Field:], uint32(us))
	return true
}
