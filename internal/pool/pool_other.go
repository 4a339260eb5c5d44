//go:build !linux

package pool

// newChunk returns nil, because peers cannot map memory on these systems.
func newChunk(int) (*chunk, error) { return nil, nil }

func (c *chunk) populate(int) error { return nil }

func (c *chunk) close() {}
