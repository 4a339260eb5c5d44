package group

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestGossipReachesAll checks that with many members that start at once, the number of updates that
// each sends is enough for every member to get all of them.
func TestGossipReachesAll(t *testing.T) {
	t.Parallel()
	s := newGossip(&Options{Name: "a", Gossip: "127.0.0.1:0"}, 1)
	cfg, err := s.newConfig()
	require.NoError(t, err)
	require.Equal(t, cfg.RetransmitMult, s.broadcasts.RetransmitMult)
	for _, n := range []float64{2, 9, 10, 64, 99, 500} {
		sent := float64(cfg.RetransmitMult) * math.Ceil(math.Log10(n+1)) // as memberlist counts
		require.Less(t, n*n*math.Exp(-sent), 0.05, "of %v members so many miss another", n)
	}
}
