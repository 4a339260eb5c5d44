package natest

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/internal/test/leak"
	"github.com/quicksilver-rpc/quicksilver/na"
	"github.com/quicksilver-rpc/quicksilver/plugins/sim"
)

// A cancel that comes when an operation has been started and its endpoint has not yet taken it in ends it all the same:
// hazard H1, at the one place where no lock of a layer above keeps the two apart.
func TestH1CancelBetween(t *testing.T) {
	leak.Check(t)
	between := &fault{plant: func(e *badEndpoint) {
		e.lookup = func(t na.Ticket, text string) {
			t.Op().Cancel()
			e.Endpoint.Lookup(t, text)
		}
		e.recvUnexpected = func(t na.Ticket) {
			t.Op().Cancel()
			e.Endpoint.RecvUnexpected(t)
		}
		e.recvExpected = func(t na.Ticket, from na.Addr, tag na.Tag, buf []byte) {
			t.Op().Cancel()
			e.Endpoint.RecvExpected(t, from, tag, buf, 0)
		}
		e.sendUnexpected = func(t na.Ticket, to na.Addr, tag na.Tag, buf []byte) {
			t.Op().Cancel()
			e.Endpoint.SendUnexpected(t, to, tag, buf, na.Deadline{})
		}
		e.get = func(t na.Ticket, local *na.Mem, loff int64, to na.Addr, key na.Key, roff, n int64) {
			t.Op().Cancel()
			e.Endpoint.Get(t, local, loff, to, key, roff, n)
		}
		e.lease = func(t na.Ticket, to na.Addr, tag na.Tag, m *na.Mem) {
			t.Op().Cancel()
			e.Endpoint.Lease(t, to, tag, m)
		}
	}}
	w := sim.NewWorld(sim.Config{Seed: 1})
	cls, err := na.Open("sim://", na.Config{Plugins: []na.Plugin{&badPlugin{w.Plugin(), between}}})
	require.NoError(t, err)
	nctx, err := cls.NewContext()
	require.NoError(t, err)
	peer, err := na.ParseAddr("sim://peer")
	require.NoError(t, err)
	mem, err := cls.NewMem(make([]byte, 8))
	require.NoError(t, err)
	for name, start := range map[string]func(op *na.Op) error{
		"lookup":             func(op *na.Op) error { return nctx.Lookup(op, "sim://far") },
		"receive unexpected": func(op *na.Op) error { return nctx.RecvUnexpected(op) },
		"receive expected":   func(op *na.Op) error { return nctx.RecvExpected(op, peer, 1, make([]byte, 8)) },
		"send unexpected":    func(op *na.Op) error { return nctx.SendUnexpected(op, peer, 1, nil) },
		"get": func(op *na.Op) error {
			return nctx.Get(op, mem, 0, peer, na.Key{Len: 8, Access: na.ReadOnly}, 0, 8)
		},
		"lease": func(op *na.Op) error {
			_, err := nctx.Lease(op, peer, 1, make([]byte, 8))
			return err
		},
	} {
		calls := 0
		var got error
		op := nctx.NewOp(func(_ *na.Op, r na.Result) { calls++; got = r.Err })
		require.NoError(t, start(op), name)
		nctx.Trigger(0)
		require.Equal(t, 1, calls, name)
		require.ErrorIs(t, got, na.ErrCanceled, name)
	}
	require.NoError(t, nctx.Shutdown(t.Context()))
	require.NoError(t, cls.Close())
}
