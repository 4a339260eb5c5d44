package na

import (
	"fmt"
	"strconv"
	"strings"
	"unique"
)

// maxAddrText bounds the text of an address in bytes.
const maxAddrText = 1024

// An Addr names a context of a process: "tcp://10.0.0.7:9000", or "tcp://10.0.0.7:9000#2" for its context 2. It is a
// small comparable value. The zero Addr names nothing.
//
// An Addr that came with a message is bound to the session that the message arrived on, so that an answer can never
// reach another process that later took the same address. [Addr.Named] takes that binding away.
//
// An Addr that was looked up by the name of a host, over a transport whose peers have certificates, keeps that name, and prints as
// "tcp://kv.example@10.0.0.7:9000", which Lookup reads: the certificate of who answers there must carry it.
//
// The Addr of a host that has several addresses of tcp or udp stands for all of them, eight at most: "tcp://[2001:db8::7]:9000|10.0.0.7:9000".
// A session with it is made with the first that answers, and they are dialed as RFC 8305 says. Messages from there, and OnFault, have that one address.
type Addr struct {
	name    unique.Handle[string]
	host    unique.Handle[string] // zero for none
	label   *string               // of a session, which has one; nil for none
	session uint64
	target  uint16
	set     bool
}

// MakeAddr returns the address of context target under the canonical name "scheme://rest". Plugins use it; programs
// use [ParseAddr] or [Context.Lookup].
func MakeAddr(name string, target int) Addr {
	return Addr{name: unique.Make(name), target: uint16(target), set: true}
}

// ParseAddr reads the text form "scheme://rest" or "scheme://rest#target". It checks the form only: Lookup asks the
// plugin. The error matches [ErrInvalid].
func ParseAddr(text string) (Addr, error) {
	if len(text) > maxAddrText {
		return Addr{}, fmt.Errorf("na: address of %d bytes is longer than %d: %w", len(text), maxAddrText, ErrInvalid)
	}
	name, frag, hasTarget := strings.Cut(text, "#")
	if err := checkName(name); err != nil {
		return Addr{}, fmt.Errorf("na: address %q: %v: %w", text, err, ErrInvalid)
	}
	target := 0
	if hasTarget {
		t, err := strconv.ParseUint(frag, 10, 16)
		if err != nil {
			return Addr{}, fmt.Errorf("na: address %q: target id %q is not a number from 0 to 65535: %w", text, frag, ErrInvalid)
		}
		target = int(t)
	}
	return MakeAddr(name, target), nil
}

// checkName tells what is wrong with the part of an address before '#'.
func checkName(name string) error {
	scheme, rest, ok := strings.Cut(name, "://")
	if !ok || scheme == "" {
		return fmt.Errorf(`has no scheme, write it as "tcp://host:port"`)
	}
	for i := 0; i < len(scheme); i++ {
		c := scheme[i]
		if !(c >= 'a' && c <= 'z' || i > 0 && (c >= '0' && c <= '9' || c == '+' || c == '-' || c == '.')) {
			return fmt.Errorf("scheme %q has a character that is not allowed", scheme)
		}
	}
	if rest == "" {
		return fmt.Errorf("names no host")
	}
	if first, second, two := strings.Cut(name, ","); two && strings.Contains(second, "://") {
		return fmt.Errorf("names two transports, as Open takes them: peers look up the first alone, %s", first)
	}
	for i := 0; i < len(rest); i++ {
		if rest[i] <= ' ' || rest[i] == 0x7f {
			return fmt.Errorf("has a blank or control character")
		}
	}
	return nil
}

// Host returns the name of the host that the peer's certificate must carry; empty when a was looked up by its IP address, or
// nobody looks at names.
func (a Addr) Host() string {
	if a.host == (unique.Handle[string]{}) {
		return ""
	}
	return a.host.Value()
}

// WithHost returns a with another Host.
func (a Addr) WithHost(host string) Addr {
	if a.host = (unique.Handle[string]{}); host != "" {
		a.host = unique.Make(host)
	}
	return a
}

// IsZero reports whether a names nothing.
func (a Addr) IsZero() bool { return !a.set }

// Name returns the text without the target id: "tcp://10.0.0.7:9000".
func (a Addr) Name() string {
	if !a.set {
		return ""
	}
	return a.name.Value()
}

// String returns the text form that Lookup reads. The binding to a session is not part of it.
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

// Label returns the text that shows a to people. Of an Addr that came with a message it says what the peer calls itself
// (Config.Name) and where it is: "worker (10.0.0.3:41234)", or "kv (tcp://10.0.0.7:9000)" for a peer that listens. A peer that gives
// itself no name has the part in parentheses alone. Of any other Addr it is String. The name is a claim of the peer, of printable
// characters without parentheses; the place of a peer that does not listen is Identity.Remote as the session began. Lookup does not read it.
func (a Addr) Label() string {
	if a.label == nil {
		return a.String()
	}
	return *a.label
}

// MakeLabel returns the Label of a peer that calls itself process, empty for nothing. Its address is a; remote, if not empty, is where
// it is instead, since nobody can dial a.
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

// Labeled returns a, which is bound to a session, with another Label, nil for none. All addresses of one session have the
// same pointer, so that they are equal, and what it points to does not change.
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

// WithTarget returns the address of another context of the same process. It is not bound to a session.
func (a Addr) WithTarget(id int) Addr {
	a.target, a.session, a.label = uint16(id), 0, nil
	return a
}

// Session returns the number of the session that a is bound to, or 0.
func (a Addr) Session() uint64 { return a.session }

// Bound returns a bound to a session.
func (a Addr) Bound(session uint64) Addr {
	a.session = session
	return a
}

// Named returns a without its binding to a session: the form to compare with a parsed address, or to keep.
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

// UnmarshalText implements encoding.TextUnmarshaler. Empty text is the zero Addr.
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
