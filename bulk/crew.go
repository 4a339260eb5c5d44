package bulk

import (
	"sync"

	"github.com/quicksilver-rpc/quicksilver/na"
)

// A crew is the operations that move the pieces of one transfer. Crews are used again and again.
type crew struct{ ops [DefaultWindow]na.Op }

// crews holds those that rest.
var crews = sync.Pool{New: func() any { return new(crew) }}

// dismiss takes a crew back whose operations are idle. Nothing keeps what they were for alive.
func (c *crew) dismiss() {
	for i := range c.ops {
		c.ops[i].Init(nil, nil, nil)
	}
	crews.Put(c)
}
