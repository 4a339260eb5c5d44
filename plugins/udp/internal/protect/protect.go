package protect

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/hkdf"
	"crypto/sha256"
	"crypto/sha512"
	"crypto/tls"
	"encoding/binary"
	"fmt"
	"hash"
	"sync/atomic"

	"golang.org/x/crypto/chacha20"
	"golang.org/x/crypto/chacha20poly1305"
)

// Sizes in bytes.
const (
	NumberSize = 4  // packet number
	TagSize    = 16 // tag of every AEAD permitted by RFC 9001
	sampleSize = 16
)

const (
	longForm   = 0x80 // first-byte bit that marks a long header
	phaseBit   = 0x04 // first-byte bit for the key phase in a short header
	longMask   = 0x0f // protected first-byte bits of a long header
	shortMask  = 0x1f // protected first-byte bits of a short header
	windowSize = 2048 // number of packet numbers below the next one for which an Opener detects duplicates

	// maxSealed is half the number of packets that RFC 9001, Section 6.6, permits to be sealed with
	// one AES-GCM key.
	maxSealed = 1 << 22
	// maxForged is the number of packets that may fail authentication before an Opener stops
	// opening packets. Of the supported cipher suites, ChaCha20-Poly1305 has the lowest limit in
	// RFC 9001, Section 6.6, which is maxForged.
	maxForged = 1 << 36
)

// A suite holds the algorithms of a TLS 1.3 cipher suite.
type suite struct {
	hash   func() hash.Hash
	key    int // key size in bytes
	aead   func(key []byte) (cipher.AEAD, error)
	header func(key []byte) (func(mask *[16]byte, sample []byte), error) // header protection
}

var suites = map[uint16]suite{
	tls.TLS_AES_128_GCM_SHA256:       {sha256.New, 16, gcm, ecb},
	tls.TLS_AES_256_GCM_SHA384:       {sha512.New384, 32, gcm, ecb},
	tls.TLS_CHACHA20_POLY1305_SHA256: {sha256.New, 32, chacha20poly1305.New, chacha},
}

func gcm(key []byte) (cipher.AEAD, error) {
	block, err := aes.NewCipher(key)
	if err != nil {
		return nil, err
	}
	return cipher.NewGCM(block)
}

// ecb returns the mask function for AES-based header protection (RFC 9001, Section 5.4.3).
func ecb(key []byte) (func(*[16]byte, []byte), error) {
	block, err := aes.NewCipher(key)
	return func(mask *[16]byte, sample []byte) { block.Encrypt(mask[:], sample) }, err
}

// chacha returns the mask function for ChaCha20-based header protection (RFC 9001, Section 5.4.4).
func chacha(key []byte) (func(*[16]byte, []byte), error) {
	return func(mask *[16]byte, sample []byte) {
		c, err := chacha20.NewUnauthenticatedCipher(key, sample[4:])
		if err != nil {
			panic(err) // unreachable: the only errors are for wrong lengths
		}
		c.SetCounter(binary.LittleEndian.Uint32(sample))
		*mask = [16]byte{}
		c.XORKeyStream(mask[:5], mask[:5])
	}, nil
}

// expand implements HKDF-Expand-Label of RFC 8446, Section 7.1, with an empty context.
func (s *suite) expand(secret []byte, label string, n int) ([]byte, error) {
	label = "tls13 " + label
	info := append(binary.BigEndian.AppendUint16(nil, uint16(n)), byte(len(label)))
	return hkdf.Expand(s.hash, secret, string(append(append(info, label...), 0)), n)
}

// A generation holds the keys that protect the packets between two key updates.
type generation struct {
	secret []byte
	aead   cipher.AEAD
	iv     [12]byte
}

func (s *suite) generation(secret []byte) (g *generation, err error) {
	g = &generation{secret: secret}
	key, err := s.expand(secret, "quic key", s.key)
	if err != nil {
		return nil, err
	}
	iv, err := s.expand(secret, "quic iv", len(g.iv))
	if err != nil {
		return nil, err
	}
	copy(g.iv[:], iv)
	g.aead, err = s.aead(key)
	return g, err
}

// next derives the generation that follows g (RFC 9001, Section 6.1).
func (s *suite) next(g *generation) (*generation, error) {
	secret, err := s.expand(g.secret, "quic ku", s.hash().Size())
	if err != nil {
		return nil, err
	}
	return s.generation(secret)
}

// A side holds the fields that Sealer and Opener have in common.
type side struct {
	suite suite
	mask  func(mask *[16]byte, sample []byte)
	bits  [16]byte // scratch space for hide; a local variable would be allocated for each packet
	nonce [12]byte // scratch space for nonceOf
}

