package na

// A View is memory of a peer mapped into this process, as returned by Context.View.
type View struct {
	Bytes []byte
	// End ends the view and must be called exactly once. The error matches ErrRevoked if the owner
	// has deregistered the memory in the meantime, in which case the bytes read are not valid.
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
