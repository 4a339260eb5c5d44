package bulk

import (
	"sync"

	"github.com/quicksilver-rpc/quicksilver/na"
)

// A crew is the operations that move the pieces of one transfer. Crews are used again and again.
type crew struct {
	ops  [DefaultWindow]na.Op
	next *crew
}

// crews holds those that rest.
var crews struct {
	mu   sync.Mutex // guards the fields below
	list *crew
	n    int
}

// maxCrews bounds those that are kept.
const maxCrews = 64

func takeCrew() *crew {
	crews.mu.Lock()
	defer crews.mu.Unlock()
	c := crews.list
	if c == nil {
		return &crew{}
	}
	crews.list, c.next = c.next, nil
	crews.n--
	return c
}

// dismiss takes a crew back whose operations are idle. Nothing keeps what they were for alive.
func (c *crew) dismiss() {
	for i := range c.ops {
		c.ops[i].Init(nil, nil, nil)
	}
	crews.mu.Lock()
	defer crews.mu.Unlock()
	if crews.n < maxCrews {
		c.next, crews.list = crews.list, c
		crews.n++
	}
}
