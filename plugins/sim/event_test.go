package sim

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestClockLimit(t *testing.T) {
	w := NewWorld(Config{})
	require.Equal(t, noDeadline, w.firstDeadlineLocked())
	w.waiters = []*waiter{{5}, {3}, {9}}
	require.Equal(t, time.Duration(3), w.firstDeadlineLocked())
	w.removeWaiterLocked(w.waiters[1])
	require.Equal(t, time.Duration(5), w.firstDeadlineLocked())
}
