package natest

import (
	"errors"
	"flag"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/na"
	"github.com/quicksilver-rpc/quicksilver/plugins/sim"
)

// A fault is a mistake that the author of a plugin could make. The suite must turn red for it.
type fault struct {
	name   string
	caught []string // rules that must fail, at least
	plant  func(e *badEndpoint)
}

var allFlag = flag.Bool("natest.all", false, "run every rule for every planted fault and say which fail")

// badPlugin wraps a plugin that keeps the rules and breaks one.
type badPlugin struct {
	na.Plugin
	f *fault
}

func (p *badPlugin) Open(cls *na.Class, rest string) (na.Domain, error) {
	d, err := p.Plugin.Open(cls, rest)
	if err != nil {
		return nil, err
	}
	return &badDomain{d, p.f}, nil
}

type badDomain struct {
	na.Domain
	f *fault
}

func (d *badDomain) Driven() bool { return true }

func (d *badDomain) Endpoint(host *na.Host) (na.Endpoint, error) {
	inner, err := d.Domain.Endpoint(host)
	if err != nil {
		return nil, err
	}
	e := &badEndpoint{Endpoint: inner, domain: d.Domain, nctx: host.Context()}
	d.f.plant(e)
	return e, nil
}

// badEndpoint forwards everything, unless one of its functions is set.
type badEndpoint struct {
	na.Endpoint
	domain na.Domain
	nctx   *na.Context
	own    int // operations of its own that are being started: not interfered with
	late   []func()

	sendUnexpected func(t na.Ticket, to na.Addr, tag na.Tag, buf []byte)
	recvUnexpected func(t na.Ticket)
	recvExpected   func(t na.Ticket, from na.Addr, tag na.Tag, buf []byte)
	put, get       func(t na.Ticket, local *na.Mem, loff int64, to na.Addr, key na.Key, roff, n int64)
	lease          func(t na.Ticket, to na.Addr, tag na.Tag, m *na.Mem)
	giveBack       func(to na.Addr, key na.Key)
	lookup         func(t na.Ticket, text string)
	cancel         func(t na.Ticket)
	shut           func()
	drive          func(timeout time.Duration, ready func() bool) bool
	stats          func() na.Stats
}

func (e *badEndpoint) Lookup(t na.Ticket, text string) {
	if e.lookup == nil {
		e.Endpoint.Lookup(t, text)
		return
	}
	e.lookup(t, text)
}

func (e *badEndpoint) SendUnexpected(t na.Ticket, to na.Addr, tag na.Tag, buf []byte, by na.Deadline) {
	if e.sendUnexpected == nil || e.own > 0 {
		e.Endpoint.SendUnexpected(t, to, tag, buf, by)
		return
	}
	e.sendUnexpected(t, to, tag, buf)
}

func (e *badEndpoint) RecvUnexpected(t na.Ticket) {
	if e.recvUnexpected == nil || e.own > 0 {
		e.Endpoint.RecvUnexpected(t)
		return
	}
	e.recvUnexpected(t)
}

func (e *badEndpoint) RecvExpected(t na.Ticket, from na.Addr, tag na.Tag, buf []byte, most int) {
	if e.recvExpected == nil || e.own > 0 {
		e.Endpoint.RecvExpected(t, from, tag, buf, most)
		return
	}
	e.recvExpected(t, from, tag, buf)
}

func (e *badEndpoint) Put(t na.Ticket, local *na.Mem, loff int64, to na.Addr, key na.Key, roff, n int64) {
	if e.put == nil || e.own > 0 {
		e.Endpoint.Put(t, local, loff, to, key, roff, n)
		return
	}
	e.put(t, local, loff, to, key, roff, n)
}

func (e *badEndpoint) Get(t na.Ticket, local *na.Mem, loff int64, to na.Addr, key na.Key, roff, n int64) {
	if e.get == nil || e.own > 0 {
		e.Endpoint.Get(t, local, loff, to, key, roff, n)
		return
	}
	e.get(t, local, loff, to, key, roff, n)
}

