package tcp_test

import (
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/internal/frame"
	"github.com/quicksilver-rpc/quicksilver/na"
	"github.com/quicksilver-rpc/quicksilver/plugins/tcp"
)

// TestCreditUnread checks that credit that has arrived and was not read counts, for a send that
// would fail without it (G-T4, G11). No goroutine drives here.
func TestCreditUnread(t *testing.T) {
	l := rawListen(t)
	n := open(t, "tcp://", tcp.Options{Unassisted: true}, na.Config{OnNoCredit: na.Fail}, 1)
	g := greeting()
	g.Envelopes = 1
	r := joinAs(t, n, l, g)
	send := func() error {
		o, end := newOp(n.ctx())
		require.NoError(t, n.ctx().SendUnexpected(o, l.addr(), 1, []byte("x")))
		n.ctx().Trigger(0)
		require.Equal(t, 1, end.n, "it leaves or fails at once")
		return end.Err
	}
	for range 20 {
		require.ErrorIs(t, send(), na.ErrNoCredit)
		r.send(frame.Header{Kind: frame.Credit}, nil) // joinAs has raised r.limit by one
		for late := time.Now().Add(patience); send() != nil; {
			require.True(t, time.Now().Before(late), "the credit was sent, and is not seen")
		}
		r.readKind(frame.Unexpected)
		r.limit++
	}
}

// TestManySenders checks a hundred goroutines that send to one peer with few envelopes (G-T30): all
// messages arrive, and those of each goroutine keep their order.
func TestManySenders(t *testing.T) {
	t.Parallel()
	const senders, each = 100, 40
	target := open(t, "tcp://127.0.0.1:0", tcp.Options{}, na.Config{Envelopes: 4}, 1)
	n := open(t, "tcp://", tcp.Options{}, na.Config{}, 1)
	var left atomic.Int64
	var group sync.WaitGroup
	for i := range senders {
		group.Go(func() {
			for j := range each {
				o := n.ctx().NewOp(func(_ *na.Op, r na.Result) {
					assert.NoError(t, r.Err)
					left.Add(1)
				})
				assert.NoError(t, n.ctx().SendUnexpected(o, target.ctx().Self(), na.Tag(i), []byte{byte(j)}))
			}
		})
	}
	var next [senders]byte
	for range senders * each {
		text, _, tag := recvUnexpected(t, target.ctx(), target, n)
		require.Equal(t, next[tag], text[0], "message of sender %d", tag)
		next[tag]++
	}
	group.Wait()
	n.ctx().Trigger(0)
	require.EqualValues(t, senders*each, left.Load())
}

// TestWithdrawBehindPartialMessage checks that a withdraw of a message that is half written follows the
// whole of it, and the session is not affected (C-T4).
func TestWithdrawBehindPartialMessage(t *testing.T) {
	l := rawListen(t)
	n := open(t, "tcp://", tcp.Options{}, na.Config{PeerTimeout: time.Minute, Eager: 48 << 10}, 1)
	g := greeting()
	g.Envelopes, g.Eager, g.Features = 4096, 48<<10, frame.FeatureWithdraw
	r := joinAs(t, n, l, g)
	message := make([]byte, 48<<10)
	sent, ends := 0, []*outcome{}
	// The peer does not read: the buffers of the system are full, and a message is written in part.
	// The system may report a full buffer for a moment before that, too.
	quiet := 0
	driveUntil(t, "a message that is written in part", func() bool {
		for n.ctx().Stats().Queued < 3 {
			o, end := newOp(n.ctx())
			require.NoError(t, n.ctx().SendUnexpected(o, l.addr(), 1, message))
			ends = append(ends, end)
			require.Less(t, len(ends), 4000)
			n.ctx().Trigger(0)
		}
		for quiet++; sent < len(ends) && ends[sent].n == 1; sent++ {
			quiet = 0
		}
		return sent > 0 && quiet > 10
	}, n)
	require.Less(t, sent, len(ends))
	last := ends[sent-1].Result
	o, end := newOp(n.ctx())
	require.NoError(t, n.ctx().Withdraw(o, last.Addr, last.ID))
	read := 0
	for {
		h, payload := r.read()
		if h.Kind == frame.Withdraw {
			require.Equal(t, last.ID, h.Op)
			break
		}
		require.Equal(t, frame.Unexpected, h.Kind)
		require.Len(t, payload, len(message))
		read++
		n.ctx().Trigger(0)
		_ = n.ctx().Progress(0)
	}
	require.GreaterOrEqual(t, read, sent, "the message arrived before, whole")
	r.send(frame.Header{Kind: frame.Withdrawn, Op: last.ID}, nil)
	requireSuccess(t, "withdraw", end, n)
	for ; read < len(ends); read++ {
		r.readKind(frame.Unexpected)
	}
	require.Zero(t, n.ctx().Stats().PeersLost)
}
