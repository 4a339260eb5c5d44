package hg_test

import (
	"math"
	"os"
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/hg"
	"github.com/quicksilver-rpc/quicksilver/internal/test/long"
	"github.com/quicksilver-rpc/quicksilver/internal/test/transports"
	"github.com/quicksilver-rpc/quicksilver/na"
)

// requireTimeout requires that err is that of a call whose time was up.
func requireTimeout(t *testing.T, err error, fate na.Fate) {
	t.Helper()
	require.ErrorIs(t, err, os.ErrDeadlineExceeded)
	require.ErrorIs(t, err, hg.ErrTimeout)
	var e *hg.Error
	require.ErrorAs(t, err, &e)
	require.True(t, e.Timeout())
	require.Equal(t, fate, e.Fate, "%v", err)
}

// triggerOriginUntil lets time pass and bytes move, and triggers at the origin only.
func (p *pair) triggerOriginUntil(done func() bool) {
	p.t.Helper()
	for still := p.Bounded(); !done(); still() {
		p.octx.Trigger(0)
		_ = p.tctx.Progress(0)
		_ = p.octx.Progress(time.Millisecond)
	}
}

// triggerTargetUntil lets time pass and bytes move, and triggers at the target only.
func (p *pair) triggerTargetUntil(done func() bool) {
	p.t.Helper()
	for still := p.Bounded(); !done(); still() {
		p.tctx.Trigger(0)
		_ = p.octx.NA().Progress(0)
		_ = p.tctx.Progress(time.Millisecond)
	}
}

// passTime lets time pass, and bytes move as far as that needs no Trigger.
func (p *pair) passTime(d time.Duration) {
	if p.Sim {
		p.World.Sleep(d)
		return
	}
	for begun := p.octx.Now(); p.octx.Now()-begun < d; {
		_ = p.octx.NA().Progress(0)
		_ = p.tctx.NA().Progress(0)
		runtime.Gosched()
	}
}

// TestTimeoutEndsCall checks that a call without an answer ends when its time is up, the handle is
// ready for the next, and its timeout stays.
func TestTimeoutEndsCall(t *testing.T) {
	t.Parallel()
	transports.Each(t, func(t *testing.T, n *transports.Net) {
		p := newPair(t, n, hg.Config{})
		var m silentTarget
		muteID, echoID := p.rpc("mute", m.handler), p.rpc("echo", echo)
		h := p.handle(echoID)
		require.NoError(t, p.call(h, "the session is there"))
		for _, in := range []string{"small", oversizeString(p)} {
			require.NoError(t, h.Reset(p.target.Addr(), muteID))
			h.SetTimeout(30 * time.Millisecond)
			var o outcome
			begun := p.octx.Now()
			require.NoError(t, h.Forward(in, o.cb))
			n.Until(func() bool { return o.calls > 0 })
			require.GreaterOrEqual(t, p.octx.Now()-begun, 30*time.Millisecond)
			requireTimeout(t, o.err, hg.FateOf(o.err))
			if len(m.kept) > 0 {
				require.Equal(t, na.MaybeRan, hg.FateOf(o.err))
			}
			require.Error(t, h.Output(new(string)))

			require.NoError(t, h.Reset(p.target.Addr(), echoID))
			h.SetTimeout(time.Hour)
			require.NoError(t, p.call(h, "again"))
			var out string
			require.NoError(t, h.Output(&out))
			require.Equal(t, "again", out)
			require.Equal(t, 1, o.calls)
			for _, r := range m.kept {
				releaseUnanswered(r)
			}
			m.kept = nil
		}
		p.requireClean(1)
		require.Zero(t, p.octx.NA().Live(), "no timer is left")
		h.Close()
	})
}

