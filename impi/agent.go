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

// An AgentConfig configures NewAgent. It contains the values that two agents have agreed on during startup, and local
// limits.
type AgentConfig struct {
	// Local and Remote are the processes of this agent's host and of the peer's host. A packet that refers to any
	// other process violates the protocol. Neither may be empty.
	Local, Remote []Proc
	// MaxPacket is the maximum number of data bytes in a packet (IMPI_C_PKTLEN), which is the smallest value of all
	// clients. Zero means 8,192. A message with more data is a long message, which consists of several packets. Both
	// agents must use the same MaxPacket, Hiwater and Ackmark.
	MaxPacket int
	// Hiwater is the maximum number of packets from one process to another that are in flight or held at the receiver
	// (IMPI_H_HIWATER). Further packets wait at the sender. Zero means 32. Up to Hiwater times MaxPacket bytes are
	// held for each pair of processes.
	Hiwater int
	// Ackmark is the number of packets that the receiver acknowledges with one PROTOACK (IMPI_H_ACKMARK). It must not
	// exceed Hiwater. Zero means half of Hiwater.
	Ackmark int
	// MaxOperations is the maximum number of active sends and receives, plus events not yet taken. When it is
	// reached, Send and Receive fail with ErrFull. Zero means 1,024.
	MaxOperations int
}

// withDefaults returns a copy of c with every zero field set to its default.
func (c AgentConfig) withDefaults() AgentConfig {
	c.MaxPacket = cmp.Or(c.MaxPacket, 8192)
	c.Hiwater = cmp.Or(c.Hiwater, 32)
	c.Ackmark = cmp.Or(c.Ackmark, (c.Hiwater+1)/2)
	c.MaxOperations = cmp.Or(c.MaxOperations, 1024)
	return c
}

// validate returns a single error that describes all invalid fields.
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
// messages of its host's processes, and replies to the peer's cancel requests.
//
// An Agent does no I/O. Input handles bytes received from the peer, NextPacket returns bytes to send to the peer, and
// NextEvent returns completed operations. No method blocks or calls back. Bytes returned by NextPacket count as sent.
// An Agent is not safe for concurrent use. Package channel drives one over a connection.
type Agent struct {
	config AgentConfig
	local  map[Proc]bool
	remote map[Proc]bool

	pairs map[pairKey]*pair
	ready []*pair // pairs that may have packets to send, in the order of their turns
	sends map[sendKey]*Send
	seq   uint64 // sequence number of the last message

	posted       []*Receive          // receives without a message, oldest first
	matched      map[uint64]*Receive // receives of long messages that are arriving, by DestRequest
	destReq      uint64              // last DestRequest
	heldMessages list.List           // list of *envelope: messages without a receive, oldest first
	heldSize     int64               // bytes of data in heldMessages
	strayReplies uint64

	header    Packet // header of the arriving packet, once headerBuf is complete
	headerBuf []byte // header bytes of the arriving packet
	data      []byte // data of the arriving packet
	events    []Event

	finishing, finiSent, peerFinished bool
	err                               error // reason why the channel has closed; nil if it has not
}

// A sendKey identifies an active send. A request number is unique among the active messages of its source process.
type sendKey struct {
	from    Proc
	request uint64
}

// NewAgent returns an agent for a channel on which no bytes have been sent. If c is invalid, the error describes all
// invalid fields.
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

// Send queues s to be sent. Its completion is reported by a Sent event. If Send returns an error, s was not queued.
// The error is ErrActive, ErrFull or ErrFinished, describes an invalid field, or is the error with which the channel
// has closed.
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

// isFull reports whether the number of operations and events has reached MaxOperations.
func (a *Agent) isFull() bool {
	return len(a.sends)+len(a.posted)+len(a.matched)+len(a.events) >= a.config.MaxOperations
}

// Cancel attempts to cancel s. Canceling s again has no effect. Cancel returns:
//
//   - Canceled if no packet of s has been sent. No packet will be sent, and the Sent event still follows.
//   - TooLate if the peer has confirmed that s has been received, if s is not synchronous and has been sent, or if s has
//     completed or was never passed to Send.
//   - Unknown if s has completed with ErrUnknown.
//   - Asked in all other cases. A cancel request is sent to the peer, and an Answered event follows.
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

