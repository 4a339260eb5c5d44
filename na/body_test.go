package na

import (
	"bytes"
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/internal/frame"
	"github.com/quicksilver-rpc/quicksilver/na/carrier"
)

// A bodyPeer sends the frames of a peer that sends bodies.
type bodyPeer struct {
	*script
	l *session
}

func newBodyPeer(t *testing.T) *bodyPeer {
	s := newScript(t, Config{Budget: 256 << 20})
	return &bodyPeer{script: s, l: s.connect(5)}
}

// grant lets the peer send bodies of n bytes, and returns the room that it has.
func (p *bodyPeer) grant(n int) int64 {
	p.nctx.Upper().GrantRoom(p.l.addr(), n)
	p.drain(p.l)
	return p.nctx.Peers()[0].Room
}

// bodyIdentity is that of the peer's body of n bytes with a number.
func bodyIdentity(n, number int) uint64 { return frame.BodyID(n, uint64(number)) }

func (p *bodyPeer) say(kind frame.Kind, flags uint8, id uint64, payload []byte) error {
	p.e.Lock()
	defer p.e.Unlock()
	h := &frame.Header{Kind: kind, Flags: flags, Op: id, Tag: 77, Credit: 5}
	h.SetPayload(len(payload))
	return p.l.Deliver(h, payload)
}

func (p *bodyPeer) open(id uint64) error   { return p.say(frame.Body, 0, id, nil) }
func (p *bodyPeer) cancel(id uint64) error { return p.say(frame.Cancel, frame.FlagBody, id, nil) }
func (p *bodyPeer) message(id uint64) error {
	return p.say(frame.Unexpected, frame.FlagBody, id, []byte("front"))
}

func (p *bodyPeer) data(id uint64, at int, b []byte) error {
	p.e.Lock()
	defer p.e.Unlock()
	h := &frame.Header{Kind: frame.Data, Flags: frame.FlagBody, Op: id, Tag: uint64(at), Credit: 5}
	h.SetPayload(len(b))
	v, err := p.l.Place(h)
	if err != nil {
		return err
	}
	if v.Borrow() {
		for _, to := range carrier.Slices(nil, v, 0, len(b), math.MaxInt) {
			b = b[copy(to, b):]
		}
		v.Return()
	}
	return p.l.Placed(v)
}

func (p *bodyPeer) held() int64 { return p.nctx.Peers()[0].RoomHeld }

// TestBodyRoom checks that the room for bodies has a limit for each peer, and that a body without a
// grant ends the session.
func TestBodyRoom(t *testing.T) {
	const n = 300 << 10
	p := newBodyPeer(t)
	require.ErrorIs(t, p.open(bodyIdentity(n, 1)), ErrProtocol, "no room was granted")
	require.ErrorIs(t, p.message(bodyIdentity(n, 1)), ErrProtocol, "no room was granted")
	room := p.grant(n)
	require.Equal(t, int64(firstGrant*bodyBytes(n)), room)
	for range 20 {
		require.LessOrEqual(t, p.grant(n), int64(max(maxRoom, 16*bodyBytes(n))))
	}
	for range 20 {
		require.LessOrEqual(t, p.grant(MaxBody), int64(maxBodies))
	}
	require.Equal(t, int64(maxBodies), p.grant(MaxBody))
	require.ErrorIs(t, p.open(bodyIdentity(MaxBody+1, 1)), ErrProtocol)
	require.ErrorIs(t, p.open(bodyIdentity(0, 1)), ErrProtocol)
	require.ErrorIs(t, p.open(bodyIdentity(4096, 1)), ErrProtocol, "it fits a message")
	for i := range maxBodies / MaxBody {
		require.NoError(t, p.open(bodyIdentity(MaxBody, i)))
	}
	require.ErrorIs(t, p.open(bodyIdentity(5000, 9)), ErrProtocol, "all room is taken")
	require.Equal(t, int64(maxBodies), p.held())
	for i := range maxBodies / MaxBody {
		require.NoError(t, p.cancel(bodyIdentity(MaxBody, i)))
	}
	require.Zero(t, p.held())
	require.NoError(t, p.cancel(bodyIdentity(MaxBody, 0)), "once more is nothing")
	require.Zero(t, p.held())
}