// TestTimeoutIsExact checks with the exact clocks of a simulated world that the call ends at its
// deadline, neither before nor after, and that the target has the time left.
func TestTimeoutIsExact(t *testing.T) {
	transports.Virtual(t, func(t *testing.T, n *transports.Net) {
		p := newPair(t, n, hg.Config{NA: na.Config{Envelopes: 1}})
		var left []time.Duration
		var kept []hg.Request
		id := p.rpc("mute", func(h hg.Request) error {
			d, ok := h.TimeLeft()
			require.Equal(t, h.Input(new(int)) == nil, ok)
			left = append(left, d)
			kept = append(kept, detach(h))
			return nil
		})
		handles := []*hg.Handle{p.handle(id), p.handle(id), p.handle(id)}
		var outs [3]outcome
		require.NoError(t, handles[0].ForwardRaw(nil, outs[0].cb)) // uses the envelope
		p.waitForRequests(1)
		handles[1].SetTimeout(500 * time.Millisecond)
		begun := p.octx.Now()
		require.NoError(t, handles[1].Forward(7, outs[1].cb))
		n.World.Sleep(begun + 200*time.Millisecond - p.octx.Now())
		p.tctx.Trigger(1)
		n.Until(func() bool { return len(kept) == 2 })
		require.Zero(t, left[0])
		require.LessOrEqual(t, left[1], 300*time.Millisecond, "it waited for the envelope for 200 ms")
		require.Greater(t, left[1], 290*time.Millisecond, "the way is not counted, and time in the queue is")
		n.Until(func() bool { return outs[1].calls > 0 })
		requireTimeout(t, outs[1].err, na.MaybeRan)
		var e *hg.Error
		require.ErrorAs(t, outs[1].err, &e)
		require.InDelta(t, 500*time.Millisecond, e.Took, float64(2*time.Microsecond), "a poll takes one")
		require.Zero(t, outs[0].calls)
		for _, h := range kept {
			releaseUnanswered(h)
		}
		n.Until(func() bool { return outs[0].calls > 0 })
		for _, h := range handles {
			h.Close()
		}
	})
}

// TestTimeoutWithoutEnvelope checks that a request that waits for an envelope of the target when
// its time is up is never sent, and did not run.
func TestTimeoutWithoutEnvelope(t *testing.T) {
	t.Parallel()
	transports.Each(t, func(t *testing.T, n *transports.Net) {
		p := newPair(t, n, hg.Config{NA: na.Config{Envelopes: 1}})
		ran := 0
		id := p.rpc("count", func(h hg.Request) error { ran++; return h.RespondRaw(nil, nil) })
		first, second := p.handle(id), p.handle(id)
		var a, b outcome
		require.NoError(t, first.ForwardRaw(nil, a.cb))
		p.waitForRequests(1)
		for i, size := range []int{10, 100_000} {
			b = outcome{}
			second.SetTimeout(10 * time.Millisecond)
			require.NoError(t, second.ForwardRaw(make([]byte, size), b.cb))
			require.Equal(t, 1, p.octx.Stats().NA.Queued)
			if i == 0 {
				p.triggerOriginUntil(func() bool { return b.calls > 0 })
			} else { // the timer is not checked before the envelope is free: the message is kept back by itself
				p.passTime(20 * time.Millisecond)
				p.tctx.Trigger(0) // frees the envelope
				p.passTime(20 * time.Millisecond)
				p.triggerOriginUntil(func() bool { return b.calls > 0 })
			}
			requireTimeout(t, b.err, na.NotRun)
			require.Equal(t, 1, b.calls)
		}
		p.triggerOriginUntil(func() bool { return a.calls > 0 })
		require.NoError(t, a.err)
		second.SetTimeout(0)
		require.NoError(t, second.ForwardRaw(nil, b.cb))
		p.triggerOriginUntil(func() bool { p.tctx.Trigger(0); return b.calls == 2 })
		require.NoError(t, b.err)
		require.Equal(t, 2, ran)
		first.Close()
		second.Close()
	})
}

