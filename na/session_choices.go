package na

import (
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/quicksilver-rpc/quicksilver/internal/frame"
	"github.com/quicksilver-rpc/quicksilver/internal/happyeyeballs"
	"github.com/quicksilver-rpc/quicksilver/na/carrier"
)

// A host may have several addresses, of both families. A session with such a host dials them as
// described in RFC 8305, using any transport. Each attempt is a separate carrier.Session. The first
// attempt to receive a HELLO becomes the session, and the others are closed.
//
// Ticks call startAttempts, which starts the next attempt 250 ms after the previous one, or earlier
// if an attempt has failed. When an attempt receives a HELLO, Greet calls settleOn, which makes the
// attempt's address that of the session. If the last attempt fails, the session fails.

// An addressChoices holds the addresses of a session's host and the attempts to dial them.
type addressChoices struct {
	// address that was looked up; it stands for all of addrs, and the session is in endpoint.names
	// under it
	looked   Addr
	addrs    []Addr         // in dial order; nil once the session has settled on one
	attempts []*dialAttempt // the attempts of the current dial; attempts[i] dials addrs[i]
	race     happyeyeballs.Race
}

// A dialAttempt is an attempt to dial one of a session's addresses. The carrier uses it as a
// separate carrier.Session. Once the session has settled on that address, the attempt forwards all
// calls to the session.
type dialAttempt struct {
	*session
	addr   Addr
	conn   any
	secret frame.Secret // like session.secret; each attempt has its own because it may reach another process
	err    error        // error of a failed attempt, or nil
	state  attemptState
}

// An attemptState is the state of a dialAttempt.
type attemptState uint8

const (
	attemptDialing attemptState = iota
	attemptEnded                // failed or closed
	attemptSettled              // the session has settled on it
)

var _ carrier.Session = (*dialAttempt)(nil)

// expandHost returns the addresses of the host that a names, in the order in which to dial them. It
// returns nil if there is only one.
func (e *endpoint) expandHost(a Addr) (all []Addr) {
	x, ok := e.dom.own.Names.(carrier.Expander)
	if !ok || a.Session() != 0 || !a.set {
		return nil
	}
	for _, name := range x.Expand(a.Name()) {
		all = append(all, MakeAddr(name, a.Target()))
	}
	return all
}

// upAtLocked returns a session that is up with a peer at one of addrs, or nil if there is none.
// e.mu must be held.
func (e *endpoint) upAtLocked(addrs []Addr) *session {
	for _, a := range addrs {
		if l := e.names[a]; l != nil && l.Up() {
			return l
		}
	}
	return nil
}

// sessionReachingLocked returns the session whose address is a or that is dialing a as one of its
// host's addresses. It returns nil if there is none. e.mu must be held.
func (e *endpoint) sessionReachingLocked(a Addr) *session {
	if l := e.names[a]; l != nil || a.IsZero() {
		return l
	}
	for _, l := range e.choosing {
		if slices.Contains(l.choices.addrs, a) {
			return l
		}
	}
	return nil
}

// chooseAddresses makes l dial all of addrs, the addresses of its host, and settle on one. It does
// nothing if addrs is empty, which means that the host has a single address.
func (l *session) chooseAddresses(addrs []Addr) {
	if len(addrs) > 0 {
		l.choices = &addressChoices{looked: l.named, addrs: addrs}
		l.e.choosing = append(l.e.choosing, l)
	}
}

// isUndecided reports whether the session has several addresses and has not yet settled on one.
func (c *addressChoices) isUndecided() bool { return c != nil && c.addrs != nil }

// nextAttemptAt returns the time at which the next attempt must be started. ok is false if no more
// attempts are to be started.
func (c *addressChoices) nextAttemptAt() (at time.Duration, ok bool) {
	if !c.isUndecided() {
		return 0, false
	}
	return c.race.Due()
}

// startRace starts dialing the addresses of l's host. If a session with one of them is already up,
// it fails l instead.
func (l *session) startRace() {
	l.e.readClock()
	// Another session, which dialed one of the addresses directly, is up. The next operation uses it.
	if other := l.e.upAtLocked(l.choices.addrs); other != nil {
		l.failWith(WithText(ErrUnreachable, "concurrent session with "+other.named.String()))
		return
	}
	l.choices.attempts = nil
	l.choices.race = happyeyeballs.New(len(l.choices.addrs), l.e.now, l.e.dom.cfg.ConnectTimeout)
	l.startAttempts()
}

// startAttempts starts the attempts that are due. If all attempts have failed, it fails the
// session.
func (l *session) startAttempts() {
	c := l.choices
	for {
		i, ok := c.race.Next(l.e.now)
		if !ok {
			break
		}
		a := &dialAttempt{session: l, addr: c.addrs[i]}
		l.e.dom.rand(a.secret[:])
		c.attempts = append(c.attempts, a)
		l.route.carrier.Dial(a)
	}
	if c.race.Lost() {
		l.failWith(c.err())
		return
	}
	l.e.tickNoLaterThan(l.nextTick())
}

