package na

import (
	"encoding/binary"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/internal/frame"
	"github.com/quicksilver-rpc/quicksilver/internal/raceflag"
	"github.com/quicksilver-rpc/quicksilver/internal/test/long"
	"github.com/quicksilver-rpc/quicksilver/na/carrier"
)

// Every order of events that a withdraw can meet (C-T34): two endpoints and the two directions of one
// connection, searched breadth first. A state is rebuilt from the actions that led to it, so that what is searched is the
// engine itself and not a model of it.
//
//	source: send, withdraw, cancel the withdraw ─ pull ─► wire ─ deliver ─► destination: receive, accept
//	                                     deliver ◄─ wire ◄─ pull            the connection breaks, anywhere

// A scope is the extent of a search.
type scope struct {
	n, ger  int  // messages and envelopes
	cancels bool // withdraws are canceled
	breaks  bool // the connection breaks
	flushes bool // a side sends its frames at once: fewer states
}

// A withdrawModel is one state.
type withdrawModel struct {
	scope
	from side // the source
	to   side
	sent []*withdrawMsg
	recv int  // receives that were posted
	post bool // one of them waits
	cut  bool
	bad  string
}

// A side is an endpoint with its end of the connection.
type side struct {
	cls  *Class
	nctx *Context
	e    *endpoint
	l    *session
	wire [][]byte // frames in flight from here
}

// A withdrawMsg is one message, seen from both sides.
type withdrawMsg struct {
	send      *Op
	sends     int // callbacks
	sent      Result
	withdraw  *Op // nil before
	withdraws int
	result    Result
	recalled  bool // the send was to be canceled
	canceled  bool // the withdraw was
	env       *Envelope
	accepted  bool
	refused   bool
}

// yes reports that the source has proof that the message will never be accepted.
func (m *withdrawMsg) yes() bool {
	return m.withdraws > 0 && m.result.Err == nil || m.recalled && m.sends > 0 && m.sent.Err != nil && m.sent.Fate == NotRun
}

type withdrawCarrier struct{ s *side }

func (c withdrawCarrier) Check(string) error                            { return nil }
func (c withdrawCarrier) Resolve(string, func(string, error)) func()    { return nil }
func (c withdrawCarrier) Dial(l carrier.Session)                        { c.s.l = l.(*session) }
func (c withdrawCarrier) Flush([]carrier.Session)                       {}
func (c withdrawCarrier) Cut(carrier.Session, frame.Bye)                {}
func (c withdrawCarrier) Poll(time.Duration) time.Duration              { return 0 }
func (c withdrawCarrier) Lingering(time.Duration) bool                  { return false }
func (c withdrawCarrier) Shut()                                         {}
func (c withdrawCarrier) Release()                                      {}
func (c withdrawCarrier) Wake()                                         {}
func (c withdrawCarrier) FlushSoon()                                    {}
func (c withdrawCarrier) Drive(_ time.Duration, ready func() bool) bool { return ready() }

type withdrawPlugin struct {
	s  *side
	id byte
}

func (p withdrawPlugin) Scheme() string { return "duel" }

// Now, Rand and Driven implement simhook.Clock.
func (p withdrawPlugin) Now() time.Duration { return 1 }
func (p withdrawPlugin) Rand(b []byte)      { b[0] = p.id }
func (p withdrawPlugin) Driven() bool       { return true }

func (p withdrawPlugin) Open(_ carrier.Class, rest string) (*carrier.Network, error) {
	return &carrier.Network{
		Listen: "duel://" + rest, Names: withdrawCarrier{p.s},
		NewCarrier: func(e carrier.Core) (carrier.Carrier, error) { p.s.e = e.(*endpoint); return withdrawCarrier{p.s}, nil },
	}, nil
}

func (s *side) open(t testing.TB, name string, id byte, ger int) {
	var err error
	s.cls, err = Open("duel://"+name, Config{Plugins: []Plugin{withdrawPlugin{s, id}}, Envelopes: ger, Eager: 256})
	require.NoError(t, err)
	s.nctx, err = s.cls.NewContext()
	require.NoError(t, err)
}

