package na

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/internal/frame"
	"github.com/quicksilver-rpc/quicksilver/na/carrier"
	"github.com/quicksilver-rpc/quicksilver/na/codes"
)

// A script plays the peer of one endpoint, frame by frame: it pulls what the endpoint sends, and hands it frames.
type script struct {
	taken       func(l *session, f carrier.Lane) (count uint64, waits bool)
	takeTimeout time.Duration
	unread      func() bool // takes in frames that have arrived, when the context polls; set before open

	*testing.T
	dom    *domain
	nctx   *Context
	place2 string // the scheme of second
	e      *endpoint
	clock  time.Duration
	dialed []*session

	hosts         map[string][]string // the names that a name stands for
	unreachable   map[string]error    // of names whose attempts fail at once
	attempts      []*dialAttempt      // that have begun
	endedAttempts []string            // by the endpoint, their names

	cuts   map[*session][]string // the last frame of this kind
	byes   map[*session]frame.Bye
	ends   int              // callbacks that ran
	second *carrier.Network // in addition to that of the script; or nil
	secure bool
	shelf  *fakeShelf
	wall   func() time.Time // by which certificates expire
}

const scriptPeer = "script://peer"

// scriptCarrier does nothing by itself.
type scriptCarrier struct{ s *script }

func (c scriptCarrier) Check(name string) error {
	if name == "script://bad" {
		return WithText(ErrInvalid, "a bad name")
	}
	return nil
}
func (c scriptCarrier) Resolve(text string, done func(string, error)) func() {
	if text == "script://slow" {
		return func() {}
	}
	done(text, nil)
	return nil
}

// Expand implements carrier.Expander.
func (c scriptCarrier) Expand(name string) []string { return c.s.hosts[name] }

func (c scriptCarrier) Dial(l carrier.Session) {
	if a, ok := l.(*dialAttempt); ok {
		c.s.attempts = append(c.s.attempts, a)
		a.SetConn("connection to " + a.Name())
		if err := c.s.unreachable[a.Name()]; err != nil {
			a.Fail(err)
		}
		return
	}
	c.s.dialed = append(c.s.dialed, l.(*session))
}
func (c scriptCarrier) Flush([]carrier.Session) {}
func (c scriptCarrier) Cut(of carrier.Session, bye frame.Bye) {
	if a, ok := of.(*dialAttempt); ok {
		c.s.endedAttempts = append(c.s.endedAttempts, a.Name())
		return
	}
	l := of.(*session)
	c.s.byes[l] = bye
	if bye.Code != OK {
		bye.Text = fmt.Sprint(bye.Code, ": ", bye.Text)
	}
	c.s.cuts[l] = append(c.s.cuts[l], bye.Text)
}
func (c scriptCarrier) Poll(time.Duration) time.Duration { return 0 }
func (c scriptCarrier) Lingering(time.Duration) bool     { return false }
func (c scriptCarrier) Taken(l carrier.Session, f carrier.Lane) (uint64, bool) {
	return c.s.taken(l.(*session), f)
}
func (c scriptCarrier) Shut()    {}
func (c scriptCarrier) Release() {}

// frameInlet is where frames of the peer lie until the context looks.
type frameInlet struct{ s *script }

func (m frameInlet) Peek() bool { return m.s.unread() }
func (frameInlet) Arm() bool    { return false }
func (frameInlet) Disarm()      {}

type scriptPlugin struct{ s *script }

func (p scriptPlugin) Scheme() string { return "script" }

// Now implements simhook.Clock.
func (p scriptPlugin) Now() time.Duration { return p.s.clock }

// Rand implements simhook.Clock.
func (p scriptPlugin) Rand(b []byte) {
	for i := range b {
		b[i] = byte(p.s.clock>>(i%8*8)) + byte(i*7) + 100
	}
	p.s.clock++
}

// Driven implements simhook.Clock.
func (p scriptPlugin) Driven() bool { return false }

func (p scriptPlugin) Open(_ carrier.Class, rest string) (*carrier.Network, error) {
	s := p.s
	return &carrier.Network{
		Listen: "script://" + rest, Names: scriptCarrier{s},
		NewCarrier: func(e carrier.Core) (carrier.Carrier, error) {
			if s.e == nil {
				s.e = e.(*endpoint)
				s.dom = s.e.dom
			}
			if s.unread != nil {
				e.Poller().AddInlet(frameInlet{s})
			}
			return scriptCarrier{s}, nil
		},
		Host:       "here",
		Unassisted: true, // nothing happens by itself

		WriteTimeout: s.takeTimeout, Secure: s.secure, WallClock: s.wall,
	}, nil
}

