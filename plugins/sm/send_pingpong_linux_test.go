package sm_test

import (
	"fmt"
	"os"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/hg"
	"github.com/quicksilver-rpc/quicksilver/na"
	"github.com/quicksilver-rpc/quicksilver/plugins/sm"
	"github.com/quicksilver-rpc/quicksilver/plugins/sm/internal/ring"
)

func init() { roles["ping-pong"] = pingPong }

const pingPongCalls = 500

// pingPongSizes fit into an envelope: longer ones have their room given back.
var pingPongSizes = []int{0, 64, 2000}

// pingPong has a target and an origin in one process, and returns the number of messages that each
// call has written.
func pingPong() error {
	exitWithStdin()
	var written atomic.Int64
	ring.Step = func(p ring.Point) {
		if p == ring.Publish {
			written.Add(1)
		}
	}
	cfg := noTimeoutConfig(os.Getenv(dirEnv))
	cfg.NA.Plugins = []na.Plugin{sm.New(sm.Options{Dir: os.Getenv(dirEnv), Unassisted: true})} // one goroutine does all
	target, err := open("sm://*", cfg, echo)
	if err != nil {
		return err
	}
	origin, err := open("sm://", cfg, nil)
	if err != nil {
		return err
	}
	fmt.Println(target.Class().Addr())
	h, err := origin.Create(target.Class().Addr(), hg.HashName("echo"))
	if err != nil {
		return err
	}
	for _, size := range pingPongSizes {
		var before int64
		for i := range 10 + pingPongCalls {
			if i == 10 { // the session is up, and nothing is left to send of the calls before
				before = written.Load()
			}
			ended := false
			if err := h.ForwardRaw(make([]byte, size), func(_ *hg.Handle, err1 error) { ended, err = true, err1 }); err != nil {
				return err
			}
			for !ended {
				for _, hctx := range []*hg.Context{target, origin} {
					_ = hctx.Progress(0)
					hctx.Trigger(0)
				}
			}
			if err != nil {
				return err
			}
		}
		fmt.Println(written.Load() - before)
	}
	select {}
}

// TestPingPongSendsNoCredit checks that a request gives its envelope back with the answer: calls
// one after the other send a request and an answer each, and no frame for credit only (G-T29).
func TestPingPongSendsNoCredit(t *testing.T) {
	s := newParent(t, 0)
	p := s.start("ping-pong")
	for _, size := range pingPongSizes {
		require.Equal(t, fmt.Sprint(2*pingPongCalls), p.line(), "frames of %d calls with %d bytes", pingPongCalls, size)
	}
	p.kill()
	p.waitExited()
}
