package natest

import (
	"errors"
	"flag"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/internal/frame"
	"github.com/quicksilver-rpc/quicksilver/internal/simhook"
	"github.com/quicksilver-rpc/quicksilver/na/carrier"
	"github.com/quicksilver-rpc/quicksilver/na/codes"
	"github.com/quicksilver-rpc/quicksilver/plugins/sim"
)

// A fault is a mistake that the author of a carrier could make. The suite must turn red for it.
type fault struct {
	name   string
	caught []string // rules that must fail, at least
	plant  func(n *badNetwork)
}

var allFlag = flag.Bool("natest.all", false, "run every rule for every planted fault and say which fail")

// A badPlugin wraps the simulator's plugin, which keeps the rules, and breaks one.
type badPlugin struct {
	carrier.Plugin
	simhook.Clock
	f        *fault
	underWay int // whole frames that were sent and have not been delivered, of all classes
}

func newBadPlugin(w *sim.World, f *fault) *badPlugin {
	p := w.Plugin()
	return &badPlugin{Plugin: p, Clock: p.(simhook.Clock), f: f}
}

func (p *badPlugin) Open(class carrier.Class, listen string) (*carrier.Network, error) {
	inner, err := p.Plugin.Open(class, listen)
	if err != nil {
		return nil, err
	}
	outer := *inner
	n := &badNetwork{Network: &outer, plugin: p}
	outer.Names = badNames{inner.Names, inner.Names.(simhook.Scheduler), inner.Names.(simhook.Faults), n}
	outer.NewCarrier = func(core carrier.Core) (carrier.Carrier, error) {
		c := &badCarrier{network: n, core: core, sessions: map[carrier.Session]*badSession{}}
		var err error
		c.Carrier, err = inner.NewCarrier(&badCore{core, core.(simhook.Core), c})
		return c, err
	}
	p.f.plant(n)
	return &outer, nil
}

// A badNetwork is the network of one class: what wraps it calls each of these functions, if it is
// set, in place of the method that the function is named for. The methods Locked of package carrier
// are called with the lock held here, too.
type badNetwork struct {
	*carrier.Network
	plugin *badPlugin

	check   func(name string) error
	resolve func(text string, done func(string, error)) (cancel func())

	flush     func(c *badCarrier, sessions []carrier.Session)
	cut       func(c *badCarrier, s *badSession, bye carrier.Bye)
	poll      func(c *badCarrier) (next time.Duration)
	lingering func() bool
	dial      func(c *badCarrier, s *badSession)
	shut      func(c *badCarrier)
	room      func(w carrier.Writer) (whole, piece int)
	failOp    func() error

	admit func(c *badCarrier, conn any, g *carrier.Greeting, verified bool) (carrier.Session, error)

	frame func(s *badSession, w carrier.Writer, h *carrier.Header, payload []byte)
	piece func(s *badSession, w carrier.Writer, h *carrier.Header, v carrier.View)

	pull    func(s *badSession, lane carrier.Lane, w carrier.Writer) // before Pull
	target  func(s *badSession) int
	deliver func(s *badSession, h *carrier.Header, payload []byte) error
	place   func(s *badSession, h *carrier.Header) (carrier.View, error)
	placed  func(s *badSession, v carrier.View) error
	sent    func(s *badSession, v carrier.View)
	fail    func(s *badSession, err error)
	refused func(s *badSession, bye carrier.Bye)
}

// badNames forward everything unless the network has a function for it.
type badNames struct {
	carrier.Names
	simhook.Scheduler
	simhook.Faults
	network *badNetwork
}

func (n badNames) Check(name string) error {
	if f := n.network.check; f != nil {
		return f(name)
	}
	return n.Names.Check(name)
}

func (n badNames) Resolve(text string, done func(string, error)) func() {
	if f := n.network.resolve; f != nil {
		return f(text, done)
	}
	return n.Names.Resolve(text, done)
}

// simCore is simhook.Core under another name, so that badCore can have it beside carrier.Core.
type simCore = simhook.Core

