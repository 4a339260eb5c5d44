package na

import (
	"slices"
	"time"

	"github.com/quicksilver-rpc/quicksilver/internal/frame"
	"github.com/quicksilver-rpc/quicksilver/na/carrier"
)

// Some memory of peers a carrier reads by itself (carrier.Reacher): no frame goes to the peer, which may be stopped.
//
//	our get ─ beginMoves ─► Fetch ─ PlaceOwn, copy, PlacedOwn … ─► the get ends
//
// What was read is told to the peer, which counts it, when there is a message for it, or soon: READ.

// readsDirectly has the carrier read for a get that begins, if it can.
func (l *session) readsDirectly(o *Op) bool {
	return o.x.key.Place.Claim != 0 && o.x.n > 0 && l.route.reacher != nil && l.route.reacher.Fetch(l, o.id, carrier.Region{Token: o.x.key.Token, Place: o.x.key.Place}, o.x.roff, o.x.n)
}

// PlaceOwn is Place for the n bytes at at of our get, of which the peer knows nothing; ok is false if it has ended. Locked.
func (l *session) PlaceOwn(id uint64, at, n int64) carrier.View {
	o := l.e.inFlight.get(id)
	if o == nil || o.session != l {
		return nil
	}
	s := o.x.sink
	s.begun += n
	s.views++
	return l.e.lendView(view{t: o.ticket(), mem: s.mem, off: s.off + at, n: n, sink: s})
}

// PlacedOwn ends PlaceOwn. valid is whether the bytes were still the owner's to give when they had been read. Locked.
func (l *session) PlacedOwn(of carrier.View, valid bool) {
	v, ok := l.e.takeBack(of.(*view))
	if !ok {
		return
	}
	s := v.sink
	if l.state == stateDown {
		return
	}
	if s.views--; s.dead {
		l.e.dropSink(s)
		return
	}
	o := s.op
	switch {
	case !valid:
		l.e.finishOp(o, Result{N: o.x.at, Fate: Ran, Addr: l.addr(), Err: errTakenBack})
	case v.code != OK:
		l.failMemory(o)
	default:
		l.tellRead(o.x.key.Token, v.n)
		s.got += v.n
		if o.x.at = s.got; o.x.at == o.x.n {
			l.e.finishOp(o, Result{N: o.x.n, Fate: Ran, Addr: l.addr()})
		}
	}
}

var errTakenBack = WithText(ErrRevoked, "the owner took the memory back: "+ErrRevoked.Error())

// view implements Viewer.
func (e *endpoint) viewShared(to Addr, key Key, off, n int64) (v View, ok bool) {
	e.mu.Lock()
	defer e.Unlock()
	l := e.findSession(to)
	if l == nil || l.state != stateUp || l.route.reacher == nil {
		return v, false
	}
	b, end := l.route.reacher.View(l, carrier.Region{Token: key.Token, Place: key.Place}, off, n)
	if b == nil {
		return v, false
	}
	up := l.state == stateUp // still
	if up {
		l.makeBusy()
		l.views++
		l.tellRead(key.Token, n)
	}
	return View{Bytes: b, End: func() error {
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
func (l *session) endView() {
	l.e.mu.Lock()
	if l.activeState != nil {
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

// A remoteRead is what was read of memory of the peer, of which it was not told.
type remoteRead struct {
	token [16]byte
	n     int64
}

// tellRead has the peer told that we have read n bytes.
func (l *session) tellRead(token [16]byte, n int64) {
	if last := len(l.reads) - 1; last >= 0 && l.reads[last].token == token {
		l.reads[last].n += n
		return
	}
	if len(l.reads) == 0 {
		l.e.readClock()
		l.e.tickNoLaterThan(l.e.now + readDelay)
	}
	l.reads = append(l.reads, remoteRead{token, n})
	if len(l.reads) > maxReads {
		l.readsDue()
	}
}

// readsDue has the peer told now.
func (l *session) readsDue() {
	for _, r := range l.reads {
		l.queueControl(r.headBytes())
	}
	l.reads = l.reads[:0]
}

// putReads tells the peer, as far as there is room.
func (l *session) putReads(w carrier.Writer) {
	n := 0
	for ; n < len(l.reads); n++ {
		if room, _ := w.Room(); room < 0 {
			break
		}
		l.sendFrame(carrier.Messages, w, l.reads[n].headBytes())
	}
	l.reads = slices.Delete(l.reads, 0, n)
}

func (r *remoteRead) headBytes() frame.Header {
	return frame.Header{Kind: frame.Read, Tail: frame.Tail{Token: r.token, Length: r.n}}
}

// deliverRead counts what the peer has read of our memory; it may have been taken back.
func (l *session) deliverRead(h *frame.Header) {
	t := frame.Tail{Token: h.Tail.Token}
	if mem, code := l.e.dom.findMem(l, t, ReadOnly); code == OK {
		mem.countServed(l, min(h.Tail.Length, mostRead))
	}
}
