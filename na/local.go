package na

import (
	"fmt"
	"github.com/quicksilver-rpc/quicksilver/na/carrier"
)

// A Local determines when a class with a second transport, such as "tcp://:7000,sm://", uses it to
// reach peers.
type Local uint8

const (
	// LocalAuto uses the second transport for peers on this machine, unless the first one uses TLS.
	LocalAuto Local = iota
	// LocalNever never uses the second transport.
	LocalNever
	// LocalAlways uses the second transport even if the first one uses TLS. Peers are authenticated
	// over the first transport, over which they agree to use the second. Their Identity has the
	// certificates and the name from the first. Secure is false, because the second transport is
	// not encrypted.
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
		return nil, fmt.Errorf("na: open %q: second transport is %s://, want sm://: %w", addr, p.Scheme(), ErrUnsupported)
	case rest != "":
		return nil, fmt.Errorf("na: open %q: second transport has an address, want %s:// alone: %w", addr, p.Scheme(), ErrInvalid)
	}
	return c, nil
}
