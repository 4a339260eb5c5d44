package hg

import "github.com/quicksilver-rpc/quicksilver/na"

// What a program needs of the network abstraction below, so that it imports this package only. Their documentation is in
// package na.
type (
	Addr      = na.Addr   // where a context is, and the session with it
	Plugin    = na.Plugin // a transport, for NetConfig.Plugins
	NetConfig = na.Config // Config.NA
)

// ParseAddr parses the text of an address that needs no resolving, for example "tcp://10.0.0.7:9000"; [Context.Lookup] takes
// names, too. The error matches ErrInvalid.
func ParseAddr(text string) (Addr, error) { return na.ParseAddr(text) }

// Schemes returns the names of the transports that the program has linked in, sorted.
func Schemes() []string { return na.Schemes() }
