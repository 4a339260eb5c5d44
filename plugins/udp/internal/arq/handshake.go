package arq

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"maps"
	"net/netip"
	"time"
)

const (
	cookieSize   = 16
	greetingSize = 60
	cookieEpoch  = 16 * time.Second // a cookie is good for this long, and up to as long again
	cookiesUsed  = 1 << 13          // that are known
	halfTimeout  = 2 * time.Second  // an admitted peer that shows nothing by then is forgotten
	mostWords    = 256
	firstCredit  = 32 // packets that a peer may send at first
	isSelective  = 1  // bit of the profile: takes packets out of order, and says which
)

// MaxHello bounds what Upper.Hello appends in bytes: the answer to a HELLO is never longer than that.
const MaxHello = BaseSize - headSize - greetingSize

// A dialer is what repeats HELLO.
type dialer struct {
	cookie  [cookieSize]byte
	due     time.Duration
	session uint64
	tries   int
	send    bool
}

// A greeting is the front of the body of HELLO and ACCEPT.
type greeting struct {
	id, token uint32 // what packets to the sender are to carry
	session   uint64 // of the dialing side
	first     [2]uint32
	window    [2]uint32 // how many packets the sender takes at first
	size      uint32    // the largest datagram that it receives
	profile   uint16
	cookie    [cookieSize]byte
	oldest    uint8 // versions of packets that the sender speaks
	newest    uint8
	hello     []byte
}

func (g *greeting) append(b []byte) []byte {
	le := binary.LittleEndian
	b = le.AppendUint64(le.AppendUint32(le.AppendUint32(b, g.id), g.token), g.session)
	for i := range g.first {
		b = le.AppendUint32(le.AppendUint32(b, g.first[i]), g.window[i])
	}
	b = le.AppendUint16(le.AppendUint32(b, g.size), g.profile)
	b = le.AppendUint16(b, uint16(len(g.hello)))
	b = append(append(b, g.cookie[:]...), g.oldest, g.newest)
	return append(le.AppendUint16(b, greetingSize), g.hello...)
}

// parseGreeting decodes a body, which has at least greetingSize bytes. What follows it is padding. What a later release has put between what is
// known here and the engine's HELLO is skipped.
func parseGreeting(b []byte) (g greeting, ok bool) {
	le := binary.LittleEndian
	g = greeting{id: le.Uint32(b), token: le.Uint32(b[4:]), session: le.Uint64(b[8:]),
		first:  [2]uint32{le.Uint32(b[16:]), le.Uint32(b[24:])},
		window: [2]uint32{le.Uint32(b[20:]), le.Uint32(b[28:])},
		size:   le.Uint32(b[32:]), profile: le.Uint16(b[36:])}
	copy(g.cookie[:], b[40:])
	g.oldest, g.newest = b[56], b[57]
	n, front := int(le.Uint16(b[38:])), int(le.Uint16(b[58:]))
	if front < greetingSize || n > len(b)-front || g.oldest == 0 || g.oldest > g.newest || g.size < BaseSize || g.window[0] > maxAhead || g.window[1] > maxAhead {
		return g, false
	}
	g.hello = b[front : front+n]
	return g, true
}

// greeting is what a says of itself.
func (a *Assoc) greeting() greeting {
	m := a.m
	hello := m.up.Hello(a, nil)
	if len(hello) > MaxHello {
		panic("arq: a hello longer than MaxHello")
	}
	g := greeting{id: a.id, token: a.token, size: uint32(m.cfg.Size), oldest: m.cfg.oldest, newest: m.cfg.newest, hello: hello}
	for i := range a.lane {
		g.first[i], g.window[i] = a.lane[i].una, min(firstCredit, a.creditBeyond(i))
	}
	if m.cfg.Profile == Modern {
		g.window[0] = uint32(m.divideBuffer().restart)
		g.profile = isSelective
	}
	return g
}

// learn takes what the peer says of itself.
func (a *Assoc) learn(g *greeting) {
	a.peerID, a.peerToken = g.id, g.token
	version, _ := a.m.cfg.agree(g)
	a.form = formOf(version)
	for i := range a.lane {
		l := &a.lane[i]
		l.rcv, l.granted, l.edge = g.first[i], g.first[i]+firstCredit, l.una+g.window[i]
		l.promised = l.rcv + uint32(a.m.divideBuffer().restart)
	}
	a.restart = uint16(g.window[0])
	a.selective = g.profile&isSelective != 0 && a.m.cfg.Profile == Modern
	a.most = uint16(min(uint32(a.most), g.size, MaxSize))
}

// agree returns the newest version that this side and the peer speak; ok is false if there is none.
func (c *Config) agree(g *greeting) (version uint8, ok bool) {
	version = min(c.newest, g.newest)
	return version, version >= max(c.oldest, g.oldest)
}