// TestExpiredInTheQueue checks that a request whose time is up before its handler begins does not
// run, and the answer states that; its envelope is free.
func TestExpiredInTheQueue(t *testing.T) {
	t.Parallel()
	transports.Each(t, func(t *testing.T, n *transports.Net) {
		p := newPair(t, n, hg.Config{})
		ran := 0
		id := p.rpc("count", func(h hg.Request) error { ran++; return h.RespondRaw(nil, nil) })
		h := p.handle(id)
		require.NoError(t, p.call(h, nil))
		ran = 0
		h.SetTimeout(50 * time.Millisecond)
		for _, size := range []int{10, 100_000} {
			var o outcome
			require.NoError(t, h.ForwardRaw(make([]byte, size), o.cb))
			for still := p.Bounded(); p.tctx.Stats().NA.Envelopes == 0; still() {
				p.passTime(time.Millisecond)
			}
			p.passTime(50 * time.Millisecond)
			p.triggerTargetUntil(func() bool { return p.tctx.Stats().Handles == 0 && p.octx.Stats().NA.Outstanding == 0 })
			require.Zero(t, o.calls)
			n.Until(func() bool { return o.calls > 0 })
			requireTimeout(t, o.err, na.NotRun)
			require.ErrorContains(t, o.err, "before the handler began", "the target reports it")
			require.NotErrorIs(t, o.err, hg.ErrRemote, "the deadline was the origin's")
			require.Equal(t, 1, o.calls)
			require.Zero(t, ran)
			require.Zero(t, p.tctx.Stats().NA.Envelopes)
		}
		h.SetTimeout(0)
		require.NoError(t, p.call(h, nil))
		p.requireClean(1)
		h.Close()
	})
}

// TestExpiredBehindMaxActive checks the same for one that waits for others to end (MaxActive): it
// is refused at its deadline, not when there is room.
func TestExpiredBehindMaxActive(t *testing.T) {
	transports.Each(t, func(t *testing.T, n *transports.Net) {
		p := newPair(t, n, hg.Config{MaxActive: 1})
		var k holdingTarget
		id := p.rpc("keep", k.handler)
		first, second, third := p.handle(id), p.handle(id), p.handle(id)
		var a, b, c outcome
		require.NoError(t, first.ForwardRaw(nil, a.cb))
		n.Until(func() bool { return len(k.kept) == 1 })
		second.SetTimeout(20 * time.Millisecond)
		require.NoError(t, second.ForwardRaw(nil, b.cb))
		require.NoError(t, third.ForwardRaw(nil, c.cb))
		p.triggerTargetUntil(func() bool { return p.octx.Stats().NA.Outstanding == 2 && p.tctx.Stats().Waiting == 1 })
		n.Until(func() bool { return b.calls > 0 })
		requireTimeout(t, b.err, na.NotRun)
		require.Equal(t, 1, p.tctx.Stats().NA.Envelopes, "that of the third")
		k.answer()
		n.Until(func() bool { return a.calls == 1 && len(k.kept) == 1 })
		k.answer()
		n.Until(func() bool { return c.calls == 1 && p.tctx.Stats().Active == 0 })
		require.NoError(t, c.err)
		require.Equal(t, 1, b.calls)
		for _, h := range []*hg.Handle{first, second, third} {
			h.Close()
		}
	})
}

// TestExpiredWhileFetched checks the same while an input larger than a message is being fetched
// from an origin that is stopped.
func TestExpiredWhileFetched(t *testing.T) {
	transports.Virtual(t, func(t *testing.T, n *transports.Net) {
		p := newPair(t, n, hg.Config{})
		ran := 0
		h := p.handle(p.rpc("count", func(hg.Request) error { ran++; return nil }))
		var o outcome
		h.SetTimeout(100 * time.Millisecond)
		require.NoError(t, h.ForwardRaw(make([]byte, 100_000), o.cb))
		p.waitForRequests(1)
		arrived := p.tctx.Now()
		n.World.Node("origin").Pause(0)
		n.Undriven(p.octx)
		for p.tctx.Stats().Pulled == 0 {
			p.tctx.Trigger(0)
		}
		n.Until(func() bool { return p.tctx.Stats().Pulled == 0 })
		require.InDelta(t, 100*time.Millisecond, p.tctx.Now()-arrived, float64(time.Millisecond))
		n.Until(func() bool { return p.tctx.Stats().Handles == 0 })
		require.Zero(t, p.tctx.Stats().NA.Envelopes)
		require.Zero(t, ran)
		n.World.Node("origin").Resume()
		n.World.Sleep(50 * time.Millisecond)
		for o.calls == 0 {
			p.octx.Trigger(0)
			_ = p.octx.Progress(time.Millisecond)
		}
		requireTimeout(t, o.err, na.NotRun)
		h.Close()
	})
}

