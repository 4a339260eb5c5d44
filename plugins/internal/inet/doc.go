// Package inet implements the naming of transports whose addresses consist of an IP address and a port.
//
//	"tcp://host:port" ─ Resolve ─► "tcp://10.0.0.7:9000", the canonical name ─ Parse ─► what is dialled
//	"host:port"       ─ Where ───► what is bound ─ Outward ─► what peers are told
package inet
