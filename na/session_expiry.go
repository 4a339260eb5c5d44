package na

import (
	"fmt"
	"strings"
	"time"

	"github.com/quicksilver-rpc/quicksilver/internal/frame"
	"github.com/quicksilver-rpc/quicksilver/na/carrier"
)

// A session does not outlive the certificates it was established with. Each side checks its peer's
// certificate, using the clock that handshakes use. When a certificate expires, the session
// retires: operations in flight continue in it, and later operations use another session, which is
// established with the current certificates.
//
//	side on which the peer's certificate expires             its peer
//	retires ──────────── RETIRE ────────────────────────────► retires
//	an operation starts: dials ── HELLO with the secret of the retired session ─► does not mistake it for a lost session
//	nothing in flight ── LEAVE … GOAWAY, as for an idle session
//	Config.CertificateGrace has elapsed: ErrPeerLost
//
// A peer that cannot be dialed is reached through the retired session until it has established the
// next one.

const (
	// expiryLook limits the time between two readings of the wall clock, because the clock may be set
	// at any time.
	expiryLook = time.Minute
	// expiryEvery is the minimum time between two readings of the wall clock, for certificates that
	// expire shortly after one another.
	expiryEvery = 50 * time.Millisecond
)

// A retirement is the state of a retiring session. Such a session completes the operations in
// flight and is then closed.
type retirement struct {
	by  time.Duration // time at which operations in flight are aborted; 0 means never
	why string
}

// errExpired returns an error text that says that the certificate of p's peer has expired. It
// describes the peer's own certificate, even if another certificate in the chain has expired.
func errExpired(p *carrier.Proof) string {
	return "the certificate of the peer has expired: " + carrier.Describe(p.Certificates[0])
}

// hasExpired reports whether any certificate in p has expired. It reports false if p is nil or if
// Config.CertificateGrace is negative, which disables expiration.
func (d *domain) hasExpired(p *carrier.Proof) bool {
	return p != nil && !p.Expires.IsZero() && d.cfg.CertificateGrace >= 0 && !d.wallClock().Before(p.Expires)
}

// watchExpiryLocked schedules a check whether the certificates of l have expired. l must be up, and
// endpoint.mu must be held.
func (l *session) watchExpiryLocked() {
	if p, e := l.proof, l.e; p != nil && !p.Expires.IsZero() && e.dom.cfg.CertificateGrace >= 0 {
		e.readClock()
		at := e.now + min(max(p.Expires.Sub(e.dom.wallClock()), 0), expiryLook)
		e.expiryDue = earlierOf(e.expiryDue, at)
		e.tickNoLaterThan(at)
	}
}

// retireExpired retires the sessions whose certificates have expired, if a check is due. It returns
// the time of the next check, or 0 if none is necessary.
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
		l.startRetiringLocked(errExpired(p))
	}
	return e.expiryDue
}

// deliverRetire handles a RETIRE frame, with which the peer reports that it has retired the
// session, by retiring l.
func (l *session) deliverRetire(h *frame.Header) error {
	if h.Op != 0 || h.Tag != 0 {
		return WithText(ErrProtocol, fmt.Sprintf("RETIRE frame with operation %d and tag %#x, want zero", h.Op, h.Tag))
	}
	l.startRetiringLocked("the peer reports that a certificate of the session has expired")
	return nil
}

// startRetiringLocked retires l because of why, if l is up. Operations that start later use another
// session. endpoint.mu must be held.
func (l *session) startRetiringLocked(why string) {
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

// startSuccessor dials a session that replaces l, which is retiring. It does nothing if the peer
// can dial this process or if the next operation will start the dial.
func (l *session) startSuccessor() {
	e := l.e
	if !l.dialled || e.shut || e.idleTimeout() != 0 && (e.dom.own.Listen != "" || e.dom.cls.Regions() == 0) {
		return
	}
	if e.names[l.named] == nil {
		_, _ = e.dialSession(l.wantedAddr()) // if it fails, l is closed with an error after the grace period
	}
}

// hasSuccessorLocked reports whether a session that replaces l, which is retiring, is up.
// endpoint.mu must be held.
func (l *session) hasSuccessorLocked() bool {
	n := l.e.successors[l.secret]
	if n == nil {
		n = l.e.names[l.named]
	}
	return n != nil && n.Up() && n.peer.incarnation == l.peer.incarnation
}

// tickRetiring checks l, which is retiring. If nothing is in flight, it asks the peer to close l.
// If the grace period has expired, it closes l with ErrPeerLost.
func (l *session) tickRetiring(now time.Duration) {
	switch r := l.retiring; {
	case r.by != 0 && now >= r.by:
		l.failWith(WithText(ErrPeerLost, fmt.Sprintf("peer lost: %s; operations still in flight after %v (na.Config.CertificateGrace)",
			r.why, l.e.dom.cfg.CertificateGrace)))
	case l.state == stateUp && l.keepUntil <= now && l.mayLeave():
		l.askToLeave()
	case l.state == stateUp:
		l.startSuccessor()
	}
}

// noteSuccessor records that l is the successor of a retiring session if the peer's HELLO g
// contains that session's secret.
func (l *session) noteSuccessor(g *frame.Greeting) {
	if g.Features&frame.FeatureRetires != 0 && g.Proof != (frame.Secret{}) && l.e.successors[g.Proof] == nil {
		proof := g.Proof
		l.succeeds = &proof
		l.e.successors[proof] = l
	}
}

// forgetSuccession undoes noteSuccessor.
func (l *session) forgetSuccession() {
	if l.succeeds != nil {
		delete(l.e.successors, *l.succeeds)
		l.succeeds = nil
	}
}

// currentAddr returns the address of a's session for an operation that starts now or, if that
// session is retiring, the address of the session that replaces it. It returns a itself if there is
// no session that is up, or if the session does not use certificates that expire.
func (e *endpoint) currentAddr(a Addr) Addr {
	e.mu.Lock()
	defer e.Unlock()
	if e.shut {
		return a
	}
	l := e.findSessionLocked(a)
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
			return a // the operation will fail with the same error
		}
		l = n
	case l.checkHostLocked(a) != nil:
		return a
	}
	// The address is bound only if necessary, because an operation with a bound address fails if that
	// session is closed.
	if !l.Up() || l.proof == nil || l.proof.Expires.IsZero() {
		return a
	}
	return l.addr()
}

// Current returns the address to use for all operations of one request. A session with certificates
// may retire between two of the operations. The returned address is therefore bound to the current
// session with the peer, which those operations may use even after it has retired. If the peer's
// session uses no certificates or is not up, Current returns to.
func (c upper) Current(to Addr) Addr {
	if c.Closing() {
		return to
	}
	return c.ep.currentAddr(to)
}
