package sm_test

import (
	"errors"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/internal/test/long"
	"github.com/quicksilver-rpc/quicksilver/na"
)

func init() { roles["guest"] = callOnceAndStay }

// callOnceAndStay calls once, prints the outcome, and stays.
func callOnceAndStay() error {
	l, err := startLoad(1)
	if err != nil {
		return err
	}
	for l.stop = true; l.flying > 0; l.hctx.Trigger(0) {
		_ = l.hctx.Progress(-1)
	}
	fmt.Println(errors.Is(l.failed, na.ErrUnreachable), l.failed)
	select {} // it is driven by its background poller only
}

// TestManyAttach checks many processes that attach to one that only waits, call once and stay. All
// are accepted, though the budget has no room for as many at a time: sessions that are idle end.
// When the processes end nothing is left.
func TestManyAttach(t *testing.T) {
	n, budget := 20, na.GuaranteedBytes(12, 32, 4<<10)
	if long.On {
		n, budget = 600, 64<<20 // the default
	}
	s := newParent(t, budget)
	type answer struct {
		*process
		line string
	}
	all := make(chan answer)
	for range 4 {
		go func() {
			for range n / 4 {
				p := s.start("guest")
				all <- answer{p, p.line()}
			}
		}()
	}
	var outcomes []answer
	s.until("all have attached", func() bool {
		select {
		case a := <-all:
			outcomes = append(outcomes, a)
		default:
		}
		return len(outcomes) == n
	})
	for _, g := range outcomes {
		require.Equal(t, "false <nil>", g.line)
	}
	st := s.hctx.Stats().NA
	require.LessOrEqual(t, st.Reserved, budget)
	require.Less(t, st.Peers, n, "the budget has no room for as many at a time")
	require.GreaterOrEqual(t, int(st.PeersIdle), n-st.Peers, "sessions that made room")
	require.Zero(t, st.PeersLost)
	require.Equal(t, n, s.serve)
	for _, g := range outcomes {
		g.kill()
	}
	s.until("all are gone", func() bool { return s.hctx.Stats().NA.Peers == 0 })
	for _, g := range outcomes {
		g.waitExited()
	}
}
