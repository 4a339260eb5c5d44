package frame

import (
	"encoding/binary"

	"github.com/quicksilver-rpc/quicksilver/na"
)

// A Bye is the last that a side says in a session, or to a peer that it turns away: what GOAWAY carries. One with na.OK is not
// said.
type Bye struct {
	Code na.Code
	Next uint64 // the first of the other side's UNEXPECTED messages that was not taken; 0: it is not known
	Text string
}

// maxText bounds the text of a Bye in bytes.
const maxText = 512

// ByeOf is what turns somebody away because of err.
func ByeOf(err error) Bye { return Bye{Code: na.CodeOf(err), Text: err.Error()} }

func (b Bye) text() string { return b.Text[:min(len(b.Text), maxText)] }

// Frame encodes b as GOAWAY, the last frame of a stream; nil if it is not said.
func (b Bye) Frame() []byte {
	if b.Code == na.OK {
		return nil
	}
	h := Header{Kind: Goaway, Op: b.Next, Tag: uint64(b.Code)}
	return h.Append(nil, []byte(b.text()))
}

// Bye decodes a GOAWAY.
func (h *Header) Bye(payload []byte) Bye {
	return Bye{na.Code(h.Tag), h.Op, string(payload[:min(len(payload), maxText)])}
}

// Words encodes b for a carrier whose last words are no frame; nil if it is not said.
func (b Bye) Words() []byte {
	if b.Code == na.OK {
		return nil
	}
	return append(binary.LittleEndian.AppendUint64([]byte{byte(b.Code)}, b.Next), b.text()...)
}

// ParseBye decodes Words.
func ParseBye(words []byte) Bye {
	if len(words) < 9 {
		return Bye{Code: na.ErrProtocol, Text: "its last words are too short"}
	}
	return Bye{na.Code(words[0]), binary.LittleEndian.Uint64(words[1:]), string(words[9:min(len(words), 9+maxText)])}
}
