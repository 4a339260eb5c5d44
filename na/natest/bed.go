package natest

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/na"
	"github.com/quicksilver-rpc/quicksilver/na/carrier"
)

// Time limits, on the plugin's clock and on the wall clock.
const (
	patience     = 30 * time.Second
	wallPatience = 90 * time.Second
)

// A bed is the environment of one rule: its classes, contexts, and ledger.
type bed struct {
	testing.TB
	rule    *rule
	net     Network
	classes []*na.Class
	sides   []*side
	turn    int // index of the context to be driven next
	idle    int // consecutive steps without progress
	over    bool
	audit   *audit // checks the calls between package na and the plugin, or nil

	triggering atomic.Int32 // Trigger calls in progress

	mu    sync.Mutex // guards the fields below
	calls []*call
	mems  []*region

	streams []*flow
}

// A region is registered memory that settle deregisters if the rule has not done so.
type region struct {
	s    *side
	m    *na.Mem
	gone bool
}

// A side is one context, with a name for use in test messages.
type side struct {
	*na.Context
	b      *bed
	cls    *na.Class
	name   string
	parked bool // not driven by step and pass
	copies bool // the transport copied the last body
}

func newBed(t testing.TB, r *rule) *bed {
	return &bed{TB: t, rule: r}
}

// open opens a class with one context.
func (b *bed) open(addr string, cfg na.Config) *side {
	b.Helper()
	cfg.Plugins = append(cfg.Plugins, b.plugins(addr)...)
	if cfg.PeerTimeout == 0 { // disable heartbeats, which would unblock stuck operations
		cfg.PeerTimeout = time.Hour
		if cfg.ConnectTimeout == 0 {
			cfg.ConnectTimeout = 5 * time.Second
		}
	}
	cls, err := na.Open(addr, cfg)
	require.NoError(b, err, "open %s", addr)
	b.classes = append(b.classes, cls)
	return b.context(cls)
}

// plugins returns the plugins for a class at addr.
func (b *bed) plugins(addr string) []carrier.Plugin {
	if b.audit == nil {
		return b.net.Plugins
	}
	scheme, _, _ := strings.Cut(addr, "://")
	plugins := b.net.Plugins
	if !slices.ContainsFunc(plugins, func(p carrier.Plugin) bool { return p.Scheme() == scheme }) {
		p, _ := carrier.Find(scheme)
		require.NotNil(b, p, "the plugin of %s", addr)
		plugins = append([]carrier.Plugin{p}, plugins...)
	}
	return b.audit.wrap(plugins)
}

// context creates another context of cls.
func (b *bed) context(cls *na.Class) *side {
	b.Helper()
	nctx, err := cls.NewContext()
	require.NoError(b, err, "new context")
	s := &side{Context: nctx, b: b, cls: cls, name: fmt.Sprintf("context %d at %v", nctx.ID(), cls.Addr())}
	b.sides = append(b.sides, s)
	return s
}

// listen opens a class that peers can reach.
func (b *bed) listen(cfg na.Config) *side {
	b.Helper()
	return b.open(b.net.Listen(len(b.classes)), cfg)
}

// origin opens a class that does not listen.
func (b *bed) origin(cfg na.Config) *side {
	b.Helper()
	return b.open(b.net.Origin, cfg)
}

// pair opens an origin and a target with the same configuration.
func (b *bed) pair(cfg na.Config) (a, t *side) {
	b.Helper()
	t = b.listen(cfg)
	return b.origin(cfg), t
}

// drive calls Progress and Trigger once for s and reports whether anything happened. Progress
// blocks no longer than wait. If s is parked, drive does nothing.
func (b *bed) drive(s *side, wait time.Duration) bool {
	if s.parked {
		return false
	}
	err := s.Progress(wait)
	switch {
	case err == nil, errors.Is(err, na.ErrTimeout):
	case errors.Is(err, na.ErrClosed) && s.Closed():
	default:
		b.Errorf("Progress of %s: got %v, want nil, a timeout, or closed when everything has been given back", s.name, err)
	}
	return s.trigger() > 0 || err == nil
}

