package arq

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
)

// Sizes in bytes.
const (
	headSize = 36  // header of every packet
	bulkSize = 32  // part of a lane 1 packet between the header and the payload
	sackSize = 128 // longest selective acknowledgment

	// HeadSize is the number of bytes that Next needs for the beginning of a packet.
	HeadSize = headSize + sackSize

	// FrontSize is the size of the description that accompanies each piece of bulk data from Piece
	// to the peer's Upper.Place.
	FrontSize = 24

	// BaseSize is the size of a datagram that every path carries.
	BaseSize = 1200

	// MaxSize is the size of the largest UDP datagram over IPv4.
	MaxSize = 65507
)

// maxAhead is how far beyond the next expected number a receiver accepts packets. It is therefore
// the maximum size of every window.
const maxAhead = 8 * sackSize

// A kind is the type of a packet. Its values are used on the wire.
type kind uint8

const (
	kindData   kind = 1 // carries a packet number, and frames or bulk data
	kindAck    kind = 2 // carries only an acknowledgment
	kindHello  kind = 3 // requests an association
	kindAccept kind = 4 // answers a HELLO
	kindCookie kind = 5 // answers a HELLO, which must be repeated with this cookie
	kindRefuse kind = 6 // rejects a HELLO, or closes an association, with a message
	kindPing   kind = 7 // requests a PONG; padded to probe for the path MTU
	kindPong   kind = 8 // answers a PING
	kindReset  kind = 9 // answers a packet that belongs to no known association
	// kindOther is never sent. It represents a packet of a version that this release does not
	// support.
	kindOther kind = 15
)

// formOf returns the packet form for a version. The form is encoded in the same byte as the kind.
// Three forms suffice, because a release supports two versions and must distinguish them only from
// the versions immediately before and after. Handshake packets and RESET have form 0, which is the
// same in all versions. The first 12 bytes and the checksum of every packet are also the same in
// all versions.
func formOf(version uint8) uint8 { return 1 + version%maxForm }

const (
	maxForm    = 3
	newestForm = 1 + Version%maxForm
	oldestForm = 1 + OldestVersion%maxForm
)

const (
	flagBulk   uint8 = 1   // number, acknowledgment and edge are those of lane 1
	flagAckNow uint8 = 2   // DATA: acknowledge immediately
	flagGap    uint8 = 4   // ACK: packets before seq are missing
	flagDup    uint8 = 8   // ACK: a packet has arrived twice
	flagVoid   uint8 = 16  // DATA: the payload was withdrawn, and only the packet number counts
	flagFin    uint8 = 32  // DATA: the sender has nothing more to send
	flagEcho   uint8 = 64  // echo and delay are valid
	flagAfter  uint8 = 128 // DATA of lane 1: follows the lane 0 packet named in the body
)

// shapes lists the flags and body sizes permitted for each kind.
var shapes = [...]struct {
	name      string
	flags     uint8
	min, most int
	fixed     bool // the form is 0
}{
	kindData:   {"DATA", ^(flagGap | flagDup), 0, MaxSize, false},
	kindAck:    {"ACK", flagBulk | flagGap | flagDup | flagEcho, 0, sackSize, false},
	kindHello:  {"HELLO", 0, greetingSize, MaxSize, true},
	kindAccept: {"ACCEPT", 0, greetingSize, MaxSize, true},
	kindCookie: {"COOKIE", 0, cookieSize, cookieSize, true},
	kindRefuse: {"REFUSE", 0, 1, maxWords, true},
	kindPing:   {"PING", flagEcho, 0, MaxSize, false},
	kindPong:   {"PONG", flagEcho, 0, 0, false},
	kindReset:  {"RESET", 0, 0, 0, true},
}

func (k kind) String() string {
	if k == 0 || int(k) >= len(shapes) {
		return fmt.Sprintf("KIND%d", uint8(k))
	}
	return shapes[k].name
}

// A Packet is a decoded datagram. Its body aliases the datagram.
type Packet struct {
	// Via is the local address to which the packet was sent, as numbered by the Machine's user.
	// Replies are sent from that address.
	Via uint8

	form  uint8
	kind  kind
	flags uint8
	delay uint16 // time for which the sender held the timestamp that it echoes, in units of 8 µs
	id    uint32 // association's ID, chosen by the receiver
	token uint32 // association's random token, chosen by the receiver
	// seq is the packet number in DATA, the highest number received in an ACK with flagGap, and the
	// size in PING and PONG.
	seq  uint32
	ack  uint32 // next packet number that the sender expects
	edge uint32 // first packet number that the sender does not permit yet
	ts   uint32 // sender's clock in µs
	echo uint32 // latest ts that the sender has received
	body []byte
}

