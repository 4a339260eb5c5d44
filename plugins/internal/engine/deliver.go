package engine

import (
	"fmt"
	"slices"

	"github.com/quicksilver-rpc/quicksilver/na"
	"github.com/quicksilver-rpc/quicksilver/plugins/internal/frame"
)

// Deliver takes in a whole frame from the peer that is not bulk data; payload is valid during the call only. An error
// means that the peer broke the protocol: the carrier calls Fail with it. Locked.
func (l *Link) Deliver(h *frame.Header, payload []byte) error {
	if l.state == linkDown {
		return nil
	}
	l.heard = true
	if h.Kind == frame.Goaway {
		l.refused(na.Code(h.Tag), string(payload))
		return nil
	}
	if l.state != linkUp {
		return l.deliverHello(h, payload)
	}
	if err := l.header(h); err != nil {
		return err
	}
	switch h.Kind {
	case frame.Unexpected:
		l.e.messages++
		return l.deliverUnexpected(h, payload)
	case frame.Expected:
		l.e.messages++
		l.deliverExpected(h, payload)
	case frame.PutDone:
		return l.deliverDone(h, kindPut)
	case frame.GetDone:
		return l.deliverDone(h, kindGet)
	case frame.Get:
		return l.deliverGet(h)
	case frame.Cancel:
		l.deliverCancel(h)
	case frame.Ping:
		l.pong, l.pongTag = true, h.Tag
		l.kick()
	case frame.Pong:
		l.confirmed = l.confirmed || h.Tag == confirmTag
	case frame.Credit:
	case frame.Withdraw:
		return l.deliverWithdraw(h)
	case frame.Withdrawn:
		return l.deliverWithdrawn(h)
	case frame.Abandon:
		return l.deliverAbandon(h)
	case frame.Lane:
		l.wantLane()
	case frame.Dropped:
		if o := l.e.leases[matchKey{l, na.Tag(h.Tag)}]; o != nil {
			l.e.finish(o, na.Result{Err: na.WithText(na.ErrNoEntry, "the peer dropped the message of the lease"), Fate: na.MaybeRan})
		}
	case frame.GiveBack:
		if o := l.e.tokens[h.Tail.Token]; o != nil && o.link == l {
			l.e.finish(o, na.Result{N: o.mem.Len()})
		}
	default:
		return na.WithText(na.ErrProtocol, fmt.Sprintf("%v frame inside a session", h.Kind))
	}
	return nil
}

// header checks what every frame of a session carries.
func (l *Link) header(h *frame.Header) error {
	if int(h.Context) != l.e.id {
		return na.WithText(na.ErrProtocol, fmt.Sprintf("%v frame for context %d in a session with context %d", h.Kind, h.Context, l.e.id))
	}
	if h.Flags&frame.FlagLane != 0 {
		return nil // it may be older than what has come on the other connection
	}
	switch grown := int32(h.Credit - l.credits); {
	case grown == 0:
	case grown < 0 || h.Credit-l.used > maxCredit:
		return na.WithText(na.ErrProtocol, fmt.Sprintf("%v frame with credit %d after %d, %d used", h.Kind, h.Credit, l.credits, l.used))
	default:
		l.credited(h.Credit)
	}
	return nil
}

// deliverHello takes the peer's answer to our HELLO.
func (l *Link) deliverHello(h *frame.Header, payload []byte) error {
	g, err := ParseHello(h, payload)
	if err != nil {
		return err
	}
	if err := l.e.checkGreeting(&g); err != nil {
		return err
	}
	if int(g.Target) != l.e.id || int(g.Context) != l.named.Target() {
		return na.WithText(na.ErrProtocol, "HELLO is for another context")
	}
	if g.Incarnation == l.e.eng.inc {
		return na.WithText(na.ErrUnreachable, "the address leads back to this process, which does not listen there")
	}
	if err := l.checkNeed(&g); err != nil {
		return err
	}
	l.up(g)
	return nil
}

// ParseHello decodes the first frame of a connection.
func ParseHello(h *frame.Header, payload []byte) (frame.Greeting, error) {
	if h.Kind != frame.Hello || h.Tag != frame.Magic {
		return frame.Greeting{}, na.WithText(na.ErrProtocol, fmt.Sprintf("session begins with %v, want HELLO", h.Kind))
	}
	return frame.ParseGreeting(payload)
}

