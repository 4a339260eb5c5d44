package na

// A View is memory of a peer that is mapped here, as Context.View returns it.
type View struct {
	Bytes []byte
	// End ends it. The error matches ErrRevoked if the owner has taken the memory back since: then
	// what was read means nothing. It is called once.
	End func() error
}

// View shows n bytes of the peer's memory of key at off as they are there, to be read only; ok is
// false where that cannot be, or not yet: then Get reads them. It does not wait, for the peer
// neither.
func (c *Context) View(to Addr, key Key, off, n int64) (v View, ok bool) {
	if key.Place.Claim == 0 || n == 0 || !InRange(off, n, key.Len) || !key.Access.Can(ReadOnly) || c.Closing() {
		return View{}, false
	}
	return c.ep.viewShared(to, key, off, n)
}