// A badCore is what the simulator's carrier takes for its context.
type badCore struct {
	carrier.Core
	simCore
	c *badCarrier
}

// Lock takes the lock. The simulator's carrier does so while it has the turn: nothing in the world
// moves until it has returned.
func (c *badCore) Lock() {
	c.Core.Lock()
	c.c.inTurn = true
}

func (c *badCore) Pause() {
	c.c.inTurn = false
	c.Core.Pause()
}

func (c *badCore) Unlock() {
	c.Core.Unlock()
	c.c.inTurn = false
}

func (c *badCore) Poll(now time.Duration) time.Duration {
	c.c.inTurn = true
	defer func() { c.c.inTurn = false }()
	return c.simCore.Poll(now)
}

func (c *badCore) Admit(_ carrier.Carrier, conn any, g *carrier.Greeting, verified bool) (carrier.Session, error) {
	if f := c.c.network.admit; f != nil {
		return f(c.c, conn, g, verified)
	}
	return c.c.admit(conn, g, verified)
}

// A badCarrier forwards everything unless the network has a function for it.
type badCarrier struct {
	carrier.Carrier
	network  *badNetwork
	core     carrier.Core
	sessions map[carrier.Session]*badSession // those that have not been cut
	inTurn   bool                            // the simulator's carrier has the lock
	late     []func()                        // what was put off
	unsent   []carrier.Session               // that Flush was called for
}

var (
	_ carrier.Stager = (*badCarrier)(nil)
	_ simhook.Driver = (*badCarrier)(nil)
	_ simhook.Faults = (*badCarrier)(nil)
)

// wrap returns the session that the simulator's carrier is given for s. Locked.
func (c *badCarrier) wrap(s carrier.Session) *badSession {
	b := c.sessions[s]
	if b == nil {
		b = &badSession{Session: s, c: c}
		c.sessions[s] = b
	}
	return b
}

func (c *badCarrier) admit(conn any, g *carrier.Greeting, verified bool) (carrier.Session, error) {
	s, err := c.core.Admit(c, conn, g, verified)
	if err != nil {
		return nil, err
	}
	return c.wrap(s), nil
}

func (c *badCarrier) Dial(s carrier.Session) {
	b := c.wrap(s)
	if f := c.network.dial; f != nil {
		f(c, b)
		return
	}
	c.Carrier.Dial(b)
}

func (c *badCarrier) Shut() {
	if f := c.network.shut; f != nil {
		f(c)
		return
	}
	c.Carrier.Shut()
}

func (c *badCarrier) Flush(sessions []carrier.Session) {
	defer func(is bool) { c.inTurn = is }(c.inTurn)
	wrapped := make([]carrier.Session, len(sessions))
	for i, s := range sessions {
		wrapped[i] = c.wrap(s)
	}
	if f := c.network.flush; f != nil {
		f(c, wrapped)
		return
	}
	c.Carrier.Flush(wrapped)
}

func (c *badCarrier) Stage(s carrier.Session) carrier.Writer {
	b := c.wrap(s)
	w := c.Carrier.(carrier.Stager).Stage(b)
	if w == nil {
		return nil
	}
	return &badWriter{w, b}
}

func (c *badCarrier) Cut(s carrier.Session, bye carrier.Bye) {
	b := c.wrap(s)
	delete(c.sessions, s)
	if f := c.network.cut; f != nil {
		f(c, b, bye)
		return
	}
	c.Carrier.Cut(b, bye)
}

func (c *badCarrier) Poll(now time.Duration) time.Duration {
	if f := c.network.poll; f != nil {
		return f(c)
	}
	return c.Carrier.Poll(now)
}

func (c *badCarrier) Lingering(now time.Duration) bool {
	if f := c.network.lingering; f != nil {
		return f()
	}
	return c.Carrier.Lingering(now)
}

// Drive does first what was put off.
func (c *badCarrier) Drive(timeout time.Duration, ready func() bool) bool {
	late := c.late
	c.late = nil
	for _, f := range late {
		f()
	}
	return c.Carrier.(simhook.Driver).Drive(timeout, ready)
}

