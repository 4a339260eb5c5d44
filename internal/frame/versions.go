package frame

import (
	"fmt"

	"github.com/quicksilver-rpc/quicksilver/na/codes"
)

// A Range is the versions of a form that one side of a session supports, from the oldest to the
// newest. The zero Range is unspecified.
type Range struct{ Oldest, Newest uint16 }

// Versions returns the versions of the wire form that this release supports.
func Versions() Range { return Range{OldestVersion, Version} }

// Common returns the newest version that both sides support; ok is false if there is none.
func (r Range) Common(other Range) (version uint16, ok bool) {
	version = min(r.Newest, other.Newest)
	return version, version >= max(r.Oldest, other.Oldest)
}

// Agree returns the newest version of what that the dialing and the listening side both support.
// Its error, ErrVersion, has the same text at both sides: both ranges, and which side to upgrade.
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

// String returns "7", or "7 to 8".
func (r Range) String() string {
	if r.Oldest == r.Newest {
		return fmt.Sprint(r.Newest)
	}
	return fmt.Sprintf("%d to %d", r.Oldest, r.Newest)
}

// isValid reports whether r is a range of versions, or unspecified.
func (r Range) isValid() bool { return r == Range{} || r.Oldest > 0 && r.Oldest <= r.Newest }
