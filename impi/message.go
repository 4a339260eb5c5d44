package impi

import "errors"

// Errors of messages. An error may wrap one of these and also the reason why the channel ended.
var (
	// ErrProtocol: the peer broke the protocol. The channel has ended.
	ErrProtocol = errors.New("impi: protocol violation")
	// ErrCanceled: the message was destroyed before it was received, or the receive was taken back.
	ErrCanceled = errors.New("impi: canceled")
	// ErrNotSent: the channel ended before any part of the message had left.
	ErrNotSent = errors.New("impi: not sent")
	// ErrUnknown: the channel ended while the message was on its way; it may have been received.
	ErrUnknown = errors.New("impi: channel ended, the message may have been received")
	// ErrTruncated: the message was longer than the buffer of its receive, which has the beginning.
	ErrTruncated = errors.New("impi: message longer than the buffer")
	// ErrFull: AgentConfig.MaxOperations are under way. Try again after an event.
	ErrFull = errors.New("impi: too many operations")
	// ErrActive: the Send, its Request number, or the Receive is still in use.
	ErrActive = errors.New("impi: still active")
	// ErrFinished: the agent has said that it has no more messages.
	ErrFinished = errors.New("impi: finished")
)

// A Send is one message to be sent. It and Data belong to the agent from Agent.Send until the Sent event, and until the
// Answered event too if Cancel returned Asked.
type Send struct {
	From, To Proc
	// Request numbers the message (pk_srqid). Among the active messages of From it must be unique. It may be used again once
	// this message has ended; a peer may then hold several messages of one number, of which only the newest can be canceled.
	Request uint64
	// Sync asks the peer to say when the message is received, as MPI_Ssend needs. A message longer than MaxPacket is always
	// synchronous.
	Sync     bool
	Rank     int32 // of From in its communicator, not negative
	Tag      int32 // not negative
	Context  uint64
	Count    int64  // passed on to the receiver
	Datatype uint64 // passed on to the receiver
	Data     []byte

	state   sendState
	cancel  cancelState
	seq     uint64
	off     int    // of Data has left
	destReq uint64 // from the SYNCACK
}

// A sendState is what a message is in the middle of, at its source. "asked", for example, is sendExposed with cancelAsked. V is a
// violation, which ends the stream.
//
//	          cancel          the packet leaves    SYNCACK         CANCELYES    CANCELNO     the stream ends
//	queued    canceled here   exposed, or ended    V               V            ignored      not sent
//	exposed   wanted          -                    ended, matched  V            ignored      unknown
//	wanted    joins           the request: asked   the same        V            ignored      unknown
//	asked     joins           -                    the same        canceled     refused      unknown
//	refused   too late        -                    ended, matched  V            ignored      unknown
//	matched   too late        ended with the last  V               V            too late     unknown
//	ended     too late        -                    V               V, ignored   too late     -
//
// A short DATA message ends as it leaves; SYNCACK ends a short one and lets the rest of a long one leave (matched). An ended message is
// kept until its cancel has been answered: then CANCELYES is a violation and CANCELNO means too late; otherwise both are ignored.
type sendState uint8

const (
	sendIdle    sendState = iota
	sendQueued            // nothing has left
	sendExposed           // the first packet has left; nobody knows whether it is received
	sendRefused           // a CANCELNO said that it is received; the SYNCACK is still to come
	sendMatched           // the SYNCACK of a long message has come; the rest is leaving
	sendEnded             // as Sent said
	sendLost              // the same, with ErrUnknown
)

type cancelState uint8

const (
	cancelNone   cancelState = iota
	cancelWanted             // the request has not left
	cancelAsked              // the reply has not come
)

// AnyRank and AnyTag, in a Match, match every rank and every tag.
const (
	AnyRank int32 = -1
	AnyTag  int32 = -1
)

// A Match selects messages by receiver, communicator, sender's rank and tag.
type Match struct {
	To      Proc
	Context uint64
	Rank    int32 // or AnyRank
	Tag     int32 // or AnyTag
}

func (m *Match) matches(p *Packet) bool {
	return m.To == p.Dest && m.Context == p.Context &&
		(m.Rank == AnyRank || m.Rank == p.Rank) && (m.Tag == AnyTag || m.Tag == p.Tag)
}

// A Receive takes one message. It and Buf belong to the agent from Agent.Receive until the Received event.
type Receive struct {
	Match
	Buf []byte

	// Set by the Received event, unless its error says that there was no message.
	Packet Packet // the header of the first packet; MsgLen is the length of the message
	N      int    // bytes written to Buf

	state  receiveState
	offset uint64 // bytes of the message that have arrived
}

type receiveState uint8

const (
	receiveIdle    receiveState = iota
	receivePosted               // no message has matched
	receiveMatched              // parts of a long message are to come
)

// An Answer says what became of a cancel.
type Answer uint8

const (
	// Asked: a cancel request goes to the peer. An Answered event follows.
	Asked Answer = iota
	// Canceled: the message is destroyed. Nobody has received it and nobody will.
	Canceled
	// TooLate: the message has been received, or has left and needs no receiver to be complete, or was over before.
	TooLate
	// Unknown: the channel ended before the answer came.
	Unknown
)

func (a Answer) String() string {
	return [...]string{"asked", "canceled", "too late", "unknown"}[a]
}

// An EventKind says which fields of an Event mean something.
type EventKind uint8

const (
	// Sent: Send has ended. Err is nil when a synchronous or long message has been received and has left as a whole, and
	// when another one has left. Otherwise it is ErrCanceled, ErrNotSent or ErrUnknown.
	Sent EventKind = iota
	// Answered: Answer is that to the cancel request for Send, never Asked.
	Answered
	// Received: Receive has ended. Err is nil, ErrTruncated, ErrCanceled, or the reason why the channel ended.
	Received
)

// An Event is the end of one operation of an Agent.
type Event struct {
	Kind    EventKind
	Send    *Send
	Receive *Receive
	Answer  Answer
	Err     error
}
