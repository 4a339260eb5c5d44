package hg_test

// Faults that were found once.

import (
	"fmt"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/bulk"
	"github.com/quicksilver-rpc/quicksilver/hg"
	"github.com/quicksilver-rpc/quicksilver/internal/test/transports"
	"github.com/quicksilver-rpc/quicksilver/na"
	"github.com/quicksilver-rpc/quicksilver/request"
)

// TestWaitersBesideWorkers checks that a Wake that is meant for one waiter is not used up by
// another goroutine in Progress, which left the waiter blocked for ever.
func TestWaitersBesideWorkers(t *testing.T) {
	transports.Each(t, func(t *testing.T, n *transports.Net) {
		p := newPair(t, n, hg.Config{})
		id := p.rpc("echo", echo)
		n.Serve(p.tctx, 1)
		n.Undriven(p.octx)
		const workers = 3
		ended := make(chan struct{}, workers)
		for range workers {
			go func() {
				defer func() { ended <- struct{}{} }()
				for p.octx.Progress(-1) == nil {
					p.octx.Trigger(0)
				}
			}()
		}
		over := make(chan struct{})
		go func() {
			defer close(over)
			class := request.NewClass(p.octx)
			h, err := p.octx.Create(p.target.Addr(), id)
			if !assert.NoError(t, err) {
				return
			}
			defer h.Close()
			for range 1500 {
				r := class.Create(h.Cancel)
				if !assert.NoError(t, h.Forward("x", func(_ *hg.Handle, err error) { r.Complete(err) })) {
					return
				}
				assert.True(t, r.Wait(-1))
				b, err := bulk.Create(p.octx, bulk.Options{Access: bulk.ReadOnly}, make([]byte, 8))
				assert.NoError(t, err)
				assert.NoError(t, b.CloseWait(t.Context()))
				for isInFlight(h) {
					runtime.Gosched()
				}
			}
		}()
		select {
		case <-over:
		case <-time.After(time.Minute):
			t.Errorf("a waiter hangs: %+v", p.octx.Stats())
		}
		p.octx.Close()
		for range workers {
			for {
				select {
				case <-ended:
				case <-time.After(time.Millisecond):
					p.octx.Trigger(0)
					p.octx.Wake()
					continue
				}
				break
			}
		}
	})
}

// TestAnswersPassQueuedRequests checks that requests that wait for envelopes do not delay an
// answer, for which its origin waited for ever.
func TestAnswersPassQueuedRequests(t *testing.T) {
	transports.Each(t, func(t *testing.T, n *transports.Net) {
		p := &pair{Net: n, t: t}
		p.target, p.tctx = n.Target(hg.Config{NA: na.Config{SendQueue: 4}})
		p.origin, p.octx = n.Origin(hg.Config{NA: na.Config{Envelopes: 1}})
		var m silentTarget
		_, err := p.origin.Register("back", m.handler)
		require.NoError(t, err)
		back, err := p.target.Register("back", nil)
		require.NoError(t, err)
		ended, refused := 0, 0
		id := p.rpc("flood", func(h hg.Request) error {
			for range 20 {
				b, err := p.tctx.Create(h.Peer(), back)
				if err != nil {
					return err
				}
				if err := b.Forward(nil, func(b *hg.Handle, err error) {
					ended++
					if err != nil {
						refused++
						assert.ErrorIs(t, err, hg.ErrNoCredit)
						assert.Equal(t, na.NotRun, hg.FateOf(err))
					}
					b.Close()
				}); err != nil {
					return err
				}
			}
			return h.Respond("the answer", nil)
		})
		h := p.handle(id)
		defer h.Close()
		require.NoError(t, p.call(h, nil))
		n.Until(func() bool {
			m.answer(t, nil)
			return ended == 20
		})
		require.Positive(t, refused)
	})
}

