package engine

import "github.com/quicksilver-rpc/quicksilver/na"

// Regions tell a transport of registered memory, so that peers can find it. Its methods do not wait and call no engine.
type Regions interface {
	// Publish takes in m, for the peer of one session if session is not 0, and returns where it is found: Key.Hint. It is called
	// again, and returns the same, when a lease binds m to a session.
	Publish(m *na.Mem, session uint64) (hint uint64)
	// Unpublish runs before m is closed. It Acquires m once for each peer that is found in it, and Releases it when that peer
	// has moved on or is gone: Deregister waits for just these.
	Unpublish(m *na.Mem)
}

// A Mover is a Carrier that reaches the memory of peers itself.
type Mover interface {
	// Move takes over a get or put that has not begun, or reports false: then it goes by frames. The carrier works it off in pieces
	// of at most PieceSize, in Poll or Flush, not Locked, and tells the link (Moved). Locked.
	Move(t *Transfer) bool
}

// A Transfer is a get or put that a Mover works off. What the peer's memory allows is for the Mover to check.
type Transfer struct {
	Link   *Link
	Put    bool
	Key    na.Key // of the peer's memory
	Offset int64  // in it
	Len    int64

	id   uint64
	t    na.Ticket
	mem  *na.Mem
	loff int64
}

// View returns n bytes of the local memory, at an offset within the transfer. When its Borrow reports false the operation has
// ended: nothing more is to be done.
func (t *Transfer) View(at, n int64) View { return View{t: t.t, mem: t.mem, off: t.loff + at, n: n} }

// move hands an operation to the carrier, if that is a Mover and takes it.
func (l *Link) move(o *op) bool {
	m, ok := l.route.carrier.(Mover)
	if !ok || o.n == 0 {
		return false
	}
	t := &Transfer{
		Link: l, Put: o.kind == kindPut, Key: o.key, Offset: o.roff, Len: o.n, id: o.id, t: o.t, mem: o.mem, loff: o.loff,
	}
	if !m.Move(t) {
		return false
	}
	o.transfer = t
	return true
}

// Moved is called when n more bytes of t, in their order, are in place, or with a code when it cannot go on: with ErrUnsupported the rest
// goes by frames, any other ends it. A transfer that has ended meanwhile is ignored. Locked.
func (l *Link) Moved(t *Transfer, n int64, code na.Code) {
	o := l.e.inFlight.get(t.id)
	if o == nil || o.transfer != t {
		return
	}
	l.alive()
	o.at += min(n, o.n-o.at)
	switch {
	case code == na.ErrUnsupported && o.at < o.n:
		o.transfer = nil
		l.byFrames(o)
	case code != na.OK && code != na.ErrUnsupported:
		l.e.finish(o, na.Result{Err: na.WithText(code, "the owner's memory: "+code.Error()), N: o.at, Fate: na.Ran, Addr: l.addr()})
	case o.at == o.n:
		l.e.finish(o, na.Result{N: o.n, Fate: na.Ran, Addr: l.addr()})
	}
}
