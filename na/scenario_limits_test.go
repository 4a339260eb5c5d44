package na

import (
	"fmt"
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/internal/frame"
)

// TestLimits checks each limit of the engine on operations of this process: as many as it allows
// work, one more fails at once with an error that names the limit, nothing else is affected, and
// when one has ended there is room again.
func TestLimits(t *testing.T) {
	for _, c := range []struct {
		name  string
		limit int
		count func(s *script, l *session) *int
		start func(s *script, i int) *result
		free  func(s *script, l *session, first *result) // ends one
		says  string
	}{
		{"answers", maxAnswers, func(s *script, l *session) *int { return &l.answers }, func(s *script, i int) *result {
			return s.op(func(op *Op) error { return s.nctx.SendExpected(op, s.addr(), Tag(i), []byte("x")) })
		}, func(s *script, l *session, _ *result) { s.pull(l) }, "65536 queued expected messages"},
		{"gets", maxQueuedMoves, func(s *script, l *session) *int { return &l.queuedMoves.n }, func(s *script, i int) *result {
			return s.op(func(op *Op) error {
				m := s.mem(1)
				return s.nctx.Get(op, m, 0, s.addr(), Key{Len: 1, Access: ReadOnly}, 0, 1)
			})
		}, func(s *script, l *session, _ *result) { s.drain(l) }, "65536 queued gets and puts"},
		{"receives", maxRecvs + 8192, func(s *script, l *session) *int { return &l.recvs.n }, func(s *script, i int) *result { return s.expect(Tag(i), nil) },
			func(s *script, l *session, _ *result) {
				require.NoError(s, s.deliver(l, frame.Header{Kind: frame.Expected, Tag: 5}, nil))
			}, "limit of 73728 posted receives reached"},
		{"withdraws", maxAsking, func(s *script, l *session) *int { l.peer.envelopes = 0; return &l.withdraws.waiting.n }, func(s *script, i int) *result {
			return s.op(func(op *Op) error { return s.nctx.Withdraw(op, s.addr(), uint64(i+1)) })
		}, func(s *script, l *session, first *result) {
			first.Cancel()
		}, "65536 queued withdrawals"},
		{"lookups", maxLookups, func(s *script, l *session) *int { return &s.e.lookups.n }, func(s *script, i int) *result {
			return s.op(func(op *Op) error { return s.nctx.Lookup(op, "script://slow") })
		}, func(s *script, l *session, first *result) { first.Cancel() }, "1024 lookups in flight"},
		{"leases", maxLeases, func(s *script, l *session) *int { return &l.leases.n }, func(s *script, i int) *result {
			return s.op(func(op *Op) error {
				_, err := s.nctx.Upper().Lease(op, s.addr(), Tag(i), []byte("lent"))
				return err
			})
		}, func(s *script, l *session, first *result) {
			require.NoError(s, s.deliver(l, frame.Header{Kind: frame.Dropped, Tag: 0}, nil))
		}, "1024 leases"},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := newScript(t, Config{})
			l := s.meetWithdrawing(5)
			l.seq = 1 << 20
			const real = 8 // started; the others are only counted, for starting them all takes long
			n := c.count(s, l)
			first := c.start(s, 0)
			for i := range real - 1 {
				c.start(s, 1+i)
			}
			s.trigger()
			require.Equal(t, 1, s.ends, "callbacks besides that of the handshake")
			*n += c.limit - real - 1
			c.start(s, real)
			s.trigger()
			require.Equal(t, 1, s.ends, "the last that there is room for")
			more := c.start(s, c.limit)
			s.trigger()
			require.ErrorIs(t, more.Err, ErrAgain)
			require.ErrorContains(t, more.Err, c.says)
			*n -= c.limit - real - 1
			other := s.send("x")
			if c.name == "answers" {
				other.Cancel()
			} else {
				s.drain(l)
			}
			s.trigger()
			require.Equal(t, 1, other.ended)
			c.free(s, l, first)
			*n += c.limit - real - 1
			again := c.start(s, c.limit)
			s.trigger()
			*n -= c.limit - real - 1
			require.NoError(t, again.Err)
		})
	}
}

// TestMovesInFlightBounded checks that at most 128 gets and puts are in flight to one peer; one that
// ends lets the next begin.
func TestMovesInFlightBounded(t *testing.T) {
	s := newScript(t, Config{})
	l := s.connect(5)
	for range maxInFlight + 2 {
		s.get(s.mem(1))
	}
	gets := s.drain(l)
	require.Len(t, gets, maxInFlight)
	require.NoError(t, s.deliver(l, frame.Header{Kind: frame.Done, Op: gets[0].Op, Tag: uint64(ErrRevoked)}, nil))
	require.Len(t, s.drain(l), 1)
}

// TestForgedCredit checks credit that is forged or leaps, also near the wrap of the number (F81). A
// smaller credit is older than the last, has arrived on another flow, and changes nothing.
func TestForgedCredit(t *testing.T) {
	for _, start := range []uint32{5, 1<<31 - 3, 1 << 31, 1<<32 - 3} {
		for _, c := range []struct {
			add  uint32
			ok   bool
			free int
		}{
			{0, true, 5}, {1, true, 6}, {4096 - 5, true, 4096}, {4096 - 4, false, 5}, {1<<31 - 1, false, 5},
			{1 << 31, true, 5}, {^uint32(0), true, 5}, {^uint32(4), true, 5},
		} {
			t.Run(fmt.Sprintf("%d+%d", start, c.add), func(t *testing.T) {
				s := newScript(t, Config{})
				l := s.connect(5)
				l.credits, l.used, l.peer.envelopes = start, start-5, start // after a long session; five are free
				h := frame.Header{Kind: frame.Credit, Credit: start + c.add}
				s.e.Lock()
				err := l.Deliver(&h, nil)
				s.e.Unlock()
				require.Equal(t, c.ok, err == nil, "%v", err)
				if !c.ok {
					require.ErrorIs(t, err, ErrProtocol)
				}
				require.Equal(t, c.free, l.freeEnvelopes())
			})
		}
	}
}

// TestSendQueueWithoutLimit checks that the largest SendQueue does not overflow the sums that
// include it.
func TestSendQueueWithoutLimit(t *testing.T) {
	s := newScript(t, Config{SendQueue: math.MaxInt})
	l := s.meetWithdrawing(5)
	r := s.expect(5, nil)
	require.NoError(t, s.deliver(l, frame.Header{Kind: frame.Expected, Tag: 5}, nil))
	s.trigger()
	require.NoError(t, r.Err)
}
