package natest

import (
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/quicksilver-rpc/quicksilver/internal/simhook"
	"github.com/quicksilver-rpc/quicksilver/na"
	"github.com/quicksilver-rpc/quicksilver/na/carrier"
)

// pullMax is the number of bytes above which a Writer violates the contract by accepting more in
// one Pull. Without a limit, a peer that does not read would make this side use unbounded memory.
const pullMax = 8 << 20

// An audit is a layer between package na and a plugin that checks the calls in both directions
// against the contract of package carrier. It finds violations that have no immediate effect on a
// program. It covers all classes opened with plugins returned by wrap.
type audit struct {
	silent atomic.Bool // sessions are cut without a BYE, as if the process had crashed
	linger atomic.Bool // closed contexts are kept from being released
	gone   atomic.Bool // withdraw the memory of the next piece before the piece is sent

	mu       sync.Mutex // guards the fields below
	problems []string
	exact    bool              // Network.Exact
	lost     map[pieceKey]bool // pieces whose memory was withdrawn and for which Sent was called
	sessions []*auditedSession
}

// A pieceKey identifies a piece of bulk data within a rule.
type pieceKey struct {
	op, at uint64
	n      int
}

// report records a violation of the contract. It may be called with any lock held.
func (a *audit) report(format string, args ...any) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if len(a.problems) < 8 {
		a.problems = append(a.problems, fmt.Sprintf(format, args...))
	}
}

// check reports every violation found so far as an error of the rule.
func (a *audit) check(b *bed) {
	b.Helper()
	for _, p := range a.found() {
		b.Errorf("the plugin breaks the contract of package carrier: %s", p)
	}
}

// found returns and clears the violations found so far.
func (a *audit) found() []string {
	a.mu.Lock()
	defer a.mu.Unlock()
	found := a.problems
	a.problems = nil
	return found
}

// out returns the number of Views, in sessions that are up, that the plugin has not ended.
func (a *audit) out() (n int) {
	a.mu.Lock()
	sessions := a.sessions
	a.mu.Unlock()
	for _, s := range sessions {
		s.c.core.Lock()
		if !s.cut {
			n += s.sending + s.placing
		}
		s.c.core.Unlock()
	}
	return n
}

// wrap returns versions of plugins that pass all calls through a.
func (a *audit) wrap(plugins []carrier.Plugin) (wrapped []carrier.Plugin) {
	for _, p := range plugins {
		w := &auditedPlugin{p, a}
		if clock, ok := p.(simhook.Clock); ok {
			wrapped = append(wrapped, &auditedSimulator{w, clock})
		} else {
			wrapped = append(wrapped, w)
		}
	}
	return wrapped
}

type auditedPlugin struct {
	carrier.Plugin
	a *audit
}

type auditedSimulator struct {
	*auditedPlugin
	simhook.Clock
}

func (p *auditedPlugin) Open(class carrier.Class, listen string) (*carrier.Network, error) {
	c := &auditedClass{Class: class, cores: map[carrier.Core]*auditedCore{}}
	inner, err := p.Plugin.Open(c, listen)
	if err != nil {
		return nil, err
	}
	p.a.mu.Lock()
	p.a.exact = inner.Exact
	p.a.mu.Unlock()
	outer := *inner
	outer.NewCarrier = func(core carrier.Core) (carrier.Carrier, error) {
		ca := &auditedCarrier{a: p.a, core: core, sessions: map[carrier.Session]*auditedSession{}}
		ca.outer = ca
		wrapped := &auditedCore{core, core.(simhook.Core), ca}
		c.mu.Lock()
		c.cores[core] = wrapped
		c.mu.Unlock()
		if ca.Carrier, err = inner.NewCarrier(wrapped); err != nil {
			return nil, err
		}
		if d, ok := ca.Carrier.(simhook.Driver); ok {
			ca.outer = &auditedDriver{ca, d}
		}
		return ca.outer, nil
	}
	return &outer, nil
}

// An auditedClass presents a class to the plugin, with audited cores as its contexts.
type auditedClass struct {
	carrier.Class

	mu    sync.Mutex
	cores map[carrier.Core]*auditedCore
}

