package bulk

import (
	"sync"

	"github.com/quicksilver-rpc/quicksilver/na"
)

// An opSet is the operations that move the pieces of one transfer.
type opSet struct{ ops [DefaultWindow]na.Op }

// opPool holds those that are free.
var opPool = sync.Pool{New: func() any { return new(opSet) }}

// putBack takes an opSet back whose operations are idle. Nothing keeps what they were for alive.
func (c *opSet) putBack() {
	for i := range c.ops {
		c.ops[i].InitStep(nil, nil, nil)
	}
	opPool.Put(c)
}
