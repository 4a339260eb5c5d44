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
	cookieSize     = 16
	greetingSize   = 60
	cookieEpoch    = 16 * time.Second // a cookie is valid for one to two epochs
	maxUsedCookies = 1 << 13          // maximum number of used cookies to remember
	halfTimeout    = 2 * time.Second  // time after which a half-open association ends if no packet arrives from the peer
	maxWords       = 256              // maximum size in bytes of an association's last message
	firstCredit    = 32               // number of packets that a peer may send before the first acknowledgment
	isSelective    = 1                // bit of the profile: the sender acknowledges selectively
)

// MaxHello is the maximum number of bytes that Upper.Hello may append. It ensures that the reply to
// a HELLO is never longer than the HELLO.
const MaxHello = BaseSize - headSize - greetingSize

// A dialer holds the state of a dial, which repeats HELLO until it is answered.
type dialer struct {
	cookie  [cookieSize]byte
	due     time.Duration // time at which HELLO is repeated
	session uint64
	tries   int
	send    bool // whether a HELLO must be sent now
}

// A greeting is the first part of the body of HELLO and ACCEPT.
type greeting struct {
	id, token uint32    // identify the sender's association; carried by packets to the sender
	session   uint64    // session number of the dialing side
	first     [2]uint32 // first packet number of each lane
	window    [2]uint32 // number of packets that the sender accepts before its first acknowledgment
	size      uint32    // size of the largest datagram that the sender receives
	profile   uint16
	cookie    [cookieSize]byte
	oldest    uint8 // oldest packet version that the sender supports
	newest    uint8 // newest packet version that the sender supports
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

// parseGreeting decodes a body, which must have at least greetingSize bytes and may end with
// padding. It skips any fields of a later release between the known ones and the HELLO of package
// na.
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

// greeting returns the greeting that a sends.
func (a *Assoc) greeting() greeting {
	m := a.m
	hello := m.up.Hello(a, nil)
	if len(hello) > MaxHello {
		panic("arq: hello exceeds MaxHello")
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

// learn stores the parameters of the peer's greeting in a.
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

// agree returns the newest packet version that both this side and the sender of g support. ok is
// false if there is none.
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

// ErrFull is returned by Dial if there are MaxPeers associations.
var ErrFull = errors.New("arq: too many associations")

// Dial starts an association with the given context of the peer at address to. It passes the peer's
// answer to Upper.Greet, or calls Upper.Ended if the peer does not answer.
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

// redial repeats HELLO if its timer has expired. After DialRetries timeouts it fails the dial.
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

// emitHello stores a HELLO in o, if one must be sent now, and reports whether it did. A HELLO is
// padded to BaseSize, so that no reply is longer than the HELLO.
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

// cookie returns the cookie that a peer at address from must present in a HELLO with greeting g
// during epoch. By presenting it, the peer shows that it receives at from. The cookie is computed
// from the HELLO, so that this side keeps no state for the peer.
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

// sendCookie answers a HELLO with a cookie, which the peer must return.
func (m *Machine) sendCookie(now time.Duration, from netip.AddrPort, via uint8, g *greeting) {
	m.stats.Cookies++
	c := m.cookie(from, g, now/cookieEpoch)
	m.sendOnce(from, via, nil, Packet{kind: kindCookie, id: g.id, token: g.token, ts: clock(now)}, c[:])
}

// verify reports whether g contains a cookie that is valid for the address from and has not been
// used.
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

// useCookie records that a valid cookie has started an association, so that a copied HELLO cannot
// start another one. If more than maxUsedCookies valid cookies have been used, useCookie
// invalidates all earlier cookies.
func (m *Machine) useCookie(now time.Duration, c [cookieSize]byte) {
	if c == ([cookieSize]byte{}) {
		return
	}
	if len(m.cookies) >= maxUsedCookies {
		maps.DeleteFunc(m.cookies, func(_ [cookieSize]byte, at time.Duration) bool { return now-at > 2*cookieEpoch })
	}
	if len(m.cookies) >= maxUsedCookies {
		clear(m.cookies)
		m.cfg.Rand(m.secret[:])
	}
	if m.cookies == nil {
		m.cookies = map[[cookieSize]byte]time.Duration{}
	}
	m.cookies[c] = now
}

// handleHello handles a HELLO. If there is an association with the same address, or if there are
// many half-open associations, it requires a cookie, so that a HELLO with a forged source address
// has no effect.
func (m *Machine) handleHello(now time.Duration, from netip.AddrPort, p *Packet) {
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
	// An address may have associations of several contexts and of an earlier process, and may be
	// the forged source address of a packet.
	known := false
	for a := m.at(from); a != nil; a = m.older(a) {
		known = true
		if contextOf(a.peerID) != contextOf(g.id) {
			continue // belongs to another context of the same process
		}
		switch {
		case a.state == dialing: // both sides are dialing each other
			calling = a
		case a.peerID == g.id && a.peerToken == g.token:
			if a.Up() {
				m.accept(now, a, &g) // repeat it, because the first ACCEPT may be lost
			}
			return
		case a.session >= g.session && a.session != 0:
			m.stats.Stale++ // the HELLO is older than the association: it was delayed in the network
			return
		}
	}
	if m.shut || calling == nil && m.full() {
		m.stats.Dropped++
		return
	}
	// If there are more than HalfOpen half-open associations, no state is kept for a peer that has
	// not shown that it receives at its address. Its cookie is computed from its HELLO (compare SYN
	// cookies, RFC 4987, Section 3.6, and the tokens of RFC 9000, Section 8.1.2).
	verified := m.cfg.Proven || m.verify(now, from, &g)
	if !verified && (known || m.stats.HalfOpen >= m.cfg.HalfOpen) {
		m.sendCookie(now, from, p.Via, &g)
		return
	}
	adm := m.up.Admit(from, g.hello, verified, calling)
	switch {
	case adm.Cookie && !verified:
		m.sendCookie(now, from, p.Via, &g)
	case adm.Crossing && calling != nil && verified && calling.state == dialing:
		calling.session = g.session
		m.useCookie(now, g.cookie)
		m.accept(now, calling, &g)
		calling.finishDial(now, &g)
	case adm.User != nil:
		a := m.newAssoc(from, adm.Path, adm.User)
		a.session, a.via = g.session, p.Via
		a.learn(&g)
		m.accept(now, a, &g)
		if verified { // the peer receives at this address: probe for larger datagrams
			m.useCookie(now, g.cookie)
			a.state = open
			a.probePath(now)
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

// accept sends an ACCEPT for a in answer to a HELLO with greeting to.
func (m *Machine) accept(now time.Duration, a *Assoc, to *greeting) {
	g := a.greeting()
	g.session = to.session
	m.sendOnce(a.to, a.via, a, Packet{kind: kindAccept, id: to.id, token: to.token, ts: clock(now)}, g.append(nil))
}

// TurnAway returns a datagram that rejects the HELLO p with the message words, which may be up to
// 256 bytes long. It returns nil if p is not a HELLO. It can be used without a Machine.
func TurnAway(p *Packet, words []byte) []byte {
	if p.kind != kindHello {
		return nil
	}
	g, ok := parseGreeting(p.body)
	if !ok {
		return nil
	}
	answer := Packet{kind: kindRefuse, id: g.id, token: g.token}
	b := append(answer.append(nil), words[:min(len(words), maxWords)]...)
	seal(b)
	return b
}

// refuse queues a REFUSE packet for the peer at the address to, with words as its message.
func (m *Machine) refuse(to netip.AddrPort, via uint8, a *Assoc, id, token uint32, words []byte) {
	m.sendOnce(to, via, a, Packet{kind: kindRefuse, id: id, token: token}, words[:min(len(words), maxWords)])
}

// handleDialAnswer handles an ACCEPT or COOKIE that answers this side's HELLO.
func (a *Assoc) handleDialAnswer(now time.Duration, p *Packet) {
	if a.state != dialing {
		return // a repeated answer
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
	if a.m.cfg.Profile == Modern { // PING echoes the timestamp, so that the peer can also measure the round-trip time
		a.noteTimestamp(now, p)
	}
	a.finishDial(now, &g)
}

// finishDial opens the association with the parameters of the peer's greeting g. It makes a send
// PINGs until a packet from the peer arrives, because only a packet from this side shows the peer
// that its ACCEPT was received.
func (a *Assoc) finishDial(now time.Duration, g *greeting) {
	a.learn(g)
	a.state = open
	f := a.flight
	f.dial = dialer{}
	a.probePath(now)
	f.ping.confirm, f.ping.plain = true, true
	f.ping.due = now + a.rto()
	a.m.wake(a)
	if err := a.m.up.Greet(a, g.hello); err != nil {
		a.m.leave(a)
	}
}
