package na

import (
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// fakePlugin opens fake domains: every operation stays as it was started, until the test finishes its ticket.
type fakePlugin struct {
	limits  Limits
	epErr   error
	openErr error

	unassisted bool
	sources    func(nctx *Context) // adds them
	drive      func(e *fakeEndpoint, timeout time.Duration, ready func() bool) bool
	now        func() time.Duration // nil: the real clock

	mu      sync.Mutex // guards the fields below
	domains []*fakeDomain
}

func (p *fakePlugin) Scheme() string { return "fake" }

func (p *fakePlugin) Open(cls *Class, rest string) (Domain, error) {
	if p.openErr != nil {
		return nil, p.openErr
	}
	d := &fakeDomain{plugin: p, addr: MakeAddr("fake://"+rest, 0), published: map[*Mem]bool{}}
	p.mu.Lock()
	p.domains = append(p.domains, d)
	p.mu.Unlock()
	return d, nil
}

type fakeDomain struct {
	plugin *fakePlugin
	addr   Addr
	clock  atomic.Int64 // added to the real one
	closed atomic.Int32

	mu        sync.Mutex // guards the field below
	published map[*Mem]bool
}

var fakeStart = time.Now()

func (d *fakeDomain) Addr() Addr { return d.addr }

func (d *fakeDomain) Limits() Limits {
	if d.plugin.limits.MaxUnexpected == 0 {
		return Limits{MaxUnexpected: 100, MaxExpected: 200, MaxTag: ^Tag(0), MaxSegments: 4, Envelopes: 8, Scheme: "fake"}
	}
	return d.plugin.limits
}

func (d *fakeDomain) Endpoint(h *Host) (Endpoint, error) {
	if d.plugin.epErr != nil {
		return nil, d.plugin.epErr
	}
	e := &fakeEndpoint{nctx: h.Context(), d: d, tickets: map[*Op]Ticket{}}
	if d.plugin.sources != nil {
		d.plugin.sources(h.Context())
	}
	if d.plugin.drive != nil {
		return &drivenFake{e}, nil
	}
	return e, nil
}

func (d *fakeDomain) Publish(m *Mem) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.published[m] = true
	return nil
}

func (d *fakeDomain) Unpublish(m *Mem) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	was := d.published[m]
	delete(d.published, m)
	return was
}

func (d *fakeDomain) Now() time.Duration {
	if d.plugin.now != nil {
		return d.plugin.now()
	}
	return time.Since(fakeStart) + time.Duration(d.clock.Load())
}

func (d *fakeDomain) Rand(b []byte) {
	for i := range b {
		b[i] = byte(i + 1)
	}
}

func (d *fakeDomain) Driven() bool     { return d.plugin.drive != nil }
func (d *fakeDomain) Unassisted() bool { return d.plugin.unassisted }

func (d *fakeDomain) Close() error { d.closed.Add(1); return nil }

// fakeEndpoint keeps the tickets that it was given.
type fakeEndpoint struct {
	nctx *Context
	d    *fakeDomain

	lingers  atomic.Bool
	polls    atomic.Int32
	timer    atomic.Int64 // of Poll; 0 when never
	shut     atomic.Int32
	released atomic.Int32
	canceled atomic.Int32
	onPoll   atomic.Pointer[func(now time.Duration)]
	onTimer  atomic.Pointer[func()] // runs when Poll has looked at timer
	keepShut atomic.Bool            // Shut finishes nothing

	mu      sync.Mutex // guards the field below
	tickets map[*Op]Ticket
}

func (e *fakeEndpoint) keep(t Ticket) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.shut.Load() > 0 || t.Canceling() {
		err := ErrClosed
		if t.Canceling() {
			err = ErrCanceled
		}
		t.Finish(Result{Err: err})
		return
	}
	e.tickets[t.Op()] = t
}

// ticket returns the ticket of an operation that is under way.
func (e *fakeEndpoint) ticket(op *Op) Ticket {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.tickets[op]
}

func (e *fakeEndpoint) Lookup(t Ticket, _ string)                                        { e.keep(t) }
func (e *fakeEndpoint) SendUnexpected(t Ticket, _ Addr, _ Tag, _ []byte, _ Deadline)     { e.keep(t) }
func (e *fakeEndpoint) RecvUnexpected(t Ticket)                                          { e.keep(t) }
func (e *fakeEndpoint) SendExpected(t Ticket, _ Addr, _ Tag, _, _ []byte, _ bool, _ int) { e.keep(t) }
func (e *fakeEndpoint) ClaimRoom(Addr, int) (Addr, bool)                                 { return Addr{}, false }
func (e *fakeEndpoint) ReturnRoom(Addr, int)                                             {}
func (e *fakeEndpoint) GrantRoom(Addr, int)                                              {}
func (e *fakeEndpoint) RecvExpected(t Ticket, _ Addr, _ Tag, _ []byte, _ int)            { e.keep(t) }
func (e *fakeEndpoint) Put(t Ticket, _ *Mem, _ int64, _ Addr, _ Key, _, _ int64)         { e.keep(t) }
func (e *fakeEndpoint) Get(t Ticket, _ *Mem, _ int64, _ Addr, _ Key, _, _ int64)         { e.keep(t) }
func (e *fakeEndpoint) Lease(t Ticket, _ Addr, _ Tag, _ *Mem)                            { e.keep(t) }
func (e *fakeEndpoint) GiveBack(Addr, Key)                                               {}
func (e *fakeEndpoint) Withdraw(t Ticket, _ Addr, _ uint64)                              { e.keep(t) }
func (e *fakeEndpoint) Timer(t Ticket, _ time.Duration)                                  { e.keep(t) }
func (e *fakeEndpoint) Abandon(Addr, uint64, Tag)                                        {}
func (e *fakeEndpoint) Connected(Addr) bool                                              { return true }
func (e *fakeEndpoint) Disconnect(Addr, error)                                           {}