// TestDifferentEagerSizes checks that the smaller of two Eager sizes counts, whichever side has it.
func TestDifferentEagerSizes(t *testing.T) {
	transports.Each(t, func(t *testing.T, n *transports.Net) {
		for _, eager := range [][2]int{{16 << 10, 4 << 10}, {4 << 10, 16 << 10}, {48 << 10, 256}, {256, 48 << 10}} {
			t.Run(fmt.Sprint(eager), func(t *testing.T) {
				p := &pair{Net: n, t: t}
				p.target, p.tctx = n.Target(hg.Config{NA: na.Config{Eager: eager[0]}})
				p.origin, p.octx = n.Origin(hg.Config{NA: na.Config{Eager: eager[1]}})
				h := p.handle(p.rpc("echo", echo))
				defer h.Close()
				for _, size := range []int{0, 200, 240, 300, 5000, 10_000, 100_000} {
					in := strings.Repeat("x", size)
					require.NoError(t, p.call(h, in), "%d bytes", size)
					var out string
					require.NoError(t, h.Output(&out))
					require.Equal(t, in, out)
				}
				long := strings.Repeat("why ", 400)
				require.NoError(t, h.Reset(p.target.Addr(), p.rpc("fail", func(hg.Request) error { return fmt.Errorf("%s", long) })))
				err := p.call(h, nil)
				require.ErrorIs(t, err, hg.ErrHandler)
				require.Contains(t, err.Error(), "why why")
				p.requireClean(1)
			})
		}
	})
}

// TestRespondOnceMoreOnlyAfterCallback checks that a second response between the cancel of the
// first and its callback does not lose that callback.
func TestRespondOnceMoreOnlyAfterCallback(t *testing.T) {
	transports.Each(t, func(t *testing.T, n *transports.Net) {
		p := newPair(t, n, hg.Config{})
		h, s, o := p.forwardUnanswered()
		defer h.Close()
		calls := 0
		require.NoError(t, s.Respond("first", func(hg.Request, error) { calls++ }))
		s.Cancel()
		require.ErrorIs(t, s.Respond("second", nil), na.ErrAnswered)
		p.tctx.Trigger(0)
		require.Equal(t, 1, calls)
		releaseUnanswered(s)
		n.Until(func() bool { return o.calls == 1 })
		p.requireClean(1)
	})
}

// peerReader looks at its handle while it is encoded.
type peerReader struct{ h interface{ Peer() na.Addr } }

func (c peerReader) MarshalBinary() ([]byte, error) { return []byte(c.h.Peer().String()), nil }

// TestEncoderMayUseItsHandle checks that encoders do not run with the handle's lock held.
func TestEncoderMayUseItsHandle(t *testing.T) {
	transports.Each(t, func(t *testing.T, n *transports.Net) {
		p := newPair(t, n, hg.Config{})
		h := p.handle(p.rpc("addr", func(h hg.Request) error { return h.Respond(peerReader{h}, nil) }))
		defer h.Close()
		require.NoError(t, p.call(h, peerReader{h}))
		var out []byte
		require.NoError(t, h.Output(&out))
		require.NotEmpty(t, out)
	})
}

// panickingInput does so while it is encoded.
type panickingInput struct{}

func (panickingInput) MarshalBinary() ([]byte, error) { panic("cannot") }

func TestEncoderThatPanics(t *testing.T) {
	transports.Each(t, func(t *testing.T, n *transports.Net) {
		p := newPair(t, n, hg.Config{})
		h := p.handle(p.rpc("bad", func(h hg.Request) error { return h.Respond(panickingInput{}, nil) }))
		defer h.Close()
		require.Panics(t, func() { _ = h.Forward(panickingInput{}, nil) })
		require.ErrorIs(t, p.call(h, nil), hg.ErrPanic)
		require.NoError(t, h.Reset(p.target.Addr(), p.rpc("echo", echo)))
		require.NoError(t, p.call(h, "usable"))
		p.requireClean(1)
	})
}

