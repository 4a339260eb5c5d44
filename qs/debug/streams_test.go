package debug_test

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/qs"
	"github.com/quicksilver-rpc/quicksilver/qs/debug"
)

// TestStreamLimits checks that the page, its text and its JSON have the open streams, of all and of
// a peer, and how many there may be.
func TestStreamLimits(t *testing.T) {
	talk := qs.DefineDuplex[int, int, int]("test/talk")
	cfg := qs.Config{}
	cfg.HG.MaxStreams, cfg.HG.MaxStreamsPerPeer = 7, 5
	s, err := qs.Open("tcp://127.0.0.1:0", cfg)
	require.NoError(t, err)
	talk.Handle(s, func(_ context.Context, _ int, d *qs.DuplexServer[int, int]) error {
		err := d.Send(1)
		for range d.All() {
		}
		return err
	})
	p := debug.New(s)
	serving, stop := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- s.Serve(serving) }()
	c, err := qs.Open("tcp://", qs.Config{})
	require.NoError(t, err)
	to, err := c.Peer(serving, s.Addr().String())
	require.NoError(t, err)
	for range 3 {
		call := talk.Call(serving, to, 0)
		_, err := call.Receive()
		require.NoError(t, err)
		defer call.Close()
	}
	snap := getSnapshot(t, p, "")
	got := snap.Contexts[0]
	require.Equal(t, [3]int{3, 7, 5}, [3]int{int(got.Streams), got.MaxStreams, got.MaxStreamsPerPeer})
	require.EqualValues(t, 3, snap.Peers.Rows[0].Streams)
	_, text := getPage(t, p, "GET", "/?format=text", "")
	require.Contains(t, text, "3 of 7 streams open")
	_, html := getPage(t, p, "GET", "/", "text/html,*/*")
	require.Contains(t, html, "3 of 7 streams open (5 for each peer)")
	stop()
	require.NoError(t, c.Close())
	<-ended
	_ = s.Close()
}
