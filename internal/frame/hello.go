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

// A HELLO is a list of labeled values in ascending order of their labels. Each has: label 2 bytes,
// length 2 bytes, value. A receiver skips labels that it does not know, unless the mustUnderstand
// bit is set, and extra bytes at the end of a value.
const (
	labelVersions    = 0x0100 // 2 and 2 bytes: the oldest and the newest version of frames
	labelIncarnation = 0x0200 // 16 random bytes of this instance of the class
	labelListen      = 0x0300 // text: the address that the class listens on, or empty
	labelHost        = 0x0400 // text: identity of the machine, or empty
	labelContext     = 0x0500 // 2 bytes: id of the sending context
	labelTarget      = 0x0600 // 2 bytes: id of the receiving context
	labelEnvelopes   = 0x0700 // 4 bytes: envelopes guaranteed to the receiver of this HELLO
	labelEager       = 0x0800 // 4 bytes: bytes of one message
	labelFeatures    = 0x0900 // 8 bytes: bits
	labelCarrier     = 0x0a00 // bytes for the carrier of the receiver; may be empty
	// 4 bytes: envelopes that the sender needs from the receiver of this HELLO; absent if it has no
	// minimum
	labelNeed = 0x0c00
	// 4 bytes: the largest number of envelopes that the sender can use; absent for no limit
	labelWant = 0x0d00
	// 16 random bytes of the session, which the receiver presents when it connects again
	labelSecret = 0x0e00
	// 16 bytes: the labelSecret of the receiver in the last session of the pair; absent without one
	labelProof = 0x0f00
	// 16 bytes: equal for classes that reach one another by a second transport; absent without one
	labelPlace = 0x1000
	// 16 bytes: the secret of the receiver's Offer that the sender uses; absent without one
	labelOffer   = 0x1100
	labelProcess = 0x1200 // text: the name of the process; absent without one
	// 2 and 2 bytes: the oldest and the newest version of the headers in messages; absent if the
	// layer above na has none
	labelMessages = 0x1300

	mustUnderstand = 0x8000 // bit of labels: a receiver that does not know the label rejects the HELLO
)

// FeatureWithdraw is the bit of Greeting.Features for a sender that answers WITHDRAW and accepts
// ABANDON.
const FeatureWithdraw = 2

// FeatureReserve is the bit for a sender that keeps one of its guaranteed envelopes for messages
// whose senders wait: na.HonestReserve.
const FeatureReserve = 4

// FeatureRetires is the bit for a sender that has not ended the session whose secret the HELLO
// presents, but begins nothing in it any more.
const FeatureRetires = 8

// MaxHello limits the payload of a HELLO, in bytes.
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
	Label       []byte // bytes for the carrier of the receiver
	// Need and Want are the numbers of envelopes that the sender requests: at least Need, and at
	// most Want. Zero: no request.
	Need, Want uint32
	// Secret is that of the session that the HELLO begins, Proof that of an earlier one. Zero:
	// none.
	Secret, Proof Secret
	// Place identifies the network of the sender's second transport, Offer is the secret of the
	// receiver's Offer. Zero: none.
	Place [16]byte
	Offer Secret
	// Process is the name of the sender's process: empty, or valid as of ValidName.
	Process string
	// Messages is the range of versions of the headers that the layer above na writes into
	// messages.
	Messages Range
	// Any means that the sender has left the choice of Target to this side. It is not on the wire.
	Any bool
}

// A Secret is known only to the two sides of a session. It is not printed.
type Secret [16]byte

func (Secret) String() string   { return "(secret)" }
func (Secret) GoString() string { return "(secret)" }

// Matches reports, in constant time, whether s is not zero and equals other.
func (s Secret) Matches(other Secret) bool {
	return s != Secret{} && subtle.ConstantTimeCompare(s[:], other[:]) == 1
}

// Append encodes g at the end of b.
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

// ParseHello decodes the first frame of a byte stream.
func ParseHello(h *Header, payload []byte) (Greeting, error) {
	if h.Kind != Hello || h.Tag != Magic {
		return Greeting{}, codes.WithText(codes.ErrProtocol, fmt.Sprintf("session begins with %v, want HELLO", h.Kind))
	}
	return ParseGreeting(payload)
}

// ParseGreeting decodes a HELLO's payload. Versions, incarnation, context, target, envelopes and
// eager size must be present.
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
		want := -1 // bytes of the value that this release knows; further ones are of a later release
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
			if host := string(v); isPrintable(host) { // otherwise ignored: programs log it
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
			if name := string(v); ValidName(name) { // otherwise ignored
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

// isPrintable reports whether a text of a peer can be printed without quoting.
func isPrintable(text string) bool {
	return utf8.ValidString(text) && !strings.ContainsFunc(text, func(r rune) bool { return !unicode.IsPrint(r) })
}

// maxProcessName limits the name of a process in bytes.
const maxProcessName = 64

// ValidName reports whether name is valid for a process: up to 64 bytes of printable characters
// without parentheses.
func ValidName(name string) bool {
	if name == "" || len(name) > maxProcessName || !utf8.ValidString(name) {
		return false
	}
	return !strings.ContainsFunc(name, func(r rune) bool { return !unicode.IsPrint(r) || r == '(' || r == ')' })
}
