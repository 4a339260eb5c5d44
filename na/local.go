package na

import (
	"fmt"
	"github.com/quicksilver-rpc/quicksilver/na/carrier"
)

// Local says when a class that was opened with a second transport, as "tcp://:7000,sm://", reaches peers by that.
type Local uint8

const (
	// LocalAuto uses the second for peers of this machine, unless the first has TLS.
	LocalAuto Local = iota
	// LocalNever never uses it.
	LocalNever
	// LocalAlways uses it where the first has TLS, too. The peers prove who they are by the first, when the second is agreed upon. Messages
	// that come by the second have an Identity without certificates.
	LocalAlways
)

func (l Local) String() string {
	switch l {
	case LocalAuto:
		return "LocalAuto"
	case LocalNever:
		return "LocalNever"
	case LocalAlways:
		return "LocalAlways"
	}
	return fmt.Sprintf("Local(%d)", uint8(l))
}

// secondPluginFor returns the plugin of the second transport in addr.
func secondPluginFor(addr, second string, given []Plugin) (carrier.Companion, error) {
	p, rest, err := pluginOf(addr, second, given)
	if err != nil {
		return nil, err
	}
	c, ok := p.(carrier.Companion)
	switch {
	case !ok:
		return nil, fmt.Errorf("na: open %q: %s:// cannot be the second transport of a class, sm:// can: %w", addr, p.Scheme(), ErrUnsupported)
	case rest != "":
		return nil, fmt.Errorf("na: open %q: the second transport has no name of its own, write %s:// alone: %w", addr, p.Scheme(), ErrInvalid)
	}
	return c, nil
}