// err returns an error for a dial whose attempts have all failed. Its text contains the error of
// each address. Its code is ErrUnreachable, unless an attempt failed with a code that permits
// another dial, in which case that code is used.
func (c *addressChoices) err() error {
	code, other := ErrUnreachable, error(nil)
	var texts []string
	for i, addr := range c.addrs {
		why := "not dialed"
		if i < len(c.attempts) {
			if err := c.attempts[i].err; err == nil {
				why = "no answer"
			} else {
				why = err.Error()
				if k := CodeOf(err); k == ErrDuplicate || k == ErrPeerLost || k == ErrAgain {
					code = k
				}
				if _, is := errors.AsType[otherHostError](err); is {
					other = err
				}
			}
		}
		texts = append(texts, addr.Name()+": "+why)
	}
	err := WithText(code, strings.Join(texts, "; "))
	if other != nil {
		return otherHostError{err}
	}
	return err
}

// settleOn makes named, one of the addresses of l's host, the address of l, and closes the attempts
// to dial the others. It does nothing if l has a single address or has already settled.
func (l *session) settleOn(named Addr) {
	c := l.choices
	if !c.isUndecided() {
		return
	}
	e := l.e
	delete(e.waits, l.wantedAddr())
	for _, a := range c.attempts {
		if a.addr == named { // the peer at named has received the attempt's secret
			l.secret = a.secret
		}
	}
	l.named, l.name = named, named.Name()
	if e.names[named] == nil {
		e.names[named] = l
	}
	e.found = nil
	l.cutAttempts(frame.Bye{})
	l.stopChoosing()
}

// stopChoosing removes l from the sessions that are dialing several addresses and discards the
// addresses and attempts.
func (l *session) stopChoosing() {
	l.choices.addrs, l.choices.attempts = nil, nil
	l.e.choosing = slices.DeleteFunc(l.e.choosing, func(other *session) bool { return other == l })
}

// cutAttempts closes the attempts that are still dialing, after sending bye to their peers.
func (l *session) cutAttempts(bye frame.Bye) {
	for _, a := range l.choices.attempts {
		if a.state == attemptDialing {
			a.state = attemptEnded
			l.route.carrier.Cut(a, bye)
		}
	}
}

// cutConnection sends bye to the peer and closes l's connection. If l is dialing, it cancels the
// attempts.
func (l *session) cutConnection(bye frame.Bye) {
	if l.choices.isUndecided() {
		l.cutAttempts(bye)
		return
	}
	l.route.carrier.Cut(l, bye)
}

// forgetChoices removes l from the tables of sessions with several addresses when l is closed or
// retires.
func (l *session) forgetChoices() {
	c := l.choices
	if c == nil {
		return
	}
	if l.e.names[c.looked] == l {
		delete(l.e.names, c.looked)
	}
	l.stopChoosing()
}

// Conn implements carrier.Session.
func (a *dialAttempt) Conn() any {
	if a.state == attemptSettled {
		return a.session.conn
	}
	return a.conn
}

// SetConn implements carrier.Session.
func (a *dialAttempt) SetConn(conn any) {
	if a.state == attemptSettled {
		a.session.conn = conn
		return
	}
	a.conn = conn
}

// Name implements carrier.Session.
func (a *dialAttempt) Name() string { return a.addr.Name() }

// Up implements carrier.Session.
func (a *dialAttempt) Up() bool { return a.state == attemptSettled && a.session.Up() }

// Down implements carrier.Session.
func (a *dialAttempt) Down() bool { return a.state == attemptEnded || a.session.Down() }

// Hello implements carrier.Session.
func (a *dialAttempt) Hello(f carrier.Lane, dst, label []byte) []byte {
	if a.state == attemptSettled {
		return a.session.Hello(f, dst, label)
	}
	return a.buildHello(f, dst, label, a.secret, a.addr)
}

// Greet implements carrier.Session. The session settles on the first attempt whose HELLO is
// accepted.
func (a *dialAttempt) Greet(g *frame.Greeting) error {
	l := a.session
	if a.state == attemptSettled {
		return l.Greet(g)
	}
	named, name, secret := l.named, l.name, l.secret
	l.conn, l.named, l.name, l.secret = a.conn, a.addr, a.addr.Name(), a.secret
	err := l.Greet(g)
	if l.named, l.name = named, name; err != nil {
		l.conn, l.secret = nil, secret
		return err
	}
	a.decide()
	return nil
}

// decide settles the session on the address of a and makes a's connection that of the session.
func (a *dialAttempt) decide() {
	a.state = attemptSettled
	a.session.conn = a.conn
	a.settleOn(a.addr)
}

// Fail implements carrier.Session.
func (a *dialAttempt) Fail(err error) {
	switch a.state {
	case attemptSettled:
		a.session.Fail(err)
	case attemptDialing:
		a.state, a.err = attemptEnded, err
		l := a.session
		l.route.carrier.Cut(a, frame.Bye{})
		l.e.readClock()
		l.choices.race.Fail(l.e.now)
		l.e.tickNoLaterThan(l.e.now)
	}
}

// Silent implements carrier.Session.
func (a *dialAttempt) Silent(err error) {
	if a.state == attemptSettled {
		a.session.Silent(err)
		return
	}
	a.Fail(err)
}

// Refused implements carrier.Session. The session settles on an attempt whose peer offers another
// transport.
func (a *dialAttempt) Refused(bye frame.Bye) {
	if a.state == attemptDialing && bye.Offer != nil {
		a.decide()
	}
	switch a.state {
	case attemptSettled:
		a.session.Refused(bye)
	case attemptDialing:
		a.Fail(refusalError(bye))
	}
}
