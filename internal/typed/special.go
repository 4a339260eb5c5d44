package typed

import (
	"encoding/json"
	"math"
	"strconv"
	"time"

	"github.com/vmihailenco/msgpack/v5"
)

// These types have a JSON encoding different from that of their underlying types.
type (
	floatValue   float64
	float32Value float32
	duration     int64
	// text holds the value of a type that encodes itself as text. s is nil if the value is not set.
	text struct{ s *string }
)

// MarshalJSON implements json.Marshaler.
func (f floatValue) MarshalJSON() ([]byte, error) { return floatJSON(float64(f), 64), nil }

// MarshalJSON implements json.Marshaler.
func (f float32Value) MarshalJSON() ([]byte, error) { return floatJSON(float64(f), 32), nil }

func floatJSON(f float64, bits int) []byte {
	s := strconv.FormatFloat(f, 'g', -1, bits)
	if math.IsNaN(f) || math.IsInf(f, 0) {
		s = strconv.Quote(s)
	}
	return []byte(s)
}

// MarshalJSON implements json.Marshaler.
func (d duration) MarshalJSON() ([]byte, error) { return json.Marshal(time.Duration(d).String()) }

// IsZero makes the codec omit an unset value from a struct.
func (t text) IsZero() bool { return t.s == nil }

// MarshalJSON implements json.Marshaler.
func (t text) MarshalJSON() ([]byte, error) { return json.Marshal(t.s) }

// EncodeMsgpack implements msgpack.CustomEncoder.
func (t text) EncodeMsgpack(e *msgpack.Encoder) error {
	if t.s == nil {
		return e.EncodeNil()
	}
	return e.EncodeBytes([]byte(*t.s))
}

// DecodeMsgpack implements msgpack.CustomDecoder.
func (t *text) DecodeMsgpack(d *msgpack.Decoder) error {
	b, err := d.DecodeBytes()
	if err == nil && b != nil {
		s := string(b)
		t.s = &s
	}
	return err
}
