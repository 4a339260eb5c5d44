package na

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"
)

// A Plugin is one kind of network: it opens domains. Plugins register themselves in init, or are given in Config.
type Plugin interface {
	// Scheme is the part of an address before "://".
	Scheme() string
	// Open opens the network for cls. rest is what follows "://" in the address that the class was opened with:
	// empty for a class that only originates, else where to listen. It may block for as long as binding takes.
	Open(cls *Class, rest string) (Domain, error)
}

// A Domain is a plugin opened by a class: it owns the address, the registered memory, the clock and the randomness
// that the endpoints of all its contexts share. Its methods may be called from any goroutine.
type Domain interface {
	// Addr is the address of context 0: where the class listens, or a private name when it does not.
	Addr() Addr
	// Limits tells what the domain can do.
	Limits() Limits
	// Endpoint makes the side of the context of h. It is called once per context, in the order of their ids.
	Endpoint(h *Host) (Endpoint, error)
	// Publish lets peers that know m's key reach it, those of one session if m.Session is not 0. Unpublish stops that and
	// reports whether m was published.
	Publish(m *Mem) error
	Unpublish(m *Mem) bool
	// Now reads the clock: monotonic, from any fixed start.
	Now() time.Duration
	// Rand fills b with random bytes that a peer cannot guess.
	Rand(b []byte)
	// Driven reports whether every endpoint is a Driver: then contexts have no poller. Unassisted reports whether contexts move bytes only
	// while somebody drives them.
	Driven() bool
	Unassisted() bool
	// Close gives everything back. It is called once, after every endpoint has been released.
	Close() error
}

