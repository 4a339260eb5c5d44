package impi

import (
	"cmp"
	"container/list"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"slices"
)

// AgentConfig is what two agents have agreed on, by startup, and the bounds of this one.
type AgentConfig struct {
	// Local and Remote are the processes of this agent's host and of the peer's. A packet from or for any other breaks the
	// protocol. Neither may be empty.
	Local, Remote []Proc
	// MaxPacket bounds the data of one packet in bytes (IMPI_C_PKTLEN): the smallest value of all clients. Zero means 8,192.
	// A longer message is a long message, of several packets. Both agents need the same value, as for Hiwater and Ackmark.
	MaxPacket int
	// Hiwater is how many packets may be on their way to, or held for, one process from one process (IMPI_H_HIWATER). What is
	// sent beyond it waits. Zero means 32. Up to Hiwater times MaxPacket bytes are held for each pair of processes.
	Hiwater int
	// Ackmark is how many packets are received between two PROTOACKs (IMPI_H_ACKMARK), at most Hiwater. Zero means the half
	// of Hiwater.
	Ackmark int
	// MaxOperations bounds the sends and receives that are active, together with the events that nobody has taken. Send and
	// Receive fail with ErrFull beyond it. Zero means 1,024.
	MaxOperations int
}

func (c AgentConfig) withDefaults() AgentConfig {
	c.MaxPacket = cmp.Or(c.MaxPacket, 8192)
	c.Hiwater = cmp.Or(c.Hiwater, 32)
	c.Ackmark = cmp.Or(c.Ackmark, (c.Hiwater+1)/2)
	c.MaxOperations = cmp.Or(c.MaxOperations, 1024)
	return c
}

func (c *AgentConfig) validate() error {
	var bad []error
	check := func(ok bool, format string, args ...any) {
		if !ok {
			bad = append(bad, fmt.Errorf("impi: "+format, args...))
		}
	}
	check(len(c.Local) > 0, "Local has no process")
	check(len(c.Remote) > 0, "Remote has no process")
	check(1 <= c.MaxPacket && c.MaxPacket <= math.MaxInt32, "MaxPacket is %d, want 1 to 2147483647", c.MaxPacket)
	check(1 <= c.Ackmark && c.Ackmark <= c.Hiwater, "Ackmark is %d, want 1 to Hiwater, %d", c.Ackmark, c.Hiwater)
	check(c.MaxOperations >= 1, "MaxOperations is %d, want at least 1", c.MaxOperations)
	return errors.Join(bad...)
}

// An Agent is one end of a channel: the ordered stream of packets between two hosts. It sends and holds the messages of the
// processes of its host, and answers for them when the peer cancels.
//
// It does no input or output: Input takes the bytes that the peer sent, NextPacket gives those to send to it, NextEvent says
// which operations have ended. Nothing blocks and nothing is called back. What NextPacket has returned counts as having left.
// An Agent must not be used by two goroutines at a time. Package channel
// drives one over a connection.
type Agent struct {
	config AgentConfig
	local  map[Proc]bool
	remote map[Proc]bool

	pairs map[pairKey]*pair
	ready []*pair // those that may have something to send, the next first
	sends map[sendKey]*Send
	seq   uint64 // of the message that was sent last

	posted   []*Receive          // that no message has matched, the oldest first
	matched  map[uint64]*Receive // long messages that are arriving, by DestRequest
	destReq  uint64              // that was given out last
	held     list.List           // of *envelope: messages that nobody has received, the oldest first
	heldSize int64               // bytes of data in them
	stray    uint64

	in     Packet // whose data is arriving
	head   []byte // of a packet that is arriving
	data   []byte
	events []Event

	finishing, finiSent, peerFinished bool
	err                               error // why the channel has ended
}

// sendKey: a request number is unique among the active messages of its source process.
type sendKey struct {
	from    Proc
	request uint64
}

// NewAgent returns an agent for a channel on which no byte has been sent. It fails if c has bad fields, and names them all.
func NewAgent(c AgentConfig) (*Agent, error) {
	c = c.withDefaults()
	if err := c.validate(); err != nil {
		return nil, err
	}
	a := &Agent{
		config:  c,
		local:   map[Proc]bool{},
		remote:  map[Proc]bool{},
		pairs:   map[pairKey]*pair{},
		sends:   map[sendKey]*Send{},
		matched: map[uint64]*Receive{},
	}
	for _, p := range c.Local {
		a.local[p] = true
	}
	for _, p := range c.Remote {
		a.remote[p] = true
	}
	return a, nil
}

