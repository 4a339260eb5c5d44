package hg_test

// The hazards of Mercury's calls, H1 to H17, each with its number in the name of a test; some are in other files. Package
// internal/test/mutant plants the bug of each and requires that its test fails.

import (
	"flag"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/hg"
	"github.com/quicksilver-rpc/quicksilver/internal/raceflag"
	"github.com/quicksilver-rpc/quicksilver/internal/test/long"
	"github.com/quicksilver-rpc/quicksilver/internal/test/transports"
	"github.com/quicksilver-rpc/quicksilver/na"
)

var races = flag.Int("hg.races", long.Or(10_000, 100_000), "calls of TestH1CancelRacesForward over all transports, and ten times those of TestH2EndsOnce")

// raceRounds is how many of them are for one transport.
func raceRounds(n *transports.Net) int { return shareOfRounds(n, *races, 100) }

// shareOfRounds is how many of all are for one transport: a part of them for either tcp, and the rest for sim, where it does not take a
// wake-up by the kernel for each.
func shareOfRounds(n *transports.Net, all, part int) int {
	r := all / part
	if n.Sim {
		r = all - 2*r
	}
	if raceflag.Enabled {
		r /= 20
	}
	return r
}

// partialTarget answers every second request; of the others it keeps the last few.
type partialTarget struct {
	n    int
	kept []hg.Request
}

func (f *partialTarget) handler(h hg.Request) error {
	if f.n++; f.n%2 == 0 {
		return echo(h)
	}
	if f.kept = append(f.kept, detach(h)); len(f.kept) > 8 {
		releaseUnanswered(f.kept[0])
		f.kept = f.kept[1:]
	}
	return nil
}

// repeat calls f again and again until the returned stop is called.
func repeat(f func()) (stop func()) {
	var over atomic.Bool
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for !over.Load() {
			f()
			runtime.Gosched()
		}
	}()
	return func() {
		over.Store(true)
		<-ended
	}
}

// TestH1CancelRacesForward races a cancel from another goroutine in a tight loop with Forward, of
// calls of which half are never answered: every call ends, once, and after the cancels the handle's
// next call has its own answer.
func TestH1CancelRacesForward(t *testing.T) {
	t.Parallel()
	transports.Each(t, func(t *testing.T, n *transports.Net) {
		p := newPair(t, n, hg.Config{})
		var f partialTarget
		id := p.rpc("half", f.handler)
		n.Serve(p.tctx, 1)
		h := p.handle(id)
		stop := repeat(h.Cancel)
		canceled := 0
		for range raceRounds(n) {
			var o outcome
			require.NoError(t, h.ForwardRaw([]byte("x"), o.cb))
			n.Until(func() bool { return o.calls > 0 })
			require.Equal(t, 1, o.calls)
			if o.err != nil {
				require.ErrorIs(t, o.err, hg.ErrCanceled)
				canceled++
			}
		}
		stop()
		t.Logf("%d of %d canceled", canceled, raceRounds(n))
		require.NoError(t, h.Reset(h.Peer(), p.rpc("echo", echo)))
		var o outcome
		require.NoError(t, h.Forward("own answer", o.cb))
		n.Until(func() bool { return o.calls > 0 })
		require.NoError(t, o.err)
		var out string
		require.NoError(t, h.Output(&out))
		require.Equal(t, "own answer", out)
		h.Close()
	})
}

// TestH2EndsOnce is TestH1CancelRacesForward with a goroutine that triggers, too: a call whose
// first part ends before the second is posted ends once all the same, and its handle is free then.
func TestH2EndsOnce(t *testing.T) {
	transports.Each(t, func(t *testing.T, n *transports.Net) {
		p := newPair(t, n, hg.Config{})
		id := p.rpc("echo", echo)
		n.Serve(p.tctx, 1)
		h := p.handle(id)
		var calls atomic.Int64
		ended := func(*hg.Handle, error) { calls.Add(1) }
		stop := repeat(func() {
			h.Cancel()
			p.octx.Trigger(0)
		})
		for i := range int64(raceRounds(n) / 10) {
			require.NoError(t, h.ForwardRaw([]byte("x"), ended))
			n.Until(func() bool { return calls.Load() > i })
			require.Equal(t, i+1, calls.Load(), "callbacks")
		}
		stop()
		require.Equal(t, int64(1), p.octx.Stats().Handles, "handles")
		h.Close()
		require.Zero(t, p.octx.Stats().Handles)
	})
}

