package happyeyeballs

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

const ms = time.Millisecond

// begin returns the attempts that begin at a time.
func (r *Race) begin(now time.Duration) (all []int) {
	for i, ok := r.Next(now); ok; i, ok = r.Next(now) {
		all = append(all, i)
	}
	return all
}

// TestRaceStaggered checks that attempts that are not answered begin one Delay after the other.
func TestRaceStaggered(t *testing.T) {
	r := New(3, 1000*ms, 5*time.Second)
	require.Equal(t, []int{0}, r.begin(1000*ms))
	require.Empty(t, r.begin(1249*ms))
	at, ok := r.Due()
	require.True(t, ok)
	require.Equal(t, 1250*ms, at)
	require.Equal(t, []int{1}, r.begin(1251*ms))
	require.Empty(t, r.begin(1500*ms))
	require.Equal(t, []int{2}, r.begin(9000*ms))
	_, ok = r.Due()
	require.False(t, ok, "all have begun")
	require.False(t, r.Lost(), "they are under way")
}

// TestRaceFailed checks that a failed attempt starts the next one at once, and the delay counts
// from there.
func TestRaceFailed(t *testing.T) {
	r := New(3, 0, 5*time.Second)
	require.Equal(t, []int{0}, r.begin(0))
	r.Fail(10 * ms)
	require.Equal(t, []int{1}, r.begin(10*ms))
	require.Empty(t, r.begin(259*ms))
	require.Equal(t, []int{2}, r.begin(260*ms))
	r.Fail(270 * ms)
	require.False(t, r.Lost())
	r.Fail(280 * ms)
	require.True(t, r.Lost())
	require.Empty(t, r.begin(time.Hour))
}

// TestRaceFailedTwice checks that two failures at one time start one attempt, and the next begins a
// Delay later.
func TestRaceFailedTwice(t *testing.T) {
	r := New(4, 0, 5*time.Second)
	require.Equal(t, []int{0}, r.begin(0))
	require.Equal(t, []int{1}, r.begin(Delay))
	r.Fail(260 * ms)
	r.Fail(260 * ms)
	require.Equal(t, []int{2}, r.begin(260*ms))
	require.Equal(t, []int{3}, r.begin(260*ms+Delay))
}

// TestRaceShort checks that every address has its turn when there is little time.
func TestRaceShort(t *testing.T) {
	r := New(4, 0, 80*ms)
	for i := range 4 {
		require.Equal(t, []int{i}, r.begin(time.Duration(i)*10*ms))
	}
	r = New(0, 0, 0)
	require.Empty(t, r.begin(0))
	require.True(t, r.Lost(), "nothing can be reached")
}
