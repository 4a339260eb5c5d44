package frame

import (
	"encoding/binary"
	"errors"
	"unicode/utf8"

	"github.com/quicksilver-rpc/quicksilver/na/codes"
)

// A Bye is the last message of a side in a session, or to a peer that it rejects: the content of
// GOAWAY. One with codes.OK is not sent.
type Bye struct {
	Code codes.Code
	Next uint64 // number of the first UNEXPECTED message of the peer that was not received; 0 if unknown
	Text string
	// Offer, if not nil, is another address of the class, which the rejected peer should dial. It
	// replaces Text.
	Offer *Offer
}

// An Offer is the name of the class on another of its transports, with the secret that the peer
// presents when it dials that.
type Offer struct {
	Name   string
	Secret Secret
}

// Error makes an Offer an error, so that Admit can return it and the carrier rejects the peer with
// it.
func (o *Offer) Error() string { return "the peer moved to " + o.Name }

// Unwrap returns the code of the error.
func (o *Offer) Unwrap() error { return codes.ErrAgain }

// offered marks a code that has an Offer. It is on the wire.
const offered = 0x80

// maxText limits the text of a Bye in bytes.
const maxText = 512

// ByeOf returns the Bye that rejects a peer because of err.
func ByeOf(err error) Bye {
	if o, ok := errors.AsType[*Offer](err); ok {
		return Bye{Code: codes.Of(o), Offer: o}
	}
	return Bye{Code: codes.Of(err), Text: err.Error()}
}

// wireText returns the code and the text as they are on the wire.
func (b Bye) wireText() (code byte, text string) {
	if o := b.Offer; o != nil {
		return byte(b.Code) | offered, string(o.Secret[:]) + o.Name
	}
	return byte(b.Code), CutText(b.Text, maxText)
}

// CutText truncates text to at most most bytes without splitting a character.
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

// newBye returns the Bye with this code, number and text, as they are on the wire.
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

// Frame encodes b as GOAWAY, the last frame of a byte stream; nil if it is not sent.
func (b Bye) Frame() []byte {
	if b.Code == codes.OK {
		return nil
	}
	code, text := b.wireText()
	h := Header{Kind: Goaway, Op: b.Next, Tag: uint64(code)}
	return h.Append(nil, []byte(text))
}

// Bye decodes a GOAWAY.
func (h *Header) Bye(payload []byte) Bye {
	return newBye(byte(h.Tag), h.Op, string(payload))
}

// Words encodes b for a carrier that does not send it as a frame; nil if it is not sent.
func (b Bye) Words() []byte {
	if b.Code == codes.OK {
		return nil
	}
	code, text := b.wireText()
	return append(binary.LittleEndian.AppendUint64([]byte{code}, b.Next), text...)
}

// ParseBye decodes the result of Words.
func ParseBye(words []byte) Bye {
	if len(words) < 9 {
		return Bye{Code: codes.ErrProtocol, Text: "the BYE frame is too short"}
	}
	next, text := binary.LittleEndian.Uint64(words[1:]), words[9:]
	if next >= 1<<56 { // no session has this many messages: earlier versions have the text here
		next, text = 0, words[1:]
	}
	return newBye(words[0], next, string(text))
}
