package na

import (
	"fmt"
	"strings"
	"time"

	"github.com/quicksilver-rpc/quicksilver/internal/frame"
	"github.com/quicksilver-rpc/quicksilver/na/carrier"
)

// A session ends with the certificates that it was made with. Each side looks at that of its peer, by the clock that handshakes check it
// by. When it expires the session retires: what has begun in it goes on, and what begins goes in another session, which is made with the
// certificates of then.
//
//	side that sees the certificate of its peer expire        its peer
//	retires ──────────── RETIRE ────────────────────────────► retires
//	what begins dials anew ── HELLO: the secret of the session, which retires ─► not taken for a peer that has lost it
//	nothing open ─────── LEAVE … GOAWAY, as of an idle session
//	Config.CertificateGrace is over: ErrPeerLost
//
// A peer that cannot be dialled is reached in the session that retires until it has made the next one.

const (
	// expiryLook is after how long at the most the wall clock is read again, which may be set meanwhile.
	expiryLook = time.Minute
	// expiryEvery is how often at the most it is read for certificates that expire one after the other.
	expiryEvery = 50 * time.Millisecond
)

// A retirement is what a session has when it retires.
type retirement struct {
	by  time.Duration // when what is under way ends; 0: it may go on
	why string
}

// errExpired says that the certificate of a peer has expired.
func errExpired(p *carrier.Proof) string {
	return "the certificate of the peer has expired: " + carrier.Describe(p.Certificates[0]) // the peer's own, whichever of its chain it is
}

// hasExpired reports whether the certificates in p, which may be nil, have expired.
func (d *domain) hasExpired(p *carrier.Proof) bool {
	return p != nil && !p.Expires.IsZero() && d.cfg.CertificateGrace >= 0 && !d.wallClock().Before(p.Expires)
}

// watchExpiry has the tick look at the certificates of l, which is up, when they expire. Locked.
func (l *session) watchExpiry() {
	if p, e := l.proof, l.e; p != nil && !p.Expires.IsZero() && e.dom.cfg.CertificateGrace >= 0 {
		e.readClock()
		at := e.now + min(max(p.Expires.Sub(e.dom.wallClock()), 0), expiryLook)
		e.expiryDue = earlierOf(e.expiryDue, at)
		e.tickNoLaterThan(at)
	}
}

// retireExpired has the sessions retire whose peers have certificates that have expired, and returns when to look again; 0 for never.
func (e *endpoint) retireExpired(now time.Duration) (next time.Duration) {
	if e.expiryDue == 0 || now < e.expiryDue {
		return e.expiryDue
	}
	e.expiryDue = 0
	wall := e.dom.wallClock()
	for _, l := range e.sessions {
		p := l.proof
		if p == nil || p.Expires.IsZero() || !l.Up() || l.retiring != nil {
			continue
		}
		if left := p.Expires.Sub(wall); left > 0 {
			e.expiryDue = earlierOf(e.expiryDue, now+min(max(left, expiryEvery), expiryLook))
			continue
		}
		l.queueControl(frame.Header{Kind: frame.Retire})
		l.startRetiring(errExpired(p))
	}
	return e.expiryDue
}

// deliverRetire has l retire, as its peer does.
func (l *session) deliverRetire(h *frame.Header) error {
	if h.Op != 0 || h.Tag != 0 {
		return WithText(ErrProtocol, fmt.Sprintf("RETIRE with the operation %d and the tag %#x", h.Op, h.Tag))
	}
	l.startRetiring("a certificate that the session was made with has expired, says the peer")
	return nil
}

