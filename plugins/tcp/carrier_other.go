//go:build !linux

package tcp

import "github.com/quicksilver-rpc/quicksilver/na/carrier"

// newPolled is not used where the contexts' pollers take no descriptors.
func (d *domain) newPolled(e carrier.Core) (carrier.Carrier, error) { return d.newPortable(e) }
