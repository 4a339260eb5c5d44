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

// AgentConfig configures NewAgent, with the values that two agents have agreed on in the startup, and local limits.
type AgentConfig struct {
	// Local and Remote are the processes of this agent's host and of the peer's host. A packet with another process
	// violates the protocol. Neither may be empty.
	Local, Remote []Proc
	// MaxPacket is the largest number of data bytes in a packet (IMPI_C_PKTLEN): the smallest value of all clients.
	// Zero means 8,192. A longer message is a long message, of several packets. Both agents must have the same
	// MaxPacket, Hiwater and Ackmark.
	MaxPacket int
	// Hiwater is the largest number of packets from one process to one process that are in flight or held
	// (IMPI_H_HIWATER); further packets wait at the sender. Zero means 32. Up to Hiwater times MaxPacket bytes are
	// held for each pair of processes.
	Hiwater int
	// Ackmark is the number of packets for which the receiver sends one PROTOACK (IMPI_H_ACKMARK), at most Hiwater.
	// Zero means half of Hiwater.
	Ackmark int
	// MaxOperations is the largest number of active sends and receives and of events that were not taken. Send and
	// Receive fail with ErrFull beyond it. Zero means 1,024.
	MaxOperations int
}

// withDefaults returns c with the defaults of its zero fields.
func (c AgentConfig) withDefaults() AgentConfig {
	c.MaxPacket = cmp.Or(c.MaxPacket, 8192)
	c.Hiwater = cmp.Or(c.Hiwater, 32)
	c.Ackmark = cmp.Or(c.Ackmark, (c.Hiwater+1)/2)
	c.MaxOperations = cmp.Or(c.MaxOperations, 1024)
	return c
}

// validate returns one error for all invalid fields.
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

// An Agent is one end of a channel, which is the ordered stream of packets between two hosts. It sends and holds the
// messages of the processes of its host, and replies to cancel requests of the peer.
//
// It does no I/O: Input handles the bytes of the peer, NextPacket returns the bytes to send to it, NextEvent returns
// the operations that have ended. No method blocks or calls back. Bytes that NextPacket has returned count as sent.
// An Agent must not be used by two goroutines at the same time. Package channel drives one over a connection.
type Agent struct {
	config AgentConfig
	local  map[Proc]bool
	remote map[Proc]bool

	pairs map[pairKey]*pair
	ready []*pair // pairs that may have packets to send, in the order of their turns
	sends map[sendKey]*Send
	seq   uint64 // sequence number of the last message

	posted       []*Receive          // receives without a message, the oldest first
	matched      map[uint64]*Receive // receives of long messages that are arriving, by DestRequest
	destReq      uint64              // the last DestRequest
	heldMessages list.List           // of *envelope: messages without a receive, the oldest first
	heldSize     int64               // bytes of data in heldMessages
	strayReplies uint64

	header    Packet // of the packet that is arriving, once headerBuf is complete
	headerBuf []byte // of the packet that is arriving
	data      []byte // of the packet that is arriving
	events    []Event

	finishing, finiSent, peerFinished bool
	err                               error // why the channel has ended; nil if it has not
}

// A sendKey identifies an active send: a request number is unique among the active messages of its source process.
type sendKey struct {
	from    Proc
	request uint64
}

// NewAgent returns an agent for a channel on which no bytes were sent. The error describes all invalid fields of c.
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

// Send queues s to be sent. A Sent event reports its end. If Send returns an error, s was not queued: the error is
// ErrActive, ErrFull, ErrFinished, that of an invalid field, or the error with which the channel has ended.
func (a *Agent) Send(s *Send) error {
	key := sendKey{s.From, s.Request}
	switch {
	case a.err != nil:
		return a.err
	case a.finishing:
		return ErrFinished
	case !a.local[s.From]:
		return fmt.Errorf("impi: send from non-local process %d", s.From.PID)
	case !a.remote[s.To]:
		return fmt.Errorf("impi: send to unknown process %d", s.To.PID)
	case s.Rank < 0 || s.Tag < 0:
		return fmt.Errorf("impi: send with rank %d and tag %d, want at least 0", s.Rank, s.Tag)
	case a.sends[key] != nil || s.isActive():
		return fmt.Errorf("%w: request %d of process %d", ErrActive, s.Request, s.From.PID)
	case a.isFull():
		return ErrFull
	}
	a.seq++
	s.state, s.cancel, s.seq, s.sent, s.destReq = sendQueued, cancelNone, a.seq, 0, 0
	a.sends[key] = s
	p := a.pairOf(s.From, s.To)
	p.queuedSends = append(p.queuedSends, s)
	a.markReady(p)
	return nil
}

// isFull reports whether there are MaxOperations operations.
func (a *Agent) isFull() bool {
	return len(a.sends)+len(a.posted)+len(a.matched)+len(a.events) >= a.config.MaxOperations
}

