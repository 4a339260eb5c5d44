package udp

import (
	"cmp"
	"context"
	"crypto/aes"
	"crypto/cipher"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"encoding/binary"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/quicksilver-rpc/quicksilver/internal/frame"
	"github.com/quicksilver-rpc/quicksilver/na/codes"
	"github.com/quicksilver-rpc/quicksilver/plugins/internal/secure"
	"github.com/quicksilver-rpc/quicksilver/plugins/udp/internal/arq"
	"github.com/quicksilver-rpc/quicksilver/plugins/udp/internal/protect"
)

// With TLS every datagram is one of these. What protects them is RFC 9001, and the first byte is that of RFC 9000 17.2 and 17.3. ids are
// of the receiver and of the sender; the first byte of the receiver's is the context.
//
//	short  01-- -Kpp  id 8                             number 4  a packet of arq, or of a change of address  tag 16
//	long   11TT --pp  version 4  id 8  id 8  token 1+n  number 4  a message of the handshake                  tag 16
//
// T: 0 Initial; without a token it asks for one, in the clear. 1 a word in the clear: there is no TLS, or no such connection, here.
// 2 Handshake. 3 Retry: the token, and as the sender's id the one to use with it.
const (
	wireVersion = 0x51530002

	shortSize = 1 + idSize // before the number
	longSize  = 1 + 4 + 2*idSize + 1
	idSize    = 8

	protectHead = shortSize + protect.NumberSize // before the payload of a short packet
	overhead    = protectHead + protect.TagSize

	initial byte = 0
	word    byte = 1
	proving byte = 2 // Handshake
	retry   byte = 3

	nonceSize = 12
	tokenSize = nonceSize + 16 + 16 // nonce, time and id, tag
	tokenLife = 10 * time.Second    // from its making to the first packet that shows it
	mostUsed  = 1 << 14             // tokens that were used, and are known
	askSize   = 256                 // no answer to it is longer

	mostGuests       = 256         // handshakes with peers that have begun them
	guestSilence     = time.Second // whom we have waited for so long makes room where others wait
	handshakeTimeout = 5 * time.Second
)

// What a short packet carries that is not for arq. It begins with this, which no version of arq's packets does, and goes on with 8 bytes:
// RFC 9000 8.2.
const (
	challenge byte = 0xf0
	response  byte = 0xf1
)

// A tlsAcceptor is the TLS of a class.
type tlsAcceptor struct {
	cfg  *tls.Config
	log  *slog.Logger
	ids  []byte // key of idFor
	most uint64 // packets with one key; 0: what package protect says

	mu     sync.Mutex                        // guards the fields below; the last lock
	guests []*halfOpen                       // in the order in which they came
	tokens cipher.AEAD                       // what seals tokens
	used   map[[nonceSize]byte]time.Duration // the tokens that have begun a handshake, and when that was
}

// A halfOpen is a handshake with a peer that has begun it.
type halfOpen struct {
	from  netip.Addr
	since time.Duration // we wait for it; 0: it waits for us
	end   context.CancelFunc
	shown bool // out, and its goroutine has not come back
}

// admitHandshake takes a guest in, or returns nil: it will ask again, and one that is silent has perhaps made room by then. One address gets half of the
// room at most, as does a network of IPv6 with all its addresses.
func (g *tlsAcceptor) admitHandshake(from netip.Addr, now time.Duration) *halfOpen {
	if from.Is6() {
		net, _ := from.Prefix(64) // never fails
		from = net.Addr()
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	same := 0
	for _, other := range g.guests {
		if other.from == from {
			same++
		}
	}
	if len(g.guests) < mostGuests && same < mostGuests/2 {
		it := &halfOpen{from: from, end: func() {}}
		g.guests = append(g.guests, it)
		return it
	}
	for _, other := range g.guests {
		if !other.shown && other.since != 0 && now-other.since >= guestSilence && (same < mostGuests/2 || other.from == from) {
			other.shown = true
			other.end()
			break
		}
	}
	return nil
}

// noteWaiting notes that we have heard what a guest has said, and wait for more.
func (g *tlsAcceptor) noteWaiting(it *halfOpen, now time.Duration) {
	g.mu.Lock()
	defer g.mu.Unlock()
	it.since = now
}

// removeHandshake takes it out.
func (g *tlsAcceptor) removeHandshake(it *halfOpen) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.guests = slices.DeleteFunc(g.guests, func(other *halfOpen) bool { return other == it })
}

// newGuard returns nil when there is to be no TLS.
func newGuard(cfg *tls.Config, log *slog.Logger) (*tlsAcceptor, error) {
	if cfg == nil {
		return nil, nil
	}
	g := &tlsAcceptor{cfg: cfg, log: log, ids: make([]byte, 32)}
	_, _ = rand.Read(g.ids) // never fails
	return g, g.newTokens()
}