// A scriptBeside opens the second transport of a script.
type scriptBeside struct {
	scriptPlugin
}

func (p scriptBeside) Scheme() string { return p.s.place2 }

func (p scriptBeside) OpenBeside(carrier.Class, bool) (*carrier.Network, error) {
	return p.s.second, nil
}

// newScript opens a class that the script is the only peer of.
func newScript(t *testing.T, cfg Config) *script {
	t.Helper()
	return (&script{T: t}).open(cfg)
}

func (s *script) open(cfg Config) *script {
	t := s.T
	t.Helper()
	if cfg.IdleTimeout == 0 {
		cfg.IdleTimeout = -1
	}
	s.cuts, s.byes = map[*session][]string{}, map[*session]frame.Bye{}
	cfg.Plugins = []Plugin{scriptPlugin{s}}
	addr := "script://me"
	if s.second != nil {
		cfg.Plugins = append(cfg.Plugins, scriptBeside{scriptPlugin{s}})
		addr += "," + s.place2 + "://"
	}
	cls, err := Open(addr, cfg)
	require.NoError(t, err)
	s.nctx, err = cls.NewContext()
	require.NoError(t, err)
	t.Cleanup(func() {
		_ = cls.Close()
		for i := 0; !cls.Closed(); i++ {
			s.nctx.Trigger(0)
			_ = s.nctx.Progress(0)
			require.Less(t, i, 1000, "the class does not close: %d operations are left", s.nctx.Live())
		}
		require.Zero(t, s.dom.reserved+s.dom.room, "bytes reserved at the end")
	})
	return s
}

func (s *script) addr() Addr { return MakeAddr(scriptPeer, 0) }

// result is the end of an operation.
type result struct {
	*Op
	Result
	ended int
}

// requireOneCode requires that an error, unless it is nil, matches one code and no other. Every operation that a script starts is checked for that.
func requireOneCode(t *testing.T, err error) {
	t.Helper()
	if err == nil {
		return
	}
	var matches []Code
	for c := Code(1); c <= codes.ErrInternal; c++ {
		if errors.Is(err, c) {
			matches = append(matches, c)
		}
	}
	require.Equal(t, []Code{CodeOf(err)}, matches, "%v", err)
}

// op starts an operation.
func (s *script) op(start func(op *Op) error) *result {
	s.Helper()
	r := &result{}
	r.Op = s.nctx.NewOp(func(_ *Op, res Result) {
		requireOneCode(s.T, res.Err)
		r.Result = res
		r.ended++
		s.ends++
	})
	require.NoError(s, start(r.Op))
	return r
}

func (s *script) send(data string) *result {
	s.Helper()
	return s.op(func(op *Op) error { return s.nctx.SendUnexpected(op, s.addr(), 7, []byte(data)) })
}

func (s *script) expect(tag Tag, buf []byte) *result {
	s.Helper()
	return s.op(func(op *Op) error { return s.nctx.RecvExpected(op, s.addr(), tag, buf) })
}

func (s *script) mem(n int) *Mem {
	m, err := s.dom.cls.NewMem(make([]byte, n))
	require.NoError(s, err)
	return m
}

func (s *script) get(m *Mem) *result {
	s.Helper()
	return s.op(func(op *Op) error {
		return s.nctx.Get(op, m, 0, s.addr(), Key{Len: m.Len(), Access: ReadOnly}, 0, m.Len())
	})
}

func (s *script) put(m *Mem) *result {
	s.Helper()
	return s.op(func(op *Op) error {
		return s.nctx.Put(op, m, 0, s.addr(), Key{Len: m.Len(), Access: WriteOnly}, 0, m.Len())
	})
}

// pulledFrame is a frame that the endpoint sends.
type pulledFrame struct {
	frame.Header
	payload []byte
	view    carrier.View
}

// fullWriter is a carrier.Writer without room.
type fullWriter struct{ selfFrame }

func (fullWriter) Room() (int, int) { return -1, 0 }

// hasMore reports whether l has something to send.
func (l *session) hasMore(f carrier.Lane) bool { return l.Pull(f, &fullWriter{}) }