// TestBodyAndMessage checks that a body and its message may arrive in any order: the message is
// received when both are there, also after late frames and duplicates.
func TestBodyAndMessage(t *testing.T) {
	const n = 100_000
	body := bytes.Repeat([]byte("0123456789"), n/10)
	id := bodyIdentity(n, 1)
	for name, order := range map[string][]func(p *bodyPeer) error{
		"message last": {
			func(p *bodyPeer) error { return p.open(id) },
			func(p *bodyPeer) error { return p.data(id, 0, body[:60_000]) },
			func(p *bodyPeer) error { return p.data(id, 60_000, body[60_000:]) },
			func(p *bodyPeer) error { return p.message(id) },
		},
		"message in the middle": {
			func(p *bodyPeer) error { return p.open(id) },
			func(p *bodyPeer) error { return p.data(id, 0, body[:60_000]) },
			func(p *bodyPeer) error { return p.message(id) },
			func(p *bodyPeer) error { return p.cancel(id) }, // too late
			func(p *bodyPeer) error { return p.data(id, 60_000, body[60_000:]) },
		},
		"message first": {
			func(p *bodyPeer) error { return p.message(id) },
			func(p *bodyPeer) error { return p.open(id) },
			func(p *bodyPeer) error { return p.data(id, 0, body) },
		},
	} {
		t.Run(name, func(t *testing.T) {
			p := newBodyPeer(t)
			p.grant(n)
			r := p.op(p.nctx.RecvUnexpected)
			for i, step := range order {
				p.trigger()
				require.Nil(t, r.Envelope, "before step %d", i)
				require.NoError(t, step(p), "step %d", i)
			}
			p.trigger()
			require.NotNil(t, r.Envelope)
			require.Equal(t, "front", string(r.Envelope.Data))
			require.True(t, bytes.Equal(body, r.Envelope.Body))
			require.Equal(t, int64(bodyBytes(n)), p.held())
			require.NoError(t, p.data(id, 0, body[:10]), "late data is dropped")
			r.Envelope.Free()
			require.Zero(t, p.held())
		})
	}
}

// TestBodyRefused checks that an invalid frame of a body ends the session.
func TestBodyRefused(t *testing.T) {
	const n = 100_000
	id := bodyIdentity(n, 1)
	for name, wrong := range map[string]func(p *bodyPeer) error{
		"opened twice":    func(p *bodyPeer) error { return p.open(id) },
		"data beyond":     func(p *bodyPeer) error { return p.data(id, n-5, make([]byte, 6)) },
		"a gap":           func(p *bodyPeer) error { return p.data(id, 11, make([]byte, 6)) },
		"an overlap":      func(p *bodyPeer) error { return p.data(id, 9, make([]byte, 6)) },
		"no message left": func(p *bodyPeer) error { return p.message(id) },
	} {
		p := newBodyPeer(t)
		p.grant(n)
		require.NoError(t, p.open(id))
		require.NoError(t, p.data(id, 0, make([]byte, 10)))
		if name == "no message left" {
			require.NoError(t, p.message(id))
		}
		require.ErrorIs(t, wrong(p), ErrProtocol, name)
	}
}

// TestBodyThatEnds checks that a message that is withdrawn, or whose session ends, before its body
// is complete gives back everything that it held.
func TestBodyThatEnds(t *testing.T) {
	const n = 100_000
	id := bodyIdentity(n, 1)
	p := newBodyPeer(t)
	p.grant(n)
	require.NoError(t, p.message(id))
	require.NoError(t, p.say(frame.Withdraw, 0, 1, nil))
	require.Equal(t, int64(bodyBytes(n)), p.held(), "the rest has to go somewhere")
	require.NoError(t, p.data(id, 0, make([]byte, n)))
	require.Zero(t, p.held())
	require.Zero(t, p.nctx.Stats().Envelopes)

	require.NoError(t, p.message(bodyIdentity(n, 2)))
	require.NoError(t, p.open(bodyIdentity(n, 3)))
	p.e.Lock()
	p.l.Fail(ErrPeerLost)
	p.e.Unlock()
	require.Zero(t, p.nctx.Stats().Envelopes)
	require.Zero(t, p.nctx.Stats().Reserved)
}

// TestBodyIsNotConfirmed checks that a peer that requests a confirmation gets none for a message
// whose body is still in flight: the peer may end the session once it has it.
func TestBodyIsNotConfirmed(t *testing.T) {
	const n = 100_000
	p := newBodyPeer(t)
	p.grant(n)
	id := bodyIdentity(n, 1)
	require.NoError(t, p.open(id))
	require.NoError(t, p.data(id, 0, make([]byte, n/2)))
	require.NoError(t, p.message(id))
	ping := frame.Header{Kind: frame.Ping, Op: 1, Tag: 7}
	require.NoError(t, p.deliver(p.l, ping, nil))
	said := p.drain(p.l)
	require.Len(t, said, 1, "a sign of life")
	require.Equal(t, frame.Pong, said[0].Kind)
	require.Zero(t, said[0].Op)
	require.Zero(t, said[0].Tag)
	require.NoError(t, p.data(id, n/2, make([]byte, n/2)))
	var pongs []frame.Header
	for _, f := range p.drain(p.l) {
		if f.Kind == frame.Pong {
			pongs = append(pongs, f.Header)
		}
	}
	require.Len(t, pongs, 1, "it is requested no more than once")
	require.Equal(t, ping.Op, pongs[0].Op)
	require.Equal(t, ping.Tag, pongs[0].Tag)
	require.NoError(t, p.deliver(p.l, ping, nil))
	require.Len(t, p.drain(p.l), 1)
}
