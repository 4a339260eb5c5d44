package frame

import (
	"crypto/subtle"
	"encoding/binary"
	"fmt"
	"github.com/quicksilver-rpc/quicksilver/na/codes"
	"strings"
	"unicode"
	"unicode/utf8"
	"unique"
)

// The labels of a HELLO. A HELLO is a list of labeled values in ascending order of their labels.
// Each entry consists of a 2-byte label, a 2-byte length, and a value. A receiver skips unknown
// labels unless their mustUnderstand bit is set, and ignores extra bytes at the end of a value.
const (
	labelVersions    = 0x0100 // 2 and 2 bytes: oldest and newest supported version of the frame format
	labelIncarnation = 0x0200 // 16 random bytes that identify this instance of the class
	labelListen      = 0x0300 // text: address that the class listens on, or empty
	labelHost        = 0x0400 // text: identity of the machine, or empty
	labelContext     = 0x0500 // 2 bytes: ID of the sending context
	labelTarget      = 0x0600 // 2 bytes: ID of the receiving context
	labelEnvelopes   = 0x0700 // 4 bytes: envelopes guaranteed to the receiver of this HELLO
	labelEager       = 0x0800 // 4 bytes: maximum size of one message, in bytes
	labelFeatures    = 0x0900 // 8 bytes: feature bits
	labelCarrier     = 0x0a00 // bytes for the receiver's carrier; may be empty
	// labelNeed is the number of envelopes that the sender needs from the receiver of this HELLO (4
	// bytes). It is absent if the sender has no minimum.
	labelNeed = 0x0c00
	// labelWant is the maximum number of envelopes that the sender can use (4 bytes). It is absent
	// if there is no limit.
	labelWant = 0x0d00
	// labelSecret is the secret of the session, which the receiver presents when it reconnects (16
	// random bytes).
	labelSecret = 0x0e00
	// labelProof is the receiver's labelSecret in the pair's previous session (16 bytes). It is
	// absent if there was none.
	labelProof = 0x0f00
	// labelPlace is equal for classes that can reach one another over a second transport (16
	// bytes). It is absent if there is none.
	labelPlace = 0x1000
	// labelOffer is the secret of the receiver's Offer that the sender is using (16 bytes). It is
	// absent if there is none.
	labelOffer   = 0x1100
	labelProcess = 0x1200 // text: name of the process; absent if it has none
	// labelMessages holds the oldest and newest supported version of the headers in messages (2 and
	// 2 bytes). It is absent if the layer above na has none.
	labelMessages = 0x1300

	mustUnderstand = 0x8000 // label bit: a receiver that does not know the label must reject the HELLO
)

// FeatureWithdraw is the bit of Greeting.Features set by a sender that answers WITHDRAW and accepts
// ABANDON.
const FeatureWithdraw = 2

// FeatureReserve is the bit set by a sender that reserves one of its guaranteed envelopes for
// messages whose senders are waiting; see na.HonestReserve.
const FeatureReserve = 4

// FeatureRetires is the bit set by a sender that still has the session whose secret the HELLO
// presents, but no longer starts operations in it.
const FeatureRetires = 8

// MaxHello is the maximum payload of a HELLO, in bytes.
const MaxHello = 4096

// A Greeting is the content of a HELLO.
type Greeting struct {
	Versions    Range
	Incarnation [16]byte
	Listen      string
	Host        string
	Context     uint16
	Target      uint16
	Envelopes   uint32
	Eager       uint32
	Features    uint64
	Label       []byte // bytes for the receiver's carrier
	// Need and Want are the minimum and maximum number of envelopes that the sender requests. Zero
	// means no request.
	Need, Want uint32
	// Secret is the secret of the session that the HELLO begins. Proof is the secret of an earlier
	// session. Zero means none.
	Secret, Proof Secret
	// Place identifies the network of the sender's second transport. Offer is the secret of the
	// receiver's Offer. Zero means none.
	Place [16]byte
	Offer Secret
	// Process is the name of the sender's process. It is empty or satisfies ValidName.
	Process string
	// Messages is the range of versions of the message headers written by the layer above na.
	Messages Range
	// Any means that the sender lets this side choose Target. It is not sent on the wire.
	Any bool
}

