package hg

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"iter"
	"strings"

	"github.com/quicksilver-rpc/quicksilver/hg/inspect"
	"github.com/quicksilver-rpc/quicksilver/na"
)

// A Metadata is a list of name-value pairs that is sent before a call's input or output, such as a
// trace ID or a token. It is immutable. The zero Metadata is empty. It holds at most 16 entries and
// 8 KiB, including 3 bytes of overhead per entry. Metadata that does not fit in a message is read
// from the sender's memory, as large input is. The packages of this module add up to 4 entries of
// their own, with at most 2 KiB in total, whose names begin with "qs-".
type Metadata struct{ b []byte } // as on the wire: entries, padded with zeros to a multiple of metaWord

const (
	metaWord      = 8
	maxMeta       = 1024 * metaWord // maximum size of a program's entries in bytes
	maxEntries    = 16
	maxOwnMeta    = 256 * metaWord // maximum size in bytes of the entries of this module's packages
	maxOwnEntries = 4
	maxMetaName   = 63

	// KeyMeta is the name under which a call carries its idempotency key. It is the only name with
	// the prefix "qs-" that a program may set. All others are reserved for the library.
	KeyMeta = "qs-key"
)

// With returns a copy of m in which the entry with the given name is added or replaced. A name
// consists of 1 to 63 of the characters a-z, 0-9, '.' and '-', and must not begin with "qs-" unless
// it is KeyMeta. The error matches ErrInvalid for any other name, and ErrOverflow if m would exceed
// its limits.
func (m Metadata) With(name, value string) (Metadata, error) {
	switch {
	case !isValidName(name):
		return m, fmt.Errorf("hg: metadata: invalid name %q, want 1 to %d of a-z, 0-9, '.' and '-': %w", name, maxMetaName, ErrInvalid)
	case isOwnName(name):
		return m, fmt.Errorf("hg: metadata: invalid name %q: the prefix qs- is reserved, except for %s: %w", name, KeyMeta, ErrInvalid)
	}
	return m.withEntry(name, value, maxEntries, maxMeta)
}

// WithOwn is like With, but for the names with the prefix "qs-" that the packages of this module
// use. Their entries are limited to 4 entries and 2 KiB, and do not count toward the 16 entries and
// 8 KiB of the program.
func (m Metadata) WithOwn(name, value string) (Metadata, error) {
	if !isValidName(name) || !isOwnName(name) {
		return m, fmt.Errorf("hg: metadata: invalid name %q, want the prefix qs-: %w", name, ErrInvalid)
	}
	return m.withEntry(name, value, maxOwnEntries, maxOwnMeta)
}

// WithoutOwn returns m without the entries of this module's packages.
func (m Metadata) WithoutOwn() Metadata {
	if !bytes.Contains(m.b, []byte("qs-")) {
		return m
	}
	var b []byte
	for name, value := range m.All() {
		if !isOwnName(name) {
			b = appendEntry(b, name, value)
		}
	}
	return Metadata{padToWord(b)}
}

// isOwnName reports whether name is reserved for the packages of this module.
func isOwnName(name string) bool { return strings.HasPrefix(name, "qs-") && name != KeyMeta }

// withEntry returns m with the entry added or replaced. entries and size limit the number and the
// total size in bytes of the entries of its kind, which are either the program's or those of this
// module's packages.
func (m Metadata) withEntry(name, value string, entries, size int) (Metadata, error) {
	if len(value) > size {
		return m, fmt.Errorf("hg: metadata: value of %s has %d bytes, limit %d for all metadata: %w", name, len(value), size, ErrOverflow)
	}
	var same, b []byte
	n := 1
	for other, v := range m.All() {
		switch {
		case isOwnName(other) != isOwnName(name):
			b = appendEntry(b, other, v)
		case other != name:
			same = appendEntry(same, other, v)
			n++
		}
	}
	same = appendEntry(same, name, value)
	if sum := len(padToWord(same)); sum > size || n > entries {
		return m, fmt.Errorf("hg: metadata: adding %s makes %d entries of %d bytes, limit %d of %d bytes: %w", name, n, sum, entries, size, ErrOverflow)
	}
	return Metadata{padToWord(append(b, same...))}, nil
}