// newWithdrawModel connects two endpoints.
func newWithdrawModel(t testing.TB, c scope) *withdrawModel {
	d := &withdrawModel{scope: c}
	d.from.open(t, "from", 1, c.ger)
	d.to.open(t, "to", 2, c.ger)
	hold := d.from.nctx.NewOp(func(*Op, Result) {})
	require.NoError(t, d.from.nctx.RecvExpected(hold, MakeAddr("duel://to", 0), 1<<40, nil))
	g, err := frame.ParseGreeting(d.from.l.Hello(carrier.Messages, nil, nil))
	require.NoError(t, err)
	d.to.e.Lock()
	d.to.l, err = d.to.e.admitHello(withdrawCarrier{&d.to}, nil, &g, true)
	d.to.e.Unlock()
	require.NoError(t, err)
	g, err = frame.ParseGreeting(d.to.l.Hello(carrier.Messages, nil, nil))
	require.NoError(t, err)
	d.from.e.Lock()
	require.NoError(t, d.from.l.Greet(&g))
	d.from.e.Unlock()
	hold.Cancel()
	d.from.nctx.Trigger(0)
	require.True(t, d.from.l.Up() && d.to.l.Up())
	return d
}

func (d *withdrawModel) close() {
	for _, s := range []*side{&d.from, &d.to} {
		for _ = s.cls.Close(); !s.cls.Closed(); _ = s.nctx.Progress(0) {
			s.nctx.Trigger(0)
		}
	}
}

// pull takes the next frame that a side has.
func (s *side) pull() ([]byte, bool) {
	s.e.Lock()
	defer s.e.Unlock()
	var w selfFrame
	s.l.Pull(carrier.Messages, &w)
	if !w.taken {
		return nil, false
	}
	return w.head.Append(nil, w.buf), true
}

func (s *side) deliver(b []byte) {
	h, err := frame.Parse(b)
	s.e.Lock()
	if err == nil {
		err = s.l.Deliver(&h, b[h.Size():])
	}
	if err != nil {
		s.l.Fail(err)
	}
	s.e.Unlock()
}

// An action is a possible next step; i is the message that it applies to.
type action struct {
	what uint8
	i    uint8
}

const (
	actSend uint8 = iota
	actWithdraw
	actCancel
	actPullFrom
	actPullTo
	actDeliverTo
	actDeliverFrom
	actReceive
	actAccept
	actBreak
)

var actText = [...]string{"send", "withdraw", "cancel", "source pulls", "destination pulls", "destination hears", "source hears",
	"receive", "accept", "break"}

func (a action) String() string { return fmt.Sprintf("%s %d", actText[a.what], a.i) }

// actions lists what can happen.
func (d *withdrawModel) actions() (all []action) {
	add := func(what uint8, i int, can bool) {
		if can {
			all = append(all, action{what, uint8(i)})
		}
	}
	add(actSend, 0, len(d.sent) < d.n && !d.cut)
	for i, m := range d.sent {
		add(actWithdraw, i, m.withdraw == nil && !m.recalled && m.sent.Err == nil)
		add(actCancel, i, d.cancels && m.withdraw != nil && m.withdraws == 0 && !m.canceled)
		add(actAccept, i, m.env != nil && !m.accepted && !m.refused)
	}
	add(actPullFrom, 0, d.from.more())
	add(actPullTo, 0, d.to.more())
	add(actDeliverTo, 0, len(d.from.wire) > 0)
	add(actDeliverFrom, 0, len(d.to.wire) > 0)
	add(actReceive, 0, !d.post && d.recv < d.n)
	add(actBreak, 0, d.breaks && !d.cut)
	return all
}

func (s *side) more() bool {
	s.e.Lock()
	defer s.e.Unlock()
	return s.l.hasMore(carrier.Messages)
}

// do makes a happen.
func (d *withdrawModel) do(a action) {
	switch a.what {
	case actSend:
		m := &withdrawMsg{}
		m.send = d.from.nctx.NewOp(func(_ *Op, r Result) { m.sends++; m.sent = r })
		d.sent = append(d.sent, m)
		d.check(d.from.nctx.SendUnexpected(m.send, MakeAddr("duel://to", 0), Tag(len(d.sent)), nil))
	case actWithdraw: // as package hg does it
		m := d.sent[a.i]
		if m.sends == 0 {
			m.recalled = true
			m.send.Cancel()
			break
		}
		m.withdraw = d.from.nctx.NewOp(func(_ *Op, r Result) { m.withdraws++; m.result = r })
		d.check(d.from.nctx.Withdraw(m.withdraw, m.sent.Addr, m.sent.ID))
	case actCancel:
		d.sent[a.i].canceled = true
		d.sent[a.i].withdraw.Cancel()
	case actPullFrom, actPullTo:
		s := &d.from
		if a.what == actPullTo {
			s = &d.to
		}
		s.send()
	case actDeliverTo:
		b := d.from.wire[0]
		d.from.wire = d.from.wire[1:]
		d.to.deliver(b)
	case actDeliverFrom:
		b := d.to.wire[0]
		d.to.wire = d.to.wire[1:]
		d.from.deliver(b)
	case actReceive:
		d.recv++
		d.post = true
		op := d.to.nctx.NewOp(func(_ *Op, r Result) {
			d.post = false
			if r.Err != nil {
				d.bad = "a receive ended with " + r.Err.Error()
				return
			}
			d.sent[r.Tag-1].env = r.Envelope
		})
		d.check(d.to.nctx.RecvUnexpected(op))
	case actAccept:
		m := d.sent[a.i]
		m.accepted = m.env.Accept()
		m.refused = !m.accepted
		m.env.Free()
	case actBreak:
		d.cut = true
		for _, s := range []*side{&d.from, &d.to} {
			s.wire = nil
			s.e.Lock()
			s.l.Fail(ErrPeerLost)
			s.e.Unlock()
		}
	}
	for range 2 {
		for _, s := range []*side{&d.from, &d.to} {
			for d.flushes && s.send() {
			}
			s.nctx.Trigger(0)
		}
	}
}

