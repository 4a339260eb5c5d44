package na

import (
	"crypto/rand"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/internal/frame"
	"github.com/quicksilver-rpc/quicksilver/internal/simhook"
	"github.com/quicksilver-rpc/quicksilver/na/carrier"
)

// fakePlugin opens networks without connections: no name is resolved, and no frame is sent or
// received. An operation that is started stays in flight until the test ends it, or the context is
// closed.
type fakePlugin struct {
	carrierErr error
	openErr    error

	unassisted bool
	sources    func(nctx *Context) // adds them
	drive      func(f *fakeCarrier, timeout time.Duration, ready func() bool) bool
	now        func() time.Duration // nil: the real clock, and skew
	onClose    func() error         // runs in Network.Close

	skew   atomic.Int64
	opened atomic.Int32 // networks
	closed atomic.Int32
}

var (
	_ carrier.Plugin  = (*fakePlugin)(nil)
	_ carrier.Names   = (*fakePlugin)(nil)
	_ carrier.Carrier = (*fakeCarrier)(nil)
	_ simhook.Clock   = (*fakePlugin)(nil)
	_ simhook.Driver  = (*fakeCarrier)(nil)
)

func (p *fakePlugin) Scheme() string { return "fake" }

func (p *fakePlugin) Open(_ carrier.Class, listen string) (*carrier.Network, error) {
	if p.openErr != nil {
		return nil, p.openErr
	}
	p.opened.Add(1)
	return &carrier.Network{
		Listen: fakeName(listen), Names: p, NewCarrier: p.newCarrier, Unassisted: p.unassisted,
		Close: p.close,
	}, nil
}

func (p *fakePlugin) close() error {
	p.closed.Add(1)
	if p.onClose != nil {
		return p.onClose()
	}
	return nil
}

func (p *fakePlugin) newCarrier(core carrier.Core) (carrier.Carrier, error) {
	if p.carrierErr != nil {
		return nil, p.carrierErr
	}
	f := &fakeCarrier{plugin: p, e: core.(*endpoint)}
	if p.sources != nil {
		p.sources(f.e.nctx)
	}
	return f, nil
}

func (p *fakePlugin) Check(string) error                             { return nil }
func (p *fakePlugin) Resolve(string, func(string, error)) (_ func()) { return func() {} }

var fakeStart = time.Now()

func (p *fakePlugin) Now() time.Duration {
	if p.now != nil {
		return p.now()
	}
	return time.Since(fakeStart) + time.Duration(p.skew.Load()) + 1
}

func (p *fakePlugin) Rand(b []byte) { _, _ = rand.Read(b) }
func (p *fakePlugin) Driven() bool  { return p.drive != nil }

// fakeCarrier counts the calls of the endpoint.
type fakeCarrier struct {
	plugin *fakePlugin
	e      *endpoint

	lingers  atomic.Bool
	polls    atomic.Int32
	timer    atomic.Int64 // of Poll; 0 when never
	shut     atomic.Int32
	released atomic.Int32
	onPoll   atomic.Pointer[func(now time.Duration)]
	onTimer  atomic.Pointer[func()] // runs when Poll has looked at timer
}

func (f *fakeCarrier) Dial(carrier.Session)           {}
func (f *fakeCarrier) Flush([]carrier.Session)        {}
func (f *fakeCarrier) Cut(carrier.Session, frame.Bye) {}
func (f *fakeCarrier) Shut()                          { f.shut.Add(1) }
func (f *fakeCarrier) Lingering(time.Duration) bool   { return f.lingers.Load() }
func (f *fakeCarrier) Release()                       { f.released.Add(1) }

func (f *fakeCarrier) Poll(now time.Duration) time.Duration {
	f.polls.Add(1)
	if fn := f.onPoll.Load(); fn != nil {
		(*fn)(now)
	}
	at := f.timer.Load()
	if fn := f.onTimer.Load(); fn != nil {
		(*fn)()
	}
	return time.Duration(at)
}

func (f *fakeCarrier) Drive(timeout time.Duration, ready func() bool) bool {
	return f.plugin.drive(f, timeout, ready)
}

func (f *fakeCarrier) Wake()      {}
func (f *fakeCarrier) FlushSoon() {}

// end ends the operation of o, if it is in flight, as an arriving frame does.
func (f *fakeCarrier) end(o *Op, r Result) {
	f.e.Lock()
	defer f.e.Unlock()
	if o.at != 0 {
		f.e.finishOpLocked(o, r)
	}
}

// finish ends the operation of t, taken in or not, and reports whether it was the first to do so.
func (f *fakeCarrier) finish(t ticket) bool {
	f.e.Lock()
	defer f.e.Unlock()
	if !t.isTakenIn() {
		return t.finish(Result{})
	}
	f.e.finishOpLocked(t.op, Result{})
	return true
}

// keep has the endpoint take in an operation that the test has started, so that a cancel ends it.
func (f *fakeCarrier) keep(t ticket) {
	f.e.Lock()
	defer f.e.Unlock()
	if err := f.e.refusalOfLocked(t); err != nil {
		t.finish(Result{Err: err})
		return
	}
	f.e.takeInLocked(t)
}

// newFake opens a class with one context.
func newFake(t testing.TB, cfg Config) (*Context, *fakeCarrier) {
	t.Helper()
	return newFakeOf(t, &fakePlugin{}, cfg)
}

func newFakeOf(t testing.TB, p *fakePlugin, cfg Config) (*Context, *fakeCarrier) {
	t.Helper()
	cfg.Plugins = []Plugin{p}
	cls, err := Open("fake://here", cfg)
	require.NoError(t, err)
	c, err := cls.NewContext()
	require.NoError(t, err)
	t.Cleanup(func() {
		_ = cls.Close()
		for end := time.Now().Add(patience); !cls.Closed(); {
			require.True(t, time.Now().Before(end), "the class does not close: %d operations are left", c.Live())
			c.Trigger(0)
			_ = c.Progress(time.Millisecond)
		}
	})
	return c, fakeOf(c)
}

// fakeOf returns the carrier of a context.
func fakeOf(c *Context) *fakeCarrier { return c.ep.routes[0].carrier.(*fakeCarrier) }

var fakePeer = MakeAddr("fake://there", 0)

// fakeName returns the name of a class that listens; empty for one that does not.
func fakeName(listen string) string {
	if listen == "" {
		return ""
	}
	return "fake://" + listen
}
