package na

import (
	"testing"
	"time"

	"github.com/quicksilver-rpc/quicksilver/na/carrier"
	"github.com/stretchr/testify/require"
)

// TestPeerNotReading checks that a peer that takes nothing of either flow is lost, although it sends;
// one that takes a little, or for which there is nothing, is not.
func TestPeerNotReading(t *testing.T) {
	const limit = 10 * time.Second
	for _, flow := range []carrier.Lane{carrier.Messages, carrier.Bulk} {
		s := (&script{T: t, takeTimeout: limit}).open(Config{PeerTimeout: time.Hour})
		count, waits := uint64(7), true
		s.taken = func(_ *session, f carrier.Lane) (uint64, bool) {
			if f != flow {
				return 3, false
			}
			return count, waits
		}
		l := s.connect(5)
		look := func() {
			s.e.Lock()
			l.Heard(true)
			s.e.Unlock()
			s.advance(limit / 10)
			s.trigger()
		}
		blocked := func() {
			s.e.Lock()
			l.Waits()
			s.e.Unlock()
		}
		blocked()
		for range 30 { // between two looks it took something, although as much waits as before
			look()
			count++
			require.True(t, l.Up())
		}
		waits = false
		for range 30 {
			look()
			require.True(t, l.Up())
		}
		waits = true
		blocked()
		looks := 0
		for ; l.Up(); looks++ {
			require.Less(t, looks, 13)
			look()
		}
		require.GreaterOrEqual(t, looks, 10)
		require.Contains(t, s.cuts[l][0], "has read nothing")
		require.EqualValues(t, 1, s.nctx.Stats().PeersLost)
	}
}