// later has f called under the lock at the next Drive.
func (c *badCarrier) later(f func()) {
	c.late = append(c.late, func() {
		c.core.Lock()
		f()
		c.core.Unlock()
	})
}

func (c *badCarrier) Wake() { c.Carrier.(simhook.Driver).Wake() }

func (c *badCarrier) FlushSoon() { c.Carrier.(simhook.Driver).FlushSoon() }

func (c *badCarrier) FailOp() error {
	if f := c.network.failOp; f != nil {
		return f()
	}
	return c.Carrier.(simhook.Faults).FailOp()
}

// A badSession is what the simulator's carrier takes for a session.
type badSession struct {
	carrier.Session
	c    *badCarrier
	held []func(w carrier.Writer) // frames that were held back
	last carrier.Header           // of what was delivered

	queue []func(w carrier.Writer) // frames that the writer had no room for
}

func (s *badSession) Pull(lane carrier.Lane, w carrier.Writer) bool {
	if f := s.c.network.pull; f != nil {
		f(s, lane, w)
	}
	more := s.Session.Pull(lane, &badWriter{w, s})
	for len(s.queue) > 0 {
		if whole, piece := w.Room(); whole < carrier.MaxWhole || piece == 0 {
			return true
		}
		s.queue[0](w)
		s.queue = s.queue[1:]
	}
	return more
}

func (s *badSession) Target() int {
	if f := s.c.network.target; f != nil {
		return f(s)
	}
	return s.Session.Target()
}

func (s *badSession) Deliver(h *carrier.Header, payload []byte) error {
	if f := s.c.network.deliver; f != nil {
		return f(s, h, payload)
	}
	return s.Session.Deliver(h, payload)
}

func (s *badSession) Place(h *carrier.Header) (carrier.View, error) {
	if f := s.c.network.place; f != nil {
		return f(s, h)
	}
	return s.Session.Place(h)
}

func (s *badSession) Placed(v carrier.View) error {
	if f := s.c.network.placed; f != nil {
		return f(s, v)
	}
	return s.Session.Placed(unwrapView(v))
}

func (s *badSession) Sent(v carrier.View) {
	if f := s.c.network.sent; f != nil {
		f(s, v)
		return
	}
	s.Session.Sent(unwrapView(v))
}

func (s *badSession) Faulted(v carrier.View) { s.Session.Faulted(unwrapView(v)) }

func (s *badSession) Fail(err error) {
	if f := s.c.network.fail; f != nil {
		f(s, err)
		return
	}
	s.Session.Fail(err)
}

func (s *badSession) Refused(bye carrier.Bye) {
	if f := s.c.network.refused; f != nil {
		f(s, bye)
		return
	}
	s.Session.Refused(bye)
}

// A badWriter is what a session takes for the carrier's Writer.
type badWriter struct {
	carrier.Writer
	s *badSession
}

func (w *badWriter) Room() (whole, piece int) {
	if f := w.s.c.network.room; f != nil {
		return f(w.Writer)
	}
	return w.Writer.Room()
}

func (w *badWriter) Frame(h *carrier.Header, payload []byte) {
	if f := w.s.c.network.frame; f != nil {
		f(w.s, w.Writer, h, payload)
		return
	}
	w.Writer.Frame(h, payload)
}

func (w *badWriter) Piece(h *carrier.Header, v carrier.View) {
	if f := w.s.c.network.piece; f != nil {
		f(w.s, w.Writer, h, v)
		return
	}
	w.Writer.Piece(h, v)
}

// unwrapView returns the View of the session that one of the Views below wraps, or v itself.
func unwrapView(v carrier.View) carrier.View {
	switch v := v.(type) {
	case *unborrowedView:
		return v.View
	case *lateView:
		return v.View
	case *unreturnedView:
		return v.View
	case *useBeforeBorrowView:
		return v.View
	}
	return v
}

// An unborrowedView is used whatever Borrow returns.
type unborrowedView struct {
	carrier.View
	lent bool
}

