package hg

import "github.com/quicksilver-rpc/quicksilver/na"

// Types of package na that programs need, so that they have to import this package only. Package na
// documents them.
type (
	Addr      = na.Addr   // address of a context, with or without a session
	Plugin    = na.Plugin // a transport, for NetConfig.Plugins
	NetConfig = na.Config // Config.NA
)

// ParseAddr parses the text of an address that needs no name resolution, for example
// "tcp://10.0.0.7:9000"; [Context.Lookup] also accepts names. The error matches ErrInvalid.
func ParseAddr(text string) (Addr, error) { return na.ParseAddr(text) }

// Schemes returns the schemes of the transports that are linked into the program, sorted.
func Schemes() []string { return na.Schemes() }
