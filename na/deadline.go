package na

import (
	"encoding/binary"
	"math"
	"time"
)

// MaxBudget is the largest remaining time that a message can carry, in microseconds. It also stands
// for all longer times. It is about 71 minutes and 35 seconds.
const MaxBudget = math.MaxUint32

// A Deadline is the deadline of an unexpected message. The zero value means no deadline.
//
// The two ends do not share a clock, so a message carries the remaining time instead of the
// deadline. The remaining time shrinks while the message waits to be sent, so it is written into
// the message when the message is sent, at an offset that the sender specifies.
type Deadline struct {
	// At is the deadline on the clock of Context.Now. A message that has not been sent by then is
	// never sent.
	At time.Duration
	// Field is the offset in the message of the remaining time: 4 bytes, little-endian, in
	// microseconds, from 1 to MaxBudget.
	Field int
}

// checkField returns an error if the field lies outside msg.
func (d Deadline) checkField(msg []byte) error {
	if d.At != 0 && (d.Field < 0 || d.Field > len(msg)-4) {
		return outOfRange("the message", int64(d.Field), 4, int64(len(msg)))
	}
	return nil
}

// stampMessage writes the remaining time into a message that is about to be sent. It returns false
// if no time remains.
func (d Deadline) stampMessage(buf []byte, now time.Duration) bool {
	left := d.At - now
	if left <= 0 {
		return false
	}
	// Round up, so that the sender's deadline expires first.
	us := min((left+time.Microsecond-1)/time.Microsecond, MaxBudget)
	binary.LittleEndian.PutUint32(buf[d.Field:], uint32(us))
	return true
}
