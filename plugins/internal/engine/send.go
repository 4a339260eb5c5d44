package engine

import (
	"github.com/quicksilver-rpc/quicksilver/na"
	"github.com/quicksilver-rpc/quicksilver/plugins/internal/frame"
)

// kick has the carrier send what l has, when the lock is returned with flushUnlock.
func (l *Link) kick() {
	if !l.kicked && l.state != linkDown {
		l.kicked = true
		l.e.kicked = append(l.e.kicked, l)
		l.e.pending.Store(true)
	}
}

// control queues a frame that has neither payload nor operation.
func (l *Link) control(h frame.Header) { l.controlOn(&l.ctl, h) }

// controlMove queues a control frame about a put or get, behind its data.
func (l *Link) controlMove(onLane bool, h frame.Header) {
	if onLane {
		l.controlOn(&l.lane.ctl, h)
	} else {
		l.controlOn(&l.ctl, h)
	}
}

func (l *Link) controlOn(q *fifo[frame.Header], h frame.Header) {
	if l.state == linkDown {
		return
	}
	if q.len() >= maxControl {
		l.fail(na.WithText(na.ErrOverflow, "the peer asks and does not read the answers"))
		return
	}
	q.push(h)
	l.kick()
}

func giveBack(key na.Key) frame.Header {
	return frame.Header{Kind: frame.GiveBack, Tail: frame.Tail{Token: key.Token, Length: key.Len}}
}

func cancelMove(id uint64) frame.Header { return frame.Header{Kind: frame.Cancel, Op: id} }

// goaway encodes the last frame of a session.
func goaway(code na.Code, text string) []byte {
	h := frame.Header{Kind: frame.Goaway, Tag: uint64(code)}
	if len(text) > 512 {
		text = text[:512]
	}
	return h.Append(nil, []byte(text))
}

// Goaway encodes the frame with which a carrier turns away a peer that has no link.
func Goaway(err error) []byte { return goaway(na.CodeOf(err), err.Error()) }

// Next appends the next frame for the peer to b, which has room for a whole message beyond maxFront. ok is false when
// there is none. A piece of bulk data is appended without its payload, which c names; the carrier sends it right after
// the bytes of b and calls Sent. Without bulk, none is begun. Locked.
func (l *Link) Next(b []byte, bulk bool) (out []byte, c Chunk, ok bool) {
	if l.state == linkDown || l.state == linkWaiting {
		return b, c, false
	}
	if !l.greeted {
		l.greeted = true
		g := l.greeting()
		h := frame.Header{Kind: frame.Hello, Tag: frame.Magic}
		return h.Append(b, g.Append(nil)), c, true
	}
	if l.state != linkUp {
		return b, c, false
	}
	if l.pong {
		l.pong = false
		return l.front(b, frame.Header{Kind: frame.Pong, Tag: l.pongTag}), c, true
	}
	if l.ctl.len() > 0 {
		h := l.ctl.pop()
		if h.Kind == frame.Withdrawn {
			l.answered--
		}
		return l.front(b, h), c, true
	}
	for o := l.msgs.head; o != nil; o = l.msgs.head {
		if err := l.unfit(o); err != nil {
			if o.kind == kindSendUnexpected {
				l.returnCredit()
			}
			l.e.finish(o, na.Result{Err: err, Fate: na.NotRun})
			continue
		}
		return l.nextMessage(b, o), c, true
	}
	l.beginMoves()
	if l.ctl.len() > 0 {
		return l.Next(b, bulk)
	}
	if bulk {
		if out, c, ok = l.nextChunk(b, &l.moves); ok {
			return out, c, true
		}
		if l.ctl.len() > 0 { // moves that ended when it was their turn have left an answer
			return l.Next(b, bulk)
		}
	}
	if l.owed {
		return l.front(b, frame.Header{Kind: frame.Credit}), c, true
	}
	return b, c, false
}

// More tells whether Next with bulk would yield something. Locked.
func (l *Link) More() bool {
	switch {
	case l.state == linkDown || l.state == linkWaiting:
		return false
	case !l.greeted:
		return true
	case l.state != linkUp:
		return false
	}
	return l.pong || l.ctl.len() > 0 || l.msgs.n > 0 || l.owed || l.moves.len() > 0 ||
		l.moving.n > 0 && l.flying.n < maxFlying
}

// Room is how many bytes b needs to have free for one Next.
func (l *Link) Room() int { return maxFront + frame.MaxHello + l.eager }

func (l *Link) front(b []byte, h frame.Header) []byte {
	l.fill(&h, false)
	return h.AppendFront(b, 0)
}

// fill puts into a header what every frame of the session carries.
func (l *Link) fill(h *frame.Header, onLane bool) {
	h.Context = l.peer.Context
	if onLane {
		h.Flags |= frame.FlagLane
	} else {
		h.Credit = l.credit()
	}
}

// nextMessage copies a message out; its operation ends here, sent.
func (l *Link) nextMessage(b []byte, o *op) []byte {
	h := frame.Header{Kind: frame.Expected, Context: l.peer.Context, Tag: uint64(o.tag), Credit: l.credit()}
	if o.kind == kindSendUnexpected {
		l.seq++
		h.Kind, h.Op = frame.Unexpected, l.seq
		if o.by.At != 0 {
			h.Flags = frame.FlagTimed
		}
	} else if len(l.e.leases) > 0 && l.e.leases[matchKey{l, o.tag}] != nil {
		h.Flags = frame.FlagTell
	}
	l.e.messages++
	n := int64(len(o.buf))
	if !o.t.Hold() { // cannot be: canceled messages are taken out of the queue under the same lock
		panic("engine: a message in the queue has ended")
	}
	b = h.Append(b, o.buf)
	o.t.Release()
	if o.last {
		l.keep(o)
		return b
	}
	l.e.finish(o, na.Result{N: n, Addr: l.addr(), ID: l.seq})
	return b
}