// trigger calls Trigger and records in the bed that a call is in progress.
func (s *side) trigger() int {
	s.b.triggering.Add(1)
	defer s.b.triggering.Add(-1)
	return s.Trigger(0)
}

// step drives the next context in turn. If no context has made progress recently, it blocks briefly
// in that context's Progress.
func (b *bed) step() {
	s := b.sides[b.turn%len(b.sides)]
	b.turn++
	if b.drive(s, b.wait()) {
		b.idle = 0
		return
	}
	b.idle++
}

// wait returns how long the next step may block. This is 0 while there is progress and increases
// with the number of steps without progress.
func (b *bed) wait() time.Duration {
	rounds := b.idle / len(b.sides)
	if rounds < 8 {
		return 0
	}
	return min(time.Duration(rounds)*20*time.Microsecond, 2*time.Millisecond)
}

// pass drives every context once, without waiting.
func (b *bed) pass() {
	for _, s := range b.sides {
		b.drive(s, 0)
	}
}

// until drives the contexts until done returns true.
func (b *bed) until(what string, done func() bool) {
	b.Helper()
	clock := b.sides[0].Now()
	wall := time.Now()
	for !done() {
		b.step()
		if b.sides[0].Now()-clock > patience || time.Since(wall) > wallPatience {
			b.Fatalf("rule %s: %s: not after %v\n%s", b.rule.name, what, b.sides[0].Now()-clock, b.dump())
		}
	}
}

// driveUntilPending drives the contexts, without calling Trigger for s, until callbacks of s are
// waiting for Trigger.
func (s *side) driveUntilPending(what string) {
	s.b.Helper()
	s.parked = true
	s.b.until(what, func() bool {
		_ = s.Progress(0)
		return s.Upper().Queued() > 0
	})
	s.parked = false
}

// passTime drives the contexts until d has elapsed on the plugin's clock.
func (b *bed) passTime(d time.Duration) {
	b.Helper()
	end := b.sides[0].Now() + d
	b.until("time passes", func() bool { return b.sides[0].Now() >= end })
}

// sendUntilReached sends messages to an address that has failed until it is dialed again and a
// message is sent.
func (b *bed) sendUntilReached(s *side, to na.Addr, data []byte) {
	b.Helper()
	b.until("an address that failed is reached again", func() bool {
		if s.send(to, 1, data).wait().Err == nil {
			return true
		}
		b.passTime(10 * time.Millisecond)
		return false
	})
}

// drain drives the contexts until everything that was in flight between a and t has arrived. It
// detects this by transferring bulk data in both directions.
func (b *bed) drain(a, t *side) {
	b.Helper()
	for range 2 {
		m := t.register(na.ReadWrite, make([]byte, 7))
		here := a.private(make([]byte, 7))
		a.put(here, 0, t.Self(), m.Key(), 0, 7).requireOK()
		a.get(here, 0, t.Self(), m.Key(), 0, 7).requireOK()
		t.deregister(m).requireOK()
		for range 10 {
			b.pass()
		}
	}
}

