package typed

import (
	"bytes"
	"encoding"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"
)

// newUnquotedError returns the error for text that was intended as a string but lacks quotes.
func newUnquotedError(text []byte, err error) error {
	return fmt.Errorf(`"%s" is not JSON: %w; a string needs quotes inside the shell's: '"%[1]s"'`, text, err)
}

// Read parses JSON text for use with FromJSON. It returns an error for text of which encoding/json
// would silently drop a part: invalid UTF-8, and objects with duplicate names.
func Read(text []byte) (v any, err error) {
	if !utf8.Valid(text) {
		return nil, fmt.Errorf("%s is not JSON: it is not UTF-8", quote(text))
	}
	d := json.NewDecoder(bytes.NewReader(text))
	d.UseNumber()
	if err := d.Decode(&v); err != nil {
		if unquotedString.Match(text) {
			return nil, newUnquotedError(text, err)
		}
		return nil, fmt.Errorf("%s is not JSON: %w", quote(text), err)
	}
	if _, err := d.Token(); err != io.EOF {
		if unquotedString.Match(text) { // a number with a unit
			return nil, newUnquotedError(text, fmt.Errorf("unexpected data after the number"))
		}
		return nil, fmt.Errorf("%s has data after the JSON value", quote(text))
	}
	return v, findDuplicate(json.NewDecoder(bytes.NewReader(text)), "")
}

// findDuplicate reads a JSON value that Read has already validated. It returns an error if an
// object in it has a duplicate name.
func findDuplicate(d *json.Decoder, path string) error {
	token, err := d.Token()
	open, ok := token.(json.Delim)
	if err != nil || !ok {
		return err
	}
	seen := map[string]bool{}
	for d.More() {
		at := path
		if open == '{' {
			token, err = d.Token()
			name, _ := token.(string)
			at = memberPath(path, name)
			if err == nil && seen[name] {
				err = fmt.Errorf("%sduplicate name %q", path, name)
			}
			seen[name] = true
		}
		if err == nil {
			err = findDuplicate(d, at)
		}
		if err != nil {
			return err
		}
	}
	_, err = d.Token() // closing delimiter of the object or array
	return err
}

// unquotedString matches text that was probably intended as a string but lacks quotes.
var unquotedString = regexp.MustCompile(`^[0-9.]*[\pL_][\pL\pN_ .:/@-]{0,60}$`)

// maxQuoted is the maximum number of bytes of the text included in an error.
const maxQuoted = 100

// quote returns the quoted beginning of text.
func quote(text []byte) string {
	if len(text) > maxQuoted {
		return fmt.Sprintf("%q...", text[:maxQuoted])
	}
	return fmt.Sprintf("%q", text)
}

// FromJSON converts v, a value returned by Read, to type t and returns a pointer to the result. A
// null becomes the zero value. Errors state the position in the text, the value found there, and
// the expected type.
func FromJSON(t reflect.Type, v any) (reflect.Value, error) {
	p := reflect.New(t)
	return p, fill(p.Elem(), v, "")
}

// ToJSON returns v encoded as JSON.
func ToJSON(v any) (string, error) {
	b, err := marshal(v)
	if err != nil {
		return "", fmt.Errorf("cannot be written as JSON: %w", err)
	}
	return string(b), nil
}

// marshal is like json.Marshal, but does not escape <, > and &.
func marshal(v any) ([]byte, error) {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	err := e.Encode(v)
	return bytes.TrimSpace(b.Bytes()), err
}

// memberPath returns the path of a member. A path identifies the position of a value in the input
// and ends with a colon, as in "Orders[2].Count: ".
func memberPath(path, name string) string {
	if path = strings.TrimSuffix(path, ": "); path != "" {
		path += "."
	}
	return path + name + ": "
}

func indexPath(path string, i int) string {
	return strings.TrimSuffix(path, ": ") + "[" + strconv.Itoa(i) + "]: "
}

func sortedNames(v map[string]any) []string { return slices.Sorted(maps.Keys(v)) }

// newTypeError returns the error for a value that does not have the expected type.
func newTypeError(path string, v any, want string) error {
	text, _ := marshal(v)
	if len(text) > 60 {
		text = append(text[:60:60], "…"...)
	}
	var kind string
	switch v.(type) {
	case json.Number:
		kind = "number"
	case string:
		kind = "string"
	case bool:
		kind = "boolean"
	case []any:
		kind = "array"
	case map[string]any:
		kind = "object"
	}
	return fmt.Errorf("%sthe %s %s is not a valid %s", path, kind, text, want)
}

