package udp

import (
	"encoding/binary"
	"net/netip"

	"github.com/quicksilver-rpc/quicksilver/internal/frame"
	"github.com/quicksilver-rpc/quicksilver/na/carrier"
	"github.com/quicksilver-rpc/quicksilver/na/codes"
	"github.com/quicksilver-rpc/quicksilver/plugins/udp/internal/arq"
)

// Admit implements arq.Upper.
func (c *contextCarrier) Admit(from netip.AddrPort, hello []byte, verified bool, dialing *arq.Assoc) arq.Admission {
	g, err := frame.ParseGreeting(hello)
	if err != nil {
		return refusalOf(err)
	}
	// Both sides are dialing each other. Package na decides which of the two dials is kept, and
	// decides the same on both sides.
	if dialing != nil {
		if p := dialing.User.(*peer); p.link != nil && p.link.Target() == int(g.Context) && !p.link.Meets(&g) {
			return arq.Admission{Crossing: true}
		}
	}
	var k *conn
	if c.conns != nil {
		if k = c.conns[from]; k == nil {
			return arq.Admission{}
		}
		from = k.to
	}
	// Use the address in the greeting only if the peer has shown that it receives at that address.
	// Otherwise the peer is identified by an address that cannot be dialed.
	same := c.d.names.Verified(g.Listen, netip.Addr{}, from.Addr()) && (k == nil || k.proof.SpeaksFor(scheme, g.Listen))
	if same && !verified {
		return arq.Admission{Cookie: true}
	}
	p := &peer{c: c, conn: k}
	p.setRemote(from)
	if p.link, err = c.e.Admit(c, p, &g, same); err != nil {
		return refusalOf(err)
	}
	if !verified { // the source address may be forged until the peer answers a packet from this side
		p.link.Unproven()
	}
	return arq.Admission{User: p, Path: pathOf(from.Addr())}
}

// refusalOf returns an Admission that rejects a peer with err.
func refusalOf(err error) arq.Admission {
	return arq.Admission{Words: frame.ByeOf(err).Words()}
}

// Hello implements arq.Upper.
func (c *contextCarrier) Hello(a *arq.Assoc, dst []byte) []byte {
	p := a.User.(*peer)
	if p.a = a; p.link == nil { // the session has been closed
		return dst
	}
	if !p.up && p.link.Up() {
		p.up = true
		p.link.LaneUp()
	}
	return p.link.Hello(carrier.Messages, dst, nil)
}

// Greet implements arq.Upper.
func (c *contextCarrier) Greet(a *arq.Assoc, hello []byte) error {
	p := a.User.(*peer)
	g, err := frame.ParseGreeting(hello)
	if err == nil {
		err = p.link.Greet(&g)
	}
	if err != nil {
		p.link.Fail(err)
		return err
	}
	p.up = true
	p.link.LaneUp()
	return nil
}

// Deliver implements arq.Upper.
func (c *contextCarrier) Deliver(a *arq.Assoc, body []byte) {
	p := a.User.(*peer)
	for len(body) > 0 && p.link != nil {
		var err error
		if body, err = p.nextFrame(body); err != nil && p.link != nil {
			p.link.Fail(err)
		}
	}
}

// nextFrame handles the first frame in body, or the part of that frame that body contains, and
// returns the rest of body.
func (p *peer) nextFrame(body []byte) (rest []byte, err error) {
	if pt := p.part; pt != nil {
		n := min(pt.left, len(body))
		pt.buf = append(pt.buf, body[:n]...)
		if pt.left -= n; pt.left == 0 {
			p.part = nil
			err = p.deliver(&pt.h, pt.buf)
			partialFrames.Put(pt)
		}
		return body[n:], err
	}
	if len(body) < frame.HeaderSize || len(body) < frame.Need(body) {
		return nil, codes.WithText(codes.ErrProtocol, "packet ends inside a frame header")
	}
	h := &p.c.head
	if *h, err = frame.Parse(body); err != nil {
		return nil, err
	}
	n := h.Size() + h.Payload()
	if h.Payload() > frame.MaxWhole || h.Kind == frame.Data || h.Kind == frame.Hello {
		return nil, codes.WithText(codes.ErrProtocol, h.Kind.String()+" frame where none is allowed")
	}
	if n > len(body) {
		p.part = partialFrames.Get().(*partialFrame)
		p.part.h, p.part.left, p.part.buf = *h, n-len(body), append(p.part.buf[:0], body...)
		return nil, nil
	}
	return body[n:], p.deliver(h, body[:n])
}

