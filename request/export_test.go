package request

// Slice is the longest Progress of a driver that cannot be woken.
const Slice = slice

// Unlocked reports whether the lock of c is free. It means something only while a single goroutine uses c.
func Unlocked(c *Class) bool {
	if !c.mu.TryLock() {
		return false
	}
	c.mu.Unlock()
	return true
}

// Quiet reports whether c has neither a driver nor sleepers nor deadlines left.
func Quiet(c *Class) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.driver == nil && c.heir == nil && len(c.sleepers) == 0 && len(c.deadlines) == 0
}
