package na

import (
	"slices"
	"time"

	"github.com/quicksilver-rpc/quicksilver/internal/frame"
	"github.com/quicksilver-rpc/quicksilver/na/carrier"
)

// Some carriers can read some of a peer's memory directly (see carrier.Reacher). No frame is sent
// to the peer, so a get completes even if the peer is stopped. For each part of the get, the
// carrier calls PlaceOwn, copies the bytes, and calls PlacedOwn.
//
// The number of bytes read is reported to the peer, which counts them, in a READ frame with the
// next message or soon afterward.

// readsDirectly makes the carrier read the data of the get o directly. It returns false if the
// carrier cannot.
func (l *session) readsDirectly(o *Op) bool {
	return o.x.key.Place.Claim != 0 && o.x.n > 0 && l.route.reacher != nil && l.route.reacher.Fetch(l, o.id, carrier.Region{Token: o.x.key.Token, Place: o.x.key.Place}, o.x.roff, o.x.n)
}

// PlaceOwn implements carrier.Session. It is the counterpart of Place for the n bytes at offset at
// of a local get that the carrier reads directly. It returns nil if the get has completed. The
// caller must hold e.mu.
func (l *session) PlaceOwn(id uint64, at, n int64) carrier.View {
	o := l.e.inFlight.get(id)
	if o == nil || o.session != l {
		return nil
	}
	s := o.x.sink
	s.begun += n
	s.views++
	return l.e.lendViewLocked(view{t: o.ticket(), mem: s.mem, off: s.off + at, n: n, sink: s})
}

// PlacedOwn implements carrier.Session. It ends the use of a view returned by PlaceOwn. valid
// reports whether the memory was still registered after it had been read. The caller must hold
// e.mu.
func (l *session) PlacedOwn(of carrier.View, valid bool) {
	v, ok := l.e.takeBackLocked(of.(*view))
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
		l.e.finishOpLocked(o, Result{N: o.x.at, Fate: Ran, Addr: l.addr(), Err: errTakenBack})
	case v.code != OK:
		l.failMemory(o)
	default:
		l.recordRead(o.x.key.Token, v.n)
		s.got += v.n
		if o.x.at = s.got; o.x.at == o.x.n {
			l.e.finishOpLocked(o, Result{N: o.x.n, Fate: Ran, Addr: l.addr()})
		}
	}
}

var errTakenBack = WithText(ErrRevoked, "the owner has deregistered the memory")

// viewShared implements upper.View.
func (e *endpoint) viewShared(to Addr, key Key, off, n int64) (v View, ok bool) {
	e.mu.Lock()
	defer e.Unlock()
	l := e.findSessionLocked(to)
	if l == nil || l.state != stateUp || l.route.reacher == nil {
		return v, false
	}
	b, end := l.route.reacher.View(l, carrier.Region{Token: key.Token, Place: key.Place}, off, n)
	if b == nil {
		return v, false
	}
	up := l.state == stateUp // the session may have ended during View
	if up {
		l.makeBusy()
		l.views++
		l.recordRead(key.Token, n)
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

// endView ends the use of a view of the peer's memory.
func (l *session) endView() {
	l.e.mu.Lock()
	if l.activeState != nil {
		l.views--
	}
	l.e.mu.Unlock()
}

const (
	// readDelay is the maximum delay of a READ. It is long enough that the READs for a stopped peer
	// fit in the queue until the peer is declared lost.
	readDelay = 100 * time.Millisecond
	maxReads  = 16      // maximum number of regions with unreported bytes
	mostRead  = 1 << 40 // maximum number of bytes counted from one report by a peer
)

// A remoteRead is the number of bytes that this side has read directly from one of the peer's
// regions and has not yet reported.
type remoteRead struct {
	token [16]byte
	n     int64
}

// recordRead records that n bytes of the region with the given token have been read and must be
// reported to the peer.
func (l *session) recordRead(token [16]byte, n int64) {
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
		l.queueReads()
	}
}

// queueReads queues READ frames for all recorded bytes.
func (l *session) queueReads() {
	for _, r := range l.reads {
		l.queueControl(r.headBytes())
	}
	l.reads = l.reads[:0]
}

// putReads writes READ frames for the recorded bytes while the carrier has room.
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

// deliverRead handles a READ frame by counting the bytes that the peer has read. The memory may
// have been revoked meanwhile.
func (l *session) deliverRead(h *frame.Header) {
	t := frame.Tail{Token: h.Tail.Token}
	if mem, code := l.e.dom.findMem(l, t, ReadOnly); code == OK {
		mem.countServed(l, min(h.Tail.Length, mostRead))
	}
}