// Cancel cancels s if that is possible. Another Cancel of s has no effect. The Answer is:
//
//   - Canceled if no packet of s was sent; none is sent then. The Sent event follows nevertheless.
//   - TooLate if the peer has confirmed that s is received, if s is not synchronous and was sent, and if s has ended
//     or was never passed to Send.
//   - Unknown if s has ended with ErrUnknown.
//   - Asked in all other cases: a cancel request is sent to the peer, and an Answered event follows.
func (a *Agent) Cancel(s *Send) Answer {
	switch {
	case s.state == sendLost:
		return Unknown
	case s.state == sendQueued:
		p := a.pairOf(s.From, s.To)
		p.queuedSends = removeFrom(p.queuedSends, s)
		a.endSend(s, ErrCanceled)
		return Canceled
	case s.cancel != cancelNone:
		return Asked
	case s.state != sendExposed:
		return TooLate
	}
	s.cancel = cancelWanted
	p := a.pairOf(s.From, s.To)
	p.cancels = append(p.cancels, s)
	a.markReady(p)
	return Asked
}

// endSend ends s with err. Its request number stays in use while a reply to its cancel request is pending.
func (a *Agent) endSend(s *Send, err error) {
	s.state = sendEnded
	if s.cancel == cancelNone {
		delete(a.sends, sendKey{s.From, s.Request})
	}
	a.events = append(a.events, Event{Kind: Sent, Send: s, Err: err})
}

// answerCancel ends the cancel of s with answer.
func (a *Agent) answerCancel(s *Send, answer Answer) {
	s.cancel = cancelNone
	if s.state == sendEnded {
		delete(a.sends, sendKey{s.From, s.Request})
	}
	a.events = append(a.events, Event{Kind: Answered, Send: s, Answer: answer})
}

// isActive reports whether s belongs to an agent.
func (s *Send) isActive() bool {
	return s.cancel != cancelNone || sendIdle < s.state && s.state < sendEnded
}

// Receive starts r, which receives the oldest held message that matches, or else the first one that arrives. A
// message that several receives match goes to the oldest of them. A Received event reports the end of r.
//
// If Receive returns an error, r was not started: the error is ErrActive, ErrFull, that of a process that is not
// local, or the error with which the channel has ended. After the end of the channel, held messages can still be
// received, except long ones.
func (a *Agent) Receive(r *Receive) error {
	switch {
	case !a.local[r.To]:
		return fmt.Errorf("impi: receive at non-local process %d", r.To.PID)
	case r.state != receiveIdle:
		return ErrActive
	case a.isFull():
		return ErrFull
	}
	if e := a.findHeld(&r.Match); e != nil {
		a.removeHeld(e)
		if err := a.startReceive(r, e); err != nil {
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

// CancelReceive cancels r, which involves no peer. It returns Canceled, and a Received event follows, or TooLate if a
// message has matched or r has ended.
func (a *Agent) CancelReceive(r *Receive) Answer {
	if r.state != receivePosted {
		return TooLate
	}
	a.posted = removeFrom(a.posted, r)
	a.endReceive(r, ErrCanceled)
	return Canceled
}

// endReceive ends r with err.
func (a *Agent) endReceive(r *Receive, err error) {
	r.state = receiveIdle
	a.events = append(a.events, Event{Kind: Received, Receive: r, Err: err})
}

// Probe returns the header of the held message that a Receive with m would receive. The message is not received: the
// peer can still cancel it.
func (a *Agent) Probe(m Match) (Packet, bool) {
	if e := a.findHeld(&m); e != nil {
		return e.packet, true
	}
	return Packet{}, false
}

// NextEvent removes and returns the oldest event; false if there is none.
func (a *Agent) NextEvent() (Event, bool) {
	if len(a.events) == 0 {
		return Event{}, false
	}
	return popFirst(&a.events), true
}

// Finish announces that this agent sends no more messages: a FINI packet follows the last packet. It fails with
// ErrActive while a send is active. The peer may continue to send messages and cancel requests, which are handled.
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

// Err returns the error with which the channel has ended, nil if it has not.
func (a *Agent) Err() error { return a.err }

// Fail ends the channel with reason, which must not be nil, for example because the stream has ended. All active
// operations end, in the order in which they were started. The first reason counts.
func (a *Agent) Fail(reason error) {
	if a.err != nil {
		return
	}
	if reason == io.EOF && len(a.headerBuf) > 0 {
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

// failSend ends a send, and its cancel, because the channel has ended.
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
	default: // the SYNCACK has arrived
		a.answerCancel(s, TooLate)
	}
	if state != sendEnded && state != sendQueued {
		s.state = sendLost
	}
}

// AgentStats are the gauges of an agent.
type AgentStats struct {
	Operations int    // operations that count for AgentConfig.MaxOperations
	Held       int    // messages without a receive
	HeldBytes  int64  // bytes of data in these messages
	Stray      uint64 // cancel replies without a request, which were ignored
}

// Stats returns the gauges.
func (a *Agent) Stats() AgentStats {
	return AgentStats{
		Operations: len(a.sends) + len(a.posted) + len(a.matched) + len(a.events),
		Held:       a.heldMessages.Len(),
		HeldBytes:  a.heldSize,
		Stray:      a.strayReplies,
	}
}

// popFirst removes and returns the first element of q, which must not be empty. It releases the memory of an empty q.
func popFirst[T any](q *[]T) T {
	first := (*q)[0]
	var zero T
	(*q)[0] = zero
	*q = (*q)[1:]
	if len(*q) == 0 {
		*q = nil
	}
	return first
}

// removeFrom removes x from q, if it is in q.
func removeFrom[T comparable](q []T, x T) []T {
	if i := slices.Index(q, x); i >= 0 {
		return slices.Delete(q, i, i+1)
	}
	return q
}
