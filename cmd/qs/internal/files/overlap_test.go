package files

import (
	"context"
	"errors"
	"io"
	"testing"

	"github.com/stretchr/testify/require"
)

// countTo returns 1, 2, ... last, then err.
func countTo(last int, err error) func(context.Context) (int, error) {
	n := 0
	return func(context.Context) (int, error) {
		if n == last {
			return 0, err
		}
		n++
		return n, nil
	}
}

func TestOverlap(t *testing.T) {
	failed := errors.New("failed")
	var got []int
	take := func(_ context.Context, n int) error {
		got = append(got, n)
		return nil
	}
	require.NoError(t, overlap(t.Context(), 2, countTo(5, io.EOF), take))
	require.Equal(t, []int{1, 2, 3, 4, 5}, got, "in order")

	got = nil
	require.Equal(t, failed, overlap(t.Context(), 2, countTo(3, failed), take))
	require.Equal(t, []int{1, 2, 3}, got, "what had been returned before the failure")

	got = nil
	err := overlap(t.Context(), 2, countTo(1000, io.EOF), func(ctx context.Context, n int) error {
		got = append(got, n)
		if n == 3 {
			return failed
		}
		require.Equal(t, n > 3, ctx.Err() != nil)
		return nil
	})
	require.Equal(t, failed, err)
	require.Less(t, len(got), 10, "first ends soon after a failure of second")

	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(failed)
	require.Equal(t, failed, overlap(ctx, 2, countTo(5, io.EOF), take))
}

// TestOverlapWorksAtOnce checks that the first function is one step ahead of the second.
func TestOverlapWorksAtOnce(t *testing.T) {
	ahead := make(chan int)
	n := 0
	err := overlap(t.Context(), 1, func(context.Context) (int, error) {
		if n++; n == 2 {
			ahead <- n // second is waiting for this
		}
		if n == 3 {
			return 0, io.EOF
		}
		return n, nil
	}, func(_ context.Context, v int) error {
		if v == 1 {
			require.Equal(t, 2, <-ahead)
		}
		return nil
	})
	require.NoError(t, err)
}