// fill converts v to the type of dst and stores it there. dst must be zero.
func fill(dst reflect.Value, v any, path string) (err error) {
	if v == nil {
		return nil
	}
	switch at := dst.Addr().Interface().(type) {
	case *Free:
		*at, err = freeValue(v, path)
		return err
	case *text:
		s, ok := v.(string)
		if !ok {
			return newTypeError(path, v, "string")
		}
		at.s = &s
		return nil
	case *duration:
		if s, ok := v.(string); ok {
			d, err := time.ParseDuration(s)
			if *at = duration(d); err != nil {
				return newTypeError(path, v, `duration: "1.5s", or nanoseconds`)
			}
			return nil
		}
	case json.Unmarshaler:
		b, _ := marshal(v)
		if err := at.UnmarshalJSON(b); err != nil {
			return fmt.Errorf("%w: %w", newTypeError(path, v, dst.Type().String()), err)
		}
		return nil
	case encoding.TextUnmarshaler:
		s, ok := v.(string)
		if !ok {
			return newTypeError(path, v, dst.Type().String())
		}
		if err := at.UnmarshalText([]byte(s)); err != nil {
			return fmt.Errorf("%w: %w", newTypeError(path, v, dst.Type().String()), err)
		}
		return nil
	}
	switch t := dst.Type(); t.Kind() {
	case reflect.Pointer:
		dst.Set(reflect.New(t.Elem()))
		return fill(dst.Elem(), v, path)
	case reflect.Struct:
		return fillRecord(dst, v, path)
	case reflect.Map:
		return fillMap(dst, v, path)
	case reflect.Slice:
		return fillList(dst, v, path)
	}
	return fillScalar(dst, v, path)
}

func fillScalar(dst reflect.Value, v any, path string) error {
	kind := dst.Kind()
	// The string is NaN, an infinity, or a number.
	if s, ok := v.(string); ok && (kind == reflect.Float64 || kind == reflect.Float32) {
		if f, err := strconv.ParseFloat(s, dst.Type().Bits()); err == nil {
			dst.SetFloat(f)
			return nil
		}
	}
	b, _ := marshal(v)
	plain := reflect.New(dst.Type())
	if err := json.Unmarshal(b, plain.Interface()); err != nil {
		return newTypeError(path, v, kind.String())
	}
	dst.Set(plain.Elem())
	return nil
}

func fillRecord(dst reflect.Value, v any, path string) error {
	t := dst.Type()
	if t == sourceType || t == sinkType {
		flag := map[bool]string{true: "--source", false: "--sink"}[t == sourceType]
		return fmt.Errorf("%sthe field is a %s: %s lends a file in it", path, t.Name(), flag)
	}
	object, ok := v.(map[string]any)
	if !ok {
		return newTypeError(path, v, "object")
	}
	for _, name := range sortedNames(object) {
		i, err := findField(t, name, path)
		if err == nil {
			err = fill(dst.Field(i), object[name], memberPath(path, name))
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// findField returns the index of the field with the given JSON name.
func findField(t reflect.Type, name, path string) (int, error) {
	var known []string
	for i := range t.NumField() {
		known = append(known, jsonName(t.Field(i)))
		if known[i] == name {
			return i, nil
		}
	}
	if len(known) == 0 {
		return 0, fmt.Errorf("%sunknown field %q: the type has none", path, name)
	}
	return 0, fmt.Errorf("%sunknown field %q; the fields are %s", path, name, strings.Join(known, ", "))
}

func fillMap(dst reflect.Value, v any, path string) error {
	object, ok := v.(map[string]any)
	if !ok {
		return newTypeError(path, v, "object")
	}
	t := dst.Type()
	dst.Set(reflect.MakeMap(t))
	for _, name := range sortedNames(object) {
		key, elem := reflect.New(t.Key()).Elem(), reflect.New(t.Elem()).Elem()
		var from any = name
		if t.Key().Kind() != reflect.String {
			from = json.Number(name)
		}
		if err := fill(key, from, path); err != nil {
			return fmt.Errorf("%sthe name %q is not a valid %s", path, name, t.Key().Kind())
		}
		if err := fill(elem, object[name], memberPath(path, name)); err != nil {
			return err
		}
		dst.SetMapIndex(key, elem)
	}
	return nil
}

func fillList(dst reflect.Value, v any, path string) error {
	t := dst.Type()
	if t.Elem().Kind() == reflect.Uint8 {
		s, ok := v.(string)
		if !ok {
			return newTypeError(path, v, "base64 of bytes")
		}
		b, err := base64.StdEncoding.DecodeString(s)
		if err != nil {
			return fmt.Errorf("%w: %w", newTypeError(path, v, "base64 of bytes"), err)
		}
		dst.SetBytes(b)
		return nil
	}
	list, ok := v.([]any)
	if !ok {
		return newTypeError(path, v, "array")
	}
	dst.Set(reflect.MakeSlice(t, len(list), len(list)))
	for i, elem := range list {
		if err := fill(dst.Index(i), elem, indexPath(path, i)); err != nil {
			return err
		}
	}
	return nil
}