func (d *side) init(id uint16, secret []byte) (*generation, error) {
	s, ok := suites[id]
	if !ok {
		return nil, fmt.Errorf("protect: unsupported cipher suite %s", tls.CipherSuiteName(id))
	}
	d.suite = s
	key, err := s.expand(secret, "quic hp", s.key)
	if err != nil {
		return nil, err
	}
	if d.mask, err = s.header(key); err != nil {
		return nil, err
	}
	return s.generation(append([]byte(nil), secret...))
}

// hide applies header protection to the packet b or removes it, by XORing the header with a mask
// (RFC 9001, Section 5.4.1). The packet number is at b[at:].
func (d *side) hide(b []byte, at int) {
	d.mask(&d.bits, b[at+4:at+4+sampleSize])
	cover := byte(shortMask)
	if b[0]&longForm != 0 {
		cover = longMask
	}
	b[0] ^= d.bits[0] & cover
	for i := range NumberSize {
		b[at+i] ^= d.bits[1+i]
	}
}

func (d *side) nonceOf(g *generation, number uint64) []byte {
	d.nonce = g.iv
	binary.BigEndian.PutUint64(d.nonce[4:], binary.BigEndian.Uint64(d.nonce[4:])^number)
	return d.nonce[:]
}

// A Phase links the key updates of a connection's two directions. One endpoint, the leader,
// initiates each update and the other follows. RFC 9001, Section 6.1, forbids another update until
// the last one has been acknowledged. A packet from the peer that is protected with the new keys
// serves as the acknowledgment. A Phase may be used concurrently by a Sealer and an Opener.
type Phase struct {
	Leads bool // whether this endpoint initiates updates
	// Most is the number of packets in either direction after which the leader updates its keys.
	// Zero means half the limit of RFC 9001, Section 6.6, for AES-GCM.
	Most uint64

	heard atomic.Uint64 // number of the peer's updates
	due   atomic.Uint64 // number of updates that the leader must make because of the number of packets received
}

func (p *Phase) most() uint64 {
	if p.Most == 0 {
		return maxSealed
	}
	return p.Most
}

// A Sealer protects the packets of one direction. It is not safe for concurrent use.
type Sealer struct {
	side
	gen    *generation
	number uint64 // number of the next packet
	phase  *Phase // nil if keys are not updated
	turn   uint64 // number of updates so far
	sealed uint64 // number of packets since the last update
}

// NewSealer returns a Sealer with keys derived from a TLS secret. If phase is not nil, the keys are
// updated, and phase must be shared with the Opener of the other direction.
func NewSealer(suite uint16, secret []byte, phase *Phase) (s *Sealer, err error) {
	s = &Sealer{phase: phase}
	s.gen, err = s.init(suite, secret)
	return s, err
}

// Seal protects the packet b in place. The last TagSize bytes of b are reserved for the tag. Seal
// writes the packet number to b[at:]. Each call uses a new number, even for a retransmitted packet.
func (s *Sealer) Seal(b []byte, at int) error {
	if s.phase != nil {
		p := s.phase
		heard := p.heard.Load()
		if heard > s.turn || p.Leads && heard == s.turn && (s.sealed >= p.most() || p.due.Load() > s.turn) {
			g, err := s.suite.next(s.gen)
			if err != nil {
				return err
			}
			s.gen, s.turn, s.sealed = g, s.turn+1, 0
		}
		b[0] = b[0]&^phaseBit | byte(s.turn&1)*phaseBit
	}
	s.sealed++
	b[0] |= NumberSize - 1
	binary.BigEndian.PutUint32(b[at:], uint32(s.number))
	body := at + NumberSize
	s.gen.aead.Seal(b[body:body], s.nonceOf(s.gen, s.number), b[body:len(b)-TagSize], b[:body])
	s.number++
	s.hide(b, at)
	return nil
}

// Updates returns the number of key updates.
func (s *Sealer) Updates() uint64 { return s.turn }

// An Opener removes the protection from packets of one direction. It is not safe for concurrent
// use.
type Opener struct {
	side
	// gen holds the current keys. before and after hold the keys before and after them, or nil.
	gen, before, after *generation
	phase              *Phase                  // nil if keys are not updated
	turn               uint64                  // number of updates so far
	first              uint64                  // lowest packet number of gen
	next               uint64                  // highest packet number so far, plus one
	seen               [windowSize / 64]uint64 // packet numbers below next that have arrived
	forged             uint64                  // number of packets that failed authentication
	opened             uint64                  // number of packets opened with gen
}

