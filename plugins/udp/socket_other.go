//go:build !linux

package udp

import "net/netip"

// openPolled opens a goroutineSocket, because the contexts' pollers support descriptors only on
// Linux.
func openPolled(where netip.AddrPort, d *sharedSocket) (socket, error) { return openPortable(where, d) }
