package inspect_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/hg/inspect"
)

// TestTimeBucket checks that a duration is at most the bound of its bucket, and at most a tenth
// below it.
func TestTimeBucket(t *testing.T) {
	require.Zero(t, inspect.TimeBucket(-1))
	require.Zero(t, inspect.TimeBucket(1))
	for d := time.Duration(20); d < 100*time.Hour; d += d/7 + 1 {
		top := inspect.BucketTime(inspect.TimeBucket(d))
		require.GreaterOrEqual(t, top+1, d)
		require.LessOrEqual(t, float64(top), 1.1*float64(d))
	}
}
