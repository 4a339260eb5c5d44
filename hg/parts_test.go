package hg

import (
	"context"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/na"
	"github.com/quicksilver-rpc/quicksilver/plugins/sim"
)

// partsOf returns a call whose send and receive are under way, as far as it knows, and counts its callbacks.
func partsOf(t *testing.T) (k *call, ended *int) {
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
	t.Cleanup(h.Close)
	ended = new(int)
	k = h.call
	k.found(evForward)
	k.phase, k.parts, k.sending = pending, 2, true
	k.note(evForward)
	k.cb = func(*Handle, error) { *ended++ }
	h.refs.Add(1)
	return k, ended
}

var failures = []error{na.ErrPeerLost, na.ErrCanceled, na.ErrUnreachable}

// bothEnd has the send and the receive of a call fail, in both orders and with all pairs of errors; begin comes first.
func bothEnd(t *testing.T, begin func(k *call)) {
	for _, sent := range failures {
		for _, received := range failures {
			for _, sendFirst := range []bool{true, false} {
				t.Run(fmt.Sprintf("%v/%v/%v", sent, received, sendFirst), func(t *testing.T) {
					k, ended := partsOf(t)
					c := k.h.ctx
					begin(k)
					if sendFirst {
						k.onSent(nil, na.Result{Err: sent})
					} else {
						k.onReceived(nil, na.Result{Err: received})
					}
					c.Trigger(0)
					require.Zero(t, *ended, "one part is left")
					if sendFirst {
						k.onReceived(nil, na.Result{Err: received})
					} else {
						k.onSent(nil, na.Result{Err: sent})
					}
					c.Trigger(0)
					require.Equal(t, 1, *ended, "callbacks when both parts have ended")
					require.Error(t, k.err)
				})
			}
		}
	}
}

// When both parts of a call fail it ends once, whatever the errors say, and whichever comes first.
func TestH8BothFail(t *testing.T) { bothEnd(t, func(*call) {}) }

// A call that is being canceled ends when its parts do, also if they say something else than that they were canceled.
func TestH9OtherErrorAfterCancel(t *testing.T) {
	bothEnd(t, func(k *call) { k.h.Cancel() })
}
