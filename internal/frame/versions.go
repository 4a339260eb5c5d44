package frame

import (
	"fmt"

	"github.com/quicksilver-rpc/quicksilver/na/codes"
)

// A Range is the range of versions of a format that one side of a session supports. The zero Range
// is unspecified.
type Range struct{ Oldest, Newest uint16 }

// Versions returns the versions of the wire format that this release supports.
func Versions() Range { return Range{OldestVersion, Version} }

// Common returns the newest version that both sides support; ok is false if there is none.
func (r Range) Common(other Range) (version uint16, ok bool) {
	version = min(r.Newest, other.Newest)
	return version, version >= max(r.Oldest, other.Oldest)
}

// Agree returns the newest version that both the dialing and the listening side support. If there
// is none, the error is ErrVersion. Its text is the same on both sides, and states the name of the
// format, which is what, both ranges, and the side to upgrade.
func Agree(what string, dialer, listener Range) (version uint16, err error) {
	version, ok := dialer.Common(listener)
	if ok {
		return version, nil
	}
	older := "dialing"
	if listener.Newest < dialer.Newest {
		older = "listening"
	}
	return 0, codes.WithText(codes.ErrVersion, fmt.Sprintf(
		"no common version of %s: the dialing side speaks %v, the listening side %v; upgrade the %s side", what, dialer, listener, older))
}

// String formats r as "7" or "7 to 8".
func (r Range) String() string {
	if r.Oldest == r.Newest {
		return fmt.Sprint(r.Newest)
	}
	return fmt.Sprintf("%d to %d", r.Oldest, r.Newest)
}

// isValid reports whether r is a valid range or unspecified.
func (r Range) isValid() bool { return r == Range{} || r.Oldest > 0 && r.Oldest <= r.Newest }