func (v *unborrowedView) Borrow() bool {
	if v.View.Discard() {
		return false
	}
	v.lent = v.View.Borrow()
	return true
}

func (v *unborrowedView) Return() {
	if v.lent {
		v.View.Return()
	}
	v.lent = false
}

func (v *unborrowedView) CopyIn(from int, b []byte) {
	if !v.Borrow() {
		return
	}
	for _, to := range carrier.Slices(nil, v, from, len(b), math.MaxInt) {
		b = b[copy(to, b):]
	}
	v.Return()
}

func (v *unborrowedView) CopyOut(b []byte) bool {
	if !v.Borrow() {
		return false
	}
	for _, from := range carrier.Slices(nil, v, 0, v.Len(), math.MaxInt) {
		b = b[copy(b, from):]
	}
	v.Return()
	return true
}

// A lateView keeps what is written to it, and the memory that it is for.
type lateView struct {
	carrier.View
	n      int
	memory [][]byte
	kept   []byte
}

func newLateView(v carrier.View) *lateView {
	l := &lateView{View: v, n: v.Len(), kept: make([]byte, v.Len())}
	if v.Borrow() {
		l.memory = carrier.Slices(nil, v, 0, v.Len(), math.MaxInt)
		v.Return()
	}
	return l
}

func (v *lateView) Len() int     { return v.n }
func (v *lateView) Borrow() bool { return false }

func (v *lateView) CopyIn(from int, b []byte) { copy(v.kept[from:], b) }

// write writes to the memory without Borrow.
func (v *lateView) write() {
	b := v.kept
	for _, to := range v.memory {
		b = b[copy(to, b):]
	}
}

// An unreturnedView is borrowed and not returned.
type unreturnedView struct{ carrier.View }

func (unreturnedView) Return() {}

// An useBeforeBorrowView is used without Borrow.
type useBeforeBorrowView struct{ carrier.View }

func (useBeforeBorrowView) Borrow() bool { return true }
func (useBeforeBorrowView) Return()      {}

func (v useBeforeBorrowView) CopyOut(b []byte) bool {
	copy(b, v.Slice(0, v.Len()))
	return true
}

// everyNth returns a function that reports true each n-th time.
func everyNth(n int) func() bool {
	i := 0
	return func() bool { i++; return i%n == 0 }
}

// isMessage reports whether h is the front of a message of the program.
func isMessage(h *carrier.Header) bool { return h.Kind == frame.Unexpected || h.Kind == frame.Expected }

// sends has f called with each message that a session of n sends.
func (n *badNetwork) sends(f func(s *badSession, w carrier.Writer, h *carrier.Header, payload []byte)) {
	n.frame = func(s *badSession, w carrier.Writer, h *carrier.Header, payload []byte) {
		if isMessage(h) {
			f(s, w, h, payload)
			return
		}
		w.Frame(h, payload)
	}
}

// hold keeps a frame of s until release: those behind it overtake it.
func (s *badSession) hold(h *carrier.Header, payload []byte) {
	kept := *h
	s.held = append(s.held, func(w carrier.Writer) { w.Frame(&kept, payload) })
}

func (s *badSession) release(w carrier.Writer) {
	held := s.held
	s.held = nil
	for _, send := range held {
		send(w)
	}
}

