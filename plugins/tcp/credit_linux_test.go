package tcp_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/internal/leak"
	"github.com/quicksilver-rpc/quicksilver/na"
	"github.com/quicksilver-rpc/quicksilver/plugins/internal/frame"
	"github.com/quicksilver-rpc/quicksilver/plugins/tcp"
)

// TestCreditUnread: credit that has arrived and that nobody has read counts, for a send that would fail without it (G-T4,
// G11). Nobody drives here.
func TestCreditUnread(t *testing.T) {
	leak.Check(t)
	l := rawListen(t)
	n := open(t, "tcp://", tcp.Options{Unassisted: true}, na.Config{OnNoCredit: na.Fail}, 1)
	g := greeting()
	g.Envelopes = 1
	r := joinAs(t, n, l, g)
	send := func() error {
		o, end := op(n.ctx())
		require.NoError(t, n.ctx().SendUnexpected(o, l.addr(), 1, []byte("x")))
		n.ctx().Trigger(0)
		require.Equal(t, 1, end.n, "it leaves or fails at once")
		return end.Err
	}
	for range 20 {
		require.ErrorIs(t, send(), na.ErrNoCredit)
		r.send(frame.Header{Kind: frame.Credit}, nil) // joinAs has raised what r.limit says by one
		for late := time.Now().Add(patience); send() != nil; {
			require.True(t, time.Now().Before(late), "the credit was sent, and is not seen")
		}
		r.readKind(frame.Unexpected)
		r.limit++
	}
}
