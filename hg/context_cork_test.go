package hg_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/hg"
	"github.com/quicksilver-rpc/quicksilver/internal/test/transports"
)

// TestBlockedHandlerDelaysNoAnswer checks that the answers of the handlers of one Trigger are
// sent together, and not later than needed: a handler that blocks delays no answer of another that
// ran before it.
func TestBlockedHandlerDelaysNoAnswer(t *testing.T) {
	transports.TCP(t, func(t *testing.T, n *transports.Net) {
		p := newPair(t, n, hg.Config{})
		answered := make(chan struct{})
		freed := 0
		id := p.rpc("first-answers", func(h hg.Request) error {
			if string(mustInput(h)) == "quick" {
				return h.RespondRaw(nil, nil)
			}
			late := time.NewTimer(20 * time.Second)
			defer late.Stop()
			select {
			case <-answered:
				freed++
			case <-late.C:
			}
			return h.RespondRaw(nil, nil)
		})
		for range 20 { // whatever the state of the goroutines of the network
			answered = make(chan struct{})
			quick, slow := p.handle(id), p.handle(id)
			var a, b outcome
			require.NoError(t, quick.ForwardRaw([]byte("quick"), a.cb))
			require.NoError(t, slow.ForwardRaw([]byte("slow"), b.cb))
			for p.tctx.Stats().NA.Envelopes < 2 { // one Trigger will run both handlers
				_ = p.octx.Progress(0)
				_ = p.tctx.Progress(0)
			}
			ended := make(chan struct{})
			go func() { // the target's only goroutine: it is stuck in the second handler
				defer close(ended)
				p.tctx.Trigger(0)
			}()
			for a.calls == 0 {
				_ = p.octx.Progress(time.Millisecond)
				p.octx.Trigger(0)
			}
			close(answered)
			<-ended
			p.Until(func() bool { return b.calls == 1 })
			require.NoError(t, a.err)
			require.NoError(t, b.err)
			require.Equal(t, 1, freed, "the answer left while the handler after it was blocked")
			freed = 0
			quick.Close()
			slow.Close()
		}
	})
}

func mustInput(h hg.Request) []byte {
	in, err := h.InputRaw()
	if err != nil {
		panic(err)
	}
	return in
}
