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
	NumberSize = 4  // a packet number
	TagSize    = 16 // the tag of every AEAD that RFC 9001 allows
	sampleSize = 16
)

const (
	longForm   = 0x80 // bit of the first byte: the long header
	phaseBit   = 0x04 // bit of the first byte of a short header: the key phase
	longMask   = 0x0f // bits of the first byte of a long header that are protected
	shortMask  = 0x1f // bits of the first byte of a short header that are protected
	windowSize = 2048 // limits how far out of order packet numbers may arrive

	// maxSealed is half of the packets that RFC 9001 6.6 allows to be sealed with one key of
	// AES-GCM.
	maxSealed = 1 << 22
	// maxForged limits the packets that fail authentication; then no packet is opened any more. It
	// is the limit that RFC 9001 6.6 gives for ChaCha20-Poly1305, the lowest one.
	maxForged = 1 << 36
)

// A suite holds the algorithms of a cipher suite of TLS 1.3.
type suite struct {
	hash   func() hash.Hash
	key    int // the size of a key in bytes
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

// ecb returns the mask function of AES-based header protection: RFC 9001 5.4.3.
func ecb(key []byte) (func(*[16]byte, []byte), error) {
	block, err := aes.NewCipher(key)
	return func(mask *[16]byte, sample []byte) { block.Encrypt(mask[:], sample) }, err
}

// chacha returns the mask function of ChaCha20-based header protection: RFC 9001 5.4.4.
func chacha(key []byte) (func(*[16]byte, []byte), error) {
	return func(mask *[16]byte, sample []byte) {
		c, err := chacha20.NewUnauthenticatedCipher(key, sample[4:])
		if err != nil {
			panic(err) // the only errors are wrong lengths, and these are right
		}
		c.SetCounter(binary.LittleEndian.Uint32(sample))
		*mask = [16]byte{}
		c.XORKeyStream(mask[:5], mask[:5])
	}, nil
}

// expand implements HKDF-Expand-Label of RFC 8446 7.1, with an empty context.
func (s *suite) expand(secret []byte, label string, n int) ([]byte, error) {
	label = "tls13 " + label
	info := append(binary.BigEndian.AppendUint16(nil, uint16(n)), byte(len(label)))
	return hkdf.Expand(s.hash, secret, string(append(append(info, label...), 0)), n)
}

// A generation holds the keys between two key updates.
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

// next derives the generation after g: RFC 9001 6.1.
func (s *suite) next(g *generation) (*generation, error) {
	secret, err := s.expand(g.secret, "quic ku", s.hash().Size())
	if err != nil {
		return nil, err
	}
	return s.generation(secret)
}

// A side is the common part of Sealer and Opener.
type side struct {
	suite suite
	mask  func(mask *[16]byte, sample []byte)
	bits  [16]byte // scratch space of hide; as a local variable it would be allocated for each packet
	nonce [12]byte // scratch space of nonceOf
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

// hide applies or removes header protection: RFC 9001 5.4.1. b[at:] begins with the packet number.
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

// A Phase connects the key updates of the two directions of a connection. One end, the leader,
// starts each update and the other follows. RFC 9001 6.1 forbids another update before the last one
// is acknowledged: a packet of the peer with the new keys is that acknowledgment. It is safe for
// concurrent use by a Sealer and an Opener.
type Phase struct {
	Leads bool // this end starts updates
	// the packets in either direction after which the leader updates; 0: half of the limit of RFC
	// 9001 6.6 for AES-GCM
	Most uint64

	heard atomic.Uint64 // the number of updates of the peer
	due   atomic.Uint64 // the number of updates that the leader should have made, by the packets of its peer
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
	number uint64 // the number of the next packet
	phase  *Phase // nil: keys are not updated
	turn   uint64 // the number of updates so far
	sealed uint64 // the packets since the last update
}

// NewSealer returns a Sealer with keys from a secret of TLS. phase is shared with the Opener of the
// other direction, or nil.
func NewSealer(suite uint16, secret []byte, phase *Phase) (s *Sealer, err error) {
	s = &Sealer{phase: phase}
	s.gen, err = s.init(suite, secret)
	return s, err
}

// Seal protects the packet b in place. The last TagSize bytes of b are free, and the packet number
// is written to b[at:]. Each call uses a new number, also for a packet that was sent before.
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
	// the current keys; those before and after them; nil: there are none
	gen, before, after *generation
	phase              *Phase                  // nil: keys are not updated
	turn               uint64                  // the number of updates so far
	first              uint64                  // the lowest packet number of gen
	next               uint64                  // the highest packet number so far, plus one
	seen               [windowSize / 64]uint64 // the packet numbers before next that have arrived
	forged             uint64                  // packets that have failed authentication
	opened             uint64                  // packets of gen
}

// NewOpener returns an Opener with keys from a secret of TLS. With a phase, which is shared with
// the Sealer of the other direction, the peer may update its keys.
func NewOpener(suite uint16, secret []byte, phase *Phase) (o *Opener, err error) {
	o = &Opener{phase: phase}
	if o.gen, err = o.init(suite, secret); err != nil || phase == nil {
		return o, err
	}
	o.after, err = o.suite.next(o.gen)
	return o, err
}

// Open removes the protection from the packet b in place, and returns its payload. It fails if the
// packet is not authentic, or if it is a duplicate or too old to know; the contents of b are
// undefined then.
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
	if o.phase != nil && b[0]&phaseBit != byte(o.turn&1)*phaseBit { // RFC 9001 6.3, 6.5
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

// reserved returns the bits of the first byte that must be zero: RFC 9000 17.2, 17.3.1.
func reserved(first byte) byte {
	if first&longForm != 0 {
		return 0x0c
	}
	return 0x18
}

// full returns the packet number that is nearest to o.next and whose last 32 bits are low: RFC 9000
// A.3.
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

// isDuplicate reports whether the packet has arrived before, or is too old to know.
func (o *Opener) isDuplicate(n uint64) bool {
	if n >= o.next {
		return false
	}
	return o.next-n > windowSize-64 || o.seen[n/64%uint64(len(o.seen))]&(1<<(n%64)) != 0
}

// note records that number n has arrived. It clears a word of the window when the first number of
// it arrives.
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

// initialSalt is the salt of RFC 9001 5.2.
var initialSalt = []byte{0x38, 0x76, 0x2c, 0xf7, 0xf5, 0x59, 0x34, 0xb3, 0x4d, 0x17, 0x9a, 0xe6, 0xa4, 0xc8, 0x0c, 0xad, 0xcc, 0xbb, 0x7f, 0x0a}

// Initial returns the secrets of the Initial level: RFC 9001 5.2. They protect against accidents
// only, because they follow from the connection ID, which is sent in the clear.
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
