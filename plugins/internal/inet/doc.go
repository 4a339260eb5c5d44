// Package inet implements the naming of transports whose addresses consist of an IP address and a port. Resolve converts
// an address such as "tcp://host:port" to its canonical name, such as "tcp://10.0.0.7:9000", and Parse converts that to
// the address to dial. Where converts "host:port" to the address to bind, and Outward returns the address to advertise.
package inet
