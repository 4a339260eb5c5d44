package loglimit

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestAllow(t *testing.T) {
	var l Limiter
	lines, last := 0, int64(0)
	for now := time.Duration(0); now <= 3*time.Second; now += 100 * time.Millisecond {
		if skipped, ok := l.Allow(now); ok {
			lines++
			last = skipped
		}
	}
	require.Equal(t, 4, lines)
	require.EqualValues(t, 9, last)
}