// Errors returned by Parse.
var (
	ErrMalformed = errors.New("arq: malformed packet")
	ErrDamaged   = errors.New("arq: checksum mismatch")
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// Parse decodes a datagram and verifies its checksum. The Packet aliases b. Parse returns
// ErrMalformed or ErrDamaged. It is separate from Receive because it does not need the lock that
// guards the Machine. A batch of packets can be parsed before the lock is acquired.
func Parse(b []byte) (Packet, error) {
	p, err := ParseProven(b)
	if err == nil && crc32.Update(crc32.Update(0, castagnoli, b[:headSize-4]), castagnoli, p.body) != binary.LittleEndian.Uint32(b[headSize-4:]) {
		return Packet{}, ErrDamaged
	}
	return p, err
}

// ParseProven decodes a datagram whose integrity has been verified by other means. It ignores the
// checksum.
func ParseProven(b []byte) (Packet, error) {
	if len(b) < headSize || b[0]>>4 > maxForm {
		return Packet{}, ErrMalformed
	}
	le := binary.LittleEndian
	p := Packet{
		form: b[0] >> 4, kind: kind(b[0] & 15), flags: b[1], delay: le.Uint16(b[2:]), id: le.Uint32(b[4:]), token: le.Uint32(b[8:]),
		seq: le.Uint32(b[12:]), ack: le.Uint32(b[16:]), edge: le.Uint32(b[20:]), ts: le.Uint32(b[24:]), echo: le.Uint32(b[28:]),
		body: b[headSize:],
	}
	if p.form != 0 && p.form != newestForm && p.form != oldestForm {
		return Packet{form: p.form, kind: kindOther, id: p.id, token: p.token, body: p.body}, nil
	}
	if p.kind == 0 || int(p.kind) >= len(shapes) || shapes[p.kind].fixed != (p.form == 0) {
		return Packet{}, ErrMalformed
	}
	shape := &shapes[p.kind]
	bad := p.flags&^shape.flags != 0 || len(p.body) < shape.min || len(p.body) > shape.most
	switch p.kind {
	case kindData:
		if p.lane() == 1 {
			bad = bad || len(p.body) < bulkSize || p.flags&flagFin != 0 || p.flags&flagVoid != 0 && len(p.body) != bulkSize
		} else {
			bad = bad || p.flags&(flagVoid|flagAfter) != 0 || p.flags&flagFin != 0 && len(p.body) > maxWords
		}
	case kindAck:
		bad = bad || len(p.body)%8 != 0
	}
	if bad {
		return Packet{}, ErrMalformed
	}
	return p, nil
}

// Context returns the number of the context to which p is addressed, or -1 if all contexts must
// handle p.
func (p *Packet) Context() int {
	if p.kind == kindReset {
		return -1
	}
	return int(contextOf(p.id))
}

// contextOf returns the context number in an association's ID, which is its most significant byte.
func contextOf(id uint32) uint8 { return uint8(id >> 24) }

// contextID returns an association ID that contains the context number and is otherwise zero. A
// HELLO contains such an ID, because the peer has not yet chosen the rest.
func contextID(context uint8) uint32 { return uint32(context) << 24 }

// A packet is one of bulk data if the low four bits of its first byte are DataKind and BulkFlag is
// set in its second byte. A filter in the system can check that before Parse.
const (
	DataKind = uint8(kindData)
	BulkFlag = flagBulk
)

// Bulk reports whether p carries bulk data, that is, whether it is a DATA packet of lane 1.
func (p *Packet) Bulk() bool { return p.kind == kindData && p.lane() == 1 }

func (p *Packet) lane() int { return int(p.flags & flagBulk) }

// append appends the header to b. The caller must then append the body and call seal to set the
// checksum.
func (p *Packet) append(b []byte) []byte {
	le := binary.LittleEndian
	b = append(b, byte(p.kind)|p.form<<4, p.flags)
	b = le.AppendUint16(b, p.delay)
	for _, v := range [...]uint32{p.id, p.token, p.seq, p.ack, p.edge, p.ts, p.echo, 0} {
		b = le.AppendUint32(b, v)
	}
	return b
}

// seal computes the checksum of a packet that consists of front followed by others, and stores it
// in front.
func seal(front []byte, others ...[]byte) {
	crc := crc32.Update(0, castagnoli, front[:headSize-4])
	crc = crc32.Update(crc, castagnoli, front[headSize:])
	for _, b := range others {
		crc = crc32.Update(crc, castagnoli, b)
	}
	binary.LittleEndian.PutUint32(front[headSize-4:], crc)
}

// String formats the header, without the ID, token and timestamps.
func (p *Packet) String() string {
	s := p.kind.String()
	if p.kind == kindData || p.kind == kindAck {
		s = fmt.Sprintf("%s%d", s, p.lane())
	}
	switch p.kind {
	case kindData:
		s += fmt.Sprintf(" seq=%d ack=%d edge=%d", p.seq, p.ack, p.edge)
	case kindAck:
		s += fmt.Sprintf(" ack=%d edge=%d", p.ack, p.edge)
	case kindPing, kindPong:
		s += fmt.Sprintf(" size=%d", p.seq)
	}
	for _, f := range [...]struct {
		bit  uint8
		name string
	}{{flagAckNow, "now"}, {flagGap, "gap"}, {flagDup, "dup"}, {flagVoid, "void"}, {flagFin, "fin"}, {flagAfter, "after"}} {
		if p.flags&f.bit != 0 {
			s += " " + f.name
		}
	}
	if p.kind == kindAck && p.flags&flagGap != 0 {
		s += fmt.Sprintf(" seen=%d", p.seq)
	}
	if p.kind == kindAck && len(p.body) > 0 {
		s += fmt.Sprintf(" sack=%x", p.body)
	}
	if p.kind == kindData {
		s += fmt.Sprintf(" %dB", len(p.body))
	}
	return s
}

// before reports whether a precedes b. Both are packet numbers or both timestamps, which wrap
// around, so before uses serial arithmetic.
func before(a, b uint32) bool { return int32(a-b) < 0 }