// NewOpener returns an Opener with keys derived from a TLS secret. If phase is not nil, the peer
// may update its keys, and phase must be shared with the Sealer of the other direction.
func NewOpener(suite uint16, secret []byte, phase *Phase) (o *Opener, err error) {
	o = &Opener{phase: phase}
	if o.gen, err = o.init(suite, secret); err != nil || phase == nil {
		return o, err
	}
	o.after, err = o.suite.next(o.gen)
	return o, err
}

// Open removes the protection from the packet b in place and returns its payload. The packet number
// is at b[at:]. ok is false if the packet is not authentic, is a duplicate, or is too old for Open
// to detect a duplicate. The contents of b are then undefined.
func (o *Opener) Open(b []byte, at int) (payload []byte, ok bool) {
	body := at + NumberSize
	if len(b) < body+TagSize || o.forged >= maxForged {
		return nil, false
	}
	o.hide(b, at)
	number := o.fullNumber(binary.BigEndian.Uint32(b[at:]))
	if o.isDuplicate(number) {
		return nil, false
	}
	g, ahead := o.gen, false
	if o.phase != nil && b[0]&phaseBit != byte(o.turn&1)*phaseBit { // RFC 9001, Sections 6.3 and 6.5
		if g = o.before; number >= o.first {
			g, ahead = o.after, true
		}
	}
	if g == nil {
		return nil, false
	}
	payload, err := g.aead.Open(b[body:body], o.nonceOf(g, number), b[body:], b[:body])
	if err != nil {
		o.forged++
		return nil, false
	}
	if ahead {
		after, err := o.suite.next(o.after)
		if err != nil {
			return nil, false
		}
		o.before, o.gen, o.after, o.first = o.gen, o.after, after, number
		o.turn++
		o.opened = 0
		o.phase.heard.Store(o.turn)
	} else if g == o.gen {
		o.first = min(o.first, number)
	}
	if o.opened++; o.phase != nil && o.opened == o.phase.most() {
		o.phase.due.Store(o.turn + 1)
	}
	o.note(number)
	return payload, b[0]&reserved(b[0]) == 0 && b[0]&3 == NumberSize-1
}

// reserved returns the bits of the first byte that are reserved and must be zero (RFC 9000,
// Sections 17.2 and 17.3.1).
func reserved(first byte) byte {
	if first&longForm != 0 {
		return 0x0c
	}
	return 0x18
}

// fullNumber returns the packet number closest to o.next whose low 32 bits are low (RFC 9000,
// Section A.3).
func (o *Opener) fullNumber(low uint32) uint64 {
	n := o.next&^(1<<32-1) | uint64(low)
	switch {
	case n+1<<31 <= o.next && n < 1<<62-1<<32:
		return n + 1<<32
	case n > o.next+1<<31 && n >= 1<<32:
		return n - 1<<32
	}
	return n
}

// isDuplicate reports whether packet n has arrived before or is so old that this is no longer
// known.
func (o *Opener) isDuplicate(n uint64) bool {
	if n >= o.next {
		return false
	}
	return o.next-n > windowSize-64 || o.seen[n/64%uint64(len(o.seen))]&(1<<(n%64)) != 0
}

// note records that packet n has arrived. If n is the highest number so far, note moves the window
// forward, clearing the words that it reuses.
func (o *Opener) note(n uint64) {
	words := uint64(len(o.seen))
	if n >= o.next {
		if n/64-o.next/64 >= words {
			clear(o.seen[:])
		} else {
			for w := (o.next + 63) / 64; w <= n/64; w++ {
				o.seen[w%words] = 0
			}
		}
		o.next = n + 1
	}
	o.seen[n/64%words] |= 1 << (n % 64)
}

// initialSalt is the salt of RFC 9001, Section 5.2.
var initialSalt = []byte{0x38, 0x76, 0x2c, 0xf7, 0xf5, 0x59, 0x34, 0xb3, 0x4d, 0x17, 0x9a, 0xe6, 0xa4, 0xc8, 0x0c, 0xad, 0xcc, 0xbb, 0x7f, 0x0a}

// Initial returns the client's and the server's secret of the Initial level for the connection ID
// id (RFC 9001, Section 5.2). Because the ID is sent unencrypted, these secrets protect only
// against accidental corruption.
func Initial(id []byte) (client, server []byte, err error) {
	secret, err := hkdf.Extract(sha256.New, id, initialSalt)
	if err != nil {
		return nil, nil, err
	}
	s := suites[tls.TLS_AES_128_GCM_SHA256]
	if client, err = s.expand(secret, "client in", sha256.Size); err == nil {
		server, err = s.expand(secret, "server in", sha256.Size)
	}
	return client, server, err
}