// send puts the next frame that a side has onto the wire.
func (s *side) send() bool {
	b, ok := s.pull()
	if ok {
		s.wire = append(s.wire, b)
	}
	return ok
}

func (d *withdrawModel) check(err error) {
	if err != nil && d.bad == "" {
		d.bad = "refused: " + err.Error()
	}
}

// verdict describes the fault of the state.
func (d *withdrawModel) verdict() string {
	if d.bad != "" {
		return d.bad
	}
	for i, m := range d.sent {
		switch {
		case m.sends > 1 || m.withdraws > 1:
			return fmt.Sprintf("message %d: %d and %d callbacks", i, m.sends, m.withdraws)
		case m.yes() && m.accepted:
			return fmt.Sprintf("message %d was withdrawn and accepted", i)
		case m.withdraws > 0 && CodeOf(m.result.Err) == ErrTooLate && !m.accepted:
			return fmt.Sprintf("message %d was not accepted, and its withdraw came too late", i)
		case m.withdraws > 0 && m.result.Err != nil && CodeOf(m.result.Err) != ErrTooLate && !m.canceled && !d.cut:
			return fmt.Sprintf("message %d: its withdraw ended with %v", i, m.result.Err)
		}
	}
	a, b := d.from.l, d.to.l
	if v := d.from.e.stats.Violations + d.to.e.stats.Violations; v > 0 {
		return "a side says that the other broke the protocol"
	}
	if d.cut {
		if d.from.nctx.Stats().Outstanding != 0 {
			return "something is under way over a connection that is broken"
		}
		return ""
	}
	onWire := 0
	for _, f := range d.from.wire {
		if h, _ := frame.Parse(f); h.Kind == frame.Unexpected {
			onWire++
		}
	}
	switch {
	case !a.Up() || !b.Up():
		return "the session ended by itself"
	case int(a.used) != int(b.received)+onWire+a.msgs.n:
		return fmt.Sprintf("%d envelopes are used, %d messages have arrived, %d are under way, %d are to leave", a.used, b.received, onWire, a.msgs.n)
	case int32(a.credits-a.used) < 0:
		return fmt.Sprintf("%d envelopes are used of %d", a.used, a.credits)
	case a.credits > b.advertised || b.advertised > b.released+b.guaranteed:
		return fmt.Sprintf("credit %d at the source, %d announced, %d released of %d", a.credits, b.advertised, b.released, b.guaranteed)
	case int(b.received)-int(b.released) != int(b.held) || int(b.held) < 0 || int(b.held) > d.ger || int(b.held) != d.to.nctx.Stats().Envelopes:
		return fmt.Sprintf("%d messages arrived, %d envelopes were released, %d are held, %d counted", b.received, b.released, int(b.held), d.to.nctx.Stats().Envelopes)
	}
	return ""
}