// startPull has the output of a call in flight piece by piece, the next of which is not requested
// until there is a Trigger.
func startPull(t *testing.T, p *pair, o *outcome) *hg.Handle {
	big := make([]byte, 8<<20)
	h := p.handle(p.rpc("give", func(h hg.Request) error { return h.RespondRaw(big, nil) }))
	require.NoError(t, h.Forward(nil, o.cb))
	for still := p.Bounded(); p.octx.Stats().Pulled == 0; p.octx.NA().Trigger(1) {
		p.tctx.Trigger(0)
		_ = p.tctx.Progress(0)
		_ = p.octx.NA().Progress(0)
		still()
	}
	return h
}

// TestH3CancelWhileFetched checks that a call whose large output is being fetched is canceled at
// once, whatever the target does.
func TestH3CancelWhileFetched(t *testing.T) {
	transports.Each(t, func(t *testing.T, n *transports.Net) {
		p := newPair(t, n, hg.Config{})
		var o outcome
		h := startPull(t, p, &o)
		h.Cancel()
		p.octx.Trigger(0)
		require.Equal(t, 1, o.calls, "callbacks of a call that was canceled while its output was fetched")
		require.ErrorIs(t, o.err, hg.ErrCanceled)
		require.Zero(t, p.octx.Stats().Pulled)
		h.Close()
		p.requireClean(0)
	})
}

// TestH3bFetchThatCannotBegin checks that a large output whose fetch cannot begin ends its call
// with an error, and is given back.
func TestH3bFetchThatCannotBegin(t *testing.T) {
	transports.Each(t, func(t *testing.T, n *transports.Net) {
		p := &pair{Net: n, t: t}
		p.target, p.tctx = n.Target(hg.Config{})
		p.origin, p.octx = n.Origin(hg.Config{MaxPulled: 64 << 10})
		h := p.handle(p.rpc("give", func(h hg.Request) error { return h.RespondRaw(make([]byte, 1<<20), nil) }))
		err := p.call(h, nil)
		require.ErrorIs(t, err, hg.ErrAgain)
		require.Equal(t, na.Ran, hg.FateOf(err))
		h.Close()
		p.requireClean(0)
	})
}

// TestH3bTargetExitsBeforeFetch checks that when the target of a large output exits after its
// answer has arrived and before the output is requested, the handler ran, and the output is lost.
func TestH3bTargetExitsBeforeFetch(t *testing.T) {
	transports.Each(t, func(t *testing.T, n *transports.Net) {
		p := newPair(t, n, hg.Config{})
		h := p.handle(p.rpc("give", func(h hg.Request) error { return h.RespondRaw(make([]byte, 1<<20), nil) }))
		n.Undriven(p.tctx)
		var o outcome
		require.NoError(t, h.Forward(nil, o.cb))
		p.driveTargetUntil(func() bool { return p.octx.Stats().NA.Outstanding == 0 })
		require.NoError(t, p.target.Close())
		p.driveTargetUntil(func() bool { return p.octx.Stats().NA.PeersLeft == 1 })
		n.Until(func() bool { return o.calls > 0 })
		require.ErrorIs(t, o.err, hg.ErrPeerLost)
		require.Equal(t, na.Ran, hg.FateOf(o.err))
		p.octx.Trigger(0)
		require.Equal(t, 1, o.calls)
		require.Zero(t, p.octx.Stats().Pulled)
		h.Close()
		require.Zero(t, p.octx.Stats().Handles)
	})
}

// TestH4ReuseWhileFetched checks that a target that is slow to fetch a large input sees that of a
// call which was canceled, or an error; never that of the next call, which uses the same memory.
func TestH4ReuseWhileFetched(t *testing.T) {
	transports.Each(t, func(t *testing.T, n *transports.Net) {
		p := newPair(t, n, hg.Config{})
		seen := map[byte]int{}
		h := p.handle(p.rpc("look", func(h hg.Request) error {
			in, err := h.InputRaw()
			require.NoError(t, err)
			for _, b := range in {
				require.Equal(t, in[0], b, "input of two calls")
			}
			seen[in[0]]++
			return h.RespondRaw(in[:1], nil)
		}))
		in := make([]byte, 32<<10)
		var first, second outcome
		require.NoError(t, h.ForwardRaw(in, first.cb))
		p.waitForRequests(1)
		h.Cancel()
		p.octx.Trigger(0)
		require.Equal(t, 1, first.calls)
		for i := range in {
			in[i] = 1
		}
		require.NoError(t, h.ForwardRaw(in, second.cb))
		p.waitForRequests(2)
		n.Until(func() bool { return second.calls == 1 })
		require.NoError(t, second.err)
		n.Until(func() bool { return p.tctx.Stats().Handles == 0 })
		require.Equal(t, 1, seen[1], "the input of the second call")
		h.Close()
		p.requireClean(0)
	})
}