// startRetiring has what begins from now on go in another session. Locked.
func (l *session) startRetiring(why string) {
	if l.retiring != nil || !l.Up() {
		return
	}
	e := l.e
	l.makeBusy()
	l.retiring = &retirement{why: why}
	if grace := e.dom.cfg.CertificateGrace; grace >= 0 {
		e.readClock()
		l.retiring.by = e.now + grace
		e.tickNoLaterThan(l.retiring.by)
	}
	e.stats.PeersRetired++
	e.found = nil
	if e.names[l.named] == l {
		delete(e.names, l.named)
		e.rememberSession(l.named, lastSession{l.peer.secret, l.dialled, true})
	}
	l.forgetChoices()
	l.startSuccessor()
}

// startSuccessor makes the next session to the peer of l, which retires, if nothing else may do so: the peer has no other way to this process.
func (l *session) startSuccessor() {
	e := l.e
	if !l.dialled || e.shut || e.idleTimeout() != 0 && (e.dom.own.Listen != "" || e.dom.cls.Regions() == 0) {
		return
	}
	if e.names[l.named] == nil {
		_, _ = e.dialSession(l.wantedAddr()) // without it the session ends when its time is over, and says so
	}
}

// hasSuccessor reports whether another session to the peer of l, which retires, is up. Locked.
func (l *session) hasSuccessor() bool {
	n := l.e.successors[l.secret]
	if n == nil {
		n = l.e.names[l.named]
	}
	return n != nil && n.Up() && n.peer.incarnation == l.peer.incarnation
}

// tickRetiring ends l, which retires, when its time is over, and asks the peer whether it may end when nothing is open.
func (l *session) tickRetiring(now time.Duration) {
	switch r := l.retiring; {
	case r.by != 0 && now >= r.by:
		l.failWith(WithText(ErrPeerLost, fmt.Sprintf("peer lost: %s; what was under way has not ended within %v (Config.CertificateGrace)",
			r.why, l.e.dom.cfg.CertificateGrace)))
	case l.state == stateUp && l.keepUntil <= now && l.mayLeave():
		l.askToLeave()
	case l.state == stateUp:
		l.startSuccessor()
	}
}

// noteSuccessor notes that l is the next session of the peer whose HELLO is g, if that says so.
func (l *session) noteSuccessor(g *frame.Greeting) {
	if g.Features&frame.FeatureRetires != 0 && g.Proof != (frame.Secret{}) && l.e.successors[g.Proof] == nil {
		proof := g.Proof
		l.succeeds = &proof
		l.e.successors[proof] = l
	}
}

// forgetSuccession undoes succeed.
func (l *session) forgetSuccession() {
	if l.succeeds != nil {
		delete(l.e.successors, *l.succeeds)
		l.succeeds = nil
	}
}

// currentAddr returns the address, bound to its session, to which an operation that begins now goes: that of the next session if the session of a
// retires. It is a itself when there is none, while it is dialled, and where no session retires because there are no certificates.
func (e *endpoint) currentAddr(a Addr) Addr {
	e.mu.Lock()
	defer e.Unlock()
	if e.shut {
		return a
	}
	l := e.findSession(a)
	switch {
	case l == nil && (a.Session() != 0 || strings.HasPrefix(a.Name(), privatePrefix(e.dom.own.scheme))):
		return a
	case l == nil:
		n, err := e.dialSession(a)
		if err != nil {
			return a
		}
		l = n
	case l.retiring != nil:
		a = l.wantedAddr()
		n, err := e.sessionAgain(a, l.peer.incarnation)
		if err != nil {
			return a // the operation fails with the same error
		}
		l = n
	case l.mustBe(a) != nil:
		return a
	}
	if !l.Up() || l.proof == nil || l.proof.Expires.IsZero() { // bound, an operation would not begin in the next session if this one ends at this moment
		return a
	}
	return l.addr()
}

// Current returns the address to which all operations of one request go that begins now. A session that has certificates may retire between two
// of them, so the address is bound to it, or to the next one if it has retired. Without certificates, and while the session is being dialled,
// it is to.
func (c upper) Current(to Addr) Addr {
	if c.Closing() {
		return to
	}
	return c.ep.currentAddr(to)
}