func (m *Machine) newAssoc(to netip.AddrPort, path Path, user any) *Assoc {
	most := uint16(min(max(path.Size-m.cfg.Overhead, BaseSize), MaxSize-m.cfg.Overhead))
	a := &Assoc{m: m, User: user, to: to, mtu: BaseSize, most: most, local: path.Local, cwnd: firstWindow, slowStart: true}
	m.enter(a)
	return a
}

// ErrFull is the error of Dial when there are MaxPeers associations.
var ErrFull = errors.New("arq: as many associations as are allowed")

// Dial asks a context of the peer at to for an association. Upper.Greet is called with its answer, or Ended.
func (m *Machine) Dial(now time.Duration, to netip.AddrPort, context uint8, path Path, user any) (*Assoc, error) {
	if m.full() {
		return nil, ErrFull
	}
	a := m.newAssoc(to, path, user)
	a.peerID = contextID(context)
	d := &a.takeFlight().dial
	d.session, d.send = m.cfg.Session(), true
	d.due = now + m.cfg.InitialRTO
	m.wake(a)
	return a, nil
}

// redial repeats HELLO.
func (a *Assoc) redial(now time.Duration) {
	d, c := &a.flight.dial, &a.m.cfg
	if now < d.due {
		return
	}
	if d.tries++; d.tries > c.DialRetries {
		a.endSilent(false)
		return
	}
	d.send, d.due = true, now+min(c.InitialRTO<<min(d.tries, 16), c.MaxRTO)
}

// emitHello makes a HELLO, padded, so that no answer to it needs to be longer.
func (a *Assoc) emitHello(now time.Duration, o *Out) bool {
	d := &a.flight.dial
	if a.state != dialing || !d.send {
		return false
	}
	d.send = false
	g := a.greeting()
	g.session, g.cookie = d.session, d.cookie
	p := Packet{kind: kindHello, id: a.peerID, ts: clock(now)}
	b := g.append(p.append(make([]byte, 0, BaseSize)))
	if len(b) < BaseSize {
		b = b[:BaseSize]
	}
	seal(b)
	*o = Out{Head: b[:headSize], Body: b[headSize:]}
	return true
}

// cookie is proof that who shows it receives at from. It needs no memory here.
func (m *Machine) cookie(from netip.AddrPort, g *greeting, epoch time.Duration) (c [cookieSize]byte) {
	mac := hmac.New(sha256.New, m.secret[:])
	addr := from.Addr().As16()
	mac.Write(addr[:])
	le := binary.LittleEndian
	b := le.AppendUint16(nil, from.Port())
	b = le.AppendUint64(le.AppendUint32(le.AppendUint32(b, g.id), g.token), g.session)
	mac.Write(le.AppendUint64(b, uint64(epoch)))
	copy(c[:], mac.Sum(nil))
	return c
}

func (m *Machine) askCookie(now time.Duration, from netip.AddrPort, via uint8, g *greeting) {
	m.stats.Cookies++
	c := m.cookie(from, g, now/cookieEpoch)
	m.tell(from, via, nil, Packet{kind: kindCookie, id: g.id, token: g.token, ts: clock(now)}, c[:])
}

// verify reports whether g shows a cookie that is still good, and has begun no association.
func (m *Machine) verify(now time.Duration, from netip.AddrPort, g *greeting) bool {
	if _, used := m.cookies[g.cookie]; used || g.cookie == ([cookieSize]byte{}) {
		return false
	}
	for _, epoch := range [...]time.Duration{now / cookieEpoch, now/cookieEpoch - 1} {
		if c := m.cookie(from, g, epoch); hmac.Equal(c[:], g.cookie[:]) {
			return true
		}
	}
	return false
}

// useCookie notes that a cookie, which is good, has begun an association: HELLO sent again by somebody else begins no other. Where more are used
// while they are good than can be noted, all that were made before become void.
func (m *Machine) useCookie(now time.Duration, c [cookieSize]byte) {
	if c == ([cookieSize]byte{}) {
		return
	}
	if len(m.cookies) >= cookiesUsed {
		maps.DeleteFunc(m.cookies, func(_ [cookieSize]byte, at time.Duration) bool { return now-at > 2*cookieEpoch })
	}
	if len(m.cookies) >= cookiesUsed {
		clear(m.cookies)
		m.cfg.Rand(m.secret[:])
	}
	if m.cookies == nil {
		m.cookies = map[[cookieSize]byte]time.Duration{}
	}
	m.cookies[c] = now
}

