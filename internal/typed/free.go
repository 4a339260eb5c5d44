package typed

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/vmihailenco/msgpack/v5"
	"github.com/vmihailenco/msgpack/v5/msgpcode"
)

// A Free is a value of unknown type. Its JSON form is the plain value if JSON has one, and
// otherwise an object with a single name:
//
//	{"$bytes": "aGk="}   {"$time": "2026-01-02T03:04:05Z"}   {"$float": "NaN"}   {"$map": [[KEY, VALUE], …]}
type Free struct{ v any } // nil, bool, a number, string, []byte, time.Time, []Free or pairs

// pairs is a map, in the order in which its entries were received.
type pairs [][2]Free

// IsZero makes the codec omit a zero value from a struct.
func (f Free) IsZero() bool { return f.v == nil }

// EncodeMsgpack implements msgpack.CustomEncoder.
func (f Free) EncodeMsgpack(e *msgpack.Encoder) error {
	switch v := f.v.(type) {
	case []Free:
		if err := e.EncodeArrayLen(len(v)); err != nil {
			return err
		}
		for _, elem := range v {
			if err := elem.EncodeMsgpack(e); err != nil {
				return err
			}
		}
		return nil
	case pairs:
		if err := e.EncodeMapLen(len(v)); err != nil {
			return err
		}
		for _, pair := range v {
			for _, half := range pair {
				if err := half.EncodeMsgpack(e); err != nil {
					return err
				}
			}
		}
		return nil
	}
	return e.Encode(f.v)
}

// DecodeMsgpack implements msgpack.CustomDecoder. The codec has already limited the depth.
func (f *Free) DecodeMsgpack(d *msgpack.Decoder) error {
	c, err := d.PeekCode()
	if err != nil {
		return err
	}
	switch {
	case msgpcode.IsFixedMap(c) || c == msgpcode.Map16 || c == msgpcode.Map32:
		n, err := d.DecodeMapLen()
		all := pairs{}
		for range max(n, 0) {
			var pair [2]Free
			for i := range pair {
				if err := pair[i].DecodeMsgpack(d); err != nil {
					return err
				}
			}
			all = append(all, pair)
		}
		f.v = all
		return err
	case msgpcode.IsFixedArray(c) || c == msgpcode.Array16 || c == msgpcode.Array32:
		n, err := d.DecodeArrayLen()
		all := []Free{}
		for range max(n, 0) {
			var elem Free
			if err := elem.DecodeMsgpack(d); err != nil {
				return err
			}
			all = append(all, elem)
		}
		f.v = all
		return err
	}
	f.v, err = d.DecodeInterface()
	return err
}

// MarshalJSON implements json.Marshaler.
func (f Free) MarshalJSON() ([]byte, error) {
	switch v := f.v.(type) {
	case []byte:
		return json.Marshal(map[string]string{"$bytes": base64.StdEncoding.EncodeToString(v)})
	case time.Time:
		return json.Marshal(map[string]time.Time{"$time": v})
	case float32:
		return marshalFreeFloat(float64(v), 32)
	case float64:
		return marshalFreeFloat(v, 64)
	case pairs:
		return v.marshalJSON()
	}
	return marshal(f.v)
}

// marshalFreeFloat encodes a float so that it cannot be mistaken for an integer.
func marshalFreeFloat(f float64, bits int) ([]byte, error) {
	b := floatJSON(f, bits)
	switch {
	case b[0] == '"':
		return fmt.Appendf(nil, `{"$float":%s}`, b), nil
	case f == math.Trunc(f) && !strings.Contains(string(b), "e"):
		b = append(b, ".0"...)
	}
	return b, nil
}

func (p pairs) marshalJSON() ([]byte, error) {
	plain := func(pair [2]Free) bool {
		name, ok := pair[0].v.(string)
		return ok && !strings.HasPrefix(name, "$")
	}
	if slices.ContainsFunc(p, func(pair [2]Free) bool { return !plain(pair) }) {
		return marshal(map[string][][2]Free{"$map": p})
	}
	b := []byte{'{'}
	for i, pair := range p {
		if i > 0 {
			b = append(b, ',')
		}
		for j, half := range pair {
			text, err := marshal(half)
			if err != nil {
				return nil, err
			}
			b = append(b, text...)
			if j == 0 {
				b = append(b, ':')
			}
		}
	}
	return append(b, '}'), nil
}

// freeValue converts v, a JSON value whose type is unknown, to a Free. path is v's position, for
// errors.
func freeValue(v any, path string) (f Free, err error) {
	switch v := v.(type) {
	case json.Number:
		if n, err := v.Int64(); err == nil {
			return Free{n}, nil
		}
		if n, err := strconv.ParseUint(string(v), 10, 64); err == nil {
			return Free{n}, nil
		}
		n, err := v.Float64()
		if err != nil {
			return f, fmt.Errorf("%sthe number %s does not fit a float64", path, v)
		}
		return Free{n}, nil
	case []any:
		all := []Free{}
		for i, elem := range v {
			f, err := freeValue(elem, indexPath(path, i))
			if err != nil {
				return f, err
			}
			all = append(all, f)
		}
		return Free{all}, nil
	case map[string]any:
		return freeValueOfObject(v, path)
	}
	return Free{v}, nil // nil, bool, string
}

func freeValueOfObject(v map[string]any, path string) (f Free, err error) {
	all := pairs{}
	for _, name := range sortedNames(v) {
		if strings.HasPrefix(name, "$") {
			return parseSpecialObject(v, path)
		}
		f, err := freeValue(v[name], memberPath(path, name))
		if err != nil {
			return f, err
		}
		all = append(all, [2]Free{{name}, f})
	}
	return Free{all}, nil
}

// parseSpecialObject converts a JSON object with a name that begins with $ to the value that it
// represents. path is the object's position, for errors.
func parseSpecialObject(v map[string]any, path string) (f Free, err error) {
	const want = `want one of {"$bytes": BASE64}, {"$time": RFC 3339}, {"$float": "NaN", "+Inf" or "-Inf"} and {"$map": [[KEY, VALUE], ...]}`
	if s, ok := v["$bytes"].(string); ok && len(v) == 1 {
		f.v, err = base64.StdEncoding.DecodeString(s)
	} else if s, ok := v["$time"].(string); ok && len(v) == 1 {
		f.v, err = time.Parse(time.RFC3339Nano, s)
	} else if s, ok := v["$float"].(string); ok && len(v) == 1 {
		f.v, err = strconv.ParseFloat(s, 64)
	} else if list, ok := v["$map"].([]any); ok && len(v) == 1 {
		all := pairs{}
		for i, elem := range list {
			pair, err := freeValue(elem, indexPath(path, i))
			if err != nil {
				return f, err
			}
			halves, ok := pair.v.([]Free)
			if !ok || len(halves) != 2 {
				return f, fmt.Errorf("%s%s", path, want)
			}
			all = append(all, [2]Free(halves))
		}
		f.v = all
	} else {
		return f, fmt.Errorf("%s%s", path, want)
	}
	if err != nil {
		return f, fmt.Errorf("%s%s: %w", path, want, err)
	}
	return f, nil
}