// TestH6SameNumbersBothWays has two processes call each other at the same time, with the same
// identities, and with all bodies larger than a message.
func TestH6SameNumbersBothWays(t *testing.T) {
	transports.Each(t, func(t *testing.T, n *transports.Net) {
		p := &pair{Net: n, t: t}
		p.target, p.tctx = n.Target(hg.Config{})
		p.origin, p.octx = n.Target(hg.Config{})
		for _, cls := range []*hg.Class{p.target, p.origin} {
			_, err := cls.Register("echo", echo)
			require.NoError(t, err)
		}
		var handles [2]*hg.Handle
		var err error
		handles[0], err = p.octx.Create(p.target.Addr(), hg.HashName("echo"))
		require.NoError(t, err)
		handles[1], err = p.tctx.Create(p.origin.Addr(), hg.HashName("echo"))
		require.NoError(t, err)
		for round := range 50 {
			var outs [2]outcome
			in := make([]byte, 200_000)
			for i, h := range handles {
				in[0] = byte(i)
				require.NoError(t, h.ForwardRaw(in, outs[i].cb))
			}
			if round%2 == 1 {
				handles[round/2%2].Cancel()
			}
			n.Until(func() bool { return outs[0].calls > 0 && outs[1].calls > 0 })
			for i, h := range handles {
				if round%2 == 1 && i == round/2%2 {
					continue
				}
				require.NoError(t, outs[i].err)
				out, err := h.OutputRaw()
				require.NoError(t, err)
				require.Len(t, out, len(in))
				require.Equal(t, byte(i), out[0])
			}
		}
		for _, h := range handles {
			h.Close()
		}
		p.requireClean(0)
	})
}

// TestH7SendFails checks that a request that cannot be sent ends its call, whose receive is posted
// already: when there is no envelope, and when the peer exits before it has run anything.
func TestH7SendFails(t *testing.T) {
	transports.Each(t, func(t *testing.T, n *transports.Net) {
		p := &pair{Net: n, t: t}
		p.target, p.tctx = n.Target(hg.Config{NA: na.Config{Envelopes: 2}})
		p.origin, p.octx = n.Origin(hg.Config{NA: na.Config{OnNoCredit: na.Fail}})
		id := p.rpc("echo", echo)
		first := p.handle(id)
		require.NoError(t, p.call(first, "connects"))
		outs := make([]outcome, 4)
		handles := make([]*hg.Handle, len(outs))
		for i := range outs {
			handles[i] = p.handle(id)
			in := "x"
			if i == 3 { // it is lent
				in = strings.Repeat("x", 100_000)
			}
			require.NoError(t, handles[i].Forward(in, outs[i].cb))
			p.octx.Trigger(0)
		}
		p.octx.Trigger(0)
		for i := 2; i < len(outs); i++ {
			require.Equal(t, 1, outs[i].calls, "callbacks of a call without an envelope")
			require.ErrorIs(t, outs[i].err, hg.ErrNoCredit)
			require.Equal(t, na.NotRun, hg.FateOf(outs[i].err))
		}
		n.Undriven(p.tctx)
		n.Until(func() bool { // two have left
			_ = p.tctx.Progress(0)
			return p.tctx.Stats().NA.Envelopes == 2
		})
		require.NoError(t, p.target.Close())
		n.Until(func() bool { return outs[0].calls > 0 && outs[1].calls > 0 })
		for i := range outs {
			require.Equal(t, 1, outs[i].calls)
			if i < 2 {
				require.ErrorIs(t, outs[i].err, hg.ErrPeerLost)
			}
			require.Equal(t, na.NotRun, hg.FateOf(outs[i].err), "no handler of it has begun")
			handles[i].Close()
		}
		first.Close()
		require.Zero(t, p.octx.Stats().Handles)
	})
}

