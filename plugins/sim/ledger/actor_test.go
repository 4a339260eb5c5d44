package ledger

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/quicksilver-rpc/quicksilver/bulk"
	"github.com/quicksilver-rpc/quicksilver/hg"
	"github.com/quicksilver-rpc/quicksilver/hg/codec"
	"github.com/quicksilver-rpc/quicksilver/na"
	"github.com/quicksilver-rpc/quicksilver/plugins/sim"
)

// An actor is the program of one node: it originates calls and serves those of the others.
type actor struct {
	s       *scenario
	i       int
	rng     *rand.Rand
	node    *sim.Node
	crashed bool
	closing bool // its class has been closed in the middle of everything

	cls     *hg.Class
	hctxs   []*hg.Context
	ops     int
	open    int // operations whose callbacks have not run
	depth   int // callbacks inside callbacks
	slow    time.Duration
	few     bool // handlers at a time
	handles []*originHandle
	timed   []*callEntry // calls with a deadline
	moves   []*transfer
	lookups []*lookup
	kept    []hg.Request // requests that are answered later
	nevers  []hg.Request // or when the world is calm
	given   []hg.Request // that were dispatched and have not run
	callers int          // coroutines that wait for a call
	lot     *rand.Rand   // about dispatching and waiting
	regions int          // bulk handles whose Close has not completed
	order   map[sessionPath]uint64
	room    []byte
}

// originHandle is an origin's handle.
type originHandle struct {
	h    *hg.Handle
	busy bool
	call *callEntry // the last
}

// A transfer is a transfer.
type transfer struct {
	op *bulk.Op
	c  *callEntry
}

// A lookup is a lookup in progress, or one that has ended.
type lookup struct {
	l *hg.Lookup
	c *callEntry
}

// A sessionPath leads from a context in one session to another; small requests keep their order on it,
// unless they wait for others that are served.
type sessionPath struct {
	from na.Addr
	to   *hg.Context
}

// hasEnded reports whether hooks have nothing to do here any more.
func (a *actor) hasEnded() bool { return a.crashed || a.closing || a.cls == nil || a.s.calmed > 0 }

func (a *actor) runActor() {
	s := a.s
	if !a.openClass() {
		return
	}
	for a.ops < s.quota && !a.closing && s.failed == nil {
		a.doOne()
		a.progress(time.Duration(a.rng.IntN(3000)) * time.Microsecond)
	}
	a.serveUntilSettled()
	finalized := a.closing
	a.shutdown()
	if finalized && s.failed == nil {
		s.start(a.i).ops = a.ops
	}
}

// openClass opens the class.
func (a *actor) openClass() bool {
	s := a.s
	var err error
	name := "sim://" + s.names[a.i]
	cfg := hg.Config{Codec: codec.Raw}
	cfg.NA.Plugins = []na.Plugin{a.node.Plugin()}
	cfg.NA.Envelopes = 1 + a.rng.IntN(1<<a.rng.IntN(7))
	cfg.NA.Eager = 256 << a.rng.IntN(8)
	if cfg.NA.IdleTimeout = a.s.Idle; a.s.Idle > 0 {
		// IdleTimeout is checked every tenth of PeerTimeout. A delay has an exponential distribution: one in 10^10 is longer than 24
		// times the mean, and would look like a peer that is silent.
		cfg.NA.PeerTimeout = 500*time.Millisecond + 24*(a.s.Faults.Jitter+a.s.Faults.ReorderFor)
	}
	if few := a.rng.IntN(8) == 0; few && s.isOn(actFew) {
		a.few = true
		cfg.MaxActive, cfg.MaxActivePerPeer = 1+a.rng.IntN(8), 1+a.rng.IntN(4)
	}
	if slow := a.rng.IntN(6) == 0; slow && s.isOn(actSlow) {
		a.slow = time.Duration(1 + a.rng.IntN(1<<(10+a.rng.IntN(15))))
	}
	if a.lot = newRand(s.Seed, 0xd000+uint64(a.i)); a.lot.IntN(3) == 0 && s.isOn(actDispatch) {
		cfg.Dispatch = a.dispatch
	}
	if a.cls, err = hg.Open(name, cfg); err != nil {
		s.fail("open %s: %v", name, err)
		return false
	}
	for _, rpc := range rpcs {
		if _, err := a.cls.RegisterRPC(hg.RPC{Name: rpc.name, Handler: a.handler(rpc.name), OneWay: rpc.name == "note"}); err != nil {
			s.fail("register: %v", err)
		}
	}
	_, _ = a.cls.Register("nobody", nil)
	for range 1 + a.rng.IntN(s.Contexts) {
		hctx, err := a.cls.NewContext()
		if err != nil {
			s.fail("context: %v", err)
			return false
		}
		a.hctxs = append(a.hctxs, hctx)
	}
	return true
}

func (a *actor) anyContext() *hg.Context { return a.hctxs[a.rng.IntN(len(a.hctxs))] }

