package frame

import (
	"encoding/binary"
	"errors"
	"unicode/utf8"

	"github.com/quicksilver-rpc/quicksilver/na/codes"
)

// A Bye is the last message that a side sends in a session, or to a peer that it rejects. It is the
// content of a GOAWAY frame. A Bye with codes.OK is not sent.
type Bye struct {
	Code codes.Code
	Next uint64 // number of the peer's first UNEXPECTED message that was not received; 0 if unknown
	Text string
	// Offer, if not nil, is another address of the class, for the rejected peer to dial. A Bye with
	// an Offer has no Text.
	Offer *Offer
}

// An Offer is the class's name on another of its transports, with the secret that the peer presents
// when it dials that name.
type Offer struct {
	Name   string
	Secret Secret
}

// Error implements the error interface, so that Admit can return an Offer and the carrier can
// reject the peer with it.
func (o *Offer) Error() string { return "the peer moved to " + o.Name }

// Unwrap returns codes.ErrAgain.
func (o *Offer) Unwrap() error { return codes.ErrAgain }

// offered is the bit that marks a code with an Offer. It is part of the wire format.
const offered = 0x80

// maxText is the maximum length of a Bye's text, in bytes.
const maxText = 512

// ByeOf returns the Bye that rejects a peer because of err.
func ByeOf(err error) Bye {
	if o, ok := errors.AsType[*Offer](err); ok {
		return Bye{Code: codes.Of(o), Offer: o}
	}
	return Bye{Code: codes.Of(err), Text: err.Error()}
}

// wireText returns the code and the text of b in wire format.
func (b Bye) wireText() (code byte, text string) {
	if o := b.Offer; o != nil {
		return byte(b.Code) | offered, string(o.Secret[:]) + o.Name
	}
	return byte(b.Code), CutText(b.Text, maxText)
}

// CutText truncates text to the given maximum length in bytes, without splitting a UTF-8 sequence.
func CutText(text string, most int) string {
	if len(text) <= most {
		return text
	}
	most = max(most, 0)
	for most > 0 && !utf8.RuneStart(text[most]) {
		most--
	}
	return text[:most]
}

// newBye returns the Bye for a code, number and text in wire format.
func newBye(code byte, next uint64, text string) Bye {
	text = text[:min(len(text), maxText)]
	b := Bye{Code: codes.Code(code &^ offered), Next: next}
	if n := len(Secret{}); code&offered == 0 {
		b.Text = text
	} else if len(text) > n {
		b.Offer = &Offer{Name: text[n:], Secret: Secret([]byte(text[:n]))}
	}
	return b
}

// Frame encodes b as a GOAWAY, the last frame of a byte stream. It returns nil if b is not sent.
func (b Bye) Frame() []byte {
	if b.Code == codes.OK {
		return nil
	}
	code, text := b.wireText()
	h := Header{Kind: Goaway, Op: b.Next, Tag: uint64(code)}
	return h.Append(nil, []byte(text))
}

// Bye decodes a GOAWAY frame.
func (h *Header) Bye(payload []byte) Bye {
	return newBye(byte(h.Tag), h.Op, string(payload))
}

// Words encodes b for a carrier that does not send it as a frame. It returns nil if b is not sent.
func (b Bye) Words() []byte {
	if b.Code == codes.OK {
		return nil
	}
	code, text := b.wireText()
	return append(binary.LittleEndian.AppendUint64([]byte{code}, b.Next), text...)
}

// ParseBye decodes a Bye encoded by Words.
func ParseBye(words []byte) Bye {
	if len(words) < 9 {
		return Bye{Code: codes.ErrProtocol, Text: "the BYE frame is too short"}
	}
	next, text := binary.LittleEndian.Uint64(words[1:]), words[9:]
	if next >= 1<<56 { // no session has this many messages; earlier versions send the text here
		next, text = 0, words[1:]
	}
	return newBye(words[0], next, string(text))
}
