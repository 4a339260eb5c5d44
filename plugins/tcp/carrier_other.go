//go:build !linux

package tcp

import "github.com/quicksilver-rpc/quicksilver/na/carrier"

// newEpollCarrier returns a portable carrier. It is not called on this system, where pollers do not support
// descriptors.
func (d *domain) newEpollCarrier(e carrier.Core) (carrier.Carrier, error) { return d.newPortable(e) }
