//go:build !linux

package sm

import (
	"github.com/quicksilver-rpc/quicksilver/na/carrier"
	"github.com/quicksilver-rpc/quicksilver/na/codes"
)

// An acceptor is unused, because the plugin works only on Linux.
type acceptor struct{}

func (d *domain) open(string) error {
	return codes.WithText(codes.ErrUnsupported, "the sm transport is supported only on Linux")
}

func (o *Options) reachID() (place [16]byte, err error) { return place, codes.ErrUnsupported }

func (d *domain) newCarrier(carrier.Core) (carrier.Carrier, error) { return nil, codes.ErrUnsupported }

func (d *domain) close() error { return nil }
