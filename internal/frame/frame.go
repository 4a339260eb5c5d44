package frame

import (
	"encoding/binary"
	"fmt"
	"github.com/quicksilver-rpc/quicksilver/internal/slab"
	"github.com/quicksilver-rpc/quicksilver/na/codes"
	"hash/crc32"
)

// HeaderSize is the length of a header in bytes.
const HeaderSize = 32

// TailSize is the length of the longest tail.
const TailSize = 32

// MaxPayload limits the payload of any frame, in bytes.
const MaxPayload = 1 << 20

// MaxWhole limits the payload of any frame except a piece of bulk data, in bytes.
const MaxWhole = slab.Least

// ExpeditedEnvelopes is the number of envelopes for expedited messages, in addition to those that a
// HELLO guarantees.
const ExpeditedEnvelopes = 1

// Magic is the tag of a HELLO.
const Magic uint64 = 0x3156_4c53_4b43_4951 // "QICKSLV1" as bytes

// A Kind is the type of a frame.
type Kind uint8

// The kinds. They are on the wire: appended, never renumbered.
const (
	Hello      Kind = 1 // labelled values; the first frame of each direction
	Unexpected Kind = 2 // a message; operation = its number in the session
	Expected   Kind = 3 // a message for the receive posted for tag
	Put        Kind = 4 // opens a put; tail = region, offset, length
	Get        Kind = 5 // opens a get; tail = region, offset, length
	Data       Kind = 6 // a piece of a put, or with FlagAnswer of a get; tag = offset within the operation
	Done       Kind = 7 // the owner of the memory has finished a put or get, or refuses it; tag = code
	Cancel     Kind = 8 // the put or get with this operation is canceled
	Ping       Kind = 9 // asks for a Pong
	Pong       Kind = 10
	Credit     Kind = 11 // carries the header's credit; tag = bytes of room ever granted to the peer
	Goaway     Kind = 12 // the session ends; op = first message not taken, tag = code, payload = text
	Dropped    Kind = 13 // there was no receive for the expected message with tag, which has FlagTell
	GiveBack   Kind = 14 // returns a lease; tail begins with its token
	Withdraw   Kind = 15 // discard the unexpected message with this number, if it was not delivered
	Withdrawn  Kind = 16 // the answer to WITHDRAW; tag = code: OK, or too late
	Abandon    Kind = 17 // the sender of the unexpected message with this number no longer needs an answer
	Body       Kind = 18 // opens a body beside the message with tag; operation = its length and its number
	Read       Kind = 19 // tail = region, 0, number of bytes that the sender read directly from shared memory
	Leave      Kind = 20 // asks to end an idle session; op = unexpected messages received in it, tag = expected ones
	Stay       Kind = 21 // the answer to LEAVE that the session continues; GOAWAY is the alternative
	Stream     Kind = 22 // bytes of a stream, delivered whole; op = stream, tag = offset; with FlagEnd its last ones
	Window     Kind = 23 // op = stream, tag = offset up to which its sender may send, payload = bytes of its reserve ever granted
	Reset      Kind = 24 // its sender or receiver ends the stream early; op = stream, tag = code, payload = text; with FlagEnd: the error at its end, which follows
	Probe      Kind = 25 // requests the readiness of the receiver's program; op = number of the probe in the session, from 1
	Probed     Kind = 26 // the answer to the newest PROBE; op = its number, tag = a Readiness
	Held       Kind = 27 // the reason that messages of the receiver are queued; op = a heldby.Reason, tag = active<<32 | limit
	Retire     Kind = 28 // its sender starts no further operation in the session, and the receiver should not either
	maxKind         = 28
	// FirstOptional is the first kind of those that a receiver skips if it does not know them.
	// Other unknown kinds are errors.
	FirstOptional Kind = 128
)

