package frame

import (
	"encoding/binary"
	"fmt"
	"github.com/quicksilver-rpc/quicksilver/internal/slab"
	"github.com/quicksilver-rpc/quicksilver/na/codes"
	"hash/crc32"
)

// HeaderSize is the length of a frame header in bytes.
const HeaderSize = 32

// TailSize is the length of the longest tail in bytes.
const TailSize = 32

// MaxPayload is the maximum payload of any frame, in bytes.
const MaxPayload = 1 << 20

// MaxWhole is the maximum payload, in bytes, of any frame that does not carry bulk data.
const MaxWhole = slab.Least

// ExpeditedEnvelopes is the number of envelopes for expedited messages, in addition to those that a
// HELLO guarantees.
const ExpeditedEnvelopes = 1

// Magic is the tag of a HELLO frame.
const Magic uint64 = 0x3156_4c53_4b43_4951 // "QICKSLV1" as bytes

// A Kind is the type of a frame.
type Kind uint8

// The kinds are part of the wire format. New ones are appended; existing ones are never renumbered.
const (
	Hello      Kind = 1 // labeled values; the first frame in each direction
	Unexpected Kind = 2 // a message; operation = its number in the session
	Expected   Kind = 3 // a message for the receive posted for tag
	Put        Kind = 4 // opens a put; tail = region, offset, length
	Get        Kind = 5 // opens a get; tail = region, offset, length
	Data       Kind = 6 // a piece of a put, or with FlagAnswer of a get; tag = offset within the operation
	Done       Kind = 7 // the memory's owner has completed or refused a put or get; tag = code
	Cancel     Kind = 8 // the put or get with this operation is canceled
	Ping       Kind = 9 // requests a Pong
	Pong       Kind = 10
	Credit     Kind = 11 // carries the header's credit; tag = total bytes of room granted to the peer
	Goaway     Kind = 12 // the session ends; op = first message not received, tag = code, payload = text
	Dropped    Kind = 13 // no receive was posted for the expected message with tag, which has FlagTell
	GiveBack   Kind = 14 // returns a lease; tail begins with the lease's token
	Withdraw   Kind = 15 // discard the unexpected message with this number unless it was delivered
	Withdrawn  Kind = 16 // answers WITHDRAW; tag = code: OK, or too late
	Abandon    Kind = 17 // the sender of the unexpected message with this number no longer needs a response
	Body       Kind = 18 // opens a body sent separately from the message with tag; operation = its length and number
	Read       Kind = 19 // tail = region, 0, number of bytes that the sender has read directly from shared memory
	Leave      Kind = 20 // requests the end of an idle session; op = unexpected messages received in it, tag = expected ones
	Stay       Kind = 21 // answers LEAVE: the session continues; the alternative answer is GOAWAY
	Stream     Kind = 22 // bytes of a stream, delivered whole; op = stream, tag = offset; with FlagEnd the last ones
	Window     Kind = 23 // op = stream, tag = offset up to which its sender may send, payload = total bytes of its reserve granted
	Reset      Kind = 24 // ends the stream early; op = stream, tag = code, payload = text; with FlagEnd, the error to return at the end of the stream, which follows
	Probe      Kind = 25 // requests the readiness of the receiver's program; op = number of the probe in the session, starting at 1
	Probed     Kind = 26 // answers the newest PROBE; op = its number, tag = a Readiness
	Held       Kind = 27 // the reason that the receiver's messages are queued; op = a heldby.Reason, tag = active<<32 | limit
	Retire     Kind = 28 // the sender starts no further operation in the session, and the receiver should not either
	maxKind         = 28
	// FirstOptional is the first of the kinds that a receiver skips if it does not recognize them.
	// Any other unknown kind is an error.
	FirstOptional Kind = 128
)

// The frame flags. A receiver rejects flags that are not defined for the kind.
const (
	// FlagPayload means that the CRC also covers the payload.
	FlagPayload uint8 = 1
	// FlagTell requests a DROPPED if no receive is posted for an expected message.
	FlagTell uint8 = 2
	// FlagTimed means that an unexpected message has a deadline, relative to its arrival.
	FlagTimed uint8 = 4
	// FlagAnswer means that DATA answers a GET: the operation number is the receiver's. With
	// STREAM, WINDOW, RESET, and DATA of a stream, it means that the stream was numbered by the
	// receiver of the frame.
	FlagAnswer uint8 = 8
	// FlagBody means that DATA or CANCEL belongs to a body, or that a message has one. The
	// operation is the body's ID.
	FlagBody uint8 = 16
	// FlagStream means that DATA is a piece of the stream whose number is in operation.
	FlagStream uint8 = 32
	// FlagRoom means that the payload of STREAM or DATA is charged to the session's room rather
	// than to the stream's reserve.
	FlagRoom uint8 = 64
	// FlagEnd means that the payload of a STREAM is the stream's last one. For other kinds the bit
	// is FlagTell, because a carrier need not transmit the highest bit.
	FlagEnd = FlagTell
)