// TestHandlerEndsItsGoroutine checks that a handler that ends its goroutine does not leave its
// origin without an answer.
func TestHandlerEndsItsGoroutine(t *testing.T) {
	transports.Each(t, func(t *testing.T, n *transports.Net) {
		p := newPair(t, n, hg.Config{})
		arrived := false
		h := p.handle(p.rpc("exit", func(hg.Request) error { arrived = true; runtime.Goexit(); return nil }))
		defer h.Close()
		n.Undriven(p.tctx)
		var o outcome
		require.NoError(t, h.Forward(nil, o.cb))
		for !arrived {
			ended := make(chan struct{})
			go func() {
				defer close(ended)
				p.tctx.Trigger(0)
				_ = p.tctx.Progress(time.Millisecond)
			}()
			<-ended
			_ = p.octx.Progress(0)
		}
		n.Until(func() bool { return o.calls == 1 })
		require.ErrorIs(t, o.err, hg.ErrPanic)
	})
}

// TestNoOutputOfRefusedForward checks that after a Forward that was refused there is no output.
func TestNoOutputOfRefusedForward(t *testing.T) {
	transports.Each(t, func(t *testing.T, n *transports.Net) {
		p := newPair(t, n, hg.Config{})
		h := p.handle(p.rpc("echo", echo))
		defer h.Close()
		require.NoError(t, p.call(h, "x"))
		p.octx.Close()
		require.ErrorIs(t, h.Forward("y", nil), hg.ErrClosed)
		_, err := h.OutputRaw()
		require.ErrorIs(t, err, hg.ErrClosed)
	})
}

// TestLoanOfRecalledResponse checks that the end of the loan of a recalled response is not taken
// for that of the next response. That could not be recalled: its loan, and the handle, were held
// until the origin exited.
func TestLoanOfRecalledResponse(t *testing.T) {
	transports.TCP(t, func(t *testing.T, n *transports.Net) {
		p := newPair(t, n, hg.Config{})
		h, s, o := p.forwardUnanswered()
		defer h.Close()
		nctx := p.tctx.NA()
		last := false
		recall := func(cb hg.RespondFunc) {
			require.NoError(t, s.RespondRaw(make([]byte, 64<<10), cb))
			s.Cancel()
		}
		require.True(t, nctx.Upper().Cork()) // nothing leaves: messages behind one that is held back wait, too
		require.NoError(t, nctx.SendExpected(nctx.NewOp(func(*na.Op, na.Result) {}), s.Peer(), 12345, make([]byte, 3000)))
		recall(func(hg.Request, error) {
			recall(func(hg.Request, error) {
				require.NoError(t, s.Respond("third", nil))
				last = true
			})
		})
		for !last {
			p.tctx.Trigger(0)
		}
		for nctx.Trigger(0) > 0 {
		}
		require.Zero(t, p.tctx.Stats().Lent, "bytes of responses that were recalled")
		nctx.Upper().Uncork()
		n.Until(func() bool { return o.calls == 1 })
		require.NoError(t, o.err)
		p.requireClean(1)
	})
}

// blockingInput is encoded when the test allows it.
type blockingInput struct{ inside, release chan struct{} }

func (s blockingInput) MarshalBinary() ([]byte, error) {
	close(s.inside)
	<-s.release
	return []byte("slow"), nil
}

// TestHandlerReturnsWhileAnswering checks that a handler may return while another goroutine of its
// answers.
func TestHandlerReturnsWhileAnswering(t *testing.T) {
	transports.Each(t, func(t *testing.T, n *transports.Net) {
		p := newPair(t, n, hg.Config{})
		v := blockingInput{make(chan struct{}), make(chan struct{})}
		var answering sync.WaitGroup
		ran := false
		h := p.handle(p.rpc("slow", func(h hg.Request) error {
			detach(h)
			answering.Go(func() {
				assert.NoError(t, h.Respond(v, nil))
			})
			<-v.inside
			ran = true
			return nil
		}))
		defer h.Close()
		var o outcome
		require.NoError(t, h.Forward(nil, o.cb))
		p.triggerTargetUntil(func() bool { return ran })
		close(v.release)
		answering.Wait()
		n.Until(func() bool { return o.calls == 1 })
		require.NoError(t, o.err)
		p.requireClean(1)
	})
}
