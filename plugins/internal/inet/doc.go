// Package inet implements the naming of transports whose addresses consist of an IP address and a port.
//
//	"tcp://host:port" ─ Resolve ─► "tcp://10.0.0.7:9000", the canonical name ─ Parse ─► the address to dial
//	"host:port"       ─ Where ───► the address to bind ─ Outward ─► the address to advertise
package inet