func (e *badEndpoint) Lease(t na.Ticket, to na.Addr, tag na.Tag, m *na.Mem) {
	if e.lease == nil {
		e.Endpoint.Lease(t, to, tag, m)
		return
	}
	e.lease(t, to, tag, m)
}

func (e *badEndpoint) GiveBack(to na.Addr, key na.Key) {
	if e.giveBack == nil {
		e.Endpoint.GiveBack(to, key)
		return
	}
	e.giveBack(to, key)
}

func (e *badEndpoint) Cancel(t na.Ticket) {
	if e.cancel == nil {
		e.Endpoint.Cancel(t)
		return
	}
	e.cancel(t)
}

func (e *badEndpoint) Shut() {
	if e.shut == nil {
		e.Endpoint.Shut()
		return
	}
	e.shut()
}

func (e *badEndpoint) Stats() na.Stats {
	if e.stats == nil {
		return e.Endpoint.Stats()
	}
	return e.stats()
}

// Drive does first what was put off.
func (e *badEndpoint) Drive(timeout time.Duration, ready func() bool) bool {
	late := e.late
	e.late = nil
	for _, f := range late {
		f()
	}
	if e.drive != nil {
		return e.drive(timeout, ready)
	}
	return e.Endpoint.(na.Driver).Drive(timeout, ready)
}

func (e *badEndpoint) Wake() { e.Endpoint.(na.Driver).Wake() }

func (e *badEndpoint) FlushSoon() { e.Endpoint.(na.Driver).FlushSoon() }

// operation starts an operation of the plugin's own.
func (e *badEndpoint) operation(start func(op *na.Op) error, done na.Done) *na.Op {
	op := e.nctx.NewOp(done)
	e.own++
	defer func() { e.own-- }()
	if err := start(op); err != nil {
		return nil
	}
	return op
}

func ignore(*na.Op, na.Result) {}

// every returns a function that reports true each n-th time.
func every(n int) func() bool {
	i := 0
	return func() bool { i++; return i%n == 0 }
}

// code is the cause of an error that na has wrapped.
func code(err error) error {
	if err == nil {
		return nil
	}
	return na.CodeOf(err)
}

