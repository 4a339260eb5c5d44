package simtest

import (
	"context"
	"sync"

	"github.com/quicksilver-rpc/quicksilver/qs"
)

// An Addition is the input of Add. ID is the same when it is sent again.
type Addition struct {
	ID string
	N  int
}

// Add adds to the counter and returns what it was then. It may be called twice: the second time does nothing.
var Add = qs.Define[Addition, int]("counter/add", qs.Idempotent())

// A Counter is the service.
type Counter struct {
	mu   sync.Mutex // guards the fields below
	sum  int
	seen map[string]int // answers, by ID
}

// Handle has node serve c.
func (c *Counter) Handle(node *qs.Node) {
	c.seen = map[string]int{}
	Add.Handle(node, func(_ context.Context, a Addition) (int, error) {
		c.mu.Lock()
		defer c.mu.Unlock()
		if was, ok := c.seen[a.ID]; ok {
			return was, nil
		}
		c.sum += a.N
		c.seen[a.ID] = c.sum
		return c.sum, nil
	})
}

// Sum returns the sum of all additions.
func (c *Counter) Sum() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.sum
}
