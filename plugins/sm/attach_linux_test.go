package sm_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/internal/long"
	"github.com/quicksilver-rpc/quicksilver/na"
)

func init() { roles["guest"] = guest }

// guest calls once, says what came of it, and stays.
func guest() error {
	l, err := origin(1)
	if err != nil {
		return err
	}
	for l.stop = true; l.flying > 0; l.hctx.Trigger(0) {
		_ = l.hctx.Progress(-1)
	}
	fmt.Println(errors.Is(l.failed, na.ErrUnreachable), l.failed)
	select {}
}

// Many processes attach to one that only waits. Each is let in, or told that the budget has no room for it, with what it asked for and
// what is left; when they end nothing is left.
func TestManyAttach(t *testing.T) {
	n, budget := 20, na.GuaranteedBytes(12, 32, 4<<10)
	if long.On {
		n, budget = 600, 64<<20 // the default
	}
	s := newSurvivor(t, budget)
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
	var guests []answer
	s.until("all have attached", func() bool {
		select {
		case a := <-all:
			guests = append(guests, a)
		default:
		}
		return len(guests) == n
	})
	in := 0
	for _, g := range guests {
		if g.line == "false <nil>" {
			in++
			continue
		}
		var want, each, least, of, left, enough int64
		_, err := fmt.Sscanf(g.line[max(0, strings.Index(g.line, noRoom)):], noRoom+figures, &want, &each, &least, &of, &left, &enough)
		require.NoError(t, err, g.line)
		require.Regexp(t, "^true ", g.line, "the error matches ErrUnreachable")
		require.EqualValues(t, 32, want)
		require.Equal(t, budget, of)
		require.Less(t, left, (least+na.ExpeditedEnvelopes)*each)
		require.Equal(t, max(left/each-na.ExpeditedEnvelopes, 0), enough)
	}
	t.Logf("%d of %d are in", in, n)
	require.Positive(t, in)
	require.Less(t, in, n, "the budget has no room for as many")
	require.Equal(t, in, s.hctx.Stats().NA.Peers)
	require.Equal(t, in, s.serve)
	for _, g := range guests {
		g.kill()
	}
	s.until("all are gone", func() bool { return s.hctx.Stats().NA.Peers == 0 })
	for _, g := range guests {
		g.dead()
	}
}

// The words of a refusal.
const (
	noRoom  = "no room to guarantee envelopes to one more peer: "
	figures = "%d of %d bytes are asked for, at least %d, and of the budget of %d bytes %d are left, enough for %d"
)
