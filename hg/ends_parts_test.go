package hg

import (
	"bytes"
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/hg/codec"
	"github.com/quicksilver-rpc/quicksilver/na"
	"github.com/quicksilver-rpc/quicksilver/plugins/sim"
)

// newTwoPartCall returns a call that is recorded as in flight and its input as lent, and counts its
// callbacks.
func newTwoPartCall(t *testing.T) (k *call, ended *int) {
	cls, err := Open("sim://", Config{NA: na.Config{Plugins: []na.Plugin{sim.NewWorld(sim.Config{}).Plugin()}}})
	require.NoError(t, err)
	id, err := cls.Register("x", nil)
	require.NoError(t, err)
	c, err := cls.NewContext()
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, cls.Shutdown(context.Background())) })
	addr, err := na.ParseAddr("sim://nobody")
	require.NoError(t, err)
	h, err := c.Create(addr, id)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, h.Close()) })
	ended = new(int)
	k = h.call
	k.setPhaseLocked(callWaiting)
	k.openParts, k.opRunning, k.loan = 2, true, &loan{c: c, op: c.nctx.NewOp(nil)}
	k.msg = []byte{0}
	k.callback = func(*Handle, error) { *ended++ }
	h.refs.Add(1)
	return k, ended
}

var failures = []error{na.ErrPeerLost, na.ErrCanceled, na.ErrUnreachable}

// failBothParts has both parts of a call fail, in both orders and with all pairs of errors; begin is
// called first.
func failBothParts(t *testing.T, begin func(k *call)) {
	for _, asked := range failures {
		for _, lent := range failures {
			for _, askedFirst := range []bool{true, false} {
				t.Run(fmt.Sprintf("%v/%v/%v", asked, lent, askedFirst), func(t *testing.T) {
					k, ended := newTwoPartCall(t)
					c := k.h.ctx
					begin(k)
					ends := []func(){
						func() { k.onOpEnded(nil, na.Result{Err: asked, Fate: na.MaybeRan}) },
						func() { k.onLoanEnded(k.loan, na.Result{Err: lent}) },
					}
					if !askedFirst {
						ends[0], ends[1] = ends[1], ends[0]
					}
					ends[0]()
					c.Trigger(0)
					require.Zero(t, *ended, "one part is left")
					ends[1]()
					c.Trigger(0)
					require.Equal(t, 1, *ended, "callbacks when both parts have ended")
					require.Error(t, k.err)
				})
			}
		}
	}
}

// TestH8BothFail checks that a call of which both parts fail ends once, whatever the errors, and in
// either order.
func TestH8BothFail(t *testing.T) { failBothParts(t, func(*call) {}) }

// TestH9OtherErrorAfterCancel checks that a call that is being canceled ends when its parts do,
// also if their errors are others than ErrCanceled.
func TestH9OtherErrorAfterCancel(t *testing.T) {
	failBothParts(t, func(k *call) { k.h.Cancel() })
}

// TestH3bBadKey checks that a response whose large output cannot be fetched, because its key is
// malformed, too long, or unknown, ends its call with an error, and the handle's next call succeeds
// over the same session.
func TestH3bBadKey(t *testing.T) {
	w := sim.NewWorld(sim.Config{Seed: 1})
	defer w.Close()
	cfg := Config{Codec: codec.Raw, MaxOutput: 1 << 20, NA: na.Config{Plugins: []na.Plugin{w.Plugin()}}}
	target, err := Open("sim://target", cfg)
	require.NoError(t, err)
	origin, err := Open("sim://", cfg)
	require.NoError(t, err)
	tctx, err := target.NewContext()
	require.NoError(t, err)
	octx, err := origin.NewContext()
	require.NoError(t, err)
	until := func(done func() bool) {
		for turn := 0; !done(); turn++ {
			require.Less(t, turn, 10_000, "nothing happened: %+v", octx.Stats())
			for _, c := range []*Context{octx, tctx} {
				c.Trigger(0)
				_ = c.Progress(time.Millisecond)
			}
		}
	}
	var bad func(msg []byte) // spoils the response
	var spoiled Metadata
	_, err = target.Register("give", func(h Request) error {
		if !spoiled.IsZero() {
			require.NoError(t, h.SetOutputMeta(spoiled))
			return h.RespondRaw(make([]byte, 100_000), nil)
		}
		if bad == nil {
			return h.RespondRaw([]byte("good"), nil)
		}
		msg := make([]byte, responseSize)
		(&response{flags: flagMore, fate: na.Ran, codec: codec.RawID, size: 1000}).writeHeader(msg)
		msg = na.Key{Len: 1000, Access: na.ReadOnly}.Append(msg)
		bad(msg)
		require.NoError(t, h.Detach())
		return tctx.nctx.SendExpected(tctx.nctx.NewOp(func(*na.Op, na.Result) { _ = h.RespondRaw(nil, nil) }), h.Peer(), h.s.tag, msg)
	})
	require.NoError(t, err)
	id, err := origin.Register("give", nil)
	require.NoError(t, err)
	h, err := octx.Create(target.Addr(), id)
	require.NoError(t, err)
	calls := 0
	call := func() (err error) {
		before := calls
		require.NoError(t, h.ForwardRaw(nil, func(_ *Handle, e error) { calls++; err = e }))
		until(func() bool { return calls > before })
		octx.Trigger(0)
		require.Equal(t, before+1, calls)
		return err
	}
	for name, c := range map[string]struct {
		bad  func(msg []byte)
		want na.Code
	}{
		"nobody has this memory": {func([]byte) {}, na.ErrRevoked},
		"another length":         {func(msg []byte) { msg[responseSize+16]++ }, na.ErrProtocol},
		"a negative length":      {func(msg []byte) { msg[responseSize+16+7] = 0x80 }, na.ErrProtocol},
		"no such access":         {func(msg []byte) { msg[responseSize+24] = 0xff }, na.ErrProtocol},
		"too long":               {func(msg []byte) { msg[8+3], msg[responseSize+16+3] = 1, 1 }, ErrOverflow},
	} {
		t.Run(name, func(t *testing.T) {
			bad = c.bad
			err := call()
			require.ErrorIs(t, err, c.want)
			require.Equal(t, na.Ran, FateOf(err))
			bad = nil
			require.NoError(t, call())
			require.Zero(t, octx.Stats().Pulled)
			require.Zero(t, octx.Stats().NA.PeersLost)
		})
	}
	// The same holds for a response with invalid metadata in front of its body; such a request does
	// not run.
	spoiled = Metadata{bytes.Repeat([]byte{200}, 5000)}
	err = call()
	require.ErrorIs(t, err, na.ErrProtocol)
	require.Equal(t, na.Ran, FateOf(err))
	require.True(t, h.OutputMeta().IsZero())
	require.NoError(t, h.SetMeta(spoiled))
	err = call()
	remote, _ := RemoteOf(err)
	require.NotNil(t, remote)
	require.Equal(t, na.ErrProtocol, remote.Code)
	require.ErrorContains(t, err, "fetching the input: invalid metadata")
	require.Equal(t, na.NotRun, FateOf(err))
	spoiled = Metadata{}
	require.NoError(t, h.SetMeta(spoiled))
	require.NoError(t, call())
	h.Close()
	until(func() bool {
		return octx.Stats().NA.Outstanding+tctx.Stats().NA.Outstanding == 0 && tctx.Stats().Handles == 0
	})
	require.NoError(t, origin.Close())
	require.NoError(t, target.Close())
	until(func() bool { return origin.NA().Closed() && target.NA().Closed() })
}