func (l *Link) deliverUnexpected(h *frame.Header, payload []byte) error {
	if len(payload) > l.e.eng.cfg.Eager {
		return na.WithText(na.ErrProtocol, fmt.Sprintf("unexpected message of %d bytes, %d were offered", len(payload), l.e.eng.cfg.Eager))
	}
	l.arrived++
	if int32(l.announced-uint32(l.arrived)) < 0 {
		return na.WithText(na.ErrProtocol, fmt.Sprintf("unexpected message %d, %d envelopes were guaranteed", l.arrived, l.announced))
	}
	l.held++
	l.heldMax = max(l.heldMax, l.held)
	l.oweCredit()
	env := l.e.newEnvelope(l, na.Tag(h.Tag), payload)
	env.Arrived = l.arrival(h)
	if o := l.e.receivers.head; o != nil {
		l.e.finish(o, na.Result{Envelope: env, Addr: env.From, Tag: env.Tag, N: int64(len(payload))})
		return nil
	}
	env.Inbox = true
	l.e.inbox.push(env)
	return nil
}

func (l *Link) deliverExpected(h *frame.Header, payload []byte) {
	o := l.match[na.Tag(h.Tag)]
	if o == nil {
		l.e.stats.LateDropped++
		if h.Flags&frame.FlagTell != 0 {
			l.control(frame.Header{Kind: frame.Dropped, Tag: h.Tag})
		}
		return
	}
	r := na.Result{Addr: l.addr(), Tag: o.tag, N: int64(len(payload))}
	switch {
	case len(payload) > len(o.buf):
		r.Err = na.WithText(na.ErrOverflow, fmt.Sprintf("message of %d bytes for a receive of %d", len(payload), len(o.buf)))
		r.Fate = na.Ran
		if h.Flags&frame.FlagTell != 0 {
			l.control(frame.Header{Kind: frame.Dropped, Tag: h.Tag})
		}
	case o.t.Hold():
		copy(o.buf, payload)
		o.t.Release()
	}
	l.e.finish(o, r)
}

// deliverDone ends a put or a get that the owner has reported done.
func (l *Link) deliverDone(h *frame.Header, k kind) error {
	o := l.e.flying.get(h.Op)
	if o == nil || o.link != l || o.kind != k {
		l.e.stats.LateDropped++
		return nil
	}
	if h.Tag > 255 {
		return na.WithText(na.ErrProtocol, fmt.Sprintf("%v frame with code %d", h.Kind, h.Tag))
	}
	code := na.Code(h.Tag)
	r := na.Result{N: o.at, Fate: na.Ran, Addr: l.addr()}
	switch {
	case code == na.ErrFault:
		r.Err = na.WithText(code, "the memory of the owner could not be read or written: "+code.Error())
	case code != na.OK:
		r.Err = na.WithText(code, "the owner of the memory refused: "+code.Error())
	case o.at != o.n:
		return na.WithText(na.ErrProtocol, fmt.Sprintf("%v after %d of %d bytes", h.Kind, o.at, o.n))
	}
	l.e.finish(o, r)
	return nil
}

// deliverGet begins to serve a get.
func (l *Link) deliverGet(h *frame.Header) error {
	if l.served[h.Op] != nil {
		return na.WithText(na.ErrProtocol, fmt.Sprintf("GET with the identity %#x of one that is served", h.Op))
	}
	mem, code := l.e.eng.reach(l, h.Tail, na.ReadOnly)
	if code == na.OK && len(l.served) >= maxServing {
		code = na.ErrAgain
	}
	if code != na.OK || h.Tail.Length == 0 {
		l.control(frame.Header{Kind: frame.GetDone, Op: h.Op, Tag: uint64(code)})
		return l.denied(code, h.Tail.Token)
	}
	l.serve(h.Op, mem, h.Tail.Offset, h.Tail.Length)
	return nil
}

