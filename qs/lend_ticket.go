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

// A lentTicket is the encoded ticket of a Source or Sink that an attempt lends.
type lentTicket struct {
	wire        []byte
	field       string      // name of the input field
	encodedOnce atomic.Bool // set once the codec has encoded the ticket
}

// encoded returns the encoded ticket and marks it as encoded. Codecs call it through MarshalBinary.
func (t *lentTicket) encoded() []byte {
	t.encodedOnce.Store(true)
	return t.wire
}

const (
	ticketMemory = 1 // followed by the ticket's number and a bulk handle
	// ticketStream is followed by the ticket's number, the index of the stream in the request, and
	// a uvarint that is the expected length plus 1, or 0 if the length is unknown.
	ticketStream = 2
	ticketSink   = 4 // bit that is set in addition to ticketMemory or ticketStream for a Sink
)

// A ticket is the wire form of a Source or Sink: a reference to memory or to a stream of the
// request.
type ticket struct {
	number int          // number of the ticket within the request
	handle *bulk.Handle // registered memory; nil for a stream
	index  int          // index of the stream in the request
	length int64        // number of bytes that the caller expects to send through a stream; -1 if unknown
	stream *hg.Stream   // the stream at the handler; set by takeStreams
}

// appendStreamTicket appends the ticket of the stream at index, with its expected length or -1.
func appendStreamTicket(b []byte, index int, length int64) []byte {
	return binary.AppendUvarint(append(b, ticketStream, 0, byte(index)), uint64(length+1))
}

// parseTicket decodes a ticket. what is "Source" or "Sink". If b is empty, the Source or Sink is
// the zero value, and parseTicket returns nil.
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

// isStream reports whether t refers to a stream rather than to memory.
func (t *ticket) isStream() bool { return t.handle == nil }

// movedBytes returns the number of bytes transferred so far.
func (t *ticket) movedBytes() int64 {
	if t.isStream() {
		return t.stream.Moved()
	}
	return t.handle.Moved()
}

// size returns the number of bytes, or -1 if it is unknown.
func (t *ticket) size() int64 {
	if t.isStream() {
		return -1
	}
	return t.handle.Len()
}

// errNotTicket returns the error for bytes that do not form a ticket.
func errNotTicket(what string) error {
	return fmt.Errorf("malformed %s: the two sides have different types: %w", what,
		na.ErrProtocol)
}

// An otherTicketError is returned if the caller sent a Source in a field that is a Sink at the
// handler, or vice versa.
type otherTicketError struct {
	number     int
	lent, here string
}

// Error implements error.
func (e *otherTicketError) Error() string {
	return fmt.Sprintf("the field is a %s at the caller and a %s at the server",
		e.lent, e.here)
}

// Unwrap returns ErrProtocol.
func (e *otherTicketError) Unwrap() error { return na.ErrProtocol }