// dispatch runs a request, or leaves it for later.
func (a *actor) dispatch(r hg.Request) {
	a.given = append(a.given, r)
	if a.lot.IntN(3) == 0 {
		a.runGiven(1)
	}
}

// runGiven runs n of the requests that were dispatched, in order, some a second time. One may have
// ended by itself.
func (a *actor) runGiven(n int) {
	for ; n > 0 && len(a.given) > 0; n-- {
		r := a.given[0]
		a.given = a.given[1:]
		ran := a.s.reach[reachDispatched]
		switch err := r.Run(); {
		case err == nil:
			a.s.reach[reachDispatched] = ran + 1
		case !errors.Is(err, hg.ErrInvalid):
			a.s.fail("run: %v", err)
		}
		if a.lot.IntN(8) == 0 && !errors.Is(r.Run(), hg.ErrInvalid) {
			a.s.fail("a request was run twice")
		}
	}
}

// progress drives the node a little.
func (a *actor) progress(d time.Duration) {
	a.runGiven(a.lot.IntN(4))
	if a.slow > 0 && a.rng.IntN(4) == 0 {
		a.s.w.Sleep(time.Duration(a.rng.Int64N(int64(a.slow))))
	}
	hctx := a.anyContext()
	for _, c := range a.hctxs {
		c.Trigger(a.rng.IntN(4))
	}
	begun := a.s.w.Now()
	_ = hctx.Progress(d)
	waited, most := a.s.w.Now() > begun, a.rng.IntN(8)
	if hctx.Trigger(most); waited && most == 0 {
		a.checkOverdue(hctx, begun)
	}
	if a.rng.IntN(16) == 0 {
		a.check(hctx)
	}
}

// check checks the invariants: no gauge is negative, no peer uses more than it was guaranteed, and
// retired memory does not change.
func (a *actor) check(hctx *hg.Context) {
	s := a.s
	st := hctx.Stats()
	if st.Handles < 0 || st.Lent < 0 || st.Pulled < 0 || st.Active < 0 || st.Waiting < 0 || st.NA.Regions < 0 ||
		st.NA.Outstanding < 0 || st.NA.Leases < 0 || st.NA.Envelopes < 0 ||
		st.NA.Violations > 0 && s.Faults.Corrupt == 0 {
		s.fail("node %s: a gauge is wrong: %+v", s.names[a.i], st)
	}
	for _, p := range hctx.NA().Peers() {
		if p.Held < 0 || p.Held > p.Offered || p.HeldMax > p.Offered || p.Free < 0 || p.Free > p.Promised {
			s.fail("node %s: credits are wrong: %+v", s.names[a.i], p)
		}
	}
	if n := len(s.watched); n > 0 {
		s.checkRetired(a.rng.IntN(n))
	}
}

// waitUntilEmpty waits until a context has no operations left.
func (a *actor) waitUntilEmpty(hctx *hg.Context, end time.Duration) {
	s := a.s
	for s.failed == nil {
		st := hctx.Stats()
		if isIdle(&st) {
			a.check(hctx)
			break
		}
		if s.w.Now() > end {
			s.fail("node %s: something is left at the end: %+v", s.names[a.i], st)
		}
		for _, c := range a.hctxs {
			_ = c.Progress(time.Millisecond)
			c.Trigger(0)
		}
		a.answerAll() // requests whose calls ended long ago
		a.closeAll()
	}
}

func (a *actor) closeAll() {
	for _, l := range a.handles {
		l.h.Close()
	}
	a.handles = nil
}

// finalize closes the class in the middle of everything.
func (a *actor) finalize() {
	if a.closing || a.crashed || a.cls == nil || a.s.calmed > 0 {
		return
	}
	a.s.reach[reachFinalize]++
	cancel := a.rng.IntN(2) == 0 && a.s.isOn(actCancel)
	for _, l := range a.handles {
		if cancel && l.busy {
			l.call.canceled = true
			l.h.Cancel()
		}
		if l.busy && l.call.canceled {
			a.s.reach[reachFinalizeCanceled]++
			break
		}
	}
	a.closing = true
	if a.rng.IntN(2) == 0 {
		_ = a.cls.Close()
	}
}

// shutdown closes the class, half of the time with Shutdown. That takes a bounded time, whatever
// its sessions; then everything has ended.
func (a *actor) shutdown() {
	s := a.s
	a.closing = true
	if a.rng.IntN(2) == 0 {
		a.shutdownClass()
	}
	_ = a.cls.Close()
	for turn := 0; ; turn++ {
		a.closeAll()
		a.answerAll()
		if a.cls.NA().Closed() && a.regions == 0 && a.callers == 0 { // those of calls that were refused may have been closed after the class
			break
		}
		if a.cls.NA().Closed() {
			s.w.Sleep(time.Millisecond) // coroutines of callers continue to run
		}
		for _, c := range a.hctxs {
			c.Trigger(0)
			_ = c.Progress(time.Millisecond)
			c.Trigger(0)
		}
		if turn > 500 {
			s.fail("node %s: Close has not completed, %d callers: %+v", s.names[a.i], a.callers, a.hctxs[0].Stats())
			return
		}
		if s.failed != nil {
			return
		}
	}
	if a.open > 0 || a.regions > 0 {
		s.fail("node %s is closed, and %d callbacks and %d regions are pending", s.names[a.i], a.open, a.regions)
	}
	for _, c := range a.hctxs {
		st := c.Stats()
		s.late += st.NA.LateDropped
		s.reach[reachNoCredit] += st.NA.Stalls
		if st.Handles != 0 || st.Lent != 0 || st.Pulled != 0 || st.NA.Regions != 0 {
			s.fail("node %s is closed, and something is left: %+v", s.names[a.i], st)
		}
	}
}