// hello takes the wish for an association. Who knows something of its address, or has many such wishes, asks for a cookie first,
// so that a forged one changes nothing.
func (m *Machine) hello(now time.Duration, from netip.AddrPort, p *Packet) {
	g, ok := parseGreeting(p.body)
	if !ok || headSize+len(p.body) < BaseSize {
		m.stats.Invalid++
		return
	}
	if _, ok := m.cfg.agree(&g); !ok {
		m.stats.Invalid++
		if m.cfg.WrongVersion != nil {
			m.refuse(from, p.Via, nil, g.id, g.token, m.cfg.WrongVersion(g.oldest, g.newest))
		}
		return
	}
	var calling *Assoc
	// From one address come the associations of several contexts, of an earlier life of the process, and what somebody else forges.
	known := false
	for a := m.at(from); a != nil; a = m.older(a) {
		known = true
		if contextOf(a.peerID) != contextOf(g.id) {
			continue // of another context of the same process
		}
		switch {
		case a.state == dialing: // both sides dial at the same moment
			calling = a
		case a.peerID == g.id && a.peerToken == g.token:
			if a.Up() { // else the user has left
				m.accept(now, a, &g) // again: the first may be lost
			}
			return
		case a.session >= g.session && a.session != 0:
			m.stats.Stale++ // sent before the association that is there: the network has kept it
			return
		}
	}
	if m.shut || calling == nil && m.full() {
		m.stats.Dropped++
		return
	}
	// Nothing is kept for a peer that has not shown that it receives at its address, beyond HalfOpen of them: the cookie is computed anew
	// from what it says (as SYN cookies are, RFC 4987 3.6, and the tokens of RFC 9000 8.1.2).
	verified := m.cfg.Proven || m.verify(now, from, &g)
	if !verified && (known || m.stats.HalfOpen >= m.cfg.HalfOpen) {
		m.askCookie(now, from, p.Via, &g)
		return
	}
	adm := m.up.Admit(from, g.hello, verified, calling)
	switch {
	case adm.Cookie && !verified:
		m.askCookie(now, from, p.Via, &g)
	case adm.Crossing && calling != nil && verified && calling.state == dialing:
		calling.session = g.session
		m.useCookie(now, g.cookie)
		m.accept(now, calling, &g)
		calling.answered(now, &g)
	case adm.User != nil:
		a := m.newAssoc(from, adm.Path, adm.User)
		a.session, a.via = g.session, p.Via
		a.learn(&g)
		m.accept(now, a, &g)
		if verified { // it receives: larger packets may be tried
			m.useCookie(now, g.cookie)
			a.state = open
			a.path(now)
		} else {
			a.state = half
			a.takeFlight().finDue = now + halfTimeout
			m.stats.HalfOpen++
		}
		m.wake(a)
	case len(adm.Words) > 0:
		m.refuse(from, p.Via, nil, g.id, g.token, adm.Words)
	}
}

// accept answers a HELLO.
func (m *Machine) accept(now time.Duration, a *Assoc, to *greeting) {
	g := a.greeting()
	g.session = to.session
	m.tell(a.to, a.via, a, Packet{kind: kindAccept, id: to.id, token: to.token, ts: clock(now)}, g.append(nil))
}

// TurnAway is the answer to a HELLO without a Machine: words, up to 256 bytes. Other packets have none.
func TurnAway(p *Packet, words []byte) []byte {
	if p.kind != kindHello {
		return nil
	}
	g, ok := parseGreeting(p.body)
	if !ok {
		return nil
	}
	answer := Packet{kind: kindRefuse, id: g.id, token: g.token}
	b := append(answer.append(nil), words[:min(len(words), mostWords)]...)
	seal(b)
	return b
}

func (m *Machine) refuse(to netip.AddrPort, via uint8, a *Assoc, id, token uint32, words []byte) {
	m.tell(to, via, a, Packet{kind: kindRefuse, id: id, token: token}, words[:min(len(words), mostWords)])
}

// dialed takes an answer to our HELLO.
func (a *Assoc) dialed(now time.Duration, p *Packet) {
	if a.state != dialing {
		return // repeated
	}
	d := &a.flight.dial
	if p.kind == kindCookie {
		copy(d.cookie[:], p.body)
		d.send = true
		return
	}
	g, ok := parseGreeting(p.body)
	if _, speaks := a.m.cfg.agree(&g); !ok || !speaks || g.session != d.session {
		a.m.stats.Invalid++
		return
	}
	if a.m.cfg.Profile == Modern { // its clock goes back with PING: then the peer knows the round trip, too
		a.heardClock(now, p)
	}
	a.answered(now, &g)
}

// answered is the end of dialing. Until something else comes from the peer it does not know that we have heard it: so it is pinged.
func (a *Assoc) answered(now time.Duration, g *greeting) {
	a.learn(g)
	a.state = open
	f := a.flight
	f.dial = dialer{}
	a.path(now)
	f.ping.confirm, f.ping.plain = true, true
	f.ping.due = now + a.rto()
	a.m.wake(a)
	if err := a.m.up.Greet(a, g.hello); err != nil {
		a.m.leave(a)
	}
}
