package qs

import (
	"encoding/binary"
	"fmt"
	"math"
	"sync/atomic"

	"github.com/quicksilver-rpc/quicksilver/bulk"
	"github.com/quicksilver-rpc/quicksilver/hg"
	"github.com/quicksilver-rpc/quicksilver/na"
)

// A lentTicket is what travels in the place of one Source or Sink of an attempt.
type lentTicket struct {
	wire        []byte
	field       string      // where it is
	encodedOnce atomic.Bool // the codec has asked for it
}

// encoded returns what travels, to the codec.
func (t *lentTicket) encoded() []byte {
	t.encodedOnce.Store(true)
	return t.wire
}

const (
	ticketMemory = 1 // followed by its number and a bulk handle
	ticketStream = 2 // followed by its number, the index of the stream in the request, and what will come, as a uvarint: 0 if unknown, else 1 more
	ticketSink   = 4 // with one of these: it is a Sink's
)

// A ticket is how a Source or a Sink travels: as memory, or as a stream of the request.
type ticket struct {
	number int          // among those of the request
	handle *bulk.Handle // of memory; nil for a stream
	index  int          // of a stream, in the request
	length int64        // bytes that the caller expects to send, of a stream; -1 if it does not know
	stream *hg.Stream   // at the handler, once it has begun
}

// appendStreamTicket appends the ticket of the stream with an index, of length bytes.
func appendStreamTicket(b []byte, index int, length int64) []byte {
	return binary.AppendUvarint(append(b, ticketStream, 0, byte(index)), uint64(length+1))
}

// parseTicket returns the ticket of a what; nil for no bytes: nothing is lent.
func parseTicket(b []byte, what string) (*ticket, error) {
	switch {
	case len(b) == 0:
		return nil, nil
	case len(b) < 3:
		return nil, errNotTicket(what)
	}
	other := "Source"
	if b[0]&ticketSink != 0 {
		other = "Sink"
	}
	if b[0]&^(ticketSink|ticketMemory|ticketStream) != 0 {
		return nil, errNotTicket(what)
	}
	if other != what {
		return nil, &otherTicketError{int(b[1]), other, what}
	}
	t := &ticket{number: int(b[1])}
	switch b[0] &^ ticketSink {
	case ticketMemory:
		t.handle = &bulk.Handle{}
		return t, t.handle.UnmarshalBinary(b[2:])
	case ticketStream:
		length, n := binary.Uvarint(b[3:])
		if n == len(b)-3 && length <= math.MaxInt64 {
			t.index, t.length = int(b[2]), int64(length)-1
			return t, nil
		}
	}
	return nil, errNotTicket(what)
}

// isStream reports whether what is lent goes through a stream.
func (t *ticket) isStream() bool { return t.handle == nil }

// movedBytes returns how many bytes have been moved.
func (t *ticket) movedBytes() int64 {
	if t.isStream() {
		return t.stream.Moved()
	}
	return t.handle.Moved()
}

// size returns how many bytes are lent, or -1 if that is not known.
func (t *ticket) size() int64 {
	if t.isStream() {
		return -1
	}
	return t.handle.Len()
}

func errNotTicket(what string) error {
	return fmt.Errorf("the bytes of the field are no %s's: both sides need the same type: %w", what, na.ErrProtocol)
}

// An otherTicketError is the error of a ticket of one kind in a field of the other.
type otherTicketError struct {
	number     int
	lent, here string
}

func (e *otherTicketError) Error() string {
	return fmt.Sprintf("the caller lends a %s in a field that is a %s here: both sides need the same", e.lent, e.here)
}

func (e *otherTicketError) Unwrap() error { return na.ErrProtocol }