// The flags. A receiver rejects flags that the kind does not have.
const (
	// FlagPayload means that the CRC covers the payload too.
	FlagPayload uint8 = 1
	// FlagTell requests a DROPPED if there is no receive for an expected message.
	FlagTell uint8 = 2
	// FlagTimed means that an unexpected message has a deadline, relative to its arrival.
	FlagTimed uint8 = 4
	// FlagAnswer means that DATA answers a GET: the operation is one of the receiver. With STREAM,
	// WINDOW, RESET, and DATA of a stream, it means that the receiver of the frame has numbered the
	// stream.
	FlagAnswer uint8 = 8
	// FlagBody means that DATA or CANCEL belongs to a body, or that a message has one; the
	// operation is its identity.
	FlagBody uint8 = 16
	// FlagStream means that DATA is a piece of the stream with the number in operation.
	FlagStream uint8 = 32
	// FlagRoom means that the payload of STREAM or DATA is charged to the room of the session, and
	// not to the reserve of the stream.
	FlagRoom uint8 = 64
	// FlagEnd means that the payload of a STREAM is the last one of the stream. For other kinds the
	// bit is FlagTell: a carrier need not transmit the highest bit.
	FlagEnd = FlagTell
)

// shape is the set of parts that a kind may have.
type shape struct {
	name    string
	tail    int
	payload bool // may have a payload
	bulk    bool // the payload is placed piece by piece
	flags   uint8
}

var shapes = [256]shape{
	Hello:      {"HELLO", 0, true, false, 0},
	Unexpected: {"UNEXPECTED", 0, true, false, FlagTimed | FlagBody},
	Expected:   {"EXPECTED", 0, true, false, FlagTell | FlagBody},
	Put:        {"PUT", 32, false, false, 0},
	Get:        {"GET", 32, false, false, 0},
	Data:       {"DATA", 0, true, true, FlagAnswer | FlagBody | FlagStream | FlagRoom},
	Done:       {"DONE", 0, false, false, 0},
	Cancel:     {"CANCEL", 0, false, false, FlagBody},
	Ping:       {"PING", 0, false, false, 0},
	Pong:       {"PONG", 0, false, false, 0},
	Credit:     {"CREDIT", 0, false, false, 0},
	Goaway:     {"GOAWAY", 0, true, false, 0},
	Dropped:    {"DROPPED", 0, false, false, 0},
	GiveBack:   {"GIVEBACK", 32, false, false, 0},
	Withdraw:   {"WITHDRAW", 0, false, false, 0},
	Withdrawn:  {"WITHDRAWN", 0, false, false, 0},
	Abandon:    {"ABANDON", 0, false, false, 0},
	Body:       {"BODY", 0, false, false, 0},
	Read:       {"READ", 32, false, false, 0},
	Leave:      {"LEAVE", 0, false, false, 0},
	Stay:       {"STAY", 0, false, false, 0},
	Stream:     {"STREAM", 0, true, false, FlagAnswer | FlagEnd | FlagRoom},
	Window:     {"WINDOW", 0, true, false, FlagAnswer},
	Reset:      {"RESET", 0, true, false, FlagAnswer | FlagEnd},
	Probe:      {"PROBE", 0, false, false, 0},
	Probed:     {"PROBED", 0, false, false, 0},
	Held:       {"HELD", 0, false, false, 0},
	Retire:     {"RETIRE", 0, false, false, 0},
}

// String returns the name of the kind.
func (k Kind) String() string {
	if !k.isKnown() {
		return fmt.Sprintf("KIND%d", uint8(k))
	}
	return shapes[k].name
}

// isKnown reports whether k is one of the kinds.
func (k Kind) isKnown() bool { return shapes[k].name != "" }

// IsSkipped reports whether frames of k are skipped: the kind is unknown and optional.
func (k Kind) IsSkipped() bool { return k >= FirstOptional && !k.isKnown() }

// shape returns the shape of a kind; an unknown one has neither tail nor flags.
func (k Kind) shape() *shape { return &shapes[k] }

// Bulk reports whether the payload of k is placed into memory piece by piece rather than delivered
// whole.
func (k Kind) Bulk() bool { return shapes[k].bulk }

// A Header is the fixed header of a frame with its tail.
type Header struct {
	Length  uint32 // bytes of tail and payload
	Kind    Kind
	Flags   uint8
	Context uint16 // target id of the receiver
	Op      uint64
	Tag     uint64
	Credit  uint32
	CRC     uint32
	Tail    Tail // valid for kinds that have a tail
}

// A Tail identifies a part of registered memory.
type Tail struct {
	Token  [16]byte
	Offset int64
	Length int64
}

