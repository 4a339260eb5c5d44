//go:build !linux

package sm

import (
	"github.com/quicksilver-rpc/quicksilver/na"
	"github.com/quicksilver-rpc/quicksilver/plugins/internal/engine"
)

type door struct{}

func (d *domain) open(string) error {
	return na.WithText(na.ErrUnsupported, "the transport sm needs Linux")
}

func (o *Options) reach() (place [16]byte, err error) { return place, na.ErrUnsupported }

func (d *domain) newCarrier(*engine.Endpoint) (engine.Carrier, error) { return nil, na.ErrUnsupported }

func (d *domain) close() error { return nil }