var faults = []fault{
	{"loses a message", []string{"OrderUnexpected"}, func(e *badEndpoint) {
		hit := every(50)
		e.sendUnexpected = func(t na.Ticket, to na.Addr, tag na.Tag, buf []byte) {
			if hit() {
				t.Finish(na.Result{N: int64(len(buf))})
				return
			}
			e.Endpoint.SendUnexpected(t, to, tag, buf, na.Deadline{})
		}
	}},
	{"sends a message twice", []string{"OrderUnexpected"}, func(e *badEndpoint) {
		hit := every(50)
		e.sendUnexpected = func(t na.Ticket, to na.Addr, tag na.Tag, buf []byte) {
			if hit() {
				twin := append([]byte(nil), buf...)
				e.operation(func(op *na.Op) error { return e.nctx.SendUnexpected(op, to, tag, twin) }, ignore)
			}
			e.Endpoint.SendUnexpected(t, to, tag, buf, na.Deadline{})
		}
	}},
	{"reorders messages", []string{"OrderUnexpected"}, func(e *badEndpoint) {
		hit := every(20)
		e.sendUnexpected = func(t na.Ticket, to na.Addr, tag na.Tag, buf []byte) {
			if hit() {
				e.late = append(e.late, func() { e.Endpoint.SendUnexpected(t, to, tag, buf, na.Deadline{}) })
				return
			}
			e.Endpoint.SendUnexpected(t, to, tag, buf, na.Deadline{})
		}
	}},
	{"reads a send buffer after the callback", []string{"SendBufferIsOurs"}, func(e *badEndpoint) {
		e.sendUnexpected = func(t na.Ticket, to na.Addr, tag na.Tag, buf []byte) {
			t.Finish(na.Result{N: int64(len(buf))})
			e.late = append(e.late, func() {
				e.operation(func(op *na.Op) error { return e.nctx.SendUnexpected(op, to, tag, buf) }, ignore)
			})
		}
	}},
	{"cuts a message that is too long for its buffer", []string{"ExpectedTooLong"}, func(e *badEndpoint) {
		e.recvExpected = func(t na.Ticket, from na.Addr, tag na.Tag, buf []byte) {
			room := make([]byte, e.nctx.Limits().MaxExpected)
			e.operation(func(op *na.Op) error { return e.nctx.RecvExpected(op, from, tag, room) },
				func(_ *na.Op, r na.Result) {
					n := copy(buf, room[:r.N])
					t.Finish(na.Result{Err: code(r.Err), N: int64(n), Addr: r.Addr, Tag: r.Tag})
				})
		}
	}},
	{"names the wrong sender", []string{"Contexts"}, func(e *badEndpoint) {
		e.recvUnexpected = func(t na.Ticket) {
			e.operation(func(op *na.Op) error { return e.nctx.RecvUnexpected(op) }, func(_ *na.Op, r na.Result) {
				if r.Envelope != nil {
					r.Envelope.From = r.Envelope.From.WithTarget(0)
					r.Addr = r.Envelope.From
				}
				r.Err = code(r.Err)
				t.Finish(r)
			})
		}
	}},
	{"gives an envelope back when it is received", []string{"AcceptFreesRoom"}, func(e *badEndpoint) {
		e.recvUnexpected = func(t na.Ticket) {
			e.operation(func(op *na.Op) error { return e.nctx.RecvUnexpected(op) }, func(_ *na.Op, r na.Result) {
				if r.Envelope != nil {
					r.Envelope.Accept()
				}
				r.Err = code(r.Err)
				t.Finish(r)
			})
		}
	}},
	{"gives an envelope back when it is freed only", []string{"AcceptFreesRoom"}, func(e *badEndpoint) {
		e.recvUnexpected = func(t na.Ticket) {
			e.operation(func(op *na.Op) error { return e.nctx.RecvUnexpected(op) }, func(_ *na.Op, r na.Result) {
				if r.Envelope != nil {
					r.Envelope.Owner = stingy{r.Envelope.Owner}
				}
				r.Err = code(r.Err)
				t.Finish(r)
			})
		}
	}},
	{"forgets a cancel", []string{"CancelNow", "CancelEverywhere"}, func(e *badEndpoint) {
		e.cancel = func(na.Ticket) {}
	}},
	{"cancels at the next progress", []string{"CancelNow", "CancelSelf"}, func(e *badEndpoint) {
		e.cancel = func(t na.Ticket) { e.late = append(e.late, func() { e.Endpoint.Cancel(t) }) }
	}},
	{"says that a message did not run that has left", []string{"CancelNotRun"}, func(e *badEndpoint) {
		sent := map[na.Ticket]bool{}
		e.sendUnexpected = func(t na.Ticket, to na.Addr, tag na.Tag, buf []byte) {
			twin := append([]byte(nil), buf...)
			sent[t] = true
			e.operation(func(op *na.Op) error { return e.nctx.SendUnexpected(op, to, tag, twin) },
				func(_ *na.Op, r na.Result) {
					delete(sent, t)
					t.Finish(na.Result{Err: code(r.Err), Fate: r.Fate, N: r.N})
				})
		}
		e.cancel = func(t na.Ticket) {
			if sent[t] {
				t.Finish(na.Result{Err: na.ErrCanceled, Fate: na.NotRun})
				return
			}
			e.Endpoint.Cancel(t)
		}
	}},
	{"writes a receive buffer after a cancel", []string{"CanceledReceiveUntouched", "CancelNow"}, func(e *badEndpoint) {
		bufs := map[na.Ticket][]byte{}
		e.recvExpected = func(t na.Ticket, from na.Addr, tag na.Tag, buf []byte) {
			bufs[t] = buf
			e.Endpoint.RecvExpected(t, from, tag, buf, 0)
		}
		e.cancel = func(t na.Ticket) {
			if buf := bufs[t]; len(buf) > 0 {
				e.late = append(e.late, func() { buf[0] ^= 0xff })
			}
			e.Endpoint.Cancel(t)
		}
	}},
	{"writes memory of a canceled get", []string{"CanceledGetUntouched"}, func(e *badEndpoint) {
		gets := map[na.Ticket]*na.Mem{}
		e.get = func(t na.Ticket, local *na.Mem, loff int64, to na.Addr, key na.Key, roff, n int64) {
			gets[t] = local
			e.Endpoint.Get(t, local, loff, to, key, roff, n)
		}
		e.cancel = func(t na.Ticket) {
			if m := gets[t]; m != nil && m.Len() > 0 {
				e.late = append(e.late, func() { m.Slices(nil, m.Len()-1, 1)[0][0] ^= 0xff })
			}
			e.Endpoint.Cancel(t)
		}
	}},
	{"sends memory of a canceled put", []string{"CanceledPutUnread"}, func(e *badEndpoint) {
		puts := map[na.Ticket]func(){}
		e.put = func(t na.Ticket, local *na.Mem, loff int64, to na.Addr, key na.Key, roff, n int64) {
			puts[t] = func() {
				e.operation(func(op *na.Op) error { return e.nctx.Put(op, local, loff, to, key, roff, n) }, ignore)
			}
			e.Endpoint.Put(t, local, loff, to, key, roff, n)
		}
		e.cancel = func(t na.Ticket) {
			if again := puts[t]; again != nil {
				e.late = append(e.late, again)
			}
			e.Endpoint.Cancel(t)
		}
	}},
	{"ends a get before its last bytes are there", []string{"MoveSizes", "MoveLarge"}, func(e *badEndpoint) {
		e.get = func(t na.Ticket, local *na.Mem, loff int64, to na.Addr, key na.Key, roff, n int64) {
			m, _ := e.nctx.Class().NewMem(make([]byte, n))
			e.operation(func(op *na.Op) error { return e.nctx.Get(op, m, 0, to, key, roff, n) }, func(_ *na.Op, r na.Result) {
				local.Release()
				t.Finish(na.Result{Err: code(r.Err), N: r.N, Fate: r.Fate, Addr: r.Addr})
				e.late = append(e.late, func() {
					b := m.Segments()[0]
					for _, s := range local.Slices(nil, loff, n) {
						b = b[copy(s, b):]
					}
				})
			})
		}
	}},
	{"ends a put when it has begun", []string{"MoveSizes"}, func(e *badEndpoint) {
		e.put = func(t na.Ticket, local *na.Mem, loff int64, to na.Addr, key na.Key, roff, n int64) {
			e.operation(func(op *na.Op) error { return e.nctx.Put(op, local, loff, to, key, roff, n) }, ignore)
			local.Release()
			t.Finish(na.Result{N: n})
		}
	}},
	{"never lets local memory go", []string{"LocalDeregistered"}, func(e *badEndpoint) {
		e.put = func(t na.Ticket, local *na.Mem, loff int64, to na.Addr, key na.Key, roff, n int64) {
			local.Join()
			e.Endpoint.Put(t, local, loff, to, key, roff, n)
		}
	}},
	{"finishes the next life of an operation with the result of the last", []string{"ReuseReceive", "CancelTwice"},
		func(e *badEndpoint) {
			seen := map[*na.Op]bool{}
			e.recvExpected = func(t na.Ticket, from na.Addr, tag na.Tag, buf []byte) {
				e.Endpoint.RecvExpected(t, from, tag, buf, 0)
				if seen[t.Op()] {
					t.Finish(na.Result{N: 1, Addr: from, Tag: tag})
				}
				seen[t.Op()] = true
			}
		}},
	{"finishes the next life of a get early", []string{"ReuseAfterCancel", "RestartInCallback"}, func(e *badEndpoint) {
		seen := map[*na.Op]bool{}
		e.get = func(t na.Ticket, local *na.Mem, loff int64, to na.Addr, key na.Key, roff, n int64) {
			e.Endpoint.Get(t, local, loff, to, key, roff, n)
			if seen[t.Op()] {
				t.Finish(na.Result{Err: na.ErrCanceled})
			}
			seen[t.Op()] = true
		}
	}},
	{"ends no lease when it is given back", []string{"LeaseRead", "LeaseTwice"}, func(e *badEndpoint) {
		e.giveBack = func(na.Addr, na.Key) {}
	}},
	{"lends to everybody", []string{"LeaseOtherPeer"}, func(e *badEndpoint) {
		e.lease = func(t na.Ticket, to na.Addr, tag na.Tag, m *na.Mem) {
			e.Endpoint.Lease(t, to, tag, m)
			_ = e.domain.Publish(m)
		}
	}},
	{"does not end what is pending when it closes", []string{"LocalClose"}, func(e *badEndpoint) {
		e.shut = func() { e.late = append(e.late, e.Endpoint.Shut) }
	}},
	{"returns from Progress at once", []string{"ProgressIdle"}, func(e *badEndpoint) {
		e.drive = func(_ time.Duration, ready func() bool) bool { return e.Endpoint.(na.Driver).Drive(0, ready) }
	}},
	{"sends to the first context whatever the address says", []string{"Contexts"}, func(e *badEndpoint) {
		e.sendUnexpected = func(t na.Ticket, to na.Addr, tag na.Tag, buf []byte) {
			e.Endpoint.SendUnexpected(t, to.WithTarget(0), tag, buf, na.Deadline{})
		}
	}},
	{"sends to the name that an address was bound to", []string{"BoundAddress"}, func(e *badEndpoint) {
		e.sendUnexpected = func(t na.Ticket, to na.Addr, tag na.Tag, buf []byte) {
			e.Endpoint.SendUnexpected(t, to.Named(), tag, buf, na.Deadline{})
		}
	}},
	{"finds whatever it is asked for", []string{"Lookup"}, func(e *badEndpoint) {
		e.lookup = func(t na.Ticket, text string) {
			addr, err := na.ParseAddr(text)
			t.Finish(na.Result{Addr: addr, Err: err})
		}
	}},
	{"ends with an error that carries no code", []string{"Unreachable", "LocalClose"}, func(e *badEndpoint) {
		e.sendUnexpected = func(t na.Ticket, to na.Addr, tag na.Tag, buf []byte) {
			twin := append([]byte(nil), buf...)
			e.operation(func(op *na.Op) error { return e.nctx.SendUnexpected(op, to, tag, twin) },
				func(_ *na.Op, r na.Result) {
					if r.Err != nil {
						r.Err = errors.New("it did not work")
					}
					t.Finish(na.Result{Err: r.Err, Fate: r.Fate, N: r.N})
				})
		}
	}},
	{"tells the wrong length", []string{"OrderUnexpected", "SizesUnexpected"}, func(e *badEndpoint) {
		e.sendUnexpected = func(t na.Ticket, to na.Addr, tag na.Tag, buf []byte) {
			twin := append([]byte(nil), buf...)
			e.operation(func(op *na.Op) error { return e.nctx.SendUnexpected(op, to, tag, twin) },
				func(_ *na.Op, r na.Result) {
					t.Finish(na.Result{Err: code(r.Err), Fate: r.Fate, N: r.N + 1})
				})
		}
	}},
	{"counts nothing", []string{"Envelopes", "DropLate"}, func(e *badEndpoint) {
		e.stats = func() na.Stats { return na.Stats{} }
	}},
	{"forgets an operation in its counters", []string{"CancelNow"}, func(e *badEndpoint) {
		leaked := 0
		e.cancel = func(t na.Ticket) { leaked++; e.Endpoint.Cancel(t) }
		e.stats = func() na.Stats {
			s := e.Endpoint.Stats()
			s.Outstanding += leaked
			return s
		}
	}},
}

