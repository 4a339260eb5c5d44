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

// With TLS every datagram has one of the two formats below. The size of each field is given in
// bytes. Packets are protected as in RFC 9001. The bits of the first byte are those of RFC 9000,
// Sections 17.2 and 17.3. A short packet contains the receiver's connection ID, and a long packet
// the receiver's followed by the sender's. The first byte of an ID is the number of its owner's
// context.
//
//	short  01-- -Kpp  id 8                             number 4  a packet of arq, or of a change of address  tag 16
//	long   11TT --pp  version 4  id 8  id 8  token 1+n  number 4  a message of the handshake                  tag 16
//
// The values of T are:
//
//	0  Initial. Without a token it requests one, unencrypted.
//	1  Unencrypted notice: the receiver has no TLS, or has no such connection.
//	2  Handshake.
//	3  Retry. It carries the token and, as the sender's ID, the ID to use with the token.
const (
	wireVersion = 0x51530002

	shortSize = 1 + idSize // number of bytes before the packet number
	longSize  = 1 + 4 + 2*idSize + 1
	idSize    = 8

	protectHead = shortSize + protect.NumberSize // number of bytes before the payload of a short packet
	overhead    = protectHead + protect.TagSize

	initial     byte = 0
	notice      byte = 1
	handshaking byte = 2
	retry       byte = 3

	nonceSize     = 12
	tokenSize     = nonceSize + 16 + 16 // nonce, time and connection ID, tag
	tokenLife     = 10 * time.Second    // maximum age of a token when it is first used
	maxUsedTokens = 1 << 14             // maximum number of used tokens to remember
	// tokenRequestSize is the size to which a token request is padded, so that no reply to it is
	// longer. This prevents amplification.
	tokenRequestSize = 256

	maxHalfOpen      = 256         // maximum number of half-open connections (dialed by peers) of a class
	halfOpenSilence  = time.Second // time without a packet after which a half-open connection may be evicted
	handshakeTimeout = 5 * time.Second
)

// challenge and response are the first bytes of the path frames in short packets. They correspond
// to PATH_CHALLENGE and PATH_RESPONSE of RFC 9000, Section 8.2, and are followed by 8 bytes of
// data. No version of arq uses them as the first byte of a packet.
const (
	challenge byte = 0xf0
	response  byte = 0xf1
)

// A tlsAcceptor holds state shared by a class's connections with TLS: the configuration, the
// half-open connections dialed by peers, and the address tokens.
type tlsAcceptor struct {
	cfg       *tls.Config
	log       *slog.Logger
	ids       []byte // key used by idFor
	maxSealed uint64 // maximum number of packets sealed with one key; 0 means the limit of package protect

	mu       sync.Mutex                        // guards the fields below; no other lock is acquired while mu is held
	halfOpen []*halfOpen                       // half-open connections, oldest first
	tokens   cipher.AEAD                       // seals tokens
	used     map[[nonceSize]byte]time.Duration // used tokens, with the time at which each started a handshake
}

// A halfOpen is a handshake started by a peer.
type halfOpen struct {
	from netip.Addr // peer's address, or its /64 network for IPv6
	// time at which this side began to wait for the peer's next packet; 0 if it is not waiting
	waitingSince time.Duration
	cancel       context.CancelFunc // aborts the handshake
	// evicted reports whether the handshake was canceled to make room for another. Its goroutine
	// may still be running.
	evicted bool
}

// admitHandshake adds a half-open connection for a peer at address from, or returns nil if there
// are too many. If there are too many, it cancels one whose peer has been silent, so that there may
// be room when the new peer repeats its packet. A single IPv4 address or IPv6 /64 network may have
// at most half of the connections.
func (g *tlsAcceptor) admitHandshake(from netip.Addr, now time.Duration) *halfOpen {
	if from.Is6() {
		net, _ := from.Prefix(64) // never fails
		from = net.Addr()
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	same := 0
	for _, other := range g.halfOpen {
		if other.from == from {
			same++
		}
	}
	if len(g.halfOpen) < maxHalfOpen && same < maxHalfOpen/2 {
		it := &halfOpen{from: from, cancel: func() {}}
		g.halfOpen = append(g.halfOpen, it)
		return it
	}
	for _, other := range g.halfOpen {
		if !other.evicted && other.waitingSince != 0 && now-other.waitingSince >= halfOpenSilence && (same < maxHalfOpen/2 || other.from == from) {
			other.evicted = true
			other.cancel()
			break
		}
	}
	return nil
}

// noteWaiting records that the handshake has been waiting for the peer's next packet since now.
func (g *tlsAcceptor) noteWaiting(it *halfOpen, now time.Duration) {
	g.mu.Lock()
	defer g.mu.Unlock()
	it.waitingSince = now
}

// removeHandshake removes a handshake that has ended from the half-open connections.
func (g *tlsAcceptor) removeHandshake(it *halfOpen) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.halfOpen = slices.DeleteFunc(g.halfOpen, func(other *halfOpen) bool { return other == it })
}

