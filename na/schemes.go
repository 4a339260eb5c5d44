package na

import "github.com/quicksilver-rpc/quicksilver/na/carrier"

// Schemes returns the schemes of the linked-in plugins, sorted.
func Schemes() []string {
	_, all := carrier.Find("")
	return all
}
