package na

import (
	"fmt"
	"strconv"
	"strings"
	"unique"
)

// maxAddrText is the maximum length in bytes of an address's text form.
const maxAddrText = 1024

// An Addr is the address of a context of a process, such as "tcp://10.0.0.7:9000", or
// "tcp://10.0.0.7:9000#2" for the context with id 2. Addrs are small and comparable with ==. The
// zero Addr is not a valid address.
//
// The Addr of a received message is bound to the session on which the message arrived, so that a
// response cannot reach another process that has since taken over the same address. [Addr.Named]
// removes that binding.
//
// An Addr obtained by looking up a host name, over a transport whose peers present certificates,
// keeps that name. Its text form is "tcp://kv.example@10.0.0.7:9000", which Lookup accepts. The
// certificate of the process at that address must contain the name.
//
// If a host has several tcp or udp addresses, its Addr stands for all of them, up to eight:
// "tcp://[2001:db8::7]:9000|10.0.0.7:9000". They are dialed as described in RFC 8305, and the
// session uses the first one that answers. Received messages and OnFault report only that address.
type Addr struct {
	name    unique.Handle[string]
	host    unique.Handle[string] // host name; zero if there is none
	label   *string               // text that Label returns; nil if there is none
	session uint64
	target  uint16
	set     bool
}

// MakeAddr returns the address of the context with id target in the process with the canonical
// name "scheme://rest". It is intended for plugins. Programs use [ParseAddr] or [Context.Lookup].
func MakeAddr(name string, target int) Addr {
	return Addr{name: unique.Make(name), target: uint16(target), set: true}
}

// ParseAddr parses an address in the text form "scheme://rest" or "scheme://rest#target". It checks
// only the syntax; the plugin checks the rest during Lookup. A returned error matches [ErrInvalid].
func ParseAddr(text string) (Addr, error) {
	if len(text) > maxAddrText {
		return Addr{}, fmt.Errorf("na: address too long: %d bytes, limit %d: %w", len(text), maxAddrText, ErrInvalid)
	}
	name, frag, hasTarget := strings.Cut(text, "#")
	if err := checkName(name); err != nil {
		return Addr{}, fmt.Errorf("na: address %q: %v: %w", text, err, ErrInvalid)
	}
	target := 0
	if hasTarget {
		t, err := strconv.ParseUint(frag, 10, 16)
		if err != nil {
			return Addr{}, fmt.Errorf("na: address %q: target id is %q, want 0 to 65535: %w", text, frag, ErrInvalid)
		}
		target = int(t)
	}
	return MakeAddr(name, target), nil
}

// checkName returns an error if name, the part of an address before '#', is invalid.
func checkName(name string) error {
	scheme, rest, ok := strings.Cut(name, "://")
	if !ok || scheme == "" {
		return fmt.Errorf(`missing scheme, want "tcp://host:port"`)
	}
	for i := 0; i < len(scheme); i++ {
		c := scheme[i]
		if !(c >= 'a' && c <= 'z' || i > 0 && (c >= '0' && c <= '9' || c == '+' || c == '-' || c == '.')) {
			return fmt.Errorf("invalid character in scheme %q", scheme)
		}
	}
	if rest == "" {
		return fmt.Errorf("missing host")
	}
	if first, second, two := strings.Cut(name, ","); two && strings.Contains(second, "://") {
		return fmt.Errorf("two transports, want one: %s", first)
	}
	for i := 0; i < len(rest); i++ {
		if rest[i] <= ' ' || rest[i] == 0x7f {
			return fmt.Errorf("space or control character")
		}
	}
	return nil
}

// Host returns the host name that the peer's certificate must contain. It returns the empty string
// if a was looked up by IP address or if the transport does not verify names.
func (a Addr) Host() string {
	if a.host == (unique.Handle[string]{}) {
		return ""
	}
	return a.host.Value()
}