// denied counts tokens for which a request was refused; a peer that tries keys is cut. Each counts once, whatever it was
// refused for: who holds a handle of an earlier session, or of an earlier life of this process, asks for all its pieces.
// Memory that was there a moment ago does not count.
func (l *Link) denied(code na.Code, token [16]byte) error {
	switch {
	case code == na.OK || code == na.ErrAgain || code == na.ErrRevoked && l.e.eng.cls.Issued(token):
		return nil
	case slices.Contains(l.guesses, token):
		return nil
	}
	if l.guesses = append(l.guesses, token); len(l.guesses) > maxDenials {
		return na.WithText(na.ErrProtocol, "too many requests for memory that is not allowed")
	}
	return nil
}

// deliverCancel stops what the peer does not want any more.
func (l *Link) deliverCancel(h *frame.Header) {
	if m := l.served[h.Op]; m != nil {
		l.dropMove(m)
	}
	delete(l.inputs, h.Op)
}

// Place says where the payload of a bulk frame goes; the carrier reads it there piece by piece and calls Placed when
// it is complete. Locked.
func (l *Link) Place(h *frame.Header) (View, error) {
	n := int64(h.Payload())
	v := View{n: n}
	if l.state == linkDown {
		return v, nil
	}
	l.heard = true
	if l.state != linkUp {
		return v, na.WithText(na.ErrProtocol, fmt.Sprintf("%v frame before the HELLO", h.Kind))
	}
	if err := l.header(h); err != nil {
		return v, err
	}
	if h.Kind == frame.GetData {
		o := l.e.flying.get(h.Op)
		if o == nil || o.link != l || o.kind != kindGet {
			l.e.stats.LateDropped++
			return v, nil
		}
		if !na.InRange(int64(h.Tag), n, o.n) || o.at+n > o.n {
			return v, na.WithText(na.ErrProtocol, fmt.Sprintf("GETDATA of %d bytes at %d lies outside the get of %d", n, h.Tag, o.n))
		}
		v.t, v.mem, v.off = o.t, o.mem, o.loff+int64(h.Tag)
		return v, nil
	}
	return l.placePut(h, v)
}

func (l *Link) placePut(h *frame.Header, v View) (View, error) {
	total := h.Tail.Length
	in := l.inputs[h.Op]
	if in == nil {
		if h.Tag != 0 {
			l.e.stats.LateDropped++ // the rest of a put that was refused or canceled
			return v, nil
		}
		mem, code := l.e.eng.reach(l, h.Tail, na.WriteOnly)
		if code == na.OK && len(l.inputs) >= maxServing {
			code = na.ErrAgain
		}
		if err := l.denied(code, h.Tail.Token); err != nil {
			return v, err
		}
		if code != na.OK {
			l.control(frame.Header{Kind: frame.PutDone, Op: h.Op, Tag: uint64(code)})
			return v, nil
		}
		l.e.reached++
		in = l.e.newInput()
		*in = input{id: h.Op, mem: mem, total: total}
		if l.inputs == nil {
			l.inputs = map[uint64]*input{}
		}
		l.inputs[h.Op] = in
	}
	if in.total != total || !na.InRange(int64(h.Tag), v.n, total) || in.got+v.n > total ||
		!in.mem.Contains(h.Tail.Offset, total) {
		return v, na.WithText(na.ErrProtocol, fmt.Sprintf("PUT of %d bytes at %d does not fit its operation of %d", v.n, h.Tag, total))
	}
	v.input = in
	v.mem, v.off = in.mem, h.Tail.Offset+int64(h.Tag)
	return v, nil
}

// Placed hears that the payload of a bulk frame has been read. Locked.
func (l *Link) Placed(h *frame.Header, v *View) {
	if l.state == linkDown {
		return
	}
	l.heard = true
	if in := v.input; in != nil {
		if l.inputs[in.id] != in {
			return // canceled meanwhile
		}
		if in.code == na.OK {
			in.code = v.code
		}
		if in.got += v.n; in.got == in.total {
			delete(l.inputs, in.id)
			l.control(frame.Header{Kind: frame.PutDone, Op: in.id, Tag: uint64(in.code)})
			l.e.freeInput(in)
			v.input = nil
		}
		return
	}
	if o := l.e.flying.get(h.Op); o != nil && o.t == v.t && v.mem != nil {
		switch v.code {
		case na.OK:
			o.at += v.n
		case na.ErrFault:
			l.faulted(o)
		}
	}
}