// A Secret is known only to the two sides of a session. Its String and GoString methods do not
// reveal it.
type Secret [16]byte

func (Secret) String() string   { return "(secret)" }
func (Secret) GoString() string { return "(secret)" }

// Matches reports whether s is nonzero and equal to other. It takes constant time.
func (s Secret) Matches(other Secret) bool {
	return s != Secret{} && subtle.ConstantTimeCompare(s[:], other[:]) == 1
}

// Append appends the encoding of g as the payload of a HELLO to b and returns the extended slice.
func (g *Greeting) Append(b []byte) []byte {
	le := binary.LittleEndian
	put := func(label uint16, v []byte) {
		b = le.AppendUint16(b, label)
		b = le.AppendUint16(b, uint16(len(v)))
		b = append(b, v...)
	}
	putRange := func(label uint16, r Range) { put(label, le.AppendUint16(le.AppendUint16(nil, r.Oldest), r.Newest)) }
	putRange(labelVersions, g.Versions)
	put(labelIncarnation, g.Incarnation[:])
	put(labelListen, []byte(g.Listen))
	put(labelHost, []byte(g.Host))
	put(labelContext, le.AppendUint16(nil, g.Context))
	put(labelTarget, le.AppendUint16(nil, g.Target))
	put(labelEnvelopes, le.AppendUint32(nil, g.Envelopes))
	put(labelEager, le.AppendUint32(nil, g.Eager))
	put(labelFeatures, le.AppendUint64(nil, g.Features))
	put(labelCarrier, g.Label)
	if g.Need != 0 {
		put(labelNeed, le.AppendUint32(nil, g.Need))
	}
	if g.Want != 0 {
		put(labelWant, le.AppendUint32(nil, g.Want))
	}
	if g.Secret != (Secret{}) {
		put(labelSecret, g.Secret[:])
	}
	if g.Proof != (Secret{}) {
		put(labelProof, g.Proof[:])
	}
	if g.Place != ([16]byte{}) {
		put(labelPlace, g.Place[:])
	}
	if g.Offer != (Secret{}) {
		put(labelOffer, g.Offer[:])
	}
	if g.Process != "" {
		put(labelProcess, []byte(g.Process))
	}
	if g.Messages != (Range{}) {
		putRange(labelMessages, g.Messages)
	}
	return appendLater(b)
}

// ParseHello decodes the first frame of a byte stream, which must be a HELLO.
func ParseHello(h *Header, payload []byte) (Greeting, error) {
	if h.Kind != Hello || h.Tag != Magic {
		return Greeting{}, codes.WithText(codes.ErrProtocol, fmt.Sprintf("session begins with %v, want HELLO", h.Kind))
	}
	return ParseGreeting(payload)
}

