package hg

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/hg/codec"
	"github.com/quicksilver-rpc/quicksilver/internal/fsmcheck"
	"github.com/quicksilver-rpc/quicksilver/na"
	"github.com/quicksilver-rpc/quicksilver/plugins/sim"
)

// newIsolatedContext returns a context, an RPC and the address of a target that does not exist: the parts of
// calls end as a test sets.
func newIsolatedContext(t *testing.T) (cls *Class, c *Context, id ID, there na.Addr) {
	w := sim.NewWorld(sim.Config{Seed: 1})
	t.Cleanup(w.Close)
	cls, err := Open("sim://here", Config{Codec: codec.Raw, NA: na.Config{Plugins: []na.Plugin{w.Plugin()}}})
	require.NoError(t, err)
	id, err = cls.Register("work", nil)
	require.NoError(t, err)
	c, err = cls.NewContext()
	require.NoError(t, err)
	there, err = na.ParseAddr("sim://there")
	require.NoError(t, err)
	return cls, c, id, there
}

// TestEveryOrderOfParts ends the parts of a call in any order: two goroutines in Trigger may take
// them in either. Few runs reach all orders, so here the parts are ended by hand; the operations
// below them are not changed, and never triggered.
func TestEveryOrderOfParts(t *testing.T) {
	cls, c, id, there := newIsolatedContext(t)
	requests := receiveFrom(t, c, 1, 2)
	c.nctx.Disconnect(requests[0].From, nil) // no request can be answered

	var (
		failed = na.Result{Err: na.ErrPeerLost, Fate: na.MaybeRan}
		fails  = func(k *call) { k.onOpEnded(nil, failed) }
		answer = func(k *call) { k.onOpEnded(nil, receiveResponse(k, there, 0, nil)) }
		large  = func(k *call) {
			k.onOpEnded(nil, receiveResponse(k, there, 1<<20, na.Key{Len: 1 << 20, Access: na.ReadOnly}.Append(nil)))
		}
		unlent   = func(k *call) { k.loan.onEnded(nil, na.Result{}) }
		late     = func(k *call) { k.onTimer(nil, na.Result{}) }
		stopped  = func(k *call) { k.onTimer(nil, failed) }
		cancel   = func(k *call) { k.h.Cancel() }
		abandon  = func(k *call) { k.h.Abandon() }
		withdraw = func(k *call) { require.NoError(t, k.h.Withdraw(time.Hour, nil)) }
		overdue  = func(k *call) { k.withdrawal.onTimer(nil, na.Result{}) }
		misuse   = func(k *call) {
			require.ErrorIs(t, k.h.ForwardRaw(nil, nil), na.ErrBusy)
			require.ErrorIs(t, k.h.Reset(there, id), na.ErrBusy)
			_, err := k.h.OutputRaw()
			require.ErrorIs(t, err, na.ErrBusy)
		}
	)
	for _, c2 := range []struct {
		name  string
		input int
		by    time.Duration
		steps []func(*call)
		state fsmcheck.State
	}{
		{"the answer alone", 8, 0, []func(*call){misuse, answer, withdraw}, callIdle},
		{"the loan last", 1 << 16, 0, []func(*call){answer, misuse, withdraw, unlent}, callIdle},
		{"the loan first", 1 << 16, 0, []func(*call){unlent, answer}, callIdle},
		{"the answer, then cancel", 1 << 16, 0, []func(*call){answer, cancel}, callEnding},
		{"the answer, then abandon", 1 << 16, 0, []func(*call){answer, abandon, unlent}, callIdle},
		{"a failure before the loan", 1 << 16, 0, []func(*call){fails, cancel, unlent}, callIdle},
		{"a large answer", 1 << 16, 0, []func(*call){large, misuse, unlent}, callFetching},
		{"a large answer, then cancel", 8, 0, []func(*call){large, cancel}, callEnding},
		{"a large answer, then the deadline", 8, time.Hour, []func(*call){large, late}, callEnding},
		{"a large answer, then the end of the timer", 8, time.Hour, []func(*call){large, stopped}, callFetching},
		{"a withdraw whose time is up when the request has been recalled", 8, 0, []func(*call){withdraw, overdue}, callWaiting},
		{"a withdraw, and the call fails", 8, 0, []func(*call){withdraw, fails, misuse}, callQueued},
		{"the answer between a withdraw and the end of its time", 8, 0, []func(*call){withdraw, answer, overdue}, callQueued},
		{"a large answer to one that is withdrawn", 8, 0, []func(*call){withdraw, large, withdraw, overdue}, callFetching},
	} {
		h, err := c.Create(there, id)
		require.NoError(t, err)
		h.SetTimeout(c2.by)
		require.NoError(t, h.ForwardRaw(make([]byte, c2.input), nil))
		for _, step := range c2.steps {
			step(h.call)
		}
		require.Equal(t, c2.state, h.call.phase, c2.name)
	}

	arrive := func() *service {
		s := c.newService(requests[0])
		requests = requests[1:]
		s.rpc = cls.rpcs.findRPC(id)
		s.setPhaseLocked(serviceRunning)
		s.handlerBegan = true
		return s
	}
	s := arrive() // without an answer, and the context is closed while that is repaired
	require.NoError(t, c.nctx.Timer(s.send, time.Hour))
	s.releaseHold()
	require.Equal(t, serviceSpare, s.phase)

	s = arrive() // two responses were lent, and the first to be recalled is the last to end
	s.giveUpLocked()
	s.holds++
	s.onLoanEnded(&loan{}, na.Result{})
	s.releaseHold()
	require.Equal(t, serviceSpare, s.phase)
}

