package engine

import (
	"slices"
	"time"

	"github.com/quicksilver-rpc/quicksilver/na"
	"github.com/quicksilver-rpc/quicksilver/plugins/internal/frame"
)

// A Reacher is a Carrier that reads some memory of peers by itself: no frame goes to the peer, who may be stopped.
//
//	our get ─ beginMoves ─► Fetch ─ PlaceOwn, copy, PlacedOwn … ─► the get ends
//
// What was read is told to the peer, which counts it, when there is a message for it, or soon: READ.
type Reacher interface {
	// Fetch reports whether the carrier reads the n bytes at off of key for our get with that identity. Locked.
	Fetch(l *Link, id uint64, key na.Key, off, n int64) bool
	// View shows those bytes where they are. end, which is called once, without the lock, reports whether they were the owner's to give
	// until then. Locked, though not while it looks whether they are there.
	View(l *Link, key na.Key, off, n int64) (b []byte, end func() bool)
}

// reaches has the carrier read for a get that begins, if it can.
func (l *Link) reaches(o *op) bool {
	return o.key.Place.Claim != 0 && o.n > 0 && l.route.reacher != nil && l.route.reacher.Fetch(l, o.id, o.key, o.roff, o.n)
}

// PlaceOwn is Place for the n bytes at at of our get, of which the peer knows nothing; ok is false if it has ended. Locked.
func (l *Link) PlaceOwn(id uint64, at, n int64) (v View, ok bool) {
	o := l.e.inFlight.get(id)
	if o == nil || o.link != l {
		return v, false
	}
	s := o.sink
	s.begun += n
	s.views++
	return View{t: o.t, mem: s.mem, off: s.off + at, n: n, sink: s}, true
}

// PlacedOwn ends PlaceOwn. valid is whether the bytes were still the owner's to give when they had been read. Locked.
func (l *Link) PlacedOwn(v *View, valid bool) {
	s := v.sink
	if l.state == linkDown {
		return
	}
	if s.views--; s.dead {
		l.e.dropSink(s)
		return
	}
	o := s.op
	switch {
	case !valid:
		l.e.finish(o, na.Result{N: o.at, Fate: na.Ran, Addr: l.addr(), Err: errTakenBack})
	case v.code != na.OK:
		l.faulted(o)
	default:
		l.tellRead(o.key.Token, v.n)
		s.got += v.n
		if o.at = s.got; o.at == o.n {
			l.e.finish(o, na.Result{N: o.n, Fate: na.Ran, Addr: l.addr()})
		}
	}
}

var errTakenBack = na.WithText(na.ErrRevoked, "the owner took the memory back: "+na.ErrRevoked.Error())

// View implements na.Viewer.
func (e *Endpoint) View(to na.Addr, key na.Key, off, n int64) (v na.View, ok bool) {
	e.mu.Lock()
	defer e.Unlock()
	l := e.find(to)
	if l == nil || l.state != linkUp || l.route.reacher == nil {
		return v, false
	}
	b, end := l.route.reacher.View(l, key, off, n)
	if b == nil {
		return v, false
	}
	up := l.state == linkUp // still
	if up {
		l.makeBusy()
		l.views++
		l.tellRead(key.Token, n)
	}
	return na.View{Bytes: b, End: func() error {
		if up {
			l.endView()
		}
		if !end() {
			return errTakenBack
		}
		return nil
	}}, true
}

// endView ends the use of memory of the peer where it is.
func (l *Link) endView() {
	l.e.mu.Lock()
	if l.active != nil {
		l.views--
	}
	l.e.mu.Unlock()
}

const (
	// readDelay is when the peer is told what was read, at the latest. One that is stopped takes nothing: what it is told until it is
	// given up finds room.
	readDelay = 100 * time.Millisecond
	maxReads  = 16      // memories of which it is not told
	mostRead  = 1 << 40 // bytes of which a peer tells at a time
)

// A read is what was read of memory of the peer, of which it was not told.
type read struct {
	token [16]byte
	n     int64
}

// tellRead has the peer told that we have read n bytes.
func (l *Link) tellRead(token [16]byte, n int64) {
	if last := len(l.reads) - 1; last >= 0 && l.reads[last].token == token {
		l.reads[last].n += n
		return
	}
	if len(l.reads) == 0 {
		l.e.readClock()
		l.e.hurry(l.e.now + readDelay)
	}
	l.reads = append(l.reads, read{token, n})
	if len(l.reads) > maxReads {
		l.readsDue()
	}
}

// readsDue has the peer told now.
func (l *Link) readsDue() {
	for _, r := range l.reads {
		l.control(r.head())
	}
	l.reads = l.reads[:0]
}

// putReads tells the peer, as far as there is room.
func (l *Link) putReads(w Writer) {
	n := 0
	for ; n < len(l.reads); n++ {
		if room, _ := w.Room(); room < 0 {
			break
		}
		l.frame(FlowMessages, w, l.reads[n].head())
	}
	l.reads = slices.Delete(l.reads, 0, n)
}

func (r *read) head() frame.Header {
	return frame.Header{Kind: frame.Read, Tail: frame.Tail{Token: r.token, Length: r.n}}
}

// deliverRead counts what the peer has read of our memory; it may have been taken back.
func (l *Link) deliverRead(h *frame.Header) {
	t := frame.Tail{Token: h.Tail.Token}
	if mem, code := l.e.eng.reach(l, t, na.ReadOnly); code == na.OK {
		mem.CountServed(min(h.Tail.Length, mostRead))
	}
}
