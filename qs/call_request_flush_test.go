package qs_test

import (
	"context"
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/qs"
)

// TestFlushIsOfTheCall checks that the result that a server's interceptors get from next is that of
// the caller, also when a Buffer cannot be flushed; and that whatever they change, the caller gets
// no success for a part. A Writer is the caller's: its error is only the caller's when the handler
// has returned before.
func TestFlushIsOfTheCall(t *testing.T) {
	t.Parallel()
	reported, swallow := make(chan error, 1), false
	watch := func(ctx context.Context, _ *qs.Call, next func(context.Context) error) error {
		err := next(ctx)
		reported <- err
		if swallow {
			return nil
		}
		return err
	}
	_, to := pair(t, qs.Config{ServerInterceptors: []qs.Interceptor{watch}}, func(n *qs.Node) { serveBulk(t, n) })
	for _, swallow = range []bool{false, true} {
		full := writerFunc(func([]byte) (int, error) { return 0, errors.New("disk full") })
		_, err := get.Call(testContext(t), to, getIn{"writer", 5000, qs.Writer(full)})
		require.ErrorContains(t, err, "disk full")
		require.Equal(t, qs.Ran, qs.FateOf(err))
		if err := <-reported; err != nil { // the interceptor got the error before it returned
			require.ErrorContains(t, err, "disk full")
		}
		b := make([]byte, 5000)
		got, err := get.Call(testContext(t), to, getIn{"writer", 5000, qs.Buffer(b)})
		require.NoError(t, err)
		require.Equal(t, 5000, got)
		require.NoError(t, <-reported)
		_, err = get.Call(testContext(t), to, getIn{"both", 5000, qs.Buffer(b)}) // the handler fails when it has written half of it
		require.Error(t, <-reported)
		require.Equal(t, swallow, err == nil)
	}
}
