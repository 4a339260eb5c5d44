//go:build !linux

package udp

import "net/netip"

// openPolled opens a goroutineSocket, because the contexts' pollers take descriptors on Linux only.
func openPolled(where netip.AddrPort, d *sharedSocket) (socket, error) { return openPortable(where, d) }