// newTLSAcceptor returns the tlsAcceptor for a class, or nil if cfg is nil.
func newTLSAcceptor(cfg *tls.Config, log *slog.Logger) (*tlsAcceptor, error) {
	if cfg == nil {
		return nil, nil
	}
	g := &tlsAcceptor{cfg: cfg, log: log, ids: make([]byte, 32)}
	_, _ = rand.Read(g.ids) // never fails
	return g, g.newTokenKeyLocked()
}

// newTokenKeyLocked creates a new token key, which invalidates all earlier tokens. g.mu must be
// held.
func (g *tlsAcceptor) newTokenKeyLocked() error {
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

// newID returns a random connection ID whose first byte is the context's number.
func newID(context uint8) uint64 { return randomUint64()>>8 | uint64(context)<<56 }

// A longHeader is the header of a long packet. Its layout is the same in all versions.
type longHeader struct {
	version  uint32 // in appendTo, 0 means wireVersion
	kind     byte
	to, from uint64 // connection IDs of the receiver and of the sender
	token    []byte
	number   int // offset of the packet number, or of the payload in kinds without a packet number
}

func (h *longHeader) appendTo(b []byte) []byte {
	b = append(b, 0xc0|h.kind<<4)
	b = binary.BigEndian.AppendUint32(b, cmp.Or(h.version, wireVersion))
	b = binary.BigEndian.AppendUint64(b, h.to)
	b = binary.BigEndian.AppendUint64(b, h.from)
	return append(append(b, byte(len(h.token))), h.token...)
}

// parseLong decodes the header of a long packet that has version wireVersion. The token aliases b.
func parseLong(b []byte) (h longHeader, ok bool) {
	h, ok = parseAnyLong(b)
	return h, ok && h.version == wireVersion
}

// parseAnyLong decodes the header of a long packet of any version. The token aliases b.
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

// idFor returns this side's connection ID for a peer that requests a token. The ID depends only on
// the peer's address and the request's header, so that repeated requests result in a single
// handshake.
func (g *tlsAcceptor) idFor(at netip.AddrPort, h *longHeader) uint64 {
	mac := hmac.New(sha256.New, g.ids)
	mac.Write(binary.BigEndian.AppendUint64(addrBytes(at), h.from))
	return binary.BigEndian.Uint64(mac.Sum(nil))>>8 | h.to>>56<<56
}

// makeToken returns a token for a peer at the address at. By returning the token, the peer proves
// that it receives packets sent to that address. The token contains all that checkToken needs, so
// that this side keeps no state for the peer.
func (g *tlsAcceptor) makeToken(at netip.AddrPort, now time.Duration, id uint64) []byte {
	b := make([]byte, nonceSize, tokenSize)
	_, _ = rand.Read(b)
	text := binary.BigEndian.AppendUint64(binary.BigEndian.AppendUint64(nil, uint64(now)), id)
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.tokens.Seal(b, b, text, addrBytes(at))
}

// checkToken reports whether token was created by this class for the given address and connection
// ID, has not expired, and has not been used.
func (g *tlsAcceptor) checkToken(token []byte, at netip.AddrPort, now time.Duration, id uint64) bool {
	if len(token) != tokenSize {
		return false
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	text, err := g.tokens.Open(nil, token[:nonceSize], token[nonceSize:], addrBytes(at))
	if err != nil || binary.BigEndian.Uint64(text[8:]) != id {
		return false
	}
	_, used := g.used[[nonceSize]byte(token)]
	made := time.Duration(binary.BigEndian.Uint64(text))
	return !used && now-made <= tokenLife
}

// useToken records that a token has been used to start a handshake, so that it cannot be used
// again. If more than maxUsedTokens are used within tokenLife, useToken invalidates all earlier
// tokens.
func (g *tlsAcceptor) useToken(token []byte, now time.Duration) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if len(g.used) >= maxUsedTokens {
		maps.DeleteFunc(g.used, func(_ [nonceSize]byte, at time.Duration) bool { return now-at > tokenLife })
	}
	if len(g.used) >= maxUsedTokens {
		_ = g.newTokenKeyLocked() // never fails
	}
	g.used[[nonceSize]byte(token)] = now
}

// addrBytes returns the binary form of an address, for use as authenticated data.
func addrBytes(at netip.AddrPort) []byte {
	a := at.Addr().As16()
	return binary.BigEndian.AppendUint16(a[:], at.Port())
}

// filterDatagram handles a datagram for a class with TLS. It reports whether it has set a.b to the
// unprotected payload of a short packet. The caller must hold the shared socket's lock.
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

// unprotectShort decrypts a short packet in place and reports whether the packet is authentic. It
// answers a packet that has an unknown connection ID with a notice.
func (d *sharedSocket) unprotectShort(a *inboundDatagram) bool {
	b := a.b
	if len(b) < overhead+1 {
		return false
	}
	id := binary.BigEndian.Uint64(b[1:])
	k := d.lastConn
	if k == nil || k.id != id || !k.up.Load() {
		k = d.findConn(id)
		d.lastConn = k
	}
	if k == nil {
		h := longHeader{kind: notice, from: id}
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

// handleLong handles a long packet. It either passes the packet to a handshake, starting one if the
// packet contains a valid token, or sends a reply.
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
	// The peer has no such connection. Like an ICMP error, this is only a hint, since anyone can
	// forge it.
	if h.kind == notice && h.to == 0 {
		if k := d.findConnByPeerID(h.from); k != nil {
			a.conn = k
			d.hints = append(d.hints, *a)
		}
		return
	}
	k := d.findConn(h.to)
	switch {
	case k != nil || h.kind != initial:
	case d.guard.checkToken(h.token, a.from, d.now(), h.to):
		k = d.acceptConn(a, &h)
	default: // no token, or one that has already been used, perhaps by an attacker that copied it
		d.sendToken(a, &h)
	}
	if k != nil && len(a.b) <= arq.BaseSize && !k.handshakeDone.Load() {
		select {
		case k.in <- append([]byte(nil), a.b...):
		default: // the peer sends the packet again
		}
	}
}

// sendToken answers a token request with a Retry packet. It keeps no state for the peer.
func (d *sharedSocket) sendToken(a *inboundDatagram, h *longHeader) {
	id := d.guard.idFor(a.from, h)
	answer := longHeader{kind: retry, to: h.from, from: id, token: d.guard.makeToken(a.from, d.now(), id)}
	d.reply(a, answer.appendTo(nil))
}

// refuseVersion answers a token request of an unsupported version with a notice in that version.
// Each release supports a single version of TLS over UDP; see WIRE.md.
func (d *sharedSocket) refuseVersion(a *inboundDatagram, h *longHeader) {
	answer := longHeader{version: h.version, kind: notice, to: h.from, from: h.to}
	older := "dialing"
	if h.version > wireVersion {
		older = "listening"
	}
	words := frame.ByeOf(codes.WithText(codes.ErrVersion, fmt.Sprintf(
		"no common version of TLS over udp: the dialing side speaks %#x, the listening side %#x; upgrade the %s side", h.version, wireVersion, older))).Words()
	d.reply(a, append(answer.appendTo(nil), words...))
}

// reply sends b to the source of a. To prevent amplification, it sends nothing if b is longer than
// a.
func (d *sharedSocket) reply(a *inboundDatagram, b []byte) {
	if len(b) > 0 && len(b) <= len(a.b) && d.sock != nil {
		_ = sendOne(d.sock, b, a.from, a.via)
	}
}

// replyNoTLS answers a token request sent to a class without TLS with a notice.
func (d *sharedSocket) replyNoTLS(a *inboundDatagram) {
	if h, ok := parseLong(a.b); ok && h.kind == initial && len(h.token) == 0 {
		answer := longHeader{kind: notice, to: h.from, from: h.to}
		words := frame.ByeOf(secure.WantsPlain(scheme)).Words()
		d.reply(a, append(answer.appendTo(nil), words...))
	}
}

// findConn returns the connection with the given local connection ID, or nil.
func (d *sharedSocket) findConn(id uint64) *conn {
	d.table.RLock()
	defer d.table.RUnlock()
	return d.byID[id]
}

// findConnByPeerID returns the connection with the given peer connection ID, or nil.
func (d *sharedSocket) findConnByPeerID(id uint64) *conn {
	d.table.RLock()
	defer d.table.RUnlock()
	return d.byPeer[id]
}

// addConn registers k by its connection ID.
func (d *sharedSocket) addConn(k *conn) {
	d.table.Lock()
	defer d.table.Unlock()
	if d.byID == nil {
		d.byID, d.byPeer = map[uint64]*conn{}, map[uint64]*conn{}
	}
	d.byID[k.id] = k
}

// removeConn removes k from the tables and cancels its handshake.
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

// removeConnsOf removes all connections of c and cancels their handshakes.
func (d *sharedSocket) removeConnsOf(c *contextCarrier) {
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
