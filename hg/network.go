package hg

import "github.com/quicksilver-rpc/quicksilver/na"

// Types of package na that programs need, provided so that they only have to import this package.
// See package na for their documentation.
type (
	Addr      = na.Addr   // address of a context, with or without a session
	Plugin    = na.Plugin // a transport, for NetConfig.Plugins
	NetConfig = na.Config // type of Config.NA
)

// ParseAddr parses the text of an address that requires no name resolution, for example
// "tcp://10.0.0.7:9000". [Context.Lookup] also accepts names. The error matches ErrInvalid.
func ParseAddr(text string) (Addr, error) { return na.ParseAddr(text) }

// Schemes returns the sorted schemes of the transports linked into the program.
func Schemes() []string { return na.Schemes() }