// Send accepts s to be sent. Its end is a Sent event. If Send returns an error nothing has started: ErrActive, ErrFull,
// ErrFinished, a field of s that cannot be, or the reason why the channel has ended.
func (a *Agent) Send(s *Send) error {
	key := sendKey{s.From, s.Request}
	switch {
	case a.err != nil:
		return a.err
	case a.finishing:
		return ErrFinished
	case !a.local[s.From]:
		return fmt.Errorf("impi: send from a process that is not local, %d", s.From.PID)
	case !a.remote[s.To]:
		return fmt.Errorf("impi: send to a process that the peer does not have, %d", s.To.PID)
	case s.Rank < 0 || s.Tag < 0:
		return fmt.Errorf("impi: send with rank %d and tag %d, want neither to be negative", s.Rank, s.Tag)
	case a.sends[key] != nil || s.active():
		return fmt.Errorf("%w: request %d of process %d", ErrActive, s.Request, s.From.PID)
	case a.full():
		return ErrFull
	}
	a.seq++
	s.state, s.cancel, s.seq, s.off, s.destReq = sendQueued, cancelNone, a.seq, 0, 0
	a.sends[key] = s
	p := a.pair(s.From, s.To)
	p.waiting = append(p.waiting, s)
	a.wake(p)
	return nil
}

func (a *Agent) full() bool {
	return len(a.sends)+len(a.posted)+len(a.matched)+len(a.events) >= a.config.MaxOperations
}

// Cancel takes s back if it can. The answer is Canceled at once if nothing of s has left, and no packet is sent then; the Sent
// event follows all the same. It is TooLate if the peer has said that s is received, if s needs no more than to leave and has,
// and if s has ended or was never sent; Unknown if s ended with ErrUnknown. In all other cases it is Asked: the peer is asked,
// and an Answered event follows. To cancel again changes nothing.
func (a *Agent) Cancel(s *Send) Answer {
	switch {
	case s.state == sendLost:
		return Unknown
	case s.state == sendQueued:
		p := a.pair(s.From, s.To)
		p.waiting = remove(p.waiting, s)
		a.endSend(s, ErrCanceled)
		return Canceled
	case s.cancel != cancelNone:
		return Asked
	case s.state != sendExposed:
		return TooLate
	}
	s.cancel = cancelWanted
	p := a.pair(s.From, s.To)
	p.cancels = append(p.cancels, s)
	a.wake(p)
	return Asked
}

// endSend ends s. While a reply to its cancel is to come its request number stays taken.
func (a *Agent) endSend(s *Send, err error) {
	s.state = sendEnded
	if s.cancel == cancelNone {
		delete(a.sends, sendKey{s.From, s.Request})
	}
	a.events = append(a.events, Event{Kind: Sent, Send: s, Err: err})
}

// answerCancel ends the cancel of s.
func (a *Agent) answerCancel(s *Send, answer Answer) {
	s.cancel = cancelNone
	if s.state == sendEnded {
		delete(a.sends, sendKey{s.From, s.Request})
	}
	a.events = append(a.events, Event{Kind: Answered, Send: s, Answer: answer})
}

// active reports whether an agent has s.
func (s *Send) active() bool {
	return s.cancel != cancelNone || sendIdle < s.state && s.state < sendEnded
}

// Receive accepts r. The oldest message that is held and matches is received at once, otherwise the first that comes. Of the
// receives that match one message it goes to the oldest. The end of r is a Received event. If Receive returns an error nothing
// has started: ErrActive, ErrFull, a process that is not local, or the reason why the channel has ended. What was held when
// it ended can still be received, but for long messages.
func (a *Agent) Receive(r *Receive) error {
	switch {
	case !a.local[r.To]:
		return fmt.Errorf("impi: receive by a process that is not local, %d", r.To.PID)
	case r.state != receiveIdle:
		return ErrActive
	case a.full():
		return ErrFull
	}
	if e := a.find(&r.Match); e != nil {
		a.unhold(e)
		if err := a.receive(r, e); err != nil {
			a.Fail(err)
		}
		return nil
	}
	if a.err != nil {
		return a.err
	}
	r.state = receivePosted
	a.posted = append(a.posted, r)
	return nil
}