// Payload returns the number of payload bytes.
func (h *Header) Payload() int { return int(h.Length) - h.Kind.shape().tail }

// Size returns the number of bytes of header and tail.
func (h *Header) Size() int { return HeaderSize + h.Kind.shape().tail }

// String prints a header for logs and tests; the token is not shown.
func (h *Header) String() string {
	s := fmt.Sprintf("%v ctx=%d op=%#x tag=%#x credit=%d payload=%d", h.Kind, h.Context, h.Op, h.Tag, h.Credit, h.Payload())
	if h.Flags != 0 {
		s += fmt.Sprintf(" flags=%#x", h.Flags)
	}
	if h.Kind.shape().tail > 0 {
		s += fmt.Sprintf(" offset=%d length=%d", h.Tail.Offset, h.Tail.Length)
	}
	return s
}

var crcTable = crc32.MakeTable(crc32.Castagnoli)

// SetPayload sets the length for a payload of n bytes.
func (h *Header) SetPayload(n int) { h.Length = uint32(h.Kind.shape().tail + n) }

// Append encodes h and payload at the end of b. The CRC covers header, tail and payload. It sets
// h.Length. A kind that has no payload is encoded as by AppendFront.
func (h *Header) Append(b []byte, payload []byte) []byte {
	if sh := h.Kind.shape(); !sh.payload && !h.Kind.IsSkipped() || sh.bulk {
		return h.AppendFront(b, 0)
	}
	start := len(b)
	h.Flags |= FlagPayload
	b = h.appendFront(b, len(payload))
	b = append(b, payload...)
	binary.LittleEndian.PutUint32(b[start+28:], crc32.Update(0, crcTable, b[start:]))
	return b
}

// AppendFront encodes h and its tail for a payload of n bytes that is sent separately; the CRC does
// not cover the payload.
func (h *Header) AppendFront(b []byte, n int) []byte {
	start := len(b)
	h.Flags &^= FlagPayload
	b = h.appendFront(b, n)
	binary.LittleEndian.PutUint32(b[start+28:], crc32.Update(0, crcTable, b[start:]))
	return b
}

func (h *Header) appendFront(b []byte, n int) []byte {
	tail := shapes[h.Kind].tail
	h.Length = uint32(tail + n)
	var f [HeaderSize + TailSize]byte
	le := binary.LittleEndian
	le.PutUint32(f[0:], h.Length)
	f[4], f[5] = byte(h.Kind), h.Flags
	le.PutUint16(f[6:], h.Context)
	le.PutUint64(f[8:], h.Op)
	le.PutUint64(f[16:], h.Tag)
	le.PutUint32(f[24:], h.Credit)
	if tail > 0 {
		h.Tail.Append(f[:HeaderSize])
	}
	return append(b, f[:HeaderSize+tail]...)
}

// Append encodes t, TailSize bytes, at the end of b.
func (t *Tail) Append(b []byte) []byte {
	le := binary.LittleEndian
	b = append(b, t.Token[:]...)
	b = le.AppendUint64(b, uint64(t.Offset))
	return le.AppendUint64(b, uint64(t.Length))
}

// Need returns how many bytes of b are needed to Parse its front: HeaderSize, or header and tail
// once the kind is known.
func Need(b []byte) int {
	if len(b) > 4 {
		return HeaderSize + shapes[b[4]].tail
	}
	return HeaderSize
}

// Parse decodes the header and tail at the beginning of b, which has at least Need(b) bytes. It
// checks everything that does not need the payload: the kind, the flags, the lengths, and the CRC
// if that does not cover the payload.
func Parse(b []byte) (Header, error) {
	le := binary.LittleEndian
	h := Header{
		Length: le.Uint32(b), Kind: Kind(b[4]), Flags: b[5], Context: le.Uint16(b[6:]),
		Op: le.Uint64(b[8:]), Tag: le.Uint64(b[16:]), Credit: le.Uint32(b[24:]), CRC: le.Uint32(b[28:]),
	}
	if err := h.Check(b[HeaderSize:]); err != nil {
		return h, err
	}
	if sh := &shapes[h.Kind]; h.Flags&FlagPayload == 0 {
		if !sh.bulk && h.Payload() > 0 {
			return h, codes.WithText(codes.ErrProtocol, fmt.Sprintf("%v frame without a checksum of its payload", h.Kind))
		}
		if crcFront(b[:h.Size()]) != h.CRC {
			return h, codes.WithText(codes.ErrChecksum, fmt.Sprintf("%v frame: header checksum mismatch", h.Kind))
		}
	}
	return h, nil
}