// shutdownClass is Shutdown, with a context that ends at once or with none.
func (a *actor) shutdownClass() {
	s := a.s
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	if a.rng.IntN(4) == 0 {
		cancel()
	}
	if a.open > 0 {
		s.reach[reachShutdown]++
	}
	if s.parting { // a late request may have run since: the handler of relay makes a handle
		a.closeAll()
	}
	begun := s.w.Now()
	err := a.cls.Shutdown(ctx)
	took := s.w.Now() - begun
	switch left := (*hg.ShutdownError)(nil); {
	case !a.cls.NA().Closed() || a.open > 0:
		s.fail("node %s: Shutdown has returned %v, and %d callbacks are pending", s.names[a.i], err, a.open)
	case took > 4*time.Second && s.w.Stats().Pauses == 0: // Linger is 2 s
		s.fail("node %s: Shutdown took %v", s.names[a.i], took)
	case err == nil && len(a.handles)+a.regions > 0: // requests may have ended by themselves
		s.fail("node %s: Shutdown reports that nothing is left: %d handles, %d regions", s.names[a.i], len(a.handles), a.regions)
	case err != nil && (!errors.As(err, &left) || s.parting && left.Calls+left.Handlers == 0 && (left.Unconfirmed == 0 || !a.mayLeaveUnconfirmed())):
		s.fail("node %s: Shutdown: %v", s.names[a.i], err)
	}
}

// mayLeaveUnconfirmed reports whether peers may not have acknowledged messages of a: one-way calls,
// requests whose receive could not be posted, and responses to a peer whose process or class ended
// before the acknowledgement.
func (a *actor) mayLeaveUnconfirmed() bool {
	s := a.s
	return s.Faults.Again > 0 || s.w.Stats().Crashes > 0 || s.reach[reachFinalize] > 0 ||
		slices.ContainsFunc(s.calls, func(c *callEntry) bool { return c.by == a && c.oneWay })
}

// beginCall writes a line of the ledger.
func (a *actor) beginCall(kind string) *callEntry {
	s := a.s
	c := &callEntry{token: uint64(len(s.calls) + 1), kind: kind, by: a, begun: s.w.Now()}
	s.calls = append(s.calls, c)
	a.open++
	if kind != "response" { // the quota is for operations that need no request
		s.ops++
		a.ops++
	}
	return c
}

// recordRefusal records that the operation of an entry was not accepted, and checks the error.
func (a *actor) recordRefusal(c *callEntry, err error) {
	c.refused = true
	a.open--
	if c.kind != "response" {
		a.s.ops--
	}
	late := c.kind == "response" && errors.Is(err, na.ErrAnswered) // the request has ended by itself
	if !late && !errors.Is(err, na.ErrAgain) && !errors.Is(err, na.ErrNoMemory) {
		a.failUnlessClosing(c.kind, err)
	}
}

// failUnlessClosing fails the run for an error that is only valid while the class closes.
func (a *actor) failUnlessClosing(what string, err error) {
	if !a.closing || !errors.Is(err, hg.ErrClosed) {
		a.s.fail(what+": %v", err)
	}
}

// handleEnd is the callback of an operation.
func (c *callEntry) handleEnd(err error) {
	s := c.by.s
	c.callbacks++
	c.err = err
	c.by.open--
	s.w.Note("end", c.token, uint64(na.CodeOf(err)))
	if c.deadline > 0 {
		if late := s.w.Now() - c.deadline; late > time.Second && s.w.Stats().Pauses == 0 {
			s.fail("call %x has ended %v after its deadline", c.token, late)
		}
	}
	switch {
	case c.canceled && err == nil && c.kind != "response":
		s.reach[reachTooLate]++
	case c.kind == "call" && outcomeOf(err) == "timeout" && (c.deadline == 0 || s.w.Now() <= c.deadline-max(time.Microsecond, (c.deadline-c.begun)/1000)): // which is the precision at the target
		s.fail("call %x has run out of time at %v, its deadline is %v", c.token, s.w.Now(), c.deadline)
	case outcomeOf(err) == "lost" && !s.mayLose():
		s.fail("%s %x ended with %v, and no peer was lost", c.kind, c.token, err)
	}
}
