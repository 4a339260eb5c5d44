package inspect_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/hg/inspect"
)

// TestTimeBucket: a duration is not longer than its bucket says, and by more than a tenth not shorter.
func TestTimeBucket(t *testing.T) {
	require.Zero(t, inspect.TimeBucket(-1))
	require.Zero(t, inspect.TimeBucket(1))
	for d := time.Duration(20); d < 100*time.Hour; d += d/7 + 1 {
		top := inspect.BucketTime(inspect.TimeBucket(d))
		require.GreaterOrEqual(t, top+1, d)
		require.LessOrEqual(t, float64(top), 1.1*float64(d))
	}
}