// TestH8PeerExits has the peer exit while a request waits for an envelope, and its receive for the
// answer: both parts of the call fail. It ends once, and did not run; nor did the one before it,
// which had arrived.
func TestH8PeerExits(t *testing.T) {
	transports.Each(t, func(t *testing.T, n *transports.Net) {
		p, handles, outs := newExitedPeerCalls(t, n)
		p.octx.Trigger(0)
		for i := range handles {
			require.Equal(t, 1, outs[i].calls, "callbacks of a call whose peer has gone")
			require.ErrorIs(t, outs[i].err, hg.ErrPeerLost)
			require.Equal(t, na.NotRun, hg.FateOf(outs[i].err))
			handles[i].Close()
		}
		p.octx.Trigger(0)
		require.Zero(t, p.octx.Stats().Handles)
	})
}

// TestH9CancelAfterPeerExit cancels the same calls when their parts have failed and that is
// not processed yet: no part has ErrCanceled, and each call does.
func TestH9CancelAfterPeerExit(t *testing.T) {
	transports.Each(t, func(t *testing.T, n *transports.Net) {
		p, handles, outs := newExitedPeerCalls(t, n)
		for _, h := range handles {
			h.Cancel()
		}
		p.octx.Trigger(0)
		for i := range handles {
			require.Equal(t, 1, outs[i].calls, "callbacks of a call whose peer has gone")
			require.ErrorIs(t, outs[i].err, hg.ErrCanceled)
			handles[i].Close()
		}
		p.octx.Trigger(0)
		require.Zero(t, p.octx.Stats().Handles)
	})
}

// newExitedPeerCalls returns two calls whose peer has exited; the origin has received that and triggered
// nothing: the request of the first had left, that of the second waited for an envelope.
func newExitedPeerCalls(t *testing.T, n *transports.Net) (p *pair, handles [2]*hg.Handle, outs *[2]outcome) {
	p = newPair(t, n, hg.Config{NA: na.Config{Envelopes: 1}})
	id := p.rpc("echo", echo)
	h := p.handle(id)
	require.NoError(t, p.call(h, "connects"))
	h.Close()
	n.Until(func() bool { return p.octx.Stats().NA.Outstanding == 0 && p.tctx.Stats().Handles == 0 })
	n.Undriven(p.octx, p.tctx)
	outs = new([2]outcome)
	for i := range handles {
		handles[i] = p.handle(id)
		require.NoError(t, handles[i].Forward("x", outs[i].cb))
	}
	p.driveTargetUntil(func() bool { return p.octx.Stats().NA.Queued == 1 }) // the portable carrier's writer has taken the first
	n.Until(func() bool {
		_ = p.tctx.Progress(0)
		return p.tctx.Stats().NA.Envelopes == 1
	})
	require.NoError(t, p.target.Close())
	p.driveTargetUntil(func() bool { return p.octx.Stats().NA.PeersLeft == 1 })
	require.Zero(t, outs[0].calls+outs[1].calls)
	return p, handles, outs
}

// driveTargetUntil drives the target, and moves bytes at the origin without a Trigger, until done reports true.
func (p *pair) driveTargetUntil(done func() bool) {
	p.t.Helper()
	for still := p.Bounded(); !done(); still() {
		p.tctx.Trigger(0)
		p.passTime(100 * time.Microsecond)
	}
}

// TestH10ManyCancel checks that a call that eight goroutines cancel while its answer arrives ends
// once, and only by its parts.
func TestH10ManyCancel(t *testing.T) {
	transports.Each(t, func(t *testing.T, n *transports.Net) {
		p := newPair(t, n, hg.Config{})
		id := p.rpc("echo", echo)
		n.Serve(p.tctx, 1)
		h := p.handle(id)
		for range 200 {
			var o outcome
			require.NoError(t, h.ForwardRaw([]byte("x"), o.cb))
			var wg sync.WaitGroup
			for range 8 {
				wg.Go(h.Cancel)
			}
			n.Until(func() bool { return o.calls > 0 })
			wg.Wait()
			p.octx.Trigger(0)
			require.Equal(t, 1, o.calls, "callbacks")
			require.EqualValues(t, 1, p.octx.Stats().Handles, "handles")
		}
		h.Close()
		require.Zero(t, p.octx.Stats().Handles)
	})
}