// pull takes the next frame of l.
func (s *script) pull(l *session) (p pulledFrame, ok bool) {
	s.Helper()
	s.e.Lock()
	defer s.e.Unlock()
	return s.pullFrom(l, carrier.Messages)
}

func (s *script) pullFrom(l *session, f carrier.Lane) (p pulledFrame, ok bool) {
	more := l.hasMore(f)
	var w selfFrame
	l.Pull(f, &w)
	require.False(s, w.taken && !more, "Pull reports no frame to a carrier.Writer without room")
	if !w.taken {
		require.False(s, l.hasMore(f), "Pull returns nothing, and reports that there is more")
		return p, false
	}
	p = pulledFrame{Header: w.head, payload: w.buf, view: w.view}
	if p.Kind.Bulk() {
		require.Equal(s, p.Payload(), p.view.Len())
	} else {
		require.Len(s, p.payload, p.Payload())
	}
	return p, true
}

// drain pulls everything that is not bulk data, and lets bulk data go as sent.
func (s *script) drain(l *session) (all []pulledFrame) {
	s.Helper()
	for {
		p, ok := s.pull(l)
		if !ok {
			return all
		}
		if p.Kind.Bulk() && p.view.Len() > 0 {
			s.sent(l, &p)
		}
		all = append(all, p)
	}
}

func (s *script) sent(l *session, p *pulledFrame) {
	p.payload = make([]byte, p.view.Len())
	if !p.view.CopyOut(p.payload) {
		p.payload = nil
	}
	s.e.Lock()
	l.Sent(p.view)
	s.e.Unlock()
}

// kinds names frames.
func kinds(all []pulledFrame) (names []string) {
	for _, p := range all {
		names = append(names, p.Kind.String())
	}
	return names
}

// deliver hands l a frame; a carrier fails the session when Deliver returns an error.
func (s *script) deliver(l *session, h frame.Header, payload []byte) error {
	s.e.Lock()
	defer s.e.Unlock()
	if h.Credit == 0 {
		h.Credit = l.credits
	}
	if h.Kind == frame.Goaway {
		l.Refused(h.Bye(payload))
		return nil
	}
	b := h.Append(nil, payload)
	parsed, err := frame.Parse(b)
	if err == nil {
		err = l.Deliver(&parsed, b[parsed.Size():])
	}
	if err != nil {
		l.Fail(err)
	}
	return err
}

// deliverPiece hands l a piece of bulk data.
func (s *script) deliverPiece(l *session, h frame.Header, payload []byte) error {
	s.e.Lock()
	defer s.e.Unlock()
	h.Credit = l.credits
	parsed, err := frame.Parse(h.AppendFront(nil, len(payload)))
	var v carrier.View
	if err == nil {
		v, err = l.Place(&parsed)
	}
	if err != nil {
		l.Fail(err)
		return err
	}
	require.Equal(s, len(payload), v.Len())
	v.CopyIn(0, payload)
	if err = l.Placed(v); err != nil {
		l.Fail(err)
	}
	return err
}

// peerGreeting is the HELLO of the script.
func peerGreeting(envelopes uint32) frame.Greeting {
	return frame.Greeting{
		Versions: frame.Versions(), Incarnation: [16]byte{1}, Listen: scriptPeer, Host: "there", Envelopes: envelopes, Eager: 4096,
	}
}

func (s *script) hello(l *session, g frame.Greeting) error {
	s.e.Lock()
	defer s.e.Unlock()
	err := l.Greet(&g)
	if err != nil {
		l.Fail(err)
	}
	return err
}

// connect has the endpoint dial, and answers with a guarantee of envelopes.
func (s *script) connect(envelopes uint32) *session {
	s.Helper()
	r := s.expect(1<<40, nil)
	require.NotEmpty(s, s.dialed)
	l := s.dialed[len(s.dialed)-1]
	require.Empty(s, s.drain(l), "before the HELLO of the peer")
	require.NoError(s, s.hello(l, peerGreeting(envelopes)))
	require.True(s, l.Up())
	r.Cancel()
	s.trigger()
	require.ErrorIs(s, r.Err, ErrCanceled)
	return l
}

// keepBusy keeps l from being idle.
func (s *script) keepBusy(l *session) {
	s.e.Lock()
	l.makeBusy()
	l.views++
	s.e.Unlock()
}

func (s *script) trigger() int { return s.nctx.Trigger(0) }

// advance lets time pass and polls.
func (s *script) advance(d time.Duration) {
	s.clock += d
	s.e.Poll(s.clock)
}