// ParseGreeting decodes the payload of a HELLO. Versions, incarnation, context, target, envelopes
// and eager size are required.
func ParseGreeting(b []byte) (Greeting, error) {
	var g Greeting
	if len(b) > MaxHello {
		return g, codes.WithText(codes.ErrProtocol, fmt.Sprintf("HELLO of %d bytes, the limit is %d", len(b), MaxHello))
	}
	le := binary.LittleEndian
	last := -1
	seen := 0
	for len(b) > 0 {
		if len(b) < 4 {
			return g, codes.WithText(codes.ErrProtocol, "HELLO ends inside a label")
		}
		label, n := le.Uint16(b), int(le.Uint16(b[2:]))
		if int(label) <= last {
			return g, codes.WithText(codes.ErrProtocol, fmt.Sprintf("HELLO: label %#x follows %#x, want ascending order", label, last))
		}
		last = int(label)
		if b = b[4:]; len(b) < n {
			return g, codes.WithText(codes.ErrProtocol, fmt.Sprintf("HELLO: label %#x has length %d, with %d bytes left", label, n, len(b)))
		}
		v := b[:n]
		b = b[n:]
		want := -1 // number of bytes of the value known to this release; a later release may add more
		getRange := func() (r Range) {
			if want = 4; n >= want {
				r = Range{le.Uint16(v), le.Uint16(v[2:])}
			}
			return r
		}
		switch label {
		case labelVersions:
			g.Versions = getRange()
		case labelMessages:
			g.Messages = getRange()
		case labelIncarnation:
			if want = 16; n >= want {
				copy(g.Incarnation[:], v)
			}
		case labelListen:
			g.Listen = string(v)
		case labelHost:
			if host := string(v); isPrintable(host) { // unprintable hosts are ignored, because programs log the host
				g.Host = host
			}
		case labelContext:
			if want = 2; n >= want {
				g.Context = le.Uint16(v)
			}
		case labelTarget:
			if want = 2; n >= want {
				g.Target = le.Uint16(v)
			}
		case labelEnvelopes:
			if want = 4; n >= want {
				g.Envelopes = le.Uint32(v)
			}
		case labelEager:
			if want = 4; n >= want {
				g.Eager = le.Uint32(v)
			}
		case labelFeatures:
			if want = 8; n >= want {
				g.Features = le.Uint64(v)
			}
		case labelCarrier:
			g.Label = append([]byte(nil), v...)
		case labelNeed:
			if want = 4; n >= want {
				g.Need = le.Uint32(v)
			}
		case labelWant:
			if want = 4; n >= want {
				g.Want = le.Uint32(v)
			}
		case labelSecret:
			if want = len(g.Secret); n >= want {
				copy(g.Secret[:], v)
			}
		case labelProof:
			if want = len(g.Proof); n >= want {
				copy(g.Proof[:], v)
			}
		case labelPlace:
			if want = len(g.Place); n >= want {
				copy(g.Place[:], v)
			}
		case labelOffer:
			if want = len(g.Offer); n >= want {
				copy(g.Offer[:], v)
			}
		case labelProcess:
			if name := string(v); ValidName(name) { // invalid names are ignored
				g.Process = unique.Make(name).Value() // interned: many peers run the same program
			}
		default:
			if !takeLater(label, v) && label&mustUnderstand != 0 {
				return g, codes.WithText(codes.ErrVersion, fmt.Sprintf("HELLO: unknown critical label %#x", label))
			}
		}
		if n < want {
			return g, codes.WithText(codes.ErrProtocol, fmt.Sprintf("HELLO: label %#x has %d bytes, want %d", label, n, want))
		}
		switch label {
		case labelVersions, labelIncarnation, labelContext, labelTarget, labelEnvelopes, labelEager:
			seen++
		}
	}
	if seen != 6 {
		return g, codes.WithText(codes.ErrProtocol, "HELLO: missing required label")
	}
	if g.Versions == (Range{}) || !g.Versions.isValid() || !g.Messages.isValid() {
		return g, codes.WithText(codes.ErrProtocol, fmt.Sprintf("HELLO: versions %d to %d of frames and %d to %d of messages cannot be",
			g.Versions.Oldest, g.Versions.Newest, g.Messages.Oldest, g.Messages.Newest))
	}
	return g, nil
}

// isPrintable reports whether text, which a peer sent, can be printed without quoting.
func isPrintable(text string) bool {
	return utf8.ValidString(text) && !strings.ContainsFunc(text, func(r rune) bool { return !unicode.IsPrint(r) })
}

// maxProcessName is the maximum length of a process name, in bytes.
const maxProcessName = 64

// ValidName reports whether name is a valid process name: 1 to 64 bytes of printable characters
// other than parentheses.
func ValidName(name string) bool {
	if name == "" || len(name) > maxProcessName || !utf8.ValidString(name) {
		return false
	}
	return !strings.ContainsFunc(name, func(r rune) bool { return !unicode.IsPrint(r) || r == '(' || r == ')' })
}