// dump returns a description of the operations in progress, for error messages.
func (b *bed) dump() string {
	var w strings.Builder
	for _, s := range b.sides {
		fmt.Fprintf(&w, "%s: %+v, live %d, callbacks queued %d, closed %v\n", s.name, s.Stats(), s.Live(), s.Upper().Queued(), s.Closed())
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, c := range b.calls {
		if !c.ended() {
			fmt.Fprintf(&w, "pending: %s\n", c)
		}
	}
	if b.audit != nil {
		for _, p := range b.audit.found() {
			fmt.Fprintf(&w, "the plugin breaks the contract of package carrier: %s\n", p)
		}
	}
	return w.String()
}

// settle completes the operations that the rule has left pending, checks that every gauge is zero,
// closes all classes, and checks the ledger.
func (b *bed) settle() {
	b.Helper()
	if len(b.sides) == 0 {
		return
	}
	for _, s := range b.sides {
		s.parked = false
	}
	for _, c := range b.pending() {
		c.op.Cancel()
	}
	b.until("every canceled operation ends", func() bool { return len(b.pending()) == 0 })
	b.freeAll()
	for _, f := range b.streams {
		f.Close()
	}
	for _, r := range b.regions() {
		r.s.takeBack(r.m)
	}
	for _, s := range b.sides {
		b.receiveAll(s)
	}
	for _, s := range b.sides {
		if st := s.Stats(); !s.Closed() {
			st.Envelopes = 0 // receiveAll has checked it, and in an assisted context a message in flight may have arrived since
			b.requireZeroGauges(s, st, "before it was closed")
		}
	}
	b.close()
	if b.audit != nil {
		b.audit.check(b)
	}
	for _, s := range b.sides {
		b.requireZeroGauges(s, s.Stats(), "after it was closed")
		if got := s.Stats().Reserved; got != 0 {
			b.Errorf("%s: got %d bytes reserved for envelopes after every session has ended, want 0", s.name, got)
		}
		if live, queued := s.Live(), s.Upper().Queued(); live != 0 || queued != 0 {
			b.Errorf("%s: got %d live operations and %d callbacks queued at the end, want none", s.name, live, queued)
		}
	}
	for _, c := range b.all() {
		c.audit()
	}
}

// rounds calls check for each element of ks. It calls reopen in between, so that check opens new
// classes each time.
func (b *bed) rounds(ks []int, check func(k int)) {
	b.Helper()
	for i, k := range ks {
		if i > 0 {
			b.reopen()
		}
		check(k)
	}
}

// reopen calls settle, which closes all classes, and resets b so that new classes can be opened.
func (b *bed) reopen() {
	b.Helper()
	b.settle()
	b.classes, b.sides, b.calls, b.mems, b.streams, b.over = nil, nil, nil, nil, nil, false
	if b.audit != nil {
		b.audit = &audit{}
	}
}

// receiveAll receives all remaining unexpected messages, until their gauge is zero.
func (b *bed) receiveAll(s *side) {
	b.Helper()
	for b.freeAll(); !s.Closed() && s.Stats().Envelopes > 0; b.freeAll() {
		s.recv().requireOK()
	}
}

// requireZeroGauges checks that all gauges in st, which belong to s, are zero. when is used in
// error messages.
func (b *bed) requireZeroGauges(s *side, st na.Stats, when string) {
	b.Helper()
	if st.Outstanding != 0 || st.Envelopes != 0 || st.Queued != 0 || st.Leases != 0 || st.Streams != 0 || st.Regions != 0 {
		b.Errorf("%s: got gauges %+v %s, want Outstanding, Envelopes, Queued, Leases, Streams and Regions 0", s.name, st, when)
	}
}

// close closes all classes and drives the contexts until all resources have been freed.
func (b *bed) close() {
	b.Helper()
	for _, cls := range b.classes {
		if err := cls.Close(); err != nil {
			b.Errorf("close %v: %v", cls.Addr(), err)
		}
	}
	b.until("every class has given everything back", func() bool {
		for _, cls := range b.classes {
			if !cls.Closed() {
				return false
			}
		}
		return true
	})
	b.over = true
}

// end closes the classes of a failed rule and logs the rule's purpose.
func (b *bed) end() {
	if b.Failed() {
		b.Logf("rule %s: %s", b.rule.name, b.rule.why)
	}
	if b.over {
		return
	}
	for _, cls := range b.classes {
		_ = cls.Close()
	}
	for range 1000 {
		for _, s := range b.sides {
			_ = s.Progress(0)
			s.trigger()
		}
	}
}

func (b *bed) all() []*call {
	b.mu.Lock()
	defer b.mu.Unlock()
	return append([]*call(nil), b.calls...)
}

func (b *bed) pending() (left []*call) {
	for _, c := range b.all() {
		if !c.ended() {
			left = append(left, c)
		}
	}
	return left
}

func (b *bed) freeAll() {
	for _, c := range b.all() {
		c.freeEnvelope()
	}
}

func (b *bed) regions() (left []*region) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, r := range b.mems {
		if !r.gone {
			left = append(left, r)
		}
	}
	return left
}
