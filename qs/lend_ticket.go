package qs

import (
	"fmt"
	"sync/atomic"

	"github.com/quicksilver-rpc/quicksilver/bulk"
	"github.com/quicksilver-rpc/quicksilver/na"
)

// A lentTicket is what travels in the place of one Source or Sink of an attempt.
type lentTicket struct {
	wire   []byte
	field  string      // where it is
	passed atomic.Bool // the codec has asked for it
}

// pass returns what travels, to the codec.
func (t *lentTicket) pass() []byte {
	t.passed.Store(true)
	return t.wire
}

// A ticket is how a Source or a Sink travels: as memory, or as a ring through which a stream goes.
type ticket struct {
	number int // among those of the request
	handle *bulk.Handle
	ring   bool
	id     ringID
}

// parseTicket returns the ticket of a what; nil for no bytes: nothing is lent.
func parseTicket(b []byte, what string) (*ticket, error) {
	switch {
	case len(b) == 0:
		return nil, nil
	case len(b) < 2:
		return nil, notTicket(what)
	}
	other := "Source"
	if b[0]&ticketSink != 0 {
		other = "Sink"
	}
	if b[0]&^(ticketSink|ticketMemory|ticketRing) != 0 {
		return nil, notTicket(what)
	}
	if other != what {
		return nil, &otherTicket{int(b[1]), other, what}
	}
	t := &ticket{number: int(b[1]), handle: &bulk.Handle{}}
	kind, b := b[0]&^ticketSink, b[2:]
	switch {
	case kind == ticketRing && len(b) >= len(t.id):
		t.ring = true
		b = b[copy(t.id[:], b):]
	case kind != ticketMemory:
		return nil, notTicket(what)
	}
	if err := t.handle.UnmarshalBinary(b); err != nil {
		return nil, err
	}
	if t.ring && t.handle.Len() != ringSize {
		return nil, fmt.Errorf("a ring of %d bytes, want %d: %w", t.handle.Len(), ringSize, na.ErrProtocol)
	}
	return t, nil
}

func notTicket(what string) error {
	return fmt.Errorf("the bytes of the field are no %s's: both sides need the same type: %w", what, na.ErrProtocol)
}

// An otherTicket is the error of a ticket of one kind in a field of the other.
type otherTicket struct {
	number     int
	lent, here string
}

func (e *otherTicket) Error() string {
	return fmt.Sprintf("the caller lends a %s in a field that is a %s here: both sides need the same", e.lent, e.here)
}

func (e *otherTicket) Unwrap() error { return na.ErrProtocol }