var faults = []fault{
	{"loses a message", []string{"OrderUnexpected"}, func(n *badNetwork) {
		hit := everyNth(50)
		n.sends(func(_ *badSession, w carrier.Writer, h *carrier.Header, payload []byte) {
			if !hit() {
				w.Frame(h, payload)
			}
		})
	}},
	{"sends a message twice", []string{"OrderUnexpected"}, func(n *badNetwork) {
		hit := everyNth(50)
		n.sends(func(_ *badSession, w carrier.Writer, h *carrier.Header, payload []byte) {
			w.Frame(h, payload)
			if hit() {
				w.Frame(h, payload)
			}
		})
	}},
	{"reorders messages", []string{"OrderUnexpected"}, func(n *badNetwork) {
		hit := everyNth(20)
		n.sends(func(s *badSession, w carrier.Writer, h *carrier.Header, payload []byte) {
			if hit() {
				s.hold(h, slices.Clone(payload))
				return
			}
			w.Frame(h, payload)
			s.release(w)
		})
	}},
	{"reads a payload after Frame has returned", []string{"SendBufferReusable"}, func(n *badNetwork) {
		n.sends(func(s *badSession, _ carrier.Writer, h *carrier.Header, payload []byte) {
			s.hold(h, payload)
			s.c.later(func() { s.c.Carrier.Flush([]carrier.Session{s}) })
		})
		n.pull = func(s *badSession, lane carrier.Lane, w carrier.Writer) {
			if lane == carrier.Messages {
				s.release(w)
			}
		}
	}},
	{"damages a message", []string{"SizesUnexpected"}, func(n *badNetwork) {
		n.deliver = func(s *badSession, h *carrier.Header, payload []byte) error {
			if isMessage(h) && len(payload) > 100 {
				payload = slices.Clone(payload)
				payload[99] ^= 1
			}
			return s.Session.Deliver(h, payload)
		}
	}},
	{"damages bulk data", []string{"MoveSizes"}, func(n *badNetwork) {
		n.placed = func(s *badSession, v carrier.View) error {
			if v.Len() > 100 && v.Borrow() {
				v.Slice(99, 1)[0] ^= 1
				v.Return()
			}
			return s.Session.Placed(v)
		}
	}},
	{"calls Placed when a payload begins to come", []string{"MoveSizes"}, func(n *badNetwork) {
		n.place = func(s *badSession, h *carrier.Header) (carrier.View, error) {
			v, err := s.Session.Place(h)
			if err != nil {
				return nil, err
			}
			late := newLateView(v)
			return late, s.Session.Placed(v)
		}
		n.placed = func(s *badSession, v carrier.View) error {
			v.(*lateView).write()
			return nil
		}
	}},
	{"writes memory of a View that was not borrowed", []string{"CanceledGetUntouched"}, func(n *badNetwork) {
		n.place = func(s *badSession, h *carrier.Header) (carrier.View, error) {
			v, err := s.Session.Place(h)
			if err != nil {
				return nil, err
			}
			return &unborrowedView{View: v}, nil
		}
	}},
	{"writes memory of a View that was returned", []string{"MoveSizes", "CanceledGetUntouched"}, func(n *badNetwork) {
		n.place = func(s *badSession, h *carrier.Header) (carrier.View, error) {
			v, err := s.Session.Place(h)
			if err != nil {
				return nil, err
			}
			return newLateView(v), nil
		}
		n.placed = func(s *badSession, v carrier.View) error {
			s.c.later(v.(*lateView).write)
			return s.Session.Placed(unwrapView(v))
		}
	}},
	{"sends memory of a View that was not borrowed", []string{"CanceledPutUnread"}, func(n *badNetwork) {
		n.piece = func(_ *badSession, w carrier.Writer, h *carrier.Header, v carrier.View) {
			w.Piece(h, &unborrowedView{View: v})
		}
	}},
	{"borrows memory and does not return it", []string{"LocalDeregistered", "LeaseRead"}, func(n *badNetwork) {
		n.place = func(s *badSession, h *carrier.Header) (carrier.View, error) {
			v, err := s.Session.Place(h)
			if err != nil {
				return nil, err
			}
			return &unreturnedView{v}, nil
		}
	}},
	{"loses bulk data", []string{"MoveLarge"}, func(n *badNetwork) {
		hit := everyNth(20)
		n.piece = func(s *badSession, w carrier.Writer, h *carrier.Header, v carrier.View) {
			if hit() {
				s.Session.Sent(v)
				return
			}
			w.Piece(h, v)
		}
	}},
	{"never calls Sent", []string{"MoveSizes"}, func(n *badNetwork) {
		n.sent = func(*badSession, carrier.View) {}
	}},
	{"delivers to another session", []string{"Contexts"}, func(n *badNetwork) {
		n.deliver = func(s *badSession, h *carrier.Header, payload []byte) error {
			if isMessage(h) {
				for _, other := range s.c.sessions {
					if other != s && other.Up() {
						return other.Session.Deliver(h, payload)
					}
				}
			}
			return s.Session.Deliver(h, payload)
		}
	}},
	{"says for ever that it lingers", []string{"LocalClose"}, func(n *badNetwork) {
		n.lingering = func() bool { return true }
	}},
	{"does not say when a connection ends", []string{"PeerClose", "PeerLeaves"}, func(n *badNetwork) {
		n.fail = func(s *badSession, err error) {
			if !s.Up() {
				s.Session.Fail(err)
			}
		}
		n.refused = func(*badSession, carrier.Bye) {}
	}},
	{"goes on when Deliver returns an error", []string{"MoveGuessing"}, func(n *badNetwork) {
		n.deliver = func(s *badSession, h *carrier.Header, payload []byte) error {
			_ = s.Session.Deliver(h, payload)
			return nil
		}
	}},
	{"does not call Refused", []string{"PeerLeaves", "AskTakenBack"}, func(n *badNetwork) {
		n.refused = func(*badSession, carrier.Bye) {}
	}},
	{"takes a farewell for a failure", []string{"PeerLeaves"}, func(n *badNetwork) {
		n.refused = func(s *badSession, bye carrier.Bye) { s.Session.Fail(codes.WithText(codes.ErrPeerLost, bye.Text)) }
	}},
	{"verifies no peer that connects", []string{"IdleEnds", "Asymmetric"}, func(n *badNetwork) {
		n.admit = func(c *badCarrier, conn any, g *carrier.Greeting, _ bool) (carrier.Session, error) {
			return c.admit(conn, g, false)
		}
	}},
	{"ignores Cut", []string{"PeerLeaves", "IdleEnds"}, func(n *badNetwork) {
		n.cut = func(*badCarrier, *badSession, carrier.Bye) {}
	}},
	{"says no farewell", []string{"PeerLeaves", "AskTakenBack"}, func(n *badNetwork) {
		n.cut = func(c *badCarrier, s *badSession, _ carrier.Bye) { c.Carrier.Cut(s, carrier.Bye{}) }
	}},
	{"dials the first context whatever the address says", []string{"Contexts"}, func(n *badNetwork) {
		n.target = func(*badSession) int { return 0 }
	}},
	{"finds whatever it is asked for", []string{"InvalidName"}, func(n *badNetwork) {
		n.resolve = func(text string, done func(string, error)) func() { done(text, nil); return nil }
	}},
	{"finds another name", []string{"Lookup"}, func(n *badNetwork) {
		n.resolve = func(text string, done func(string, error)) func() { done(text+"x", nil); return nil }
	}},
	{"checks no name", []string{"InvalidName"}, func(n *badNetwork) {
		n.check = func(string) error { return nil }
	}},
	{"never says that a dial was refused", []string{"Shutdown"}, func(n *badNetwork) {
		n.fail = func(s *badSession, err error) {
			if s.Up() {
				s.Session.Fail(err)
			}
		}
	}},
	{"sends in Poll, which says never", []string{"OrderUnexpected"}, func(n *badNetwork) {
		n.flush = func(c *badCarrier, sessions []carrier.Session) { c.unsent = append(c.unsent, sessions...) }
		n.poll = func(c *badCarrier) time.Duration {
			c.core.Lock()
			sessions := c.unsent
			c.unsent = nil
			c.Carrier.Flush(sessions)
			c.core.Unlock()
			return 0
		}
	}},
	{"sends for the first session only", []string{"MoveGuessing"}, func(n *badNetwork) {
		n.flush = func(c *badCarrier, sessions []carrier.Session) { c.Carrier.Flush(sessions[:1]) }
	}},
	{"waits in Flush for the peer", []string{"FrozenPeer"}, func(n *badNetwork) {
		n.frame = func(s *badSession, w carrier.Writer, h *carrier.Header, payload []byte) {
			n.plugin.underWay++
			w.Frame(h, payload)
		}
		n.deliver = func(s *badSession, h *carrier.Header, payload []byte) error {
			n.plugin.underWay--
			return s.Session.Deliver(h, payload)
		}
		n.flush = func(c *badCarrier, sessions []carrier.Session) {
			isFree := !c.inTurn
			c.Carrier.Flush(sessions)
			if isFree {
				c.core.Pause()
				c.Carrier.(simhook.Driver).Drive(time.Minute, func() bool { return n.plugin.underWay <= 0 })
				c.core.Lock()
			}
		}
	}},
	{"sends zeroes for memory that is gone, over an Exact network", []string{"FreedMemoryNotSent"}, func(n *badNetwork) {
		n.Exact = true
	}},
	{"leaves out Placed where the payload is dropped", []string{"ContractKept"}, func(n *badNetwork) {
		n.placed = func(s *badSession, v carrier.View) error {
			if v.Discard() {
				return nil
			}
			return s.Session.Placed(v)
		}
	}},
	{"calls Sent twice", []string{"ContractKept"}, func(n *badNetwork) {
		n.sent = func(s *badSession, v carrier.View) {
			s.Session.Sent(v)
			s.Session.Sent(v)
		}
	}},
	{"takes no notice of a connection that ends without a farewell", []string{"PeerDies"}, func(n *badNetwork) {
		n.fail = func(s *badSession, err error) {
			if !s.Up() {
				s.Session.Fail(err)
			}
		}
	}},
	{"ignores Shut", []string{"ShutAdmitsNone"}, func(n *badNetwork) {
		n.shut = func(*badCarrier) {}
	}},
	{"uses memory of a View without Borrow", []string{"ContractKept"}, func(n *badNetwork) {
		n.piece = func(_ *badSession, w carrier.Writer, h *carrier.Header, v carrier.View) {
			w.Piece(h, &useBeforeBorrowView{v})
		}
	}},
	{"calls Fail from inside Dial", []string{"ContractKept"}, func(n *badNetwork) {
		n.dial = func(c *badCarrier, s *badSession) {
			if s.Name() == "sim://nobody" {
				s.Fail(codes.ErrUnreachable)
				return
			}
			c.Carrier.Dial(s)
		}
	}},
	{"delivers after Cut", []string{"ContractKept"}, func(n *badNetwork) {
		n.deliver = func(s *badSession, h *carrier.Header, payload []byte) error {
			s.last = *h
			return s.Session.Deliver(h, payload)
		}
		n.cut = func(c *badCarrier, s *badSession, bye carrier.Bye) {
			c.Carrier.Cut(s, bye)
			_ = s.Session.Deliver(&s.last, nil)
		}
	}},
	{"has room without bound", []string{"ContractKept"}, func(n *badNetwork) {
		n.room = func(carrier.Writer) (whole, piece int) { return carrier.MaxWhole, carrier.PieceSize }
		n.frame = func(s *badSession, _ carrier.Writer, h *carrier.Header, payload []byte) {
			kept, payload := *h, slices.Clone(payload)
			s.queue = append(s.queue, func(w carrier.Writer) { w.Frame(&kept, payload) })
		}
		n.piece = func(s *badSession, _ carrier.Writer, h *carrier.Header, v carrier.View) {
			kept := *h
			s.queue = append(s.queue, func(w carrier.Writer) { w.Piece(&kept, v) })
		}
	}},
	{"does not give its name back", []string{"CloseTwice"}, func(n *badNetwork) {
		n.Close = nil
	}},
	{"fails with an error that carries no code", []string{"MoveGuessing"}, func(n *badNetwork) {
		n.fail = func(s *badSession, err error) { s.Session.Fail(errors.New("it did not work")) }
	}},
}

