package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
)

// fromJSON returns the value that a JSON text is, for a codec to encode: integers are integers, and null is a pointer that is nil.
func fromJSON(text []byte) (any, error) {
	d := json.NewDecoder(bytes.NewReader(text))
	d.UseNumber()
	var v any
	if err := d.Decode(&v); err != nil {
		return nil, fmt.Errorf("%q is no JSON: %w", text, err)
	}
	if _, err := d.Token(); err != io.EOF {
		return nil, fmt.Errorf("%q is JSON with something behind it", text)
	}
	if v == nil {
		return (*int)(nil), nil
	}
	return numbers(v)
}

// numbers replaces the numbers in v: integers as they are, others as floats.
func numbers(v any) (_ any, err error) {
	switch v := v.(type) {
	case json.Number:
		if n, err := v.Int64(); err == nil {
			return n, nil
		}
		var n uint64
		if json.Unmarshal([]byte(v), &n) == nil {
			return n, nil
		}
		f, err := v.Float64()
		if err != nil {
			return nil, fmt.Errorf("the number %s fits no float64", v)
		}
		return f, nil
	case []any:
		for i := range v {
			if v[i], err = numbers(v[i]); err != nil {
				return nil, err
			}
		}
	case map[string]any:
		for k := range v {
			if v[k], err = numbers(v[k]); err != nil {
				return nil, err
			}
		}
	}
	return v, nil
}

// toJSON writes a value that a codec has decoded; bytes become base64.
func toJSON(v any) (string, error) {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(v); err != nil {
		return "", fmt.Errorf("cannot be said in JSON: %w", err)
	}
	return string(bytes.TrimSpace(b.Bytes())), nil
}
