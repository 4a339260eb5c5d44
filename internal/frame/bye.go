package frame

import (
	"encoding/binary"
	"errors"
	"unicode/utf8"

	"github.com/quicksilver-rpc/quicksilver/na/codes"
)

// A Bye is the last that a side says in a session, or to a peer that it turns away: what GOAWAY carries. One with codes.OK is not
// said.
type Bye struct {
	Code codes.Code
	Next uint64 // the first of the other side's UNEXPECTED messages that was not taken; 0: it is not known
	Text string
	// Offer, if not nil, is another way to the class, for a peer that is turned away only to take it. It goes instead of Text.
	Offer *Offer
}

// An Offer is a name of the class on another of its transports, with what the peer shows when it dials that.
type Offer struct {
	Name   string
	Secret Secret
}

// Error makes an Offer an error, so that Admit can return it and the carrier turns the peer away with it.
func (o *Offer) Error() string { return "the peer is to be dialled as " + o.Name }

// Unwrap returns the code that goes with it.
func (o *Offer) Unwrap() error { return codes.ErrAgain }

// offered marks a code with which there is an Offer. It crosses the wire.
const offered = 0x80

// maxText bounds the text of a Bye in bytes.
const maxText = 512

// ByeOf is what turns somebody away because of err.
func ByeOf(err error) Bye {
	if o, ok := errors.AsType[*Offer](err); ok {
		return Bye{Code: codes.Of(o), Offer: o}
	}
	return Bye{Code: codes.Of(err), Text: err.Error()}
}

// said returns the code and the text as they cross the wire.
func (b Bye) said() (code byte, text string) {
	if o := b.Offer; o != nil {
		return byte(b.Code) | offered, string(o.Secret[:]) + o.Name
	}
	return byte(b.Code), CutText(b.Text, maxText)
}

// CutText returns as much of text as fits most bytes, without a part of a character.
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

// heard is a Bye of what was said.
func heard(code byte, next uint64, text string) Bye {
	text = text[:min(len(text), maxText)]
	b := Bye{Code: codes.Code(code &^ offered), Next: next}
	if n := len(Secret{}); code&offered == 0 {
		b.Text = text
	} else if len(text) > n {
		b.Offer = &Offer{Name: text[n:], Secret: Secret([]byte(text[:n]))}
	}
	return b
}

// Frame encodes b as GOAWAY, the last frame of a stream; nil if it is not said.
func (b Bye) Frame() []byte {
	if b.Code == codes.OK {
		return nil
	}
	code, text := b.said()
	h := Header{Kind: Goaway, Op: b.Next, Tag: uint64(code)}
	return h.Append(nil, []byte(text))
}

// Bye decodes a GOAWAY.
func (h *Header) Bye(payload []byte) Bye {
	return heard(byte(h.Tag), h.Op, string(payload))
}

// Words encodes b for a carrier whose last words are no frame; nil if it is not said.
func (b Bye) Words() []byte {
	if b.Code == codes.OK {
		return nil
	}
	code, text := b.said()
	return append(binary.LittleEndian.AppendUint64([]byte{code}, b.Next), text...)
}

// ParseBye decodes Words.
func ParseBye(words []byte) Bye {
	if len(words) < 9 {
		return Bye{Code: codes.ErrProtocol, Text: "its last words are too short"}
	}
	next, text := binary.LittleEndian.Uint64(words[1:]), words[9:]
	if next >= 1<<56 { // no session has so many messages: earlier versions say the text here
		next, text = 0, words[1:]
	}
	return heard(words[0], next, string(text))
}