func (c *auditedClass) Context(target int) carrier.Core {
	core := c.Class.Context(target)
	if core == nil {
		return nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.cores[core]
}

// simulated renames simhook.Core, so that it can be embedded along with carrier.Core.
type simulated = simhook.Core

type auditedCore struct {
	carrier.Core
	simulated
	ca *auditedCarrier
}

func (c *auditedCore) Admit(_ carrier.Carrier, conn any, g *carrier.Greeting, verified bool) (carrier.Session, error) {
	if c.ca.shut {
		c.ca.a.report("Admit was called after Shut")
	}
	s, err := c.Core.Admit(c.ca.outer, conn, g, verified)
	if err != nil {
		return nil, err
	}
	return c.ca.wrap(s), nil
}

// An auditedCarrier is the carrier as seen by package na. Optional methods that the plugin's
// carrier lacks behave as if they had nothing to offer.
type auditedCarrier struct {
	carrier.Carrier
	a     *audit
	core  carrier.Core
	outer carrier.Carrier // the auditedCarrier itself or the auditedDriver that contains it

	sessions map[carrier.Session]*auditedSession // guarded by the context's lock
	shut     bool                                // guarded by the context's lock
}

type auditedDriver struct {
	*auditedCarrier
	simhook.Driver
}

func (d *auditedDriver) FailOp() error {
	if f, ok := d.Carrier.(simhook.Faults); ok {
		return f.FailOp()
	}
	return nil
}

func (c *auditedCarrier) wrap(s carrier.Session) *auditedSession {
	w := c.sessions[s]
	if w == nil {
		w = &auditedSession{Session: s, c: c}
		c.sessions[s] = w
		c.a.mu.Lock()
		c.a.sessions = append(c.a.sessions, w)
		c.a.mu.Unlock()
	}
	return w
}

func (c *auditedCarrier) Dial(s carrier.Session) {
	w := c.wrap(s)
	w.dialing = true
	c.Carrier.Dial(w)
	w.dialing = false
}

func (c *auditedCarrier) Flush(sessions []carrier.Session) {
	wrapped := make([]carrier.Session, len(sessions))
	for i, s := range sessions {
		wrapped[i] = c.wrap(s)
	}
	c.Carrier.Flush(wrapped)
}

func (c *auditedCarrier) Cut(s carrier.Session, bye carrier.Bye) {
	w := c.wrap(s)
	if c.a.silent.Load() {
		bye = carrier.Bye{}
	}
	w.cut = true
	c.Carrier.Cut(w, bye)
	delete(c.sessions, s)
}

func (c *auditedCarrier) Shut() {
	c.Carrier.Shut()
	c.shut = true
}

func (c *auditedCarrier) Lingering(now time.Duration) bool {
	return c.Carrier.Lingering(now) || c.a.linger.Load()
}

func (c *auditedCarrier) Stage(s carrier.Session) carrier.Writer {
	stager, ok := c.Carrier.(carrier.Stager)
	if !ok {
		return nil
	}
	w := c.wrap(s)
	if to := stager.Stage(w); to != nil {
		return &auditedWriter{Writer: to, s: w}
	}
	return nil
}

func (c *auditedCarrier) Taken(s carrier.Session, lane carrier.Lane) (uint64, bool) {
	if m, ok := c.Carrier.(carrier.WriteMeter); ok {
		return m.Taken(c.wrap(s), lane)
	}
	return 0, false
}

func (c *auditedCarrier) Shelf(s carrier.Session) carrier.Shelf {
	if r, ok := c.Carrier.(carrier.Shelver); ok {
		return r.Shelf(c.wrap(s))
	}
	return nil
}

func (c *auditedCarrier) Fetch(s carrier.Session, id uint64, r carrier.Region, off, n int64) bool {
	reacher, ok := c.Carrier.(carrier.Reacher)
	return ok && reacher.Fetch(c.wrap(s), id, r, off, n)
}

func (c *auditedCarrier) View(s carrier.Session, r carrier.Region, off, n int64) ([]byte, func() bool) {
	if reacher, ok := c.Carrier.(carrier.Reacher); ok {
		return reacher.View(c.wrap(s), r, off, n)
	}
	return nil, nil
}

func (c *auditedCarrier) Finish() {
	if f, ok := c.Carrier.(carrier.Finisher); ok {
		f.Finish()
	}
}

// An auditedSession is a session as seen by the plugin. Its fields are guarded by the context's
// lock.
type auditedSession struct {
	carrier.Session
	c *auditedCarrier

	dialing, cut     bool
	sending, placing int // number of Views that have not ended
}

// live must be called when the plugin calls the named method. It reports a violation if the session
// has been cut.
func (s *auditedSession) live(method string) {
	if s.cut {
		s.c.a.report("%s was called for a session after Cut", method)
	}
}

func (s *auditedSession) Pull(lane carrier.Lane, w carrier.Writer) bool {
	return s.Session.Pull(lane, &auditedWriter{Writer: w, s: s})
}

func (s *auditedSession) Deliver(h *carrier.Header, payload []byte) error {
	s.live("Deliver")
	return s.Session.Deliver(h, payload)
}

func (s *auditedSession) Place(h *carrier.Header) (carrier.View, error) {
	s.live("Place")
	if s.c.a.isLost(keyOf(h, h.Payload())) {
		s.c.a.report("a piece whose memory was gone was sent, although the network is Exact")
	}
	v, err := s.Session.Place(h)
	if err != nil {
		return nil, err
	}
	s.placing++
	return &auditedView{View: v, s: s, of: viewPlaced}, nil
}

func (s *auditedSession) Placed(v carrier.View) error {
	s.live("Placed")
	w := s.end(v, viewPlaced, "Placed", "Place")
	if w == nil {
		return nil
	}
	s.placing--
	return s.Session.Placed(w.View)
}

func (s *auditedSession) PlaceOwn(id uint64, at, n int64) carrier.View {
	v := s.Session.PlaceOwn(id, at, n)
	if v == nil {
		return nil
	}
	return &auditedView{View: v, s: s, of: viewOwn}
}

func (s *auditedSession) PlacedOwn(v carrier.View, valid bool) {
	if w := s.end(v, viewOwn, "PlacedOwn", "PlaceOwn"); w != nil {
		s.Session.PlacedOwn(w.View, valid)
	}
}

func (s *auditedSession) Sent(v carrier.View) {
	s.live("Sent")
	w := s.end(v, viewSent, "Sent", "Writer.Piece")
	if w == nil {
		return
	}
	s.sending--
	if w.gone.Load() {
		s.c.a.lose(w.key)
	}
	s.Session.Sent(w.View)
}

func (s *auditedSession) Faulted(v carrier.View) { s.Session.Faulted(v.(*auditedView).View) }

func (s *auditedSession) Fail(err error) {
	if s.dialing {
		s.c.a.report("Fail was called from inside Dial")
	}
	if err == nil {
		s.c.a.report("Fail was called without an error")
		err = na.ErrPeerLost
	}
	s.Session.Fail(err)
}

// end records that the plugin ends v by calling method, and returns the auditedView. If v was not
// returned by the method from of this session, or has already ended, end reports a violation and
// returns nil. The caller must then not pass the call on to package na.
func (s *auditedSession) end(v carrier.View, of viewKind, method, from string) *auditedView {
	w, ok := v.(*auditedView)
	switch {
	case !ok || w.of != of || w.s != s:
		s.c.a.report("%s was called for a View that %s of this session has not given", method, from)
		return nil
	case w.ended.Load():
		s.c.a.report("%s was called twice for a View", method)
		return nil
	case w.lent.Load():
		s.c.a.report("%s was called for a View that is borrowed", method)
	}
	w.ended.Store(true)
	return w
}

func keyOf(h *carrier.Header, n int) pieceKey { return pieceKey{h.Op, h.Tag, n} }

// lose records that the memory of piece k was withdrawn before it was sent. Over an Exact network,
// the piece must not arrive.
func (a *audit) lose(k pieceKey) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.lost == nil {
		a.lost = map[pieceKey]bool{}
	}
	a.lost[k] = true
}