// stingy gives no room back before Free.
type stingy struct{ na.Endpoint }

func (stingy) AcceptEnvelope(*na.Envelope) bool { return true }

// network is the simulator with f planted, or without.
func faulty(f *fault) Maker {
	return func(testing.TB) Network {
		var p na.Plugin = sim.NewWorld(sim.Config{Seed: 1, NoAssist: true, Latency: 20 * time.Microsecond}).Plugin()
		if f != nil {
			p = &badPlugin{p, f}
		}
		return Network{
			Listen: func(n int) string { return fmt.Sprint("sim://node", n) }, Origin: "sim://", Nobody: "sim://nobody",
			Pending: "sim://far", Plugins: []na.Plugin{p},
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
				r := record(t, func(tb testing.TB) { Check(tb, faulty(f), name) })
				if failed[name] = r.Failed(); failed[name] {
					t.Logf("caught by %s: %s", name, r.first())
				}
			}
			for _, name := range f.caught {
				require.True(t, failed[name], "a plugin that %s passes rule %s", f.name, name)
			}
		})
	}
}

// A rule is skipped by a name that exists and for a reason; Check knows no other names either.
func TestSkip(t *testing.T) {
	require.Empty(t, checkSkip(nil))
	require.Empty(t, checkSkip(map[string]string{"Tags": "this network has none"}))
	problems := checkSkip(map[string]string{"Tags": "", "Tag": "a slip of the pen"})
	require.Len(t, problems, 2)
	require.Contains(t, problems[0], "rule Tags is skipped without a reason")
	require.Contains(t, problems[1], `"Tag", which does not exist`)
	r := record(t, func(tb testing.TB) { Check(tb, faulty(nil), "Tag") })
	require.True(t, r.Failed())
	require.Contains(t, r.first(), `there is no rule "Tag"`)
}