// deliver passes a complete frame with header h and payload b to the session. If the frame has a
// payload, deliver first verifies the payload's checksum.
func (p *peer) deliver(h *frame.Header, b []byte) error {
	if h.Flags&frame.FlagPayload != 0 {
		if err := h.Verify(b); err != nil {
			return err
		}
	}
	return p.link.Deliver(h, b[h.Size():])
}

// Heard implements arq.Upper. It records that the peer is alive. Acknowledgments are included,
// because the peer's messages may be delayed by a lost packet.
func (c *contextCarrier) Heard(a *arq.Assoc) {
	if p, _ := a.User.(*peer); p != nil && p.link != nil {
		p.link.Heard(false)
	}
}

// Place implements arq.Upper.
func (c *contextCarrier) Place(a *arq.Assoc, front *[arq.FrontSize]byte, at int, payload []byte) {
	p := a.User.(*peer)
	if p.link == nil {
		return
	}
	le := binary.LittleEndian
	h := &c.head
	*h = frame.Header{Kind: frame.Data, Op: le.Uint64(front[:]), Tag: le.Uint64(front[8:]) + uint64(at), Credit: le.Uint32(front[16:]),
		Context: le.Uint16(front[20:]), Flags: front[22]}
	h.SetPayload(len(payload))
	v, err := p.link.Place(h)
	if err != nil {
		p.link.Fail(err)
		return
	}
	c.in = append(c.in, bulkPlacing{p, v, payload})
}

// onPlaced reports to the session that the data received for v has been copied, or has been dropped
// because the session was closed.
func (p *peer) onPlaced(v carrier.View) {
	if l := p.link; l != nil {
		if err := l.Placed(v); err != nil && p.link != nil {
			l.Fail(err)
		}
	}
}

// Sent implements arq.Upper.
func (c *contextCarrier) Sent(a *arq.Assoc, ref any) {
	pc := ref.(*bulkPiece)
	pc.released, pc.p = true, a.User.(*peer)
	c.dropPieceLocked(pc)
}

// Room implements arq.Upper.
func (c *contextCarrier) Room(a *arq.Assoc) {
	if p, _ := a.User.(*peer); p != nil {
		p.pull()
	}
}

// Finishing implements arq.Upper.
func (c *contextCarrier) Finishing(a *arq.Assoc, words []byte) {
	p, _ := a.User.(*peer)
	a.Detach()
	if p != nil && p.link != nil {
		l := p.link
		p.link = nil
		l.SetConn(nil)
		l.Refused(frame.ParseBye(words))
	}
}

// Ended implements arq.Upper.
func (c *contextCarrier) Ended(a *arq.Assoc, e arq.End) {
	p, _ := a.User.(*peer)
	if p == nil || p.link == nil {
		if c.shut && e.Messages > 0 && e.Outcome != arq.Refusal {
			c.unconfirmed.peers++
			c.unconfirmed.messages += e.Messages
		}
		return
	}
	l := p.link
	if e.Messages == 0 {
		l.Confirmed()
	}
	switch {
	case e.Outcome == arq.Refusal:
		l.Refused(frame.ParseBye([]byte(e.Words)))
	case e.Unsent != nil:
		l.Fail(unsentError(e.Unsent))
	case !p.up:
		l.Fail(codes.WithText(codes.ErrUnreachable, "no response"))
	case e.Absent:
		l.Fail(codes.WithText(codes.ErrPeerLost, "no response from the peer"))
	default:
		l.Silent(codes.WithText(codes.ErrPeerLost, "no response from the peer"))
	}
}
