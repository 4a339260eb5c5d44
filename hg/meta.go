package hg

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"iter"
	"strings"

	"github.com/quicksilver-rpc/quicksilver/na"
)

// A Meta is names and values that travel in front of a call's input or output: a trace, a token. The zero Meta is empty. It
// is not changed once it has been made. It has at most 16 entries, and at most 8 KiB with 3 bytes for each entry. What does not fit a
// message is read from the sender's memory, as large input is.
type Meta struct{ b []byte } // as on the wire: entries, padded with zeros to words

const (
	metaWord    = 8
	maxMeta     = 1024 * metaWord
	maxEntries  = 16
	maxMetaName = 63

	// KeyMeta is the name under which a call carries its idempotency key. Names that begin with "qs-" are the library's; no
	// other may be given by programs.
	KeyMeta = "qs-key"
)

// With returns m with the value of name replaced or added. A name is 1 to 63 of the characters a-z, 0-9, '.' and '-', and
// does not begin with "qs-", unless it is KeyMeta. The error matches ErrInvalid for any other name and ErrOverflow when there is too much.
func (m Meta) With(name, value string) (Meta, error) {
	switch {
	case !metaName(name):
		return m, fmt.Errorf("hg: metadata: %q cannot be a name: want 1 to %d of a-z, 0-9, '.' and '-': %w", name, maxMetaName, ErrInvalid)
	case strings.HasPrefix(name, "qs-") && name != KeyMeta:
		return m, fmt.Errorf("hg: metadata: %q cannot be a name: those that begin with qs- are the library's, of which programs give %s only: %w", name, KeyMeta, ErrInvalid)
	}
	if len(value) > maxMeta {
		return m, fmt.Errorf("hg: metadata: %s has a value of %d bytes, all of it may have %d: %w", name, len(value), maxMeta, ErrOverflow)
	}
	var b []byte
	n := 1
	for other, v := range m.All() {
		if other != name {
			b = appendEntry(b, other, v)
			n++
		}
	}
	b = appendEntry(b, name, value)
	b = append(b, make([]byte, -len(b)&(metaWord-1))...)
	if len(b) > maxMeta || n > maxEntries {
		return m, fmt.Errorf("hg: metadata: with %s %d entries of %d bytes, there may be %d of %d: %w", name, n, len(b), maxEntries, maxMeta, ErrOverflow)
	}
	return Meta{b}, nil
}

func appendEntry(b []byte, name, value string) []byte {
	b = append(append(b, byte(len(name))), name...)
	return append(binary.LittleEndian.AppendUint16(b, uint16(len(value))), value...)
}

func metaName(name string) bool {
	for _, c := range []byte(name) {
		if (c < 'a' || c > 'z') && (c < '0' || c > '9') && c != '.' && c != '-' {
			return false
		}
	}
	return 0 < len(name) && len(name) <= maxMetaName
}

// IsZero reports whether m is empty.
func (m Meta) IsZero() bool { return len(m.b) == 0 }

// Get returns the value of name.
func (m Meta) Get(name string) (value string, ok bool) {
	for other, v := range m.All() {
		if other == name {
			return v, true
		}
	}
	return "", false
}

// All ranges over names and values, in the order in which they were added.
func (m Meta) All() iter.Seq2[string, string] {
	return func(yield func(name, value string) bool) {
		for rest := m.b; len(rest) > 0 && rest[0] != 0; {
			var name, value string
			if name, value, rest, _ = nextEntry(rest); !yield(name, value) {
				return
			}
		}
	}
}

// nextEntry takes the first entry off b.
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

// checkMeta checks a block that a peer has sent. What is there afterwards, All can read.
func checkMeta(b []byte) error {
	seen := make(map[string]bool, maxEntries)
	rest := b
	for len(rest) > 0 && rest[0] != 0 {
		name, _, after, ok := nextEntry(rest)
		if !ok || !metaName(name) || seen[name] || len(seen) == maxEntries {
			return na.WithText(ErrProtocol, "metadata that cannot be")
		}
		seen[name], rest = true, after
	}
	if len(rest) >= metaWord || len(bytes.Trim(rest, "\x00")) > 0 || len(b) > maxMeta {
		return na.WithText(ErrProtocol, "metadata with padding that cannot be")
	}
	return nil
}
