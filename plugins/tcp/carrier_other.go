//go:build !linux

package tcp

import (
	"github.com/quicksilver-rpc/quicksilver/plugins/internal/engine"
)

// newPolled is not used where the contexts' pollers take no descriptors.
func (d *domain) newPolled(e *engine.Endpoint) (engine.Carrier, error) { return d.newPortable(e) }