// newFaultyMaker is the simulator with f planted, or without.
func newFaultyMaker(f *fault) Maker {
	return func(testing.TB) Network {
		w := sim.NewWorld(sim.Config{Seed: 1, NoAssist: true, Latency: 20 * time.Microsecond, Level: sim.LevelB})
		p := w.Plugin()
		if f != nil {
			p = newBadPlugin(w, f)
		}
		return Network{
			Listen: func(n int) string { return fmt.Sprint("sim://node", n) }, Origin: "sim://", Nobody: "sim://nobody",
			Pending: "sim://far", Invalid: "sim://no/name", Plugins: []carrier.Plugin{p},
		}
	}
}

func TestFaultsAreCaught(t *testing.T) {
	for i := range faults {
		f := &faults[i]
		t.Run(f.name, func(t *testing.T) {
			names := f.caught
			if *allFlag {
				names = Names()
			}
			failed := map[string]bool{}
			for _, name := range names {
				if find(name).lacks(newFaultyMaker(nil)(t)) != "" {
					continue
				}
				r := runRecorded(t, func(tb testing.TB) { Check(tb, newFaultyMaker(f), name) })
				if failed[name] = r.Failed(); failed[name] {
					t.Logf("caught by %s: %s", name, r.firstLine())
				}
			}
			for _, name := range f.caught {
				require.True(t, failed[name], "a plugin that %s passes rule %s", f.name, name)
			}
		})
	}
}