// An Endpoint is a plugin's side of one context. Its methods may be called from any goroutine; none blocks, none calls
// user code, and none may be called from inside Ticket.Finish. Each operation's ticket is finished exactly once, now or
// later; memory given with it is used between Hold and Release only. Errors are a Code or wrap one.
type Endpoint interface {
	// Lookup resolves the text of an address. It does not connect. Ends with Result.Addr, or ErrNoEntry, ErrInvalid.
	Lookup(t Ticket, text string)
	// SendUnexpected sends buf to any receive of the peer. Without an envelope of the peer it does what Config.OnNoCredit
	// says; a Patient one waits, a Hasty one ends. It ends when the message has been handed to the system, or with ErrUnreachable,
	// ErrPeerLost, ErrNoCredit (no envelope, or the local queue is full), ErrCanceled, ErrClosed. A canceled send that ends
	// with Fate NotRun has put nothing on the wire. A message with a deadline that has passed when its turn comes is not
	// sent: it ends with ErrTimeout and NotRun. Otherwise the time that is left is written into it then, and the receiver is
	// told to note when it arrives: Envelope.Arrived.
	SendUnexpected(t Ticket, to Addr, tag Tag, buf []byte, by Deadline)
	// RecvUnexpected takes the oldest message of the context, or waits for one.
	RecvUnexpected(t Ticket)
	// Take returns the oldest messages that no receive has taken, at most so many, the oldest first and linked by their Next. Arrived
	// returns how many there are; it may change at once. Both are for one who posts no RecvUnexpected.
	Take(most int) *Envelope
	Arrived() int
	// Call is SendUnexpected and RecvExpected in one: see Context.Call. It is Queued as a SendUnexpected is.
	Call(t Ticket, s CallSpec)
	// Recall cancels a Call whose message has not left; of another one it says where that has gone.
	Recall(t Ticket) (to Addr, id uint64, left bool)
	// GiveUp ends a Call with err, and lets the peer know as Abandon does. At its deadline an endpoint calls Ticket.Due, and
	// GiveUp follows: what comes between the two counts.
	GiveUp(t Ticket, err error)
	// Answer is SendExpected of a message that leaves at once, with no operation, and FreeEnvelope of env. Otherwise it does
	// nothing, and SendExpected follows; unless there is an error, with which that would end.
	Answer(env *Envelope, to Addr, tag Tag, buf []byte, most int) (left bool, err error)
	// Withdraw asks the peer to destroy message id of the session that to is bound to, if nobody there has accepted it. It
	// takes the way that the message took, and ends with nil, ErrTooLate, ErrUnsupported, ErrPeerLost, ErrCanceled.
	Withdraw(t Ticket, to Addr, id uint64)
	// Abandon tells the peer that message id of the session that to is bound to needs no answer: there it is destroyed if
	// nobody has accepted it, else Host.Abandoned is called with its tag there. So it is when a message that
	// Envelope.Watch was called for is destroyed, by Withdraw or by Abandon. Best effort, no completion.
	Abandon(to Addr, id uint64, tag Tag)
	// Connected reports whether the session that peer is bound to is up.
	Connected(peer Addr) bool
	// Disconnect ends a session because of err.
	Disconnect(peer Addr, err error)
	// Timer ends t when the clock reads at.
	Timer(t Ticket, at time.Duration)
	// SendExpected sends buf to the receive that the peer has posted for this context and tag. No envelope is used. A
	// message that meets no receive is dropped and counted there. It may be longer than the peer's messages are if the
	// receive takes most bytes. body, if there is one, goes beside it: room for it has been claimed, as for a CallSpec.Body, and copied
	// is its Copy.
	SendExpected(t Ticket, to Addr, tag Tag, buf, body []byte, copied bool, most int)
	// RecvExpected receives the message with tag from a peer into buf; a longer one of up to most bytes in Result.Envelope,
	// which is accepted already. A longer message still ends it with ErrOverflow.
	RecvExpected(t Ticket, from Addr, tag Tag, buf []byte, most int)
	// ClaimRoom claims room for one unexpected message of n bytes, longer than an envelope, or for a body of n bytes, longer
	// than that, too, and returns to bound to the session that has it. The claim ends with what sends it, in whatever way, or with
	// ReturnRoom.
	ClaimRoom(to Addr, n int) (bound Addr, ok bool)
	ReturnRoom(bound Addr, n int)
	// GrantRoom lets a peer send such messages, as Config.Budget allows; see Context.GrantRoom.
	GrantRoom(peer Addr, n int)
	// Put writes n bytes of local at loff into the peer's memory; Get reads them. The caller has acquired local; the
	// endpoint releases it before it finishes t. It ends when the last byte is in place, or with ErrPermission,
	// ErrRevoked, ErrPeerLost, ErrCanceled. After a failure the destination's contents are undefined.
	Put(t Ticket, local *Mem, loff int64, to Addr, key Key, roff, n int64)
	Get(t Ticket, local *Mem, loff int64, to Addr, key Key, roff, n int64)
	// Lease lets one peer read m until it gives it back, is lost, or drops the expected message with tag; then it ends
	// t through m.Revoke.
	Lease(t Ticket, to Addr, tag Tag, m *Mem)
	// GiveBack tells the owner of a lease that it is not needed any more. Best effort, no completion.
	GiveBack(to Addr, key Key)
	// Cancel ends the operation of t if it has not ended. Called after t.Canceling began to report true, or while another
	// goroutine ends it: then Cancel returns when that one has, for which it takes the lock under which tickets are finished.
	Cancel(t Ticket)

	// Poll makes one pass without waiting: timers that are due, descriptors that are closed late, frames that are held. It
	// returns when it has something to do again although nothing arrives: 0 for never. What is due earlier than it said needs
	// Host.PollSoon. Only the goroutine that leads Progress calls it. What has arrived since may not be taken in yet: Host.TakeIn.
	Poll(now time.Duration) (next time.Duration)
	// Shut begins the end: every operation finishes with ErrClosed, connections close. Called once.
	Shut()
	// Release frees what is left. Called once, by the goroutine that leads, when every callback has run.
	Release()
	// Lingering reports whether last words are still owed to peers, for a bounded time: until then the endpoint is polled, not released.
	// Called after Shut, from anywhere.
	Lingering() bool
	// Stats answers the gauges, Peers those of each session that is up.
	Stats() Stats
	Peers() []PeerStats
	// Identity says what is known of the peer of the session that peer is bound to; ok is false when that has ended.
	Identity(peer Addr) (id Identity, ok bool)

	// These serve the methods of Envelope.
	AcceptEnvelope(e *Envelope) bool
	EnvelopeWithdrawn(e *Envelope) bool
	WatchEnvelope(e *Envelope) bool
	IdentifyEnvelope(e *Envelope) Identity
	FreeEnvelope(e *Envelope)

	// Cork holds frames back, so that what several operations send leaves together, until Uncork. Corks nest; Poll and Flush send
	// what is held all the same. An endpoint that holds frames calls Host.FlushSoon.
	Cork()
	Uncork()
	Flush()

	// Drain begins an end in good order: no peer is let in any more. What is there goes on.
	Drain()
	// Underway counts what has not ended.
	Underway() Underway
	// Confirm asks each peer, the first time that it is called with last and the first time without, for a sign that everything sent
	// before has arrived, and returns how many have not given it, and how many messages they are not known to have. Without last
	// more may follow, and nobody has given it. It is called again and again; the endpoint gives up peers that are silent.
	Confirm(last bool) (peers, messages int)
	// Unconfirmed returns what Context.Unconfirmed does.
	Unconfirmed() []Unconfirmed
}

