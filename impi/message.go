package impi

import "errors"

// Errors of messages. An error may match one of these and also wrap the error with which the channel was closed.
var (
	// ErrProtocol means that the peer has violated the protocol. The channel has been closed.
	ErrProtocol = errors.New("impi: protocol violation")
	// ErrCanceled means that the message was destroyed before it was received, or that the receive was canceled.
	ErrCanceled = errors.New("impi: canceled")
	// ErrNotSent means that the channel was closed before any part of the message was sent.
	ErrNotSent = errors.New("impi: not sent")
	// ErrUnknown means that the channel was closed while the message was in flight. It may have been received.
	ErrUnknown = errors.New("impi: channel closed, delivery unknown")
	// ErrTruncated means that the message is longer than the receive's buffer, which contains the beginning of the
	// message.
	ErrTruncated = errors.New("impi: message longer than the buffer")
	// ErrFull means that the limit AgentConfig.MaxOperations has been reached. Retry after the next event.
	ErrFull = errors.New("impi: too many operations")
	// ErrActive means that the Send, its Request number, or the Receive is still in use.
	ErrActive = errors.New("impi: still active")
	// ErrFinished means that Agent.Finish has been called.
	ErrFinished = errors.New("impi: finished")
)

// A Send is a message to be sent. The Send and its Data belong to the agent from Agent.Send until the Sent event and,
// if Cancel has returned Asked, also until the Answered event.
type Send struct {
	From, To Proc
	// Request is the number of the message (pk_srqid). It must be unique among the active messages of From. It may be
	// reused once this message has completed. A peer may then hold several messages with the same number, of which
	// only the newest can be canceled.
	Request uint64
	// Sync delays the Sent event until the message has been received, as MPI_Ssend requires. A message longer than
	// MaxPacket is always synchronous.
	Sync     bool
	Rank     int32 // rank of From in its communicator, not negative
	Tag      int32 // not negative
	Context  uint64
	Count    int64  // passed on to the receiver
	Datatype uint64 // passed on to the receiver
	Data     []byte

	state   sendState
	cancel  cancelState
	seq     uint64
	sent    int    // bytes of Data that have been sent
	destReq uint64 // DestRequest from the SYNCACK
}

// A sendState is the state of a message at its source.
//
// A short message that is not synchronous ends when it is sent. Any other message is exposed after its first packet,
// until a SYNCACK confirms that it has been received. The SYNCACK ends a short message, and starts the rest of a long
// one. A SYNCACK for a message that is neither exposed nor refused is a protocol violation.
//
// A message that is canceled while it is queued is never sent. For an exposed message, a cancel request is sent. If
// the peer replies CANCELYES, the message has been destroyed. If it replies CANCELNO, the message is refused, and
// still ends with the SYNCACK. In a later state it is too late to cancel. A CANCELYES without a request is a protocol
// violation, and a CANCELNO without a request is ignored.
//
// A message that has ended is kept until its cancel request has been answered. Until then, CANCELYES is a violation
// and CANCELNO means that it was too late. After that, both are ignored.
type sendState uint8

const (
	sendIdle    sendState = iota
	sendQueued            // no packet has been sent
	sendExposed           // the first packet has been sent; whether the message has been received is unknown
	sendRefused           // a CANCELNO has confirmed that the message has been received; the SYNCACK is pending
	sendMatched           // the SYNCACK of a long message has arrived; the rest is being sent
	sendEnded             // the Sent event has reported completion
	sendLost              // the Sent event has reported ErrUnknown
)

// A cancelState is the state of a message's cancellation.
type cancelState uint8

const (
	cancelNone   cancelState = iota
	cancelWanted             // the request has not been sent
	cancelAsked              // the request has been sent, and the reply has not arrived
)

// AnyRank and AnyTag, when used in a Match, match any rank and any tag.
const (
	AnyRank int32 = -1
	AnyTag  int32 = -1
)

// A Match selects messages by receiver, communicator, sender's rank and tag.
type Match struct {
	To      Proc
	Context uint64
	Rank    int32 // rank, or AnyRank
	Tag     int32 // tag, or AnyTag
}

// matches reports whether m selects the message whose first packet is p.
func (m *Match) matches(p *Packet) bool {
	return m.To == p.Dest && m.Context == p.Context &&
		(m.Rank == AnyRank || m.Rank == p.Rank) && (m.Tag == AnyTag || m.Tag == p.Tag)
}

// A Receive receives a single message. The Receive and its Buf belong to the agent from Agent.Receive until the
// Received event.
type Receive struct {
	Match
	Buf []byte

	// Packet and N are valid once the Received event has been returned, if a message was received.
	Packet Packet // header of the first packet; MsgLen is the length of the message
	N      int    // number of bytes written to Buf

	state  receiveState
	offset uint64 // number of bytes of the message that have arrived
}

// A receiveState is the state of a Receive.
type receiveState uint8

const (
	receiveIdle    receiveState = iota
	receivePosted               // no message has matched
	receiveMatched              // parts of a long message have not arrived
)

// An Answer is the outcome of a cancellation.
type Answer uint8

const (
	// Asked means that a cancel request is being sent to the peer. An Answered event follows.
	Asked Answer = iota
	// Canceled means that the message has been destroyed. It will not be received.
	Canceled
	// TooLate means that the message has been received, has been sent and is not synchronous, or has completed.
	TooLate
	// Unknown means that the channel was closed before the reply arrived.
	Unknown
)

// String returns the answer in words.
func (a Answer) String() string {
	return [...]string{"asked", "canceled", "too late", "unknown"}[a]
}

// An EventKind is the kind of an Event. It determines which of the Event's fields are set.
type EventKind uint8

const (
	// Sent means that Send has completed. Err is nil if the message has been sent completely and, if it is
	// synchronous or long, received. Otherwise Err matches ErrCanceled, ErrNotSent or ErrUnknown.
	Sent EventKind = iota
	// Answered means that the cancellation of Send has completed with Answer, which is not Asked.
	Answered
	// Received means that Receive has completed. Err is nil, ErrTruncated, ErrCanceled, or the error with which the
	// channel has closed.
	Received
)

// An Event reports the completion of an Agent's operation.
type Event struct {
	Kind    EventKind
	Send    *Send
	Receive *Receive
	Answer  Answer
	Err     error
}