// TestLargeOutputBeforeTheDeadline checks that a call with a deadline ends when its large output is
// there.
func TestLargeOutputBeforeTheDeadline(t *testing.T) {
	transports.Each(t, func(t *testing.T, n *transports.Net) {
		p := newPair(t, n, hg.Config{})
		h := p.handle(p.rpc("give", func(h hg.Request) error { return h.RespondRaw(make([]byte, 1<<20), nil) }))
		h.SetTimeout(time.Hour)
		var o outcome
		require.NoError(t, h.Forward(nil, o.cb))
		n.Until(func() bool { return o.calls == 1 })
		require.NoError(t, o.err)
		out, err := h.OutputRaw()
		require.NoError(t, err)
		require.Len(t, out, 1<<20)
		p.requireClean(1)
		h.Close()
	})
}

func TestOddTimeouts(t *testing.T) {
	transports.Each(t, func(t *testing.T, n *transports.Net) {
		p := newPair(t, n, hg.Config{})
		var left time.Duration
		var ok bool
		h := p.handle(p.rpc("left", func(h hg.Request) error { left, ok = h.TimeLeft(); return h.RespondRaw(nil, nil) }))
		require.NoError(t, p.call(h, nil))
		require.False(t, ok)
		for _, d := range []time.Duration{math.MaxInt64, 100 * time.Hour} {
			h.SetTimeout(d)
			require.NoError(t, p.call(h, nil))
			require.False(t, ok, "%v: more does not fit the header, so the target has no deadline, but %v", d, left)
		}
		h.SetTimeout(71 * time.Minute)
		require.NoError(t, p.call(h, nil))
		require.True(t, ok)
		require.LessOrEqual(t, left, 71*time.Minute+time.Second)
		require.Greater(t, left, 70*time.Minute)
		h.SetTimeout(-1)
		requireTimeout(t, h.Forward(nil, nil), na.NotRun)
		h.SetTimeout(1)
		var o outcome
		require.NoError(t, h.Forward(nil, o.cb))
		n.Until(func() bool { return o.calls > 0 })
		requireTimeout(t, o.err, hg.FateOf(o.err))
		p.requireClean(1)
		h.Close()
	})
}

// TestTimeoutAnswerAndCancelAtOnce processes a deadline, the answer and a cancel at the origin in
// one Trigger, in both orders of the first two: the call ends once, and the answer wins (F47).
func TestTimeoutAnswerAndCancelAtOnce(t *testing.T) {
	t.Parallel()
	const timeout = 300 * time.Millisecond
	transports.Each(t, func(t *testing.T, n *transports.Net) {
		p := newPair(t, n, hg.Config{})
		var m silentTarget
		h := p.handle(p.rpc("mute", m.handler))
		for _, answerFirst := range []bool{true, false} {
			h.SetTimeout(timeout)
			var o outcome
			require.NoError(t, h.Forward("x", o.cb))
			begun := p.octx.Now()
			p.triggerTargetUntil(func() bool { return len(m.kept) == 1 })
			if answerFirst {
				m.answer(t, "done")
			}
			p.passTime(timeout - (p.octx.Now() - begun) + time.Millisecond)
			if !answerFirst {
				m.answer(t, "done")
			}
			p.triggerTargetUntil(func() bool { return p.octx.Stats().NA.Outstanding == 0 }) // its send, its receive and its timer have ended
			require.Zero(t, o.calls)
			h.Cancel()
			p.octx.Trigger(0)
			p.octx.Trigger(0)
			require.Equal(t, 1, o.calls, "callbacks")
			require.NoError(t, o.err)
			var out string
			require.NoError(t, h.Output(&out))
			require.Equal(t, "done", out)
		}
		h.Close()
		p.requireClean(0)
	})
}

