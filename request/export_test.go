package request

// Slice is the longest Progress of a Progressor that cannot be woken.
const Slice = maxSlice

// Unlocked reports whether the lock of c is free. It means something only while a single goroutine uses c.
func Unlocked(c *Class) bool {
	if !c.mu.TryLock() {
		return false
	}
	c.mu.Unlock()
	return c.loop == nil || c.loop.Unlocked()
}

// Quiet reports whether no goroutine waits for c.
func Quiet(c *Class) bool {
	return c.loop == nil || c.loop.Quiet()
}