// CancelReceive takes r back, which is local: Canceled, and a Received event follows; or TooLate.
func (a *Agent) CancelReceive(r *Receive) Answer {
	if r.state != receivePosted {
		return TooLate
	}
	a.posted = remove(a.posted, r)
	a.endReceive(r, ErrCanceled)
	return Canceled
}

func (a *Agent) endReceive(r *Receive, err error) {
	r.state = receiveIdle
	a.events = append(a.events, Event{Kind: Received, Receive: r, Err: err})
}

// Probe returns the header of the message that Receive would take. The message stays as it is: the peer can still cancel it.
func (a *Agent) Probe(m Match) (Packet, bool) {
	if e := a.find(&m); e != nil {
		return e.packet, true
	}
	return Packet{}, false
}

// NextEvent returns what has ended, the first first, and false when there is nothing.
func (a *Agent) NextEvent() (Event, bool) {
	if len(a.events) == 0 {
		return Event{}, false
	}
	return pop(&a.events), true
}

// Finish says that no more will be sent: when all has left a FINI packet follows. It fails with ErrActive while a send is active.
// The peer may go on, and its messages are received and its cancels answered.
func (a *Agent) Finish() error {
	switch {
	case a.Finished():
		return nil
	case len(a.sends) > 0:
		return ErrActive
	}
	a.finishing = true
	return a.err
}

// Finished reports whether both agents have finished. The stream can be closed then.
func (a *Agent) Finished() bool { return a.finiSent && a.peerFinished }

// Err returns why the channel has ended, nil while it has not.
func (a *Agent) Err() error { return a.err }

// Fail ends the channel for the given reason, which is not nil: the stream has ended, most often. All that is active ends, in
// the order in which it began. The first reason counts.
func (a *Agent) Fail(reason error) {
	if a.err != nil {
		return
	}
	if reason == io.EOF && len(a.head) > 0 {
		reason = io.ErrUnexpectedEOF
	}
	a.err = reason
	a.ready = nil
	bySeq := func(x, y *Send) int { return cmp.Compare(x.seq, y.seq) }
	for _, s := range slices.SortedFunc(maps.Values(a.sends), bySeq) {
		a.failSend(s)
	}
	for _, r := range a.posted {
		a.endReceive(r, reason)
	}
	a.posted = nil
	for _, id := range slices.Sorted(maps.Keys(a.matched)) {
		a.endReceive(a.matched[id], reason)
	}
	clear(a.matched)
}

func (a *Agent) failSend(s *Send) {
	state := s.state
	switch state {
	case sendEnded:
	case sendQueued:
		a.endSend(s, fmt.Errorf("%w: %w", ErrNotSent, a.err))
	default:
		a.endSend(s, fmt.Errorf("%w: %w", ErrUnknown, a.err))
	}
	switch {
	case s.cancel == cancelNone:
	case state == sendExposed:
		a.answerCancel(s, Unknown)
	default: // the SYNCACK has come
		a.answerCancel(s, TooLate)
	}
	if state != sendEnded && state != sendQueued {
		s.state = sendLost
	}
}

// AgentStats are the gauges of an agent.
type AgentStats struct {
	Operations int    // see AgentConfig.MaxOperations
	Held       int    // messages that nobody has received
	HeldBytes  int64  // of data in them
	Stray      uint64 // cancel replies to no request; they were ignored
}

// Stats returns the gauges.
func (a *Agent) Stats() AgentStats {
	return AgentStats{
		Operations: len(a.sends) + len(a.posted) + len(a.matched) + len(a.events),
		Held:       a.held.Len(),
		HeldBytes:  a.heldSize,
		Stray:      a.stray,
	}
}

// pop removes the first of q, which is not empty, and lets the memory go when it was the last.
func pop[T any](q *[]T) T {
	first := (*q)[0]
	var zero T
	(*q)[0] = zero
	if *q = (*q)[1:]; len(*q) == 0 {
		*q = nil
	}
	return first
}

func remove[T comparable](q []T, x T) []T {
	if i := slices.Index(q, x); i >= 0 {
		return slices.Delete(q, i, i+1)
	}
	return q
}