// final describes the fault of a state in which nothing more happens.
func (d *withdrawModel) final() string {
	withdrawn := 0
	for i, m := range d.sent {
		asked := m.withdraw != nil
		switch {
		case m.sends != 1 || asked && m.withdraws != 1:
			return fmt.Sprintf("message %d has not ended: %d, %d", i, m.sends, m.withdraws)
		case d.cut:
			continue
		case m.canceled && m.withdraws == 1 && CodeOf(m.result.Err) == ErrCanceled: // not known
			continue
		case m.yes() == m.accepted:
			return fmt.Sprintf("message %d: withdrawn %v, accepted %v", i, m.yes(), m.accepted)
		case m.yes():
			withdrawn++
		}
	}
	if d.cut {
		return ""
	}
	a, b := d.from.l, d.to.l
	switch {
	case int(b.held) != 0 || b.requests.oldestUnaccepted() != nil:
		return fmt.Sprintf("%d envelopes are held", int(b.held))
	case b.released+b.guaranteed-a.used != b.guaranteed:
		return fmt.Sprintf("%d envelopes are used, %d released", a.used, b.released)
	case len(a.withdraws.ids) != 0 || a.withdraws.open != 0 || b.answered != 0:
		return fmt.Sprintf("%d questions, %d open, %d answers to leave", len(a.withdraws.ids), a.withdraws.open, b.answered)
	}
	return ""
}

// key returns the state as bytes: what the sides hold and what is on the wire.
func (d *withdrawModel) key() string {
	var b []byte
	flag := func(vs ...bool) {
		for _, v := range vs {
			if b = append(b, 0); v {
				b[len(b)-1] = 1
			}
		}
	}
	num := func(vs ...uint32) {
		for _, v := range vs {
			b = binary.LittleEndian.AppendUint32(b, v)
		}
	}
	for _, m := range d.sent {
		flag(m.sends > 0, m.withdraw != nil, m.recalled, m.canceled, m.env != nil, m.accepted, m.refused, m.env != nil && m.env.withdrawn)
		num(uint32(CodeOf(m.sent.Err)), uint32(m.sent.ID), uint32(m.withdraws), uint32(CodeOf(m.result.Err)))
	}
	flag(d.post, d.cut)
	num(uint32(d.recv))
	for _, s := range []*side{&d.from, &d.to} {
		l := s.l
		num(l.credits, l.used, uint32(l.seq), l.released, l.advertised, uint32(l.received), uint32(int(l.held)), uint32(l.answered), uint32(l.withdraws.open))
		flag(l.creditDue)
		for _, list := range []*opList{&l.msgs, &l.queued, &l.withdraws.waiting, &l.withdraws.asked} {
			num(uint32(list.n))
			for o := list.head; o != nil; o = o.next {
				num(uint32(o.id), uint32(o.tag))
			}
		}
		for _, h := range l.flows[carrier.Messages].ctl.all() {
			num(uint32(h.Kind), uint32(h.Op), uint32(h.Tag))
		}
		num(uint32(len(s.wire)))
		for _, f := range s.wire {
			b = append(b, f...)
		}
		num(uint32(s.e.inbox.n))
	}
	for _, env := range d.to.l.requests.slots {
		if env != nil && !env.accepted {
			num(uint32(env.id))
		}
	}
	return string(b)
}

// exploreStates visits every state in the scope.
func exploreStates(t *testing.T, c scope) (states, ends int) {
	type step struct {
		path []action
		next []action
	}
	first := newWithdrawModel(t, c)
	level := []step{{nil, first.actions()}}
	first.close()
	seen := map[string]bool{}
	for len(level) > 0 {
		var below []step
		for _, s := range level {
			for _, a := range s.next {
				path := append(slices.Clone(s.path), a)
				d := newWithdrawModel(t, c)
				for _, b := range path {
					d.do(b)
				}
				wrong := d.verdict()
				if key := d.key(); wrong == "" && !seen[key] {
					seen[key] = true
					next := d.actions()
					if len(next) == 0 || len(next) == 1 && next[0].what == actBreak {
						ends++
						wrong = d.final()
					}
					below = append(below, step{path, next})
				}
				d.close()
				if wrong != "" {
					t.Fatalf("%+v, state %d: %s, after: %v", c, len(seen), wrong, path)
				}
			}
		}
		level = below
	}
	return len(seen), ends
}

func TestWithdrawInterleavings(t *testing.T) {
	for _, c := range []scope{
		{n: 1, ger: 1, cancels: true, breaks: true},
		{n: 2, ger: 1, cancels: true, breaks: true},
		{n: 2, ger: 2, breaks: true},
		{n: 3, ger: 1, flushes: true, cancels: true, breaks: true},
		{n: 3, ger: 2, flushes: true},
		{n: 3, ger: 3, flushes: true},
	} {
		if !long.On && c.n > 2 && c.ger != 2 || raceflag.Enabled && c.n > 2 { // there is one goroutine
			continue
		}
		begun := time.Now()
		states, ends := exploreStates(t, c)
		t.Logf("%+v: %d states, %d ends in %v", c, states, ends, time.Since(begun).Round(time.Millisecond))
		require.Positive(t, ends)
	}
}
