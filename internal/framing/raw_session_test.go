package framing_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/internal/frame"
	"github.com/quicksilver-rpc/quicksilver/internal/framing"
	"github.com/quicksilver-rpc/quicksilver/na"
	"github.com/quicksilver-rpc/quicksilver/na/carrier"
)

// A rawSession is a session whose other side is the test: it owns the bytes in both directions.
type rawSession struct {
	testing.TB
	nctx *na.Context
	e    carrier.Core
	link carrier.Session
	in   framing.In
	out  framing.Out
	bufs framing.Buffers
	rand byte
	cut  bool
}

const peerName = "solo://peer"

func (s *rawSession) Scheme() string { return "solo" }

func (s *rawSession) Open(_ carrier.Class, rest string) (*carrier.Network, error) {
	return &carrier.Network{
		Listen: "solo://" + rest, Names: rawCarrier{s},
		NewCarrier: func(e carrier.Core) (carrier.Carrier, error) { s.e = e; return rawCarrier{s}, nil },
	}, nil
}

// Now, Rand and Driven implement simhook.Clock.
func (s *rawSession) Now() time.Duration { return 0 }
func (s *rawSession) Driven() bool       { return true }
func (s *rawSession) Rand(b []byte) {
	s.rand++
	for i := range b {
		b[i] = s.rand + byte(i)
	}
}

// rawCarrier moves nothing by itself.
type rawCarrier struct{ s *rawSession }

func (rawCarrier) Check(string) error { return nil }
func (rawCarrier) Resolve(text string, done func(string, error)) func() {
	done(text, nil)
	return nil
}
func (rawCarrier) Dial(carrier.Session)             {}
func (rawCarrier) Flush([]carrier.Session)          {}
func (c rawCarrier) Cut(carrier.Session, frame.Bye) { c.s.cut = true }
func (rawCarrier) Poll(time.Duration) time.Duration { return 0 }
func (rawCarrier) Lingering(time.Duration) bool     { return false }
func (rawCarrier) Shut()                            {}
func (rawCarrier) Release()                         {}
func (rawCarrier) Drive(_ time.Duration, ready func() bool) bool {
	return ready()
}

func (rawCarrier) Wake()      {}
func (rawCarrier) FlushSoon() {}

func hello() []byte {
	g := frame.Greeting{
		Versions: frame.Versions(), Incarnation: [16]byte{1}, Listen: peerName, Envelopes: 32, Eager: 4096,
	}
	h := frame.Header{Kind: frame.Hello, Tag: frame.Magic}
	return h.Append(nil, g.Append(nil))
}

// newRawSession opens a class to which the test connects; the HELLO of the test has not been fed.
func newRawSession(t testing.TB) *rawSession {
	t.Helper()
	return newRawSessionWith(t, na.Config{})
}

func newRawSessionWith(t testing.TB, cfg na.Config) *rawSession {
	t.Helper()
	s := &rawSession{TB: t}
	s.in.Buffers, s.out.Buffers = &s.bufs, &s.bufs
	cfg.Plugins = []na.Plugin{s}
	cls, err := na.Open("solo://me", cfg)
	require.NoError(t, err)
	s.nctx, err = cls.NewContext()
	require.NoError(t, err)
	s.in.Greet = func(g *frame.Greeting) error {
		l, err := s.e.Admit(rawCarrier{s}, "conn", g, true)
		s.link, s.in.Session, s.out.Session = l, l, l
		return err
	}
	return s
}

// close gives everything back.
func (s *rawSession) close() {
	s.Helper()
	require.NoError(s, s.nctx.Class().Close())
	for i := 0; !s.nctx.Closed(); i++ {
		s.nctx.Trigger(0)
		_ = s.nctx.Progress(0)
		require.Less(s, i, 100, "the class does not close")
	}
	s.in.Close()
	s.out.Close()
}

// feed hands over bytes as they are read from a stream, at most the given number at a time.
func (s *rawSession) feed(b []byte, atMost int) error {
	for len(b) > 0 && !s.cut {
		left := b[:min(atMost, len(b))]
		n := 0
		for _, to := range s.in.Scatter(nil) {
			k := copy(to, left)
			left = left[k:]
			n += k
		}
		s.in.Got(n)
		b = b[n:]
		s.e.Lock()
		err := s.in.Parse()
		if err != nil && s.in.Session != nil {
			s.in.Session.Fail(err)
		}
		s.e.Unlock()
		if err != nil {
			return err
		}
	}
	s.in.Idle()
	return nil
}

// take writes what there is to write, at most so many bytes at a time, and returns it.
func (s *rawSession) take(atMost int) (all []byte) {
	for {
		s.e.Lock()
		more := s.out.Session != nil && s.out.Fill()
		s.e.Unlock()
		if !more {
			return all
		}
		left := atMost
		n := 0
		for _, b := range s.out.Gather(nil) {
			b = b[:min(len(b), left)]
			all = append(all, b...)
			left -= len(b)
			n += len(b)
		}
		s.out.Wrote(n)
	}
}

// frames cuts a stream into frames.
func frames(t testing.TB, b []byte) (all []frame.Header, payloads [][]byte) {
	t.Helper()
	for len(b) > 0 {
		require.GreaterOrEqual(t, len(b), frame.HeaderSize)
		require.GreaterOrEqual(t, len(b), frame.Need(b))
		h, err := frame.Parse(b)
		require.NoError(t, err)
		end := h.Size() + h.Payload()
		require.GreaterOrEqual(t, len(b), end)
		if h.Flags&frame.FlagPayload != 0 {
			require.NoError(t, h.Verify(b[:end]))
		}
		all = append(all, h)
		payloads = append(payloads, b[h.Size():end])
		b = b[end:]
	}
	return all, payloads
}