// newTokens makes another key for tokens: those that were made before are good for nothing. Locked, or before anybody else knows g.
func (g *tlsAcceptor) newTokens() error {
	var key [32]byte
	_, _ = rand.Read(key[:])
	block, err := aes.NewCipher(key[:])
	if err != nil {
		return err
	}
	g.used = map[[nonceSize]byte]time.Duration{}
	g.tokens, err = cipher.NewGCM(block)
	return err
}

func randomUint64() uint64 {
	var b [8]byte
	_, _ = rand.Read(b[:])
	return binary.BigEndian.Uint64(b[:])
}

// newID returns a connection id for a context.
func newID(context uint8) uint64 { return randomUint64()>>8 | uint64(context)<<56 }

// A longHeader is that of a long packet. It is the same in all versions.
type longHeader struct {
	version  uint32 // 0: wireVersion
	kind     byte
	to, from uint64
	token    []byte
	number   int // where the number begins, or what else follows
}

func (h *longHeader) appendTo(b []byte) []byte {
	b = append(b, 0xc0|h.kind<<4)
	b = binary.BigEndian.AppendUint32(b, cmp.Or(h.version, wireVersion))
	b = binary.BigEndian.AppendUint64(b, h.to)
	b = binary.BigEndian.AppendUint64(b, h.from)
	return append(append(b, byte(len(h.token))), h.token...)
}

// parseLong decodes the header of a long packet of our version, which points into b.
func parseLong(b []byte) (h longHeader, ok bool) {
	h, ok = parseAnyLong(b)
	return h, ok && h.version == wireVersion
}

// parseAnyLong decodes that of a long packet of any version.
func parseAnyLong(b []byte) (h longHeader, ok bool) {
	if len(b) < longSize || b[0]&0xc0 != 0xc0 {
		return h, false
	}
	h = longHeader{version: binary.BigEndian.Uint32(b[1:]), kind: b[0] >> 4 & 3, to: binary.BigEndian.Uint64(b[5:]), from: binary.BigEndian.Uint64(b[13:])}
	h.number = longSize + int(b[longSize-1])
	if len(b) < h.number {
		return h, false
	}
	h.token = b[longSize:h.number]
	return h, true
}

// idFor is our connection id for who asks for a token: the same if it asks again, so that its handshake is one however often it asks.
func (g *tlsAcceptor) idFor(at netip.AddrPort, h *longHeader) uint64 {
	mac := hmac.New(sha256.New, g.ids)
	mac.Write(binary.BigEndian.AppendUint64(logPrefix(at), h.from))
	return binary.BigEndian.Uint64(mac.Sum(nil))>>8 | h.to>>56<<56
}

// makeToken is proof that who shows it receives at an address. Nothing is kept for it.
func (g *tlsAcceptor) makeToken(at netip.AddrPort, now time.Duration, id uint64) []byte {
	b := make([]byte, nonceSize, tokenSize)
	_, _ = rand.Read(b)
	text := binary.BigEndian.AppendUint64(binary.BigEndian.AppendUint64(nil, uint64(now)), id)
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.tokens.Seal(b, b, text, logPrefix(at))
}

// checkToken reports whether a token is ours, for that address and id, not too old, and was not used.
func (g *tlsAcceptor) checkToken(token []byte, at netip.AddrPort, now time.Duration, id uint64) bool {
	if len(token) != tokenSize {
		return false
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	text, err := g.tokens.Open(nil, token[:nonceSize], token[nonceSize:], logPrefix(at))
	if err != nil || binary.BigEndian.Uint64(text[8:]) != id {
		return false
	}
	_, used := g.used[[nonceSize]byte(token)]
	made := time.Duration(binary.BigEndian.Uint64(text))
	return !used && now-made <= tokenLife
}

// useToken notes that a token, which is good, begins a handshake: it begins no other. Where more are used within tokenLife than can be noted all
// that were made before become void.
func (g *tlsAcceptor) useToken(token []byte, now time.Duration) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if len(g.used) >= mostUsed {
		maps.DeleteFunc(g.used, func(_ [nonceSize]byte, at time.Duration) bool { return now-at > tokenLife })
	}
	if len(g.used) >= mostUsed {
		_ = g.newTokens() // never fails
	}
	g.used[[nonceSize]byte(token)] = now
}

func logPrefix(at netip.AddrPort) []byte {
	a := at.Addr().As16()
	return binary.BigEndian.AppendUint16(a[:], at.Port())
}

// filterDatagram takes a datagram where there is TLS, and reports whether it is one for arq, which a.b is then. With the shared socket's lock.
func (d *sharedSocket) filterDatagram(a *inboundDatagram) bool {
	b := a.b
	switch {
	case len(b) == 0:
	case b[0]&0xc0 == 0x40:
		return d.unprotectShort(a)
	case b[0]&0xc0 == 0xc0:
		d.handleLong(a)
	default:
		if p, err := arq.Parse(b); err == nil {
			d.reply(a, arq.TurnAway(&p, frame.ByeOf(secure.WantsTLS(scheme)).Words()))
		}
	}
	return false
}