// TestTimeoutRacesResponse races a deadline with the response, and in half of the rounds with
// cancels by another goroutine: every call ends once, with one of the three.
func TestTimeoutRacesResponse(t *testing.T) {
	transports.Each(t, func(t *testing.T, n *transports.Net) {
		p := newPair(t, n, hg.Config{})
		id := p.rpc("echo", echo)
		n.Serve(p.tctx, 1)
		h := p.handle(id)
		rounds, late := long.Or(100, 600), 0
		stop := func() {}
		for i := range rounds {
			if i == rounds/2 {
				stop = repeat(h.Cancel)
			}
			h.SetTimeout(time.Duration(i%100*4+1) * time.Microsecond)
			in := any(i)
			if i%3 == 0 {
				in = make([]byte, 20_000)
			}
			var o outcome
			require.NoError(t, h.Forward(in, o.cb))
			require.NoError(t, driveUntil(p.octx, func() bool { return o.calls > 0 }))
			if o.err != nil {
				require.Contains(t, []na.Code{hg.ErrTimeout, hg.ErrCanceled}, codeOf(o.err))
				require.True(t, i >= rounds/2 || codeOf(o.err) == hg.ErrTimeout, "%v", o.err)
				late++
			}
			p.octx.Trigger(0)
			require.Equal(t, 1, o.calls)
		}
		stop()
		t.Logf("%d of %d were late, or canceled", late, rounds)
		h.SetTimeout(0)
		var o outcome
		require.NoError(t, h.Forward("own answer", o.cb))
		require.NoError(t, driveUntil(p.octx, func() bool { return o.calls > 0 }))
		require.NoError(t, o.err)
		var out string
		require.NoError(t, h.Output(&out))
		require.Equal(t, "own answer", out)
		require.Zero(t, p.octx.NA().Live())
		h.Close()
	})
}

// TestTimeoutOfACallThatFailed checks that the timer of a call that was refused, or has failed, has
// no effect: there is no callback, or no second one, and the handle's next call is still in flight
// at the time for which it was set (F48).
func TestTimeoutOfACallThatFailed(t *testing.T) {
	t.Parallel()
	const timeout = 20 * time.Millisecond
	transports.Each(t, func(t *testing.T, n *transports.Net) {
		p := &pair{Net: n, t: t}
		p.target, p.tctx = n.Target(hg.Config{NA: na.Config{Envelopes: 1}})
		p.origin, p.octx = n.Origin(hg.Config{MaxInput: 1000, NA: na.Config{OnNoCredit: na.Fail}})
		var m silentTarget
		muteID, echoID := p.rpc("mute", m.handler), p.rpc("echo", echo)
		h, other := p.handle(echoID), p.handle(echoID)
		require.NoError(t, p.call(h, "connects"))
		n.Until(func() bool { return p.octx.Stats().NA.Outstanding == 0 && p.tctx.Stats().Handles == 0 })
		for name, fail := range map[string]func(o *outcome) int{
			"refused": func(o *outcome) int {
				require.ErrorIs(t, h.ForwardRaw(make([]byte, 1001), o.cb), hg.ErrOverflow)
				return 0
			},
			"failed": func(o *outcome) int {
				var filler outcome
				require.NoError(t, other.ForwardRaw(nil, filler.cb))
				require.NoError(t, h.ForwardRaw(nil, o.cb))
				n.Until(func() bool { return filler.calls == 1 && o.calls == 1 })
				require.NoError(t, filler.err)
				require.Contains(t, []na.Code{hg.ErrNoCredit, hg.ErrTimeout}, codeOf(o.err)) // a slow machine may let the time pass first
				return 1
			},
		} {
			require.NoError(t, h.Reset(p.target.Addr(), echoID))
			h.SetTimeout(timeout)
			var o, next outcome
			begun := p.octx.Now()
			calls := fail(&o)
			h.SetTimeout(0)
			require.NoError(t, h.Reset(p.target.Addr(), muteID))
			require.NoError(t, h.ForwardRaw(nil, next.cb))
			n.Until(func() bool { return len(m.kept) == 1 && p.octx.Now()-begun > 2*timeout })
			require.Zero(t, next.calls, name)
			m.answer(t, nil)
			n.Until(func() bool { return next.calls == 1 })
			require.NoError(t, next.err, name)
			require.Equal(t, calls, o.calls, "callbacks of a call that has %s", name)
		}
		h.Close()
		other.Close()
		p.requireClean(0)
	})
}