// TestH11ErrorOrCallback checks that a Forward that returns an error runs no callback, ever.
func TestH11ErrorOrCallback(t *testing.T) {
	transports.Each(t, func(t *testing.T, n *transports.Net) {
		p := newPair(t, n, hg.Config{MaxInput: 100_000})
		h := p.handle(p.rpc("echo", echo))
		var good, refused outcome
		require.ErrorIs(t, h.ForwardRaw(make([]byte, 100_001), refused.cb), hg.ErrOverflow)
		h.SetTimeout(-1)
		require.ErrorIs(t, h.ForwardRaw(nil, refused.cb), hg.ErrTimeout)
		h.SetTimeout(0)
		require.NoError(t, h.ForwardRaw(nil, good.cb))
		require.ErrorIs(t, h.ForwardRaw(nil, refused.cb), na.ErrBusy)
		n.Until(func() bool { return good.calls > 0 })
		require.NoError(t, p.origin.Close())
		require.ErrorIs(t, h.ForwardRaw(nil, refused.cb), hg.ErrClosed)
		require.ErrorIs(t, h.ForwardRaw(make([]byte, 50_000), refused.cb), hg.ErrClosed)
		h.Close()
		n.Until(p.origin.NA().Closed)
		p.octx.Trigger(0)
		require.Equal(t, 1, good.calls)
		require.Zero(t, refused.calls, "callbacks of calls that were refused")
	})
}

// TestH13NoOutputAfterCancel checks that a call that was canceled has no output: neither that of
// the call before nor that of its own late answer.
func TestH13NoOutputAfterCancel(t *testing.T) {
	transports.Each(t, func(t *testing.T, n *transports.Net) {
		p := newPair(t, n, hg.Config{})
		var m silentTarget
		h := p.handle(p.rpc("echo", echo))
		require.NoError(t, p.call(h, "first"))
		require.NoError(t, h.Reset(h.Peer(), p.rpc("mute", m.handler)))
		var o outcome
		require.NoError(t, h.Forward("second", o.cb))
		n.Until(func() bool { return len(m.kept) == 1 })
		h.Cancel()
		p.octx.Trigger(0)
		require.Equal(t, 1, o.calls)
		for range 2 {
			_, err := h.OutputRaw()
			require.ErrorIs(t, err, hg.ErrCanceled)
			require.ErrorIs(t, h.Output(new(string)), hg.ErrCanceled)
			m.answer(t, "late")
			n.Until(func() bool { return p.octx.Stats().NA.LateDropped == 1 })
		}
		h.Close()
		p.requireClean(0)
	})
}

// TestResponseCallbackHasItsHandle checks that the callback of a response has the handle of its
// request.
func TestResponseCallbackHasItsHandle(t *testing.T) {
	transports.Each(t, func(t *testing.T, n *transports.Net) {
		p := newPair(t, n, hg.Config{})
		var got any
		name, ran := "", 0
		h := p.handle(p.rpc("give", func(h hg.Request) error {
			h.SetData("mine")
			return h.Respond(nil, func(h hg.Request, err error) { got, name, ran = h.Data(), h.Name(), ran+1 })
		}))
		require.NoError(t, p.call(h, nil))
		n.Until(func() bool { return ran == 1 })
		require.Equal(t, "mine", got)
		require.Equal(t, "give", name)
		h.Close()
		p.requireClean(0)
	})
}

// TestAbandonFreesNoHandlerSlot checks that an abandoned call frees the place of its handler when that
// releases it, not before: forward and abandon in a loop cannot have more of them running than
// there are places (F71).
func TestAbandonFreesNoHandlerSlot(t *testing.T) {
	transports.Each(t, func(t *testing.T, n *transports.Net) {
		p := newPair(t, n, hg.Config{MaxActive: 2})
		var a contextRecorder
		id := p.rpc("ask", func(h hg.Request) error {
			h.Context()
			return a.handler(h)
		})
		var handles []*hg.Handle
		var o outcome
		for i := range 4 {
			h := p.handle(id)
			handles = append(handles, h)
			require.NoError(t, h.ForwardRaw(nil, o.cb))
			n.Until(func() bool { return len(a.kept) == min(i+1, 2) && (i < 2 || p.tctx.Stats().Waiting == int64(i-1)) })
		}
		for _, h := range handles[:2] {
			h.Abandon()
		}
		n.Until(func() bool {
			return o.calls == 2 && a.kept[0].Context().Err() != nil && a.kept[1].Context().Err() != nil
		})
		require.EqualValues(t, 2, p.tctx.Stats().Active, "handlers at work")
		last := p.handle(id)
		require.NoError(t, last.ForwardRaw(nil, o.cb))
		n.Until(func() bool { return p.tctx.Stats().Waiting == 3 })
		require.Len(t, a.kept, 2)
		n.Until(func() bool { a.close(); return o.calls == 5 })
		for _, h := range append(handles, last) {
			h.Close()
		}
		p.requireClean(0)
	})
}