// A Driver is an Endpoint of a Driven domain: it waits in its own way instead of in the context's poller. A simulator yields to
// its scheduler.
type Driver interface {
	// Drive makes progress until ready reports true or timeout has passed (negative: no limit), and reports ready().
	Drive(timeout time.Duration, ready func() bool) bool
	// Wake makes every Drive that sleeps look at ready again, and at the timers. It is called from anywhere, also from
	// inside Ticket.Finish and with the endpoint's lock held: it does not wait and does not call up.
	Wake()
	// FlushSoon makes sure that frames which are held back leave although nobody drives, a few milliseconds later at the
	// most. It is called from anywhere, without the endpoint's lock.
	FlushSoon()
}

// Limits tells what a plugin can do.
type Limits struct {
	MaxUnexpected int    // bytes of one unexpected message
	MaxExpected   int    // bytes of one expected message
	MaxTag        Tag    // highest tag
	MaxSegments   int    // segments of one Mem
	MaxContexts   int    // contexts of one class
	Envelopes     int    // envelopes guaranteed to each peer (GER)
	Scheme        string // of the plugin
}

// Stats are the gauges and counters of one context.
type Stats struct {
	Peers       int   // sessions that are up
	BulkFlows   int   // of these, with a way for bulk data beside that for messages
	Outstanding int   // operations that peers owe an end
	Envelopes   int   // unexpected messages held for a receive or a dispatch
	Queued      int   // sends held back for want of an envelope or of room
	Leases      int   // leases that have not ended
	Regions     int64 // registered memory of the class
	Withdrawn   int64 // messages that peers took back, or a closed context dropped, before anybody accepted them
	LateDropped int64 // messages and chunks that met no operation, dropped
	Violations  int64 // peers cut because they broke the protocol
	Panics      int64 // panics of the library itself over what peers had sent: please report what was logged
	PeersLost   int64 // sessions that were up and that nobody closed: the peer died, fell silent, broke the protocol, or gave this side up
	PeersLeft   int64 // sessions that the peer closed, in good order or not: it said so
	PeersIdle   int64 // sessions that ended because they were idle, as both sides agreed
	Stalls      int64 // sends that had to wait for an envelope, or failed for want of one
	Reserved    int64 // bytes of envelopes and room guaranteed to peers now
	// HandshakesFailed counts TLS handshakes of peers that connected to the class and failed; the first context has it of tcp.
	HandshakesFailed int64
	// HighWater is the largest PeerStats.HighWater of all sessions, those that have ended included.
	HighWater int
}

var (
	pluginsMu sync.Mutex
	plugins   = map[string]Plugin{}
)

// RegisterPlugin makes p available to Open by its scheme. It panics when the scheme is taken: two plugins of one
// scheme in one program are a mistake.
func RegisterPlugin(p Plugin) {
	pluginsMu.Lock()
	defer pluginsMu.Unlock()
	if plugins[p.Scheme()] != nil {
		panic("na: plugin " + p.Scheme() + " is registered twice")
	}
	plugins[p.Scheme()] = p
}

// findPlugin returns the plugin of a scheme; those given come first.
func findPlugin(scheme string, given []Plugin) (Plugin, error) {
	have := make([]string, 0, 4)
	for _, p := range given {
		if p.Scheme() == scheme {
			return p, nil
		}
		have = append(have, p.Scheme())
	}
	pluginsMu.Lock()
	defer pluginsMu.Unlock()
	if p := plugins[scheme]; p != nil {
		return p, nil
	}
	for s := range plugins {
		have = append(have, s)
	}
	slices.Sort(have)
	if len(have) == 0 {
		return nil, fmt.Errorf("na: unknown transport %q: no plugin is linked in; import plugins/all or one plugin: %w",
			scheme, ErrUnsupported)
	}
	return nil, fmt.Errorf("na: unknown transport %q: have %s: %w", scheme, strings.Join(have, ", "), ErrUnsupported)
}