// TestH12EndAtEachStage ends a call at each of its stages (C-T36), by any of the ways that this
// side has: it ends once, with the first result, and the handle can be used again.
func TestH12EndAtEachStage(t *testing.T) {
	t.Parallel()
	ways := []struct {
		name string
		end  func(h *hg.Handle) // nil: its time is up
		want error
	}{
		{"cancel", (*hg.Handle).Cancel, hg.ErrCanceled},
		{"abandon", (*hg.Handle).Abandon, hg.ErrCanceled},
		{"deadline", nil, hg.ErrTimeout},
	}
	const pending, running, answered = 0, 1, 2
	for stage, name := range []string{"send pending", "receive pending", "completion queued"} {
		for _, way := range ways {
			t.Run(name+"/"+way.name, func(t *testing.T) {
				transports.Each(t, func(t *testing.T, n *transports.Net) {
					p := newPair(t, n, hg.Config{NA: na.Config{Envelopes: 1}})
					var m silentTarget
					muteID, echoID := p.rpc("mute", m.handler), p.rpc("echo", echo)
					h, other := p.handle(echoID), p.handle(echoID)
					require.NoError(t, p.call(h, "the session is there"))
					require.NoError(t, h.Reset(p.target.Addr(), muteID))
					var o, filler outcome
					if stage == pending {
						require.NoError(t, other.Forward("uses the envelope", filler.cb))
						p.waitForRequests(1)
					}
					if way.end == nil {
						h.SetTimeout(200 * time.Millisecond)
					}
					require.NoError(t, h.Forward("x", o.cb))
					begun := p.octx.Now() // the call's time has begun by now
					if stage >= running {
						p.triggerTargetUntil(func() bool { return len(m.kept) == 1 })
					}
					if stage == answered {
						m.answer(t, "done")
						p.triggerTargetUntil(func() bool { return p.octx.Stats().NA.Outstanding == 0 })
					}
					if way.end != nil {
						way.end(h)
					} else {
						p.passTime(200*time.Millisecond - (p.octx.Now() - begun) + time.Millisecond)
						// Progress looks at the timers, unless the background poller polls at that moment.
						for still := p.Bounded(); o.calls == 0; still() {
							p.octx.Trigger(0)
							_ = p.octx.Progress(0)
						}
					}
					p.octx.Trigger(0)
					require.Equal(t, 1, o.calls, "callbacks of a call that was ended here")
					if stage == answered {
						require.NoError(t, o.err, "success wins")
					} else {
						require.ErrorIs(t, o.err, way.want)
						require.Equal(t, []na.Fate{na.NotRun, na.MaybeRan}[stage], hg.FateOf(o.err))
					}
					m.answer(t, "late")
					h.SetTimeout(0)
					require.NoError(t, h.Reset(p.target.Addr(), echoID))
					require.NoError(t, h.Forward("x", o.cb))
					p.triggerOriginUntil(func() bool { p.tctx.Trigger(0); return o.calls == 2 })
					require.NoError(t, o.err)
					h.Close()
					other.Close()
				})
			})
		}
	}
}
