package bulk

import (
	"sync"

	"github.com/quicksilver-rpc/quicksilver/na"
)

// A chunkOps holds the operations of the first DefaultWindow chunks that a transfer has in flight.
type chunkOps struct{ ops [DefaultWindow]na.Op }

// chunkOpsPool is a pool of unused chunkOps.
var chunkOpsPool = sync.Pool{New: func() any { return new(chunkOps) }}

// release returns c to the pool. No operation may be in flight. release clears the references held
// by the operations, so that the pool does not keep memory reachable.
func (c *chunkOps) release() {
	for i := range c.ops {
		c.ops[i].InitStep(nil, nil, nil)
	}
	chunkOpsPool.Put(c)
}