// TestSkip checks that a rule is skipped by a name that exists and for a reason; Check accepts no
// other names either.
func TestSkip(t *testing.T) {
	require.Empty(t, checkSkip(nil))
	require.Empty(t, checkSkip(map[string]string{"Tags": "this network has none"}))
	problems := checkSkip(map[string]string{"Tags": "", "Tag": "a slip of the pen"})
	require.Len(t, problems, 2)
	require.Contains(t, problems[0], "rule Tags is skipped without a reason")
	require.Contains(t, problems[1], `"Tag", which does not exist`)
	r := runRecorded(t, func(tb testing.TB) { Check(tb, newFaultyMaker(nil), "Tag") })
	require.True(t, r.Failed())
	require.Contains(t, r.firstLine(), `there is no rule "Tag"`)
}

// TestCover checks that Cover requires no rule for a feature that the plugin lacks, and every other
// one.
func TestCover(t *testing.T) {
	n := Network{Concurrent: true, Assisted: true}
	frozen := Network{}
	require.False(t, runRecorded(t, func(tb testing.TB) { Cover(tb, n, frozen) }).Failed())
	r := runRecorded(t, func(tb testing.TB) { Cover(tb, n) })
	require.True(t, r.Failed())
	require.Contains(t, strings.Join(r.lines, "\n"), "no network checks rule FrozenPeer")
}

