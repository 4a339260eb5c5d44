package na

import (
	"fmt"

	"github.com/quicksilver-rpc/quicksilver/internal/frame"
)

// A placedMessage is a message whose payload the carrier is receiving.
type placedMessage struct {
	head frame.Header
	env  *Envelope // nil if the payload is to be discarded
}

// placeMessage returns the view into which the carrier receives the payload of the message with
// header h. It does not act on h in any other way until the payload is complete, because the
// checksum covers the header and the payload.
func (l *session) placeMessage(h *frame.Header) (view, error) {
	n := h.Payload()
	v := view{n: int64(n), msg: l.e.arrivings.get()}
	v.msg.head = *h
	switch h.Kind {
	case frame.Unexpected:
		if err := l.checkUnexpected(n); err != nil {
			return v, err
		}
	case frame.Expected:
		if o := l.posted.find(Tag(h.Tag)); o == nil || n > max(len(o.buf), o.most) {
			return v, nil
		}
	case frame.Stream:
		if n > maxStreamFrame {
			return v, WithText(ErrProtocol, fmt.Sprintf("%v frame of %d bytes, limit %d", h.Kind, n, maxStreamFrame))
		}
	default:
		return v, WithText(ErrProtocol, fmt.Sprintf("%v frame is fragmented", h.Kind))
	}
	v.msg.env = l.e.newEnvelope(n)
	return v, nil
}

// placedMessage delivers a message whose payload is complete.
func (l *session) placedMessage(m *placedMessage) error {
	if l.state == stateDown {
		return nil
	}
	l.makeBusy()
	l.noteAlive()
	h, env := &m.head, m.env
	defer l.e.arrivings.put(m)
	if err := l.checkHeader(h); err != nil {
		return err
	}
	if h.Kind == frame.Stream {
		defer l.e.dropEnvelope(env)
		return l.deliverStream(h, env.Data)
	}
	l.countMessage(h)
	if h.Kind == frame.Unexpected {
		if err := l.checkUnexpected(h.Payload()); err != nil {
			return err
		}
		return l.onUnexpected(h, l.e.adoptMessage(env))
	}
	var payload []byte
	if env != nil {
		payload = env.Data
	}
	return l.deliverExpected(h, payload, env)
}
