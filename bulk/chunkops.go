package bulk

import (
	"sync"

	"github.com/quicksilver-rpc/quicksilver/na"
)

// chunkOps holds the operations for the first DefaultWindow chunks in flight of a transfer.
type chunkOps struct{ ops [DefaultWindow]na.Op }

// chunkOpsPool holds chunkOps for reuse.
var chunkOpsPool = sync.Pool{New: func() any { return new(chunkOps) }}

// release returns c to the pool. Its operations must be idle. Their references are cleared so that
// the pool does not keep memory reachable.
func (c *chunkOps) release() {
	for i := range c.ops {
		c.ops[i].InitStep(nil, nil, nil)
	}
	chunkOpsPool.Put(c)
}
