//go:build !linux

package tcp

import (
	"net"

	"github.com/quicksilver-rpc/quicksilver/plugins/internal/engine"
)

// polledDomain is not used where the contexts' pollers take no descriptors.
type polledDomain struct{}

func (*polledDomain) accept(*domain, *net.TCPListener) error { return nil }
func (*polledDomain) close()                                 {}

func (d *domain) newPolled(e *engine.Endpoint) (engine.Carrier, error) { return d.newPortable(e) }
