package na

// A View is a peer's memory mapped into this process. It is returned by Context.View.
type View struct {
	Bytes []byte
	// End ends the view. The caller must call it exactly once and must not access Bytes afterward. If
	// End returns an error that matches ErrRevoked, the owner has deregistered the memory in the
	// meantime, and the caller must not use the bytes that it has read.
	End func() error
}

// View returns n bytes at offset off of the peer's memory identified by key, mapped read-only. If
// ok is false, the memory cannot be mapped, at least not yet, and the caller should use Get. View
// does not block.
func (c *Context) View(to Addr, key Key, off, n int64) (v View, ok bool) {
	if key.Place.Claim == 0 || n == 0 || !InRange(off, n, key.Len) || !key.Access.Can(ReadOnly) || c.Closing() {
		return View{}, false
	}
	return c.ep.viewShared(to, key, off, n)
}