func (a *audit) isLost(k pieceKey) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.exact && a.lost[k]
}

// An auditedWriter is a Writer as seen by package na during one Pull.
type auditedWriter struct {
	carrier.Writer
	s     *auditedSession
	taken int
}

func (w *auditedWriter) take(n int) {
	if w.taken += n; w.taken > pullMax && w.taken-n <= pullMax {
		w.s.c.a.report("a Writer has taken more than %d bytes in one Pull: its Room has no bound", pullMax)
	}
}

func (w *auditedWriter) Room() (whole, piece int) {
	if w.taken > 2*pullMax { // the violation is certain, so stop before memory runs out
		return -1, 0
	}
	return w.Writer.Room()
}

func (w *auditedWriter) Frame(h *carrier.Header, payload []byte) {
	w.take(len(payload))
	w.Writer.Frame(h, payload)
}

func (w *auditedWriter) Piece(h *carrier.Header, v carrier.View) {
	w.take(v.Len())
	w.s.sending++
	a := &auditedView{View: v, s: w.s, of: viewSent, key: keyOf(h, v.Len())}
	a.gone.Store(w.s.c.a.gone.Swap(false))
	w.Writer.Piece(h, a)
}

// A viewKind identifies the method to which the plugin must pass a View in order to end it.
type viewKind uint8

const (
	viewSent viewKind = iota
	viewPlaced
	viewOwn
)

// An auditedView is a View as seen by the plugin.
type auditedView struct {
	carrier.View
	s   *auditedSession
	of  viewKind
	key pieceKey

	lent, ended atomic.Bool
	gone        atomic.Bool // its memory has been withdrawn
}

func (v *auditedView) Borrow() bool {
	if v.ended.Load() {
		v.s.c.a.report("a View was borrowed after its end")
		return false
	}
	if v.gone.Load() {
		return false
	}
	ok := v.View.Borrow()
	v.lent.Store(ok)
	return ok
}

func (v *auditedView) Return() {
	v.lent.Store(false)
	v.View.Return()
}

func (v *auditedView) Slice(from, n int) []byte {
	if !v.lent.Load() {
		v.s.c.a.report("memory of a View was used without Borrow")
		return make([]byte, n)
	}
	return v.View.Slice(from, n)
}

func (v *auditedView) CopyOut(b []byte) bool { return !v.gone.Load() && v.View.CopyOut(b) }
