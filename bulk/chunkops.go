package bulk

import (
	"sync"

	"github.com/quicksilver-rpc/quicksilver/na"
)

// chunkOps are the operations of the first DefaultWindow chunks of a transfer in flight.
type chunkOps struct{ ops [DefaultWindow]na.Op }

// chunkOpsPool holds chunkOps for reuse.
var chunkOpsPool = sync.Pool{New: func() any { return new(chunkOps) }}

// release puts c back into the pool. Its operations are idle; their references are cleared for the
// garbage collector.
func (c *chunkOps) release() {
	for i := range c.ops {
		c.ops[i].InitStep(nil, nil, nil)
	}
	chunkOpsPool.Put(c)
}