// TestAnswerDecidesIndeterminate checks that a withdraw without an answer is too late when the answer
// to the call is there already, and only then: an unknown outcome ends with an error.
func TestAnswerDecidesIndeterminate(t *testing.T) {
	_, c, id, there := newIsolatedContext(t)
	var (
		lost     = na.Result{Err: na.ErrPeerLost, Fate: na.MaybeRan}
		withdraw = func(k *call) { require.NoError(t, k.h.Withdraw(0, nil)) }
		unasked  = func(k *call) {
			k.withdrawal.phase = withdrawalNew // as if the request had left
			k.withdrawal.sendWithdrawLocked(there.Bound(1), 1)
			k.withdrawal.onAnswer(nil, na.Result{Err: na.ErrAgain, Fate: na.NotRun})
		}
	)
	for name, steps := range map[string][]func(*call){
		"recalled":              {withdraw},
		"it could not be asked": {withdraw, unasked},
		"canceled meanwhile":    {withdraw, func(k *call) { k.h.Cancel() }},
	} {
		for i, result := range []WithdrawResult{TooLate, Indeterminate} {
			h, err := c.Create(there, id)
			require.NoError(t, err)
			require.NoError(t, h.ForwardRaw(nil, nil))
			for _, step := range steps {
				step(h.call)
			}
			wd := h.call.withdrawal
			require.NotNil(t, wd, name)
			require.Less(t, wd.phase, withdrawalSettled, name)
			end := lost
			if i == 0 {
				end = receiveResponse(h.call, there, 0, nil)
			}
			h.call.onOpEnded(nil, end)
			require.Equal(t, withdrawalSettled, wd.phase, name)
			require.Equal(t, result, wd.result, name)
			require.Equal(t, result == Indeterminate, h.call.resultLocked() != nil, name)
		}
	}
}

// TestAnswerOfDestroyedRequest checks that a target that answers a request, and reports that it has
// destroyed it, has violated the protocol: the withdraw is too late, since the answer is here, and
// the session ends.
func TestAnswerOfDestroyedRequest(t *testing.T) {
	w := sim.NewWorld(sim.Config{Seed: 1})
	t.Cleanup(w.Close)
	var contexts [2]*Context
	for i, addr := range []string{"sim://here", "sim://there"} {
		cls, err := Open(addr, Config{Codec: codec.Raw, NA: na.Config{Plugins: []na.Plugin{w.Plugin()}}})
		require.NoError(t, err)
		_, err = cls.Register("work", func(r Request) error { return r.RespondRaw(nil, nil) })
		require.NoError(t, err)
		contexts[i], err = cls.NewContext()
		require.NoError(t, err)
	}
	c, there := contexts[0], contexts[1].Self()
	h, err := c.Create(there, HashName("work"))
	require.NoError(t, err)
	over := false
	require.NoError(t, h.ForwardRaw(nil, func(*Handle, error) { over = true }))
	for i := 0; !over; i++ {
		require.Less(t, i, 10_000)
		for _, o := range contexts {
			_ = o.Progress(time.Millisecond)
			o.Trigger(0)
		}
	}
	require.True(t, c.nctx.Connected(there))
	require.NoError(t, h.ForwardRaw(nil, nil))
	require.NoError(t, h.Withdraw(0, nil))
	wd := h.call.withdrawal
	require.Equal(t, withdrawalAsking, wd.phase)
	h.call.onOpEnded(nil, receiveResponse(h.call, there, 0, nil)) // the answer
	require.Equal(t, withdrawalAsking, wd.phase)
	wd.onAnswer(nil, na.Result{Addr: there}) // and: it was destroyed
	require.Equal(t, withdrawalSettled, wd.phase)
	require.Equal(t, TooLate, wd.result)
	require.False(t, c.nctx.Connected(there), "the session with a peer that lies")
}

// receiveFrom has a peer send c a message with each tag, and returns them as they were before a Trigger of c.
func receiveFrom(t *testing.T, c *Context, tags ...na.Tag) (all []*na.Envelope) {
	cls, err := na.Open("sim://origin", na.Config{Plugins: c.nctx.Class().Config().Plugins})
	require.NoError(t, err)
	origin, err := cls.NewContext()
	require.NoError(t, err)
	c.nctx.Upper().OnMessage(func(env *na.Envelope) int { all = append(all, env); return 1 }, c.onClosed)
	defer c.nctx.Upper().OnMessage(c.onRequest, c.onClosed)
	for _, tag := range tags {
		require.NoError(t, origin.SendUnexpected(origin.NewOp(func(*na.Op, na.Result) {}), c.nctx.Self(), tag, nil))
		for i, before := 0, len(all); len(all) == before; i++ {
			require.Less(t, i, 10_000)
			_ = origin.Progress(time.Millisecond)
			origin.Trigger(0)
			_ = c.nctx.Progress(0)
			c.nctx.Trigger(0)
		}
	}
	return all
}

// receiveResponse puts a response of size bytes into the buffer of k.
func receiveResponse(k *call, from na.Addr, size uint64, payload []byte) na.Result {
	resp := response{fate: na.Ran, size: size}
	if size > 0 {
		resp.flags, resp.codec = flagMore, codec.RawID
	}
	b := append(k.buf[:responseSize], payload...)
	resp.writeHeader(b)
	return na.Result{N: int64(len(b)), Addr: from}
}