// TestCancelTenThousand cancels ten thousand calls of one handle at once (F43): each ends once, the
// next real call has its own answer, and memory does not grow with them.
func TestCancelTenThousand(t *testing.T) {
	transports.Each(t, func(t *testing.T, n *transports.Net) {
		p := newPair(t, n, hg.Config{})
		h := p.handle(p.rpc("echo", echo))
		var o outcome
		cancel := func(rounds int) {
			for i := range rounds {
				require.NoError(t, h.ForwardRaw([]byte("x"), o.cb))
				h.Cancel()
				p.octx.Trigger(0)
				if i%16 == 0 { // the target keeps up
					n.Until(func() bool { return p.octx.Stats().NA.Queued == 0 && p.tctx.Stats().Queued == 0 })
				}
			}
			n.Until(func() bool { return p.tctx.Stats().NA.Envelopes == 0 && p.tctx.Stats().Handles == 0 })
		}
		rounds := requireBoundedMemory(t, cancel)
		require.Equal(t, rounds, o.calls)
		require.ErrorIs(t, o.err, hg.ErrCanceled)
		require.NoError(t, p.call(h, "own answer"))
		var out string
		require.NoError(t, h.Output(&out))
		require.Equal(t, "own answer", out)
		for _, hctx := range []*hg.Context{p.octx, p.tctx} {
			s := hctx.Stats().NA
			require.Zero(t, s.PeersLost+s.Violations, "the session is the first")
		}
		h.Close()
		p.requireClean(0)
	})
}

// TestCancelTenThousandOfAStoppedTarget does the same while no goroutine drives the target, which
// the simulator stops altogether (F44): the frames that wait for it are bounded, and it continues
// when the target does.
func TestCancelTenThousandOfAStoppedTarget(t *testing.T) {
	transports.Each(t, func(t *testing.T, n *transports.Net) {
		p := newPair(t, n, hg.Config{NA: na.Config{Envelopes: 16}})
		runs := 0
		id := p.rpc("echo", func(h hg.Request) error { runs++; return echo(h) })
		h := p.handle(id)
		require.NoError(t, p.call(h, "connects"))
		n.Until(func() bool { return p.octx.Stats().NA.Outstanding == 0 && p.tctx.Stats().Handles == 0 })
		if n.Sim {
			n.World.Node("node1").Pause(time.Hour)
		}
		var o outcome
		cancel := func(rounds int) {
			for range rounds {
				require.NoError(t, h.ForwardRaw([]byte("x"), o.cb))
				_ = p.octx.Progress(0)
				h.Cancel()
				p.octx.Trigger(0)
				require.ErrorIs(t, o.err, hg.ErrCanceled)
			}
		}
		rounds := requireBoundedMemory(t, cancel)
		require.Equal(t, rounds, o.calls)
		require.Equal(t, 1, runs, "the target does not run")
		require.Zero(t, p.octx.Stats().NA.Queued, "a request that was canceled waits for nothing")
		if n.Sim {
			n.World.Node("node1").Resume()
		}
		require.NoError(t, p.call(h, "own answer"))
		var out string
		require.NoError(t, h.Output(&out))
		require.Equal(t, "own answer", out)
		require.LessOrEqual(t, runs, 2+16, "requests that the target received")
		require.Zero(t, p.octx.Stats().NA.PeersLost, "the session is the first")
		h.Close()
		p.requireClean(0)
	})
}

// requireBoundedMemory runs ten thousand rounds, requires that memory has not grown by them, and returns how many there were with those
// before.
func requireBoundedMemory(t *testing.T, run func(rounds int)) (all int) {
	t.Helper()
	const first = 500
	rounds := 10_000
	if raceflag.Enabled {
		rounds = 2000
	}
	run(first)
	before := heapInUse()
	run(rounds)
	grown := heapInUse() - before
	t.Logf("%d bytes more after %d rounds", grown, rounds)
	require.Less(t, grown, int64(1<<20))
	return first + rounds
}

// heapInUse returns the bytes of the heap in use after a collection.
func heapInUse() int64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}