// endSend completes s with err. Its request number remains in use while a reply to its cancel request is pending.
func (a *Agent) endSend(s *Send, err error) {
	s.state = sendEnded
	if s.cancel == cancelNone {
		delete(a.sends, sendKey{s.From, s.Request})
	}
	a.events = append(a.events, Event{Kind: Sent, Send: s, Err: err})
}

// answerCancel completes the cancellation of s with answer.
func (a *Agent) answerCancel(s *Send, answer Answer) {
	s.cancel = cancelNone
	if s.state == sendEnded {
		delete(a.sends, sendKey{s.From, s.Request})
	}
	a.events = append(a.events, Event{Kind: Answered, Send: s, Answer: answer})
}

// isActive reports whether s has been passed to Agent.Send and still belongs to the agent.
func (s *Send) isActive() bool {
	return s.cancel != cancelNone || sendIdle < s.state && s.state < sendEnded
}

// Receive starts r, which receives the oldest held message that matches it or, if there is none, the first matching
// message that arrives. A message that matches several receives goes to the oldest of them. The completion of r is
// reported by a Received event.
//
// If Receive returns an error, r was not started. The error is ErrActive or ErrFull, reports a process that is not
// local, or is the error with which the channel has closed. After the channel has closed, held messages other than
// long ones can still be received.
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

// CancelReceive cancels r without involving the peer. It returns Canceled, in which case a Received event follows, or
// TooLate if a message has already matched r or r has completed.
func (a *Agent) CancelReceive(r *Receive) Answer {
	if r.state != receivePosted {
		return TooLate
	}
	a.posted = removeFrom(a.posted, r)
	a.endReceive(r, ErrCanceled)
	return Canceled
}

// endReceive completes r with err.
func (a *Agent) endReceive(r *Receive, err error) {
	r.state = receiveIdle
	a.events = append(a.events, Event{Kind: Received, Receive: r, Err: err})
}

// Probe returns the header of the held message that a Receive with m would receive. It does not receive the message,
// so the peer can still cancel it.
func (a *Agent) Probe(m Match) (Packet, bool) {
	if e := a.findHeld(&m); e != nil {
		return e.packet, true
	}
	return Packet{}, false
}

// NextEvent removes and returns the oldest event. It returns false if there is none.
func (a *Agent) NextEvent() (Event, bool) {
	if len(a.events) == 0 {
		return Event{}, false
	}
	return popFirst(&a.events), true
}

// Finish announces that this agent will send no more messages. A FINI packet follows the last packet. Finish fails
// with ErrActive while a send is active. The peer may continue to send messages and cancel requests, which are
// handled.
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

// Finished reports whether both agents have finished, after which the stream can be closed.
func (a *Agent) Finished() bool { return a.finiSent && a.peerFinished }

// Err returns the error with which the channel has closed, or nil if it is open.
func (a *Agent) Err() error { return a.err }

// Fail closes the channel with reason, which must not be nil. It is called, for example, when the stream has ended.
// All active operations fail, in the order in which they were started. Only the first call has an effect.
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

// failSend completes a send, and its cancellation if one is pending, because the channel has closed.
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

// AgentStats holds the gauges of an agent.
type AgentStats struct {
	Operations int    // number of operations that count against AgentConfig.MaxOperations
	Held       int    // number of messages without a receive
	HeldBytes  int64  // bytes of data in held messages
	Stray      uint64 // number of cancel replies that matched no request and were ignored
}

// Stats returns the agent's gauges.
func (a *Agent) Stats() AgentStats {
	return AgentStats{
		Operations: len(a.sends) + len(a.posted) + len(a.matched) + len(a.events),
		Held:       a.heldMessages.Len(),
		HeldBytes:  a.heldSize,
		Stray:      a.strayReplies,
	}
}

// popFirst removes and returns the first element of q, which must not be empty. If q becomes empty, popFirst releases
// its memory.
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

// removeFrom removes x from q if q contains it, and returns the resulting slice.
func removeFrom[T comparable](q []T, x T) []T {
	if i := slices.Index(q, x); i >= 0 {
		return slices.Delete(q, i, i+1)
	}
	return q
}
