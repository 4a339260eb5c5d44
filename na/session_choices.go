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

// A host may have several addresses, of both families. A session with it dials them as RFC 8305 says, whatever the transport: each attempt
// is a session of its own to the carrier, and the first whose HELLO is answered becomes the session; the others are cut.
//
//	tick ─► startAttempts ─► carrier.Dial(attempt) ─┬─ Greet ─► settleOn: the session has that address, the others are cut
//	  ▲                                             └─ Fail ─► the next attempt, or, if that was the last one, the session fails
//	  └── 250 ms, or an attempt has failed ◄────────────┘

// addressChoices is the addresses of the host of a session.
type addressChoices struct {
	looked   Addr           // by which operations find the session; it stands for all of addrs
	addrs    []Addr         // in the order in which they are dialed; nil once the session has one of them
	attempts []*dialAttempt // that have begun since the session has dialed last, addrs[i] by attempts[i]
	race     happyeyeballs.Race
}

// A dialAttempt is a session whose peer is dialed at one of its addresses, as the carrier sees it. Once that address is the session's the
// attempt stands for the session.
type dialAttempt struct {
	*session
	addr   Addr
	conn   any
	secret frame.Secret // as session.secret: each peer that is dialed has another one
	err    error        // why it has failed; nil while it goes on
	state  attemptState
}

type attemptState uint8

const (
	attemptDialing attemptState = iota
	attemptEnded                // failed, or cut
	attemptSettled
)

var _ carrier.Session = (*dialAttempt)(nil)

// expandHost returns the addresses that a stands for, nil if it is one.
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

// upAt returns a session that is up with one of several addresses, or nil. Locked.
func (e *endpoint) upAt(addrs []Addr) *session {
	for _, a := range addrs {
		if l := e.names[a]; l != nil && l.Up() {
			return l
		}
	}
	return nil
}

// sessionReaching returns the session that has an address, or may come to have it; nil if none. Locked.
func (e *endpoint) sessionReaching(a Addr) *session {
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

// chooseAddresses gives l the addresses of its host, nil for one.
func (l *session) chooseAddresses(addrs []Addr) {
	if len(addrs) > 0 {
		l.choices = &addressChoices{looked: l.named, addrs: addrs}
		l.e.choosing = append(l.e.choosing, l)
	}
}

// isUndecided reports whether it is not known which address the session will have.
func (c *addressChoices) isUndecided() bool { return c != nil && c.addrs != nil }

// nextAttemptAt is when the next attempt begins; ok is false if none does.
func (c *addressChoices) nextAttemptAt() (at time.Duration, ok bool) {
	if !c.isUndecided() {
		return 0, false
	}
	return c.race.Due()
}

// startRace begins to dial the addresses of l.
func (l *session) startRace() {
	l.e.readClock()
	if other := l.e.upAt(l.choices.addrs); other != nil { // it was dialed by its address meanwhile: the next operation finds it
		l.failWith(WithText(ErrUnreachable, "a session with "+other.named.String()+" was made at the same time"))
		return
	}
	l.choices.attempts = nil
	l.choices.race = happyeyeballs.New(len(l.choices.addrs), l.e.now, l.e.dom.cfg.ConnectTimeout)
	l.startAttempts()
}

// startAttempts begins the attempts that are due. When none is left the session fails.
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

// err is why no attempt has led to a session: its text names every address. What calls for another attempt of the session is its code.
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

// settleOn gives l one of its addresses, and ends the attempts at the others.
func (l *session) settleOn(named Addr) {
	c := l.choices
	if !c.isUndecided() {
		return
	}
	e := l.e
	delete(e.waits, l.wantedAddr())
	for _, a := range c.attempts {
		if a.addr == named { // the peer there has been shown the secret of the attempt
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

// stopChoosing ends the choice.
func (l *session) stopChoosing() {
	l.choices.addrs, l.choices.attempts = nil, nil
	l.e.choosing = slices.DeleteFunc(l.e.choosing, func(other *session) bool { return other == l })
}

// cutAttempts ends those that go on.
func (l *session) cutAttempts(bye frame.Bye) {
	for _, a := range l.choices.attempts {
		if a.state == attemptDialing {
			a.state = attemptEnded
			l.route.carrier.Cut(a, bye)
		}
	}
}

// cutConnection ends the connection of l, or the attempts to make one.
func (l *session) cutConnection(bye frame.Bye) {
	if l.choices.isUndecided() {
		l.cutAttempts(bye)
		return
	}
	l.route.carrier.Cut(l, bye)
}

// forgetChoices ends what l has for its several addresses, as the session ends.
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

// Greet implements carrier.Session. The attempt whose HELLO is accepted first is that of the session.
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

// decide has the session go on with the connection of a.
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

// Refused implements carrier.Session. A peer that offers another transport is the one.
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