// TestHang checks that a rule that is blocked in the plugin for ever fails with its name.
func TestHang(t *testing.T) {
	goOn := make(chan struct{})
	stuck := &fault{plant: func(n *badNetwork) {
		n.resolve = func(_ string, done func(string, error)) func() {
			<-goOn
			done("", codes.ErrUnreachable)
			return nil
		}
	}}
	r := runRecorded(t, func(tb testing.TB) { find("Lookup").runWithin(tb, newFaultyMaker(stuck), 50*time.Millisecond) })
	require.True(t, r.Failed())
	require.Contains(t, r.firstLine(), "rule Lookup hangs")
	close(goOn)
}

// TestFailureIsExplained checks that a rule that fails logs its purpose, and leaves nothing behind.
func TestFailureIsExplained(t *testing.T) {
	r := runRecorded(t, func(tb testing.TB) { Check(tb, newFaultyMaker(&faults[0]), "OrderUnexpected") })
	require.True(t, r.Failed())
	require.Contains(t, strings.Join(r.lines, "\n"), "rule OrderUnexpected: "+find("OrderUnexpected").why)
	require.NotContains(t, strings.Join(r.lines, "\n"), "left behind")
}

// TestNoFault checks that the wrapper itself breaks nothing: failures above are caused by the
// fault.
func TestNoFault(t *testing.T) {
	harmless := &fault{name: "does nothing", plant: func(*badNetwork) {}}
	TestPlugin(t, newFaultyMaker(harmless), nil)
}
