package quicksilver_test

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	qs "github.com/quicksilver-rpc/quicksilver"
	"github.com/quicksilver-rpc/quicksilver/hg"
)

// A typed call allocates at most 8 times on each side: what is counted is both, less what the side measured with raw
// bytes costs.
func TestAllocations(t *testing.T) {
	s := server(t, qs.Config{}, func(n *qs.Node) {
		double.Handle(n, func(_ context.Context, p point) (point, error) { return point{2 * p.X, 2 * p.Y}, nil })
	})
	c := open(t, "tcp://", qs.Config{})
	to := peer(t, c, s.Addr().String())
	ctx := context.Background()
	call := func() {
		if got, err := double.Call(ctx, to, point{1, 21}); err != nil || got.Y != 42 {
			t.Fatal(got, err)
		}
	}
	for range 100 {
		call()
	}
	both := testing.AllocsPerRun(2000, call)

	id, err := hg.HashName("test/double"), error(nil)
	h, err := c.HG().Create(to.Addr(), id)
	require.NoError(t, err)
	defer h.Close()
	in := []byte{0x82, 0xa1, 'X', 1, 0xa1, 'Y', 21}
	target := testing.AllocsPerRun(2000, func() {
		if _, err := h.CallRaw(ctx, in); err != nil {
			t.Fatal(err)
		}
	})
	t.Logf("%.1f allocations at the target, %.1f at the origin", target, both-target)
	require.LessOrEqual(t, target, 8.0, "at the target")
	require.LessOrEqual(t, both-target, 8.0, "at the origin")
}