// Check checks the header of a frame that was received in parts, without a checksum, and decodes
// its tail, with which b begins. It returns an error for a kind, a flag or a length that is not
// allowed.
func (h *Header) Check(b []byte) error {
	sh := &shapes[h.Kind]
	if sh.name == "" {
		return h.checkUnknown()
	}
	if h.Flags&^(sh.flags|FlagPayload) != 0 {
		return codes.WithText(codes.ErrProtocol, fmt.Sprintf("%v frame with unknown flags %#x", h.Kind, h.Flags))
	}
	switch {
	case int64(h.Length) < int64(sh.tail), !sh.payload && int(h.Length) != sh.tail:
		return codes.WithText(codes.ErrProtocol, fmt.Sprintf("%v frame of length %d, want %d", h.Kind, h.Length, sh.tail))
	case int64(h.Length) > int64(sh.tail)+MaxPayload:
		return codes.WithText(codes.ErrProtocol, fmt.Sprintf("%v frame of length %d, the limit is %d", h.Kind, h.Length, sh.tail+MaxPayload))
	}
	if sh.tail > 0 {
		le := binary.LittleEndian
		copy(h.Tail.Token[:], b)
		h.Tail.Offset = int64(le.Uint64(b[16:]))
		h.Tail.Length = int64(le.Uint64(b[24:]))
		if h.Tail.Offset < 0 || h.Tail.Length < 0 {
			return codes.WithText(codes.ErrProtocol, fmt.Sprintf("%v frame with a negative offset or length", h.Kind))
		}
	}
	return nil
}

// checkUnknown checks the header of a frame of a kind that this release does not know.
func (h *Header) checkUnknown() error {
	switch {
	case h.Kind < FirstOptional:
		return codes.WithText(codes.ErrProtocol, fmt.Sprintf("frame of unknown critical kind %d, want 1 to %d", uint8(h.Kind), maxKind))
	case h.Length > MaxWhole:
		return codes.WithText(codes.ErrProtocol, fmt.Sprintf("frame of unknown kind %d and length %d, the limit is %d", uint8(h.Kind), h.Length, MaxWhole))
	}
	return nil
}

// Verify checks the CRC of a frame whose CRC covers the payload. b is header, tail and payload.
func (h *Header) Verify(b []byte) error {
	if crcFront(b) != h.CRC {
		return codes.WithText(codes.ErrChecksum, fmt.Sprintf("%v frame: checksum mismatch", h.Kind))
	}
	return nil
}

// A Sum checks a frame whose CRC covers the payload, for a payload that is received in parts.
type Sum struct{ want, got uint32 }

// SumOf starts with front, the header and tail from which h was parsed.
func (h *Header) SumOf(front []byte) Sum { return Sum{h.CRC, crcFront(front[:h.Size()])} }

// Add adds the next part of the payload.
func (s *Sum) Add(b []byte) { s.got = crc32.Update(s.got, crcTable, b) }

// Check reports whether the whole payload was added, and is undamaged.
func (s *Sum) Check() bool { return s.got == s.want }

var zeroCRC [4]byte

// crcFront returns the CRC of b with its own field taken as zero.
func crcFront(b []byte) uint32 {
	crc := crc32.Update(0, crcTable, b[:28])
	crc = crc32.Update(crc, crcTable, zeroCRC[:])
	return crc32.Update(crc, crcTable, b[32:])
}

// The identity of a body: its length, and a number that increases in the session.
const (
	bodyShift = 40
	bodyMask  = 1<<bodyShift - 1
)

// BodyID returns the identity of a body of n bytes that is the seq-th of its session.
func BodyID(n int, seq uint64) uint64 { return uint64(n)<<bodyShift | seq&bodyMask }

// BodyLen returns the length in an identity. The peer set it, and it is not validated.
func BodyLen(id uint64) int { return int(id >> bodyShift) }