// A rule that fails says why it is there, and leaves nothing behind.
func TestFailureIsExplained(t *testing.T) {
	r := record(t, func(tb testing.TB) { Check(tb, faulty(&faults[0]), "OrderUnexpected") })
	require.True(t, r.Failed())
	require.Contains(t, strings.Join(r.lines, "\n"), "rule OrderUnexpected: "+find("OrderUnexpected").why)
	require.NotContains(t, strings.Join(r.lines, "\n"), "left behind")
}

// The wrapper itself breaks nothing: what fails above fails because of the fault.
func TestNoFault(t *testing.T) {
	harmless := &fault{name: "does nothing", plant: func(*badEndpoint) {}}
	TestPlugin(t, faulty(harmless), nil)
}

// A plugin that finishes a ticket of a former life, or wants to touch its memory, is refused: na sees to it, and no rule
// has anything to catch.
func TestKeptTicketsAreRefused(t *testing.T) {
	tried := 0
	f := &fault{name: "finishes with kept tickets", plant: func(e *badEndpoint) {
		last := map[*na.Op]na.Ticket{}
		again := func(t na.Ticket) bool {
			old, ok := last[t.Op()]
			last[t.Op()] = t
			if !ok {
				return true
			}
			tried++
			e.Endpoint.Cancel(old)
			return !old.Finish(na.Result{N: 1}) && !old.Hold() && !old.Canceling()
		}
		e.recvExpected = func(tk na.Ticket, from na.Addr, tag na.Tag, buf []byte) {
			e.Endpoint.RecvExpected(tk, from, tag, buf, 0)
			require.True(t, again(tk), "a ticket of a former life did something")
		}
		e.get = func(tk na.Ticket, local *na.Mem, loff int64, to na.Addr, key na.Key, roff, n int64) {
			e.Endpoint.Get(tk, local, loff, to, key, roff, n)
			require.True(t, again(tk), "a ticket of a former life did something")
		}
	}}
	for _, name := range []string{"ReuseReceive", "ReuseAfterCancel", "CancelTwice", "CancelInCallback", "RestartInCallback"} {
		t.Run(name, func(t *testing.T) { Check(t, faulty(f), name) })
	}
	require.Greater(t, tried, 50)
}
