package natest

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/internal/test/leak"
	"github.com/quicksilver-rpc/quicksilver/na"
	"github.com/quicksilver-rpc/quicksilver/na/carrier"
	"github.com/quicksilver-rpc/quicksilver/plugins/sim"
)

// TestH1CancelBetween checks that a cancel between the start of an operation and the context's
// taking it in ends it all the same: hazard H1, at the one place where no lock of a layer above
// keeps the two apart. The simulator decides there whether the start fails.
func TestH1CancelBetween(t *testing.T) {
	leak.Check(t)
	var starting *na.Op
	between := &fault{plant: func(n *badNetwork) {
		n.failOp = func() error {
			starting.Cancel()
			return nil
		}
	}}
	plugin := newBadPlugin(sim.NewWorld(sim.Config{Seed: 1}), between)
	cls, err := na.Open("sim://", na.Config{Plugins: []carrier.Plugin{plugin}})
	require.NoError(t, err)
	nctx, err := cls.NewContext()
	require.NoError(t, err)
	peer, err := na.ParseAddr("sim://peer")
	require.NoError(t, err)
	mem, err := cls.NewMem(make([]byte, 8))
	require.NoError(t, err)
	for name, start := range map[string]func(op *na.Op) error{
		"lookup":           func(op *na.Op) error { return nctx.Lookup(op, "sim://far") },
		"receive expected": func(op *na.Op) error { return nctx.RecvExpected(op, peer, 1, make([]byte, 8)) },
		"send unexpected":  func(op *na.Op) error { return nctx.SendUnexpected(op, peer, 1, nil) },
		"send expected":    func(op *na.Op) error { return nctx.SendExpected(op, peer, 1, nil) },
		"get": func(op *na.Op) error {
			return nctx.Get(op, mem, 0, peer, na.Key{Len: 8, Access: na.ReadOnly}, 0, 8)
		},
		"put": func(op *na.Op) error {
			return nctx.Put(op, mem, 0, peer, na.Key{Len: 8, Access: na.WriteOnly}, 0, 8)
		},
		"lease": func(op *na.Op) error {
			_, err := nctx.Upper().Lease(op, peer, 1, make([]byte, 8))
			return err
		},
	} {
		calls := 0
		var got error
		starting = nctx.NewOp(func(_ *na.Op, r na.Result) { calls++; got = r.Err })
		require.NoError(t, start(starting), name)
		nctx.Trigger(0)
		require.Equal(t, 1, calls, name)
		require.ErrorIs(t, got, na.ErrCanceled, name)
	}
	require.NoError(t, nctx.Shutdown(t.Context()))
	require.NoError(t, cls.Close())
}