// unprotectShort takes the protection off a short packet.
func (d *sharedSocket) unprotectShort(a *inboundDatagram) bool {
	b := a.b
	if len(b) < overhead+1 {
		return false
	}
	id := binary.BigEndian.Uint64(b[1:])
	k := d.latest
	if k == nil || k.id != id || !k.up.Load() {
		k = d.findConn(id)
		d.latest = k
	}
	if k == nil {
		h := longHeader{kind: word, from: id}
		d.reply(a, h.appendTo(nil))
		return false
	}
	if !k.up.Load() {
		return false
	}
	payload, ok := k.opener.Open(b, shortSize)
	if !ok || len(payload) == 0 {
		return false
	}
	k.confirmAccepted()
	a.b, a.conn = payload, k
	return true
}

// handleLong takes a long packet.
func (d *sharedSocket) handleLong(a *inboundDatagram) {
	h, ok := parseAnyLong(a.b)
	if !ok {
		return
	}
	if h.version != wireVersion {
		if h.kind == initial && len(h.token) == 0 {
			d.refuseVersion(a, &h)
		}
		return
	}
	if h.kind == word && h.to == 0 { // somebody has no such connection: a hint, as the system's that nobody is there
		if k := d.findPeer(h.from); k != nil {
			a.conn = k
			d.hints = append(d.hints, *a)
		}
		return
	}
	k := d.findConn(h.to)
	switch {
	case k != nil || h.kind != initial:
	case d.guard.checkToken(h.token, a.from, d.now(), h.to):
		k = d.newGuest(a, &h)
	default: // none, or one that was used, perhaps by somebody else
		d.askToken(a, &h)
	}
	if k != nil && len(a.b) <= arq.BaseSize && !k.over.Load() {
		select {
		case k.in <- append([]byte(nil), a.b...):
		default: // it will come again
		}
	}
}

// askToken answers who wants a token. Nothing is kept.
func (d *sharedSocket) askToken(a *inboundDatagram, h *longHeader) {
	id := d.guard.idFor(a.from, h)
	answer := longHeader{kind: retry, to: h.from, from: id, token: d.guard.makeToken(a.from, d.now(), id)}
	d.reply(a, answer.appendTo(nil))
}

// refuseVersion answers a datagram that asks for a handshake of another version, in that version. A release speaks one: see WIRE.md.
func (d *sharedSocket) refuseVersion(a *inboundDatagram, h *longHeader) {
	answer := longHeader{version: h.version, kind: word, to: h.from, from: h.to}
	older := "dialing"
	if h.version > wireVersion {
		older = "listening"
	}
	words := frame.ByeOf(codes.WithText(codes.ErrVersion, fmt.Sprintf(
		"no common version of TLS over udp: the dialing side speaks %#x, the listening side %#x; upgrade the %s side", h.version, wireVersion, older))).Words()
	d.reply(a, append(answer.appendTo(nil), words...))
}

// reply answers a datagram with one that is not longer.
func (d *sharedSocket) reply(a *inboundDatagram, b []byte) {
	if len(b) > 0 && len(b) <= len(a.b) && d.sock != nil {
		_ = sendOne(d.sock, b, a.from, a.via)
	}
}

// replyNoTLS answers a datagram that asks for TLS where there is none.
func (d *sharedSocket) replyNoTLS(a *inboundDatagram) {
	if h, ok := parseLong(a.b); ok && h.kind == initial && len(h.token) == 0 {
		answer := longHeader{kind: word, to: h.from, from: h.to}
		words := frame.ByeOf(secure.WantsPlain(scheme)).Words()
		d.reply(a, append(answer.appendTo(nil), words...))
	}
}

// findConn returns the connection with that id of ours, or nil; findPeer the one with that id of the peer's.
func (d *sharedSocket) findConn(id uint64) *conn {
	d.table.RLock()
	defer d.table.RUnlock()
	return d.byID[id]
}

func (d *sharedSocket) findPeer(id uint64) *conn {
	d.table.RLock()
	defer d.table.RUnlock()
	return d.byPeer[id]
}

// addConn has the datagrams for k given to it, strike no more.
func (d *sharedSocket) addConn(k *conn) {
	d.table.Lock()
	defer d.table.Unlock()
	if d.byID == nil {
		d.byID, d.byPeer = map[uint64]*conn{}, map[uint64]*conn{}
	}
	d.byID[k.id] = k
}

func (d *sharedSocket) removeConn(k *conn) {
	d.table.Lock()
	defer d.table.Unlock()
	delete(d.byID, k.id)
	if d.byPeer[k.peer] == k {
		delete(d.byPeer, k.peer)
	}
	k.up.Store(false)
	k.cancel()
}

// strikeAll is called when c leaves.
func (d *sharedSocket) strikeAll(c *contextCarrier) {
	d.table.RLock()
	var all []*conn
	for _, k := range d.byID {
		if k.c == c {
			all = append(all, k)
		}
	}
	d.table.RUnlock()
	for _, k := range all {
		d.removeConn(k)
	}
}