// WithHost returns a copy of a with the given host name.
func (a Addr) WithHost(host string) Addr {
	if a.host = (unique.Handle[string]{}); host != "" {
		a.host = unique.Make(host)
	}
	return a
}

// IsZero reports whether a is the zero Addr.
func (a Addr) IsZero() bool { return !a.set }

// Name returns the text form without the target id, such as "tcp://10.0.0.7:9000". It returns the
// empty string for the zero Addr.
func (a Addr) Name() string {
	if !a.set {
		return ""
	}
	return a.name.Value()
}

// String returns the text form of a, which Lookup accepts. It does not include the binding to a
// session.
func (a Addr) String() string {
	if !a.set {
		return "<no address>"
	}
	text := a.name.Value()
	if host := a.Host(); host != "" {
		scheme, rest, _ := strings.Cut(text, "://")
		text = scheme + "://" + host + "@" + rest
	}
	if a.target != 0 {
		text += "#" + strconv.Itoa(int(a.target))
	}
	return text
}

// Label returns a description of a for logs and tools. Lookup does not accept it. For the Addr of a
// received message, Label returns the peer's name (Config.Name) and its location, such as "worker
// (10.0.0.3:41234)", or "kv (tcp://10.0.0.7:9000)" if the peer listens. If the peer has no name,
// Label returns only the location. For any other Addr, Label returns the same text as String.
//
// The name is the one the peer reports and is not verified. It consists of printable characters
// other than parentheses. The location of a peer that does not listen is the value of
// Identity.Remote at the start of the session.
func (a Addr) Label() string {
	if a.label == nil {
		return a.String()
	}
	return *a.label
}

// MakeLabel returns the text that Label returns for a peer with address a. process is the peer's
// name and may be empty. If remote is not empty, the label contains remote in place of a, for
// peers that cannot be dialed.
func MakeLabel(a Addr, process, remote string) string {
	place := a.String()
	if remote != "" {
		place = remote
		if a.target != 0 {
			place += "#" + strconv.Itoa(int(a.target))
		}
	}
	if process == "" {
		return place
	}
	return process + " (" + place + ")"
}

// Labeled returns a copy of a with the given label, or without a label if label is nil. a must be
// bound to a session. All addresses bound to one session must have the same label pointer, so that
// they compare equal. The caller must not modify the string that label points to.
func (a Addr) Labeled(label *string) Addr {
	a.label = label
	return a
}

// Scheme returns the part of the address before "://".
func (a Addr) Scheme() string {
	scheme, _, _ := strings.Cut(a.Name(), "://")
	return scheme
}

// Target returns the id of the context that a refers to.
func (a Addr) Target() int { return int(a.target) }

// WithTarget returns the address of the context with the given id in the same process. The result
// is not bound to a session.
func (a Addr) WithTarget(id int) Addr {
	a.target, a.session, a.label = uint16(id), 0, nil
	return a
}

// Session returns the number of the session to which a is bound, or 0 if a is not bound.
func (a Addr) Session() uint64 { return a.session }

// Bound returns a copy of a bound to the given session.
func (a Addr) Bound(session uint64) Addr {
	a.session = session
	return a
}

// Named returns a copy of a that is not bound to a session. Use it to compare a with a parsed
// address or to store it.
func (a Addr) Named() Addr {
	a.session, a.label = 0, nil
	return a
}

// MarshalText implements [encoding.TextMarshaler].
func (a Addr) MarshalText() ([]byte, error) {
	if !a.set {
		return nil, nil
	}
	return []byte(a.String()), nil
}

// UnmarshalText implements [encoding.TextUnmarshaler]. Empty text decodes to the zero Addr.
func (a *Addr) UnmarshalText(text []byte) error {
	if len(text) == 0 {
		*a = Addr{}
		return nil
	}
	parsed, err := ParseAddr(string(text))
	if err == nil {
		*a = parsed
	}
	return err
}
