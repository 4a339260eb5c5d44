package sm_test

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/hg"
	"github.com/quicksilver-rpc/quicksilver/internal/long"
	"github.com/quicksilver-rpc/quicksilver/na"
)

func init() {
	roles["guest"] = func() error { return guest(os.Getenv(dirEnv), os.Getenv(peerEnv)) }
}

// refused is what a guest says for whom there is no room.
const refused = "sm://refused"

// guest calls once, says so, and stays.
func guest(dir, peer string) error {
	lifeline()
	cls, err := hg.Open("sm://", patient(dir))
	if err != nil {
		return err
	}
	hctx, err := cls.NewContext()
	if err != nil {
		return err
	}
	if _, err := cls.Register("echo", nil); err != nil {
		return err
	}
	to, err := na.ParseAddr(peer)
	if err != nil {
		return err
	}
	l := newLoad(hctx, to, 1)
	for l.stop = true; l.flying > 0; hctx.Trigger(0) {
		_ = hctx.Progress(-1)
	}
	switch {
	case l.failed == nil:
		fmt.Println(cls.Addr())
	case strings.Contains(l.failed.Error(), "budget"):
		fmt.Println(refused)
	default:
		return l.failed
	}
	select {}
}

// Many processes attach to one that only waits. Each is let in, or told that the budget has no room for it; when they end nothing is
// left.
func TestManyAttach(t *testing.T) {
	s := newSurvivor(t)
	all := make(chan *process)
	n := long.Or(20, 600)
	for range 4 {
		go func() {
			for range n / 4 {
				all <- s.start("guest")
			}
		}()
	}
	var guests []*process
	s.until("all have attached", func() bool {
		select {
		case p := <-all:
			guests = append(guests, p)
		default:
		}
		return len(guests) == n
	})
	in := 0
	for _, p := range guests {
		if p.addr.Name() != refused {
			in++
		}
	}
	t.Logf("%d of %d are in", in, n)
	require.GreaterOrEqual(t, in, min(n, 500), "the budget has room for as many")
	require.Equal(t, in, s.hctx.Stats().NA.Peers)
	require.Equal(t, in, s.serve)
	for _, p := range guests {
		p.kill()
	}
	s.until("all are gone", func() bool { return s.hctx.Stats().NA.Peers == 0 })
	for _, p := range guests {
		p.dead()
	}
}