func (e *fakeEndpoint) Take(int) *Envelope        { return nil }
func (e *fakeEndpoint) Arrived() int              { return 0 }
func (e *fakeEndpoint) Call(t Ticket, _ CallSpec) { e.keep(t) }
func (e *fakeEndpoint) GiveUp(t Ticket, _ error)  { e.Cancel(t) }

func (e *fakeEndpoint) Recall(t Ticket) (Addr, uint64, bool) {
	e.Cancel(t)
	return Addr{}, 0, false
}

func (e *fakeEndpoint) Answer(*Envelope, Addr, Tag, []byte, int) (bool, error) { return false, nil }

func (e *fakeEndpoint) Cancel(t Ticket) {
	e.canceled.Add(1)
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.tickets[t.Op()] == t {
		delete(e.tickets, t.Op())
		t.Finish(Result{Err: ErrCanceled})
	}
}

func (e *fakeEndpoint) Poll(now time.Duration) time.Duration {
	e.polls.Add(1)
	if f := e.onPoll.Load(); f != nil {
		(*f)(now)
	}
	at := e.timer.Load()
	if f := e.onTimer.Load(); f != nil {
		(*f)()
	}
	return time.Duration(at)
}

func (e *fakeEndpoint) Shut() {
	e.shut.Add(1)
	if e.keepShut.Load() {
		return
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, t := range e.tickets {
		t.Finish(Result{Err: ErrClosed})
	}
	clear(e.tickets)
}

func (e *fakeEndpoint) Release()     { e.released.Add(1) }
func (e *fakeEndpoint) Stats() Stats { return Stats{Peers: 7} }

func (e *fakeEndpoint) Lingering() bool                     { return e.lingers.Load() }
func (e *fakeEndpoint) Identity(Addr) (Identity, bool)      { return Identity{}, false }
func (e *fakeEndpoint) Cork()                               {}
func (e *fakeEndpoint) Uncork()                             {}
func (e *fakeEndpoint) Flush()                              {}
func (e *fakeEndpoint) Drain()                              {}
func (e *fakeEndpoint) Underway() Underway                  { return Underway{} }
func (e *fakeEndpoint) AcceptEnvelope(*Envelope) bool       { return true }
func (e *fakeEndpoint) EnvelopeWithdrawn(*Envelope) bool    { return false }
func (e *fakeEndpoint) WatchEnvelope(*Envelope) bool        { return true }
func (e *fakeEndpoint) IdentifyEnvelope(*Envelope) Identity { return Identity{} }
func (e *fakeEndpoint) FreeEnvelope(*Envelope)              {}
func (e *fakeEndpoint) Confirm(bool) (int, int)             { return 0, 0 }
func (e *fakeEndpoint) Unconfirmed() []Unconfirmed          { return nil }

func (e *fakeEndpoint) Peers() []PeerStats { return []PeerStats{{Held: 3}} }

// drivenFake waits in its own way.
type drivenFake struct{ *fakeEndpoint }

func (e *drivenFake) Drive(timeout time.Duration, ready func() bool) bool {
	return e.d.plugin.drive(e.fakeEndpoint, timeout, ready)
}

func (e *drivenFake) Wake()      {}
func (e *drivenFake) FlushSoon() {}

// newFake opens a class with one context.
func newFake(t testing.TB, cfg Config) (*Context, *fakeEndpoint) {
	t.Helper()
	return newFakeOf(t, &fakePlugin{}, cfg)
}

func newFakeOf(t testing.TB, p *fakePlugin, cfg Config) (*Context, *fakeEndpoint) {
	t.Helper()
	cfg.Plugins = []Plugin{p}
	cls, err := Open("fake://here", cfg)
	require.NoError(t, err)
	c, err := cls.NewContext()
	require.NoError(t, err)
	t.Cleanup(func() {
		_ = cls.Close()
		for !cls.Closed() {
			c.Trigger(0)
			_ = c.Progress(time.Millisecond)
		}
	})
	if d, ok := c.ep.(*drivenFake); ok {
		return c, d.fakeEndpoint
	}
	return c, c.ep.(*fakeEndpoint)
}

var fakePeer = MakeAddr("fake://there", 0)
