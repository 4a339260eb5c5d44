//go:build !linux

package udp

import "net/netip"

// openPolled is not used where the contexts' pollers take no descriptors.
func openPolled(where netip.AddrPort, d *sharedSocket) (socket, error) { return openPortable(where, d) }
