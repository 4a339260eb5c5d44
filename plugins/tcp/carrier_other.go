//go:build !linux

package tcp

import "github.com/quicksilver-rpc/quicksilver/na/carrier"

// newEpollCarrier is unused where the contexts' pollers do not support descriptors.
func (d *domain) newEpollCarrier(e carrier.Core) (carrier.Carrier, error) { return d.newPortable(e) }