// A shape describes the parts that frames of a kind may have.
type shape struct {
	name    string
	tail    int
	payload bool // may have a payload
	bulk    bool // the payload is placed in memory piece by piece
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

// String returns the name of k.
func (k Kind) String() string {
	if !k.isKnown() {
		return fmt.Sprintf("KIND%d", uint8(k))
	}
	return shapes[k].name
}

// isKnown reports whether k is defined in this release.
func (k Kind) isKnown() bool { return shapes[k].name != "" }

// IsSkipped reports whether frames of kind k are skipped because the kind is unknown and optional.
func (k Kind) IsSkipped() bool { return k >= FirstOptional && !k.isKnown() }

// shape returns the shape of k. An unknown kind has neither a tail nor flags.
func (k Kind) shape() *shape { return &shapes[k] }

// Bulk reports whether the payload of a frame of kind k is placed in memory piece by piece rather
// than delivered whole.
func (k Kind) Bulk() bool { return shapes[k].bulk }

// A Header is a frame's fixed header together with its tail.
type Header struct {
	Length  uint32 // length of tail and payload in bytes
	Kind    Kind
	Flags   uint8
	Context uint16 // target ID of the receiving context
	Op      uint64
	Tag     uint64
	Credit  uint32
	CRC     uint32
	Tail    Tail // set only for kinds that have a tail
}

// A Tail identifies a range of registered memory.
type Tail struct {
	Token  [16]byte
	Offset int64
	Length int64
}

// Payload returns the length of the payload in bytes.
func (h *Header) Payload() int { return int(h.Length) - h.Kind.shape().tail }

// Size returns the length of the header and tail in bytes.
func (h *Header) Size() int { return HeaderSize + h.Kind.shape().tail }

// String formats the header for logs and tests. It omits the token.
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

// SetPayload sets h.Length for a payload of n bytes.
func (h *Header) SetPayload(n int) { h.Length = uint32(h.Kind.shape().tail + n) }

// Append appends the encoding of h and payload to b and returns the extended slice. It sets
// h.Length. The CRC covers the header, tail and payload. If h's kind has no payload, Append is
// equivalent to AppendFront.
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

// AppendFront appends the encoding of h and its tail to b, for a payload of n bytes that is sent
// separately. The CRC does not cover the payload.
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

// Append appends the encoding of t, which is TailSize bytes long, to b.
func (t *Tail) Append(b []byte) []byte {
	le := binary.LittleEndian
	b = append(b, t.Token[:]...)
	b = le.AppendUint64(b, uint64(t.Offset))
	return le.AppendUint64(b, uint64(t.Length))
}

// Need returns the number of bytes that Parse needs at the front of b: HeaderSize, or the length of
// the header and tail once the kind is known.
func Need(b []byte) int {
	if len(b) > 4 {
		return HeaderSize + shapes[b[4]].tail
	}
	return HeaderSize
}

// Parse decodes the header and tail at the beginning of b, which must have at least Need(b) bytes.
// It checks everything that does not require the payload: the kind, the flags, the lengths, and the
// CRC if that does not cover the payload.
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

// Check validates the header of a frame that was received in parts without a checksum, and decodes
// the tail from the beginning of b. It returns an error if the kind, a flag or the length is
// invalid.
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

// checkUnknown validates the header of a frame whose kind is unknown to this release.
func (h *Header) checkUnknown() error {
	switch {
	case h.Kind < FirstOptional:
		return codes.WithText(codes.ErrProtocol, fmt.Sprintf("frame of unknown critical kind %d, want 1 to %d", uint8(h.Kind), maxKind))
	case h.Length > MaxWhole:
		return codes.WithText(codes.ErrProtocol, fmt.Sprintf("frame of unknown kind %d and length %d, the limit is %d", uint8(h.Kind), h.Length, MaxWhole))
	}
	return nil
}

// Verify checks the CRC of a frame whose CRC covers the payload. b is the complete frame: header,
// tail and payload.
func (h *Header) Verify(b []byte) error {
	if crcFront(b) != h.CRC {
		return codes.WithText(codes.ErrChecksum, fmt.Sprintf("%v frame: checksum mismatch", h.Kind))
	}
	return nil
}

// A Sum verifies the CRC of a frame whose CRC covers the payload, when the payload is received in
// parts.
type Sum struct{ want, got uint32 }

// SumOf returns a Sum that includes front, the encoded header and tail from which h was parsed.
func (h *Header) SumOf(front []byte) Sum { return Sum{h.CRC, crcFront(front[:h.Size()])} }

// Add adds the next part of the payload to the checksum.
func (s *Sum) Add(b []byte) { s.got = crc32.Update(s.got, crcTable, b) }

// Check reports whether the checksum matches. It must be called after the whole payload has been
// added.
func (s *Sum) Check() bool { return s.got == s.want }

var zeroCRC [4]byte

// crcFront returns the CRC of b, treating the CRC field itself as zero.
func crcFront(b []byte) uint32 {
	crc := crc32.Update(0, crcTable, b[:28])
	crc = crc32.Update(crc, crcTable, zeroCRC[:])
	return crc32.Update(crc, crcTable, b[32:])
}

// A body's ID consists of the body's length and a number that increases within the session.
const (
	bodyShift = 40
	bodyMask  = 1<<bodyShift - 1
)

// BodyID returns the ID of the session's seq-th body, which is n bytes long.
func BodyID(n int, seq uint64) uint64 { return uint64(n)<<bodyShift | seq&bodyMask }

// BodyLen returns the length encoded in a body's ID. The peer chose the ID, so the length is not
// validated.
func BodyLen(id uint64) int { return int(id >> bodyShift) }
