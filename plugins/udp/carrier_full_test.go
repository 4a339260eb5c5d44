package udp

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/na"
)

// TestMaxPeersReached checks that with the maximum of peers a message to one more fails at once with an error
// that states it, and the others are reached.
func TestMaxPeersReached(t *testing.T) {
	context := func(addr string, p na.Plugin) (*na.Class, *na.Context) {
		cls, err := na.Open(addr, na.Config{Plugins: []na.Plugin{p}})
		require.NoError(t, err)
		c, err := cls.NewContext()
		require.NoError(t, err)
		return cls, c
	}
	_, a := context("udp://", plugin{tune: func(d *domain) { d.peers = 1 }})
	all := []*na.Context{a}
	var peers []na.Addr
	for range 2 {
		cls, c := context("udp://127.0.0.1:0", New(Options{}))
		all, peers = append(all, c), append(peers, cls.Addr())
	}
	drive := func(what string, done func() bool) {
		for end := time.Now().Add(10 * time.Second); !done(); {
			require.Less(t, time.Now(), end, what)
			for _, c := range all {
				_ = c.Progress(100 * time.Microsecond)
				c.Trigger(0)
			}
		}
	}
	send := func(to na.Addr) (end *na.Result) {
		require.NoError(t, a.SendUnexpected(a.NewOp(func(_ *na.Op, r na.Result) { end = &r }), to, 1, []byte("x")))
		drive("the send does not end", func() bool { return end != nil })
		return end
	}
	require.NoError(t, send(peers[0]).Err)
	r := send(peers[1])
	require.ErrorIs(t, r.Err, na.ErrUnreachable)
	require.ErrorContains(t, r.Err, "too many udp peers")
	require.Equal(t, na.NotRun, r.Fate)
	require.NoError(t, send(peers[0]).Err)
	for _, c := range all {
		c.Close()
	}
	drive("a context does not close", func() bool { return all[0].Closed() && all[1].Closed() && all[2].Closed() })
}
