package qs_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/hg"
	"github.com/quicksilver-rpc/quicksilver/qs"
)

// TestHedgeHasOwnOut checks a call of which both attempts are answered. An interceptor behind Hedge
// has the output of its own one, with its metadata, and may change it; the caller gets one of them,
// whole.
func TestHedgeHasOwnOut(t *testing.T) {
	t.Parallel()
	asked := make(chan struct{}, 1) // b was
	answered := make(chan struct{}) // one attempt was
	var addrs []string
	for _, who := range []string{"a", "b"} {
		s := server(t, qs.Config{}, func(n *qs.Node) {
			repeat.Handle(n, func(ctx context.Context, _ string) (string, error) {
				qs.CallFrom(ctx).ResponseMetadata, _ = hg.Metadata{}.With("who", who)
				if who == "a" {
					<-asked
				} else {
					asked <- struct{}{}
				}
				return who, nil
			})
		})
		addrs = append(addrs, s.Addr().String())
	}
	same := func(c *qs.Call, want string) {
		who, _ := c.ResponseMetadata.Get("who")
		if got := *c.Out.(*string); got != who+want {
			t.Errorf("the output is %q, its metadata is %q", got, who)
		}
	}
	outer := func(ctx context.Context, c *qs.Call, next func(context.Context) error) error {
		err := next(ctx)
		same(c, "!")
		return err
	}
	inner := func(ctx context.Context, c *qs.Call, next func(context.Context) error) error {
		err := next(ctx)
		if err == nil {
			select { // both run together
			case answered <- struct{}{}:
			case <-answered:
			}
			same(c, "")
			*c.Out.(*string) += "!"
		}
		return err
	}
	c := open(t, "tcp://", qs.Config{ClientInterceptors: []qs.Interceptor{outer, qs.Hedge(5 * time.Millisecond), inner}})
	to := peer(t, c, addrs...)
	for range 5 {
		got, err := repeat.Call(testContext(t), to, "")
		require.NoError(t, err)
		require.Contains(t, []string{"a!", "b!"}, got)
	}
}
