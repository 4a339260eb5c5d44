package na

// A View is memory of a peer that is mapped into this process, as Context.View returns it.
type View struct {
	Bytes []byte
	// End ends the view, and must be called once. The error matches ErrRevoked if the owner has
	// deregistered the memory since: then the bytes that were read are not valid.
	End func() error
}

// View returns n bytes of the peer's memory of key at off, mapped read-only. ok is false where that
// is not possible, or not yet: then use Get. It does not block.
func (c *Context) View(to Addr, key Key, off, n int64) (v View, ok bool) {
	if key.Place.Claim == 0 || n == 0 || !InRange(off, n, key.Len) || !key.Access.Can(ReadOnly) || c.Closing() {
		return View{}, false
	}
	return c.ep.viewShared(to, key, off, n)
}
