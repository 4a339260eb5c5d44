package na

import (
	"fmt"
	"strconv"
	"strings"
	"unique"
)

// maxAddrText limits the length of the text of an address in bytes.
const maxAddrText = 1024

// An Addr names a context of a process: "tcp://10.0.0.7:9000", or "tcp://10.0.0.7:9000#2" for its
// context 2. It is a small comparable value. The zero Addr names nothing.
//
// The Addr of a received message is bound to the session on which the message arrived, so that a
// response cannot reach another process that has since taken the same address. [Addr.Named] removes
// that binding.
//
// An Addr that was looked up by the name of a host, over a transport whose peers have certificates,
// keeps that name. Its text is "tcp://kv.example@10.0.0.7:9000", which Lookup reads. The
// certificate of the process at that address must contain the name.
//
// The Addr of a host with several addresses of tcp or udp stands for all of them, at most eight:
// "tcp://[2001:db8::7]:9000|10.0.0.7:9000". They are dialed as in RFC 8305, and the session uses
// the first that answers. Received messages and OnFault report only that address.
type Addr struct {
	name    unique.Handle[string]
	host    unique.Handle[string] // host name; the zero Handle if none
	label   *string               // label of the bound session; nil if not bound
	session uint64
	target  uint16
	set     bool
}

// MakeAddr returns the address of context target under the canonical name "scheme://rest". Plugins
// use it; programs use [ParseAddr] or [Context.Lookup].
func MakeAddr(name string, target int) Addr {
	return Addr{name: unique.Make(name), target: uint16(target), set: true}
}

// ParseAddr parses the text form "scheme://rest" or "scheme://rest#target". It checks the form
// only; Lookup lets the plugin check the rest. The error matches [ErrInvalid].
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

// checkName returns an error if the part of an address before '#' is not valid.
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

// Host returns the name of the host that the peer's certificate must contain. It is empty if a was
// looked up by its IP address, or if the transport does not verify names.
func (a Addr) Host() string {
	if a.host == (unique.Handle[string]{}) {
		return ""
	}
	return a.host.Value()
}

// WithHost returns a copy of a with the given Host.
func (a Addr) WithHost(host string) Addr {
	if a.host = (unique.Handle[string]{}); host != "" {
		a.host = unique.Make(host)
	}
	return a
}

// IsZero reports whether a is the zero Addr.
func (a Addr) IsZero() bool { return !a.set }

// Name returns the text without the target id: "tcp://10.0.0.7:9000".
func (a Addr) Name() string {
	if !a.set {
		return ""
	}
	return a.name.Value()
}

// String returns the text form that Lookup reads. It does not contain the binding to a session.
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

// Label returns a as text for logs and tools; Lookup does not read it. For the Addr of a received
// message it is the peer's name (Config.Name) and its location: "worker (10.0.0.3:41234)", or "kv
// (tcp://10.0.0.7:9000)" for a peer that listens. A peer without a name has only the part in
// parentheses. For any other Addr it is String.
//
// The name is what the peer claims, in printable characters without parentheses. The location of a
// peer that does not listen is Identity.Remote at the beginning of the session.
func (a Addr) Label() string {
	if a.label == nil {
		return a.String()
	}
	return *a.label
}

// MakeLabel returns the Label of a peer with address a and the name process, which may be empty. If
// remote is not empty it is shown instead of a, which cannot be dialed.
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

// Labeled returns a, which is bound to a session, with another Label, or with none if label is nil.
// All addresses of one session have the same pointer, so that they compare equal. The string does
// not change.
func (a Addr) Labeled(label *string) Addr {
	a.label = label
	return a
}

// Scheme returns the part before "://".
func (a Addr) Scheme() string {
	scheme, _, _ := strings.Cut(a.Name(), "://")
	return scheme
}

// Target returns the id of the context that a names.
func (a Addr) Target() int { return int(a.target) }

// WithTarget returns the address of another context of the same process. It is not bound to a
// session.
func (a Addr) WithTarget(id int) Addr {
	a.target, a.session, a.label = uint16(id), 0, nil
	return a
}

// Session returns the number of the session that a is bound to, or 0.
func (a Addr) Session() uint64 { return a.session }

// Bound returns a copy of a that is bound to the given session.
func (a Addr) Bound(session uint64) Addr {
	a.session = session
	return a
}

// Named returns a without its binding to a session: the form to compare with a parsed address, or
// to keep.
func (a Addr) Named() Addr {
	a.session, a.label = 0, nil
	return a
}

// MarshalText implements encoding.TextMarshaler.
func (a Addr) MarshalText() ([]byte, error) {
	if !a.set {
		return nil, nil
	}
	return []byte(a.String()), nil
}

// UnmarshalText implements encoding.TextUnmarshaler. Empty text decodes to the zero Addr.
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