// padToWord returns b, padded with zeros to a multiple of metaWord.
func padToWord(b []byte) []byte { return append(b, make([]byte, -len(b)&(metaWord-1))...) }

func appendEntry(b []byte, name, value string) []byte {
	b = append(append(b, byte(len(name))), name...)
	return append(binary.LittleEndian.AppendUint16(b, uint16(len(value))), value...)
}

func isValidName(name string) bool {
	for _, c := range []byte(name) {
		if (c < 'a' || c > 'z') && (c < '0' || c > '9') && c != '.' && c != '-' {
			return false
		}
	}
	return 0 < len(name) && len(name) <= maxMetaName
}

// IsZero reports whether m is empty.
func (m Metadata) IsZero() bool { return len(m.b) == 0 }

// Get returns the value of the entry with the given name. ok is false if there is none.
func (m Metadata) Get(name string) (value string, ok bool) {
	for other, v := range m.All() {
		if other == name {
			return v, true
		}
	}
	return "", false
}

// All returns an iterator over the names and values of m, in the order in which they were added.
func (m Metadata) All() iter.Seq2[string, string] {
	return func(yield func(name, value string) bool) {
		for rest := m.b; len(rest) > 0 && rest[0] != 0; {
			var name, value string
			if name, value, rest, _ = nextEntry(rest); !yield(name, value) {
				return
			}
		}
	}
}

// String returns the names and values of m, such as `{tenant: "a", traceparent: "00-4bf9…"}`. Values
// are quoted, and those that are not printable UTF-8 text are escaped. It contains all values, so
// a log should not contain it if they include secrets.
func (m Metadata) String() string {
	var b strings.Builder
	for name, value := range m.All() {
		if b.Len() > 0 {
			b.WriteString(", ")
		}
		fmt.Fprintf(&b, "%s: %q", name, value)
	}
	return "{" + b.String() + "}"
}

// traceMeta is the name, defined by W3C Trace Context, under which a call carries its trace. Its
// value consists of "00-", the trace ID in 32 hexadecimal digits, "-", and further fields.
const traceMeta = "traceparent"

// traceID returns the trace ID in m, or the zero TraceID if there is none. It does not allocate.
func (m Metadata) traceID() (t inspect.TraceID) {
	for rest := m.b; len(rest) > 0 && rest[0] != 0; {
		n := 1 + int(rest[0])
		if len(rest) < n+2 {
			return t
		}
		end := n + 2 + int(binary.LittleEndian.Uint16(rest[n:]))
		if len(rest) < end {
			return t
		}
		if value := rest[n+2 : end]; string(rest[1:n]) == traceMeta {
			if len(value) < 36 || value[2] != '-' || value[35] != '-' {
				return t
			}
			if _, err := hex.Decode(t[:], value[3:35]); err != nil {
				return inspect.TraceID{}
			}
			return t
		}
		rest = rest[end:]
	}
	return t
}

// nextEntry decodes the first entry of b and returns the bytes that follow it as rest. ok is false
// if b is too short.
func nextEntry(b []byte) (name, value string, rest []byte, ok bool) {
	n := 1 + int(b[0])
	if len(b) < n+2 {
		return "", "", nil, false
	}
	end := n + 2 + int(binary.LittleEndian.Uint16(b[n:]))
	if len(b) < end {
		return "", "", nil, false
	}
	return string(b[1:n]), string(b[n+2 : end]), b[end:], true
}

// checkMeta returns an error unless b, received from a peer, is valid metadata that Metadata.All
// can read.
func checkMeta(b []byte) error {
	seen := make(map[string]bool, maxEntries+maxOwnEntries)
	rest := b
	for len(rest) > 0 && rest[0] != 0 {
		name, _, after, ok := nextEntry(rest)
		if !ok || !isValidName(name) || seen[name] || len(seen) == maxEntries+maxOwnEntries {
			return na.WithText(na.ErrProtocol, "invalid metadata")
		}
		seen[name], rest = true, after
	}
	if len(rest) >= metaWord || len(bytes.Trim(rest, "\x00")) > 0 || len(b) > maxMeta+maxOwnMeta {
		return na.WithText(na.ErrProtocol, "invalid padding of metadata")
	}
	return nil
}
