package qs_test

import (
	"context"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/hg"
	"github.com/quicksilver-rpc/quicksilver/qs"
)

// isOnDriver reports whether the caller is a handler that the goroutine which drives its node runs.
func isOnDriver() bool {
	b := make([]byte, 64<<10)
	return strings.Contains(string(b[:runtime.Stack(b, false)]), "executor.(*Inline[...]).RunPass")
}

var lone = qs.Define[string, bool]("test/lone")

// TestSingleRequest checks that a request that arrives by itself is handled by the goroutine that
// drives, whatever the handler does there: wait for others, end the goroutine, panic, or never
// return. Others are served meanwhile, and afterwards.
func TestSingleRequest(t *testing.T) {
	t.Parallel()
	gate := make(chan struct{})
	entered := make(chan struct{}, 3)
	for what, does := range map[string]func(ctx context.Context, n *qs.Node) error{
		"returns": func(context.Context, *qs.Node) error { return nil },
		"panics":  func(context.Context, *qs.Node) error { panic("on purpose") },
		"exits":   func(context.Context, *qs.Node) error { runtime.Goexit(); return nil },
		"blocks": func(context.Context, *qs.Node) error {
			entered <- struct{}{}
			<-gate
			return nil
		},
		"calls": func(ctx context.Context, n *qs.Node) error {
			p, err := n.Peer(ctx, n.Addr().String())
			if err == nil {
				_, err = lone.Call(ctx, p, "")
			}
			return err
		},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			var first sync.Once
			s := server(t, qs.Config{}, func(n *qs.Node) {
				lone.Handle(n, func(ctx context.Context, in string) (bool, error) {
					if in == "" {
						return isOnDriver(), nil
					}
					var err error
					first.Do(func() { require.True(t, isOnDriver(), "the first one") })
					err = does(ctx, n)
					return isOnDriver(), err
				})
			})
			c := open(t, "tcp://", qs.Config{})
			p := peer(t, c, s.Addr().String())
			var blocked []*qs.Future[bool]
			for range 3 {
				f := lone.Go(testContext(t), p, what)
				if what == "blocks" {
					blocked = append(blocked, f)
					<-entered
				} else if _, err := f.Wait(testContext(t)); what == "panics" || what == "exits" {
					require.ErrorIs(t, err, hg.ErrPanic)
				} else {
					require.NoError(t, err)
				}
				for range 10 {
					_, err := lone.Call(testContext(t), p, "")
					require.NoError(t, err, "while and after it "+what)
				}
			}
			if what == "blocks" {
				close(gate)
			}
			for _, f := range blocked {
				_, err := f.Wait(testContext(t))
				require.NoError(t, err)
			}
		})
	}
}

// TestSingleRequestIsCounted checks that a handler that the goroutine which drives runs is one of
// Config.MaxConcurrent: another request waits for it.
func TestSingleRequestIsCounted(t *testing.T) {
	t.Parallel()
	entered, gate := make(chan bool, 1), make(chan struct{})
	c, p := pair(t, qs.Config{MaxConcurrent: 1}, func(n *qs.Node) {
		lone.Handle(n, func(_ context.Context, in string) (bool, error) {
			if in == "waits" {
				entered <- isOnDriver()
				<-gate
			}
			return isOnDriver(), nil
		})
	})
	first := lone.Go(testContext(t), p, "waits")
	require.True(t, <-entered)
	soon, cancel := c.WithTimeout(testContext(t), 50*time.Millisecond)
	defer cancel()
	_, err := lone.Call(soon, p, "")
	require.ErrorIs(t, err, qs.ErrTimeout, "a second handler was at work")
	close(gate)
	_, err = first.Wait(testContext(t))
	require.NoError(t, err)
	_, err = lone.Call(testContext(t), p, "")
	require.NoError(t, err)
}

var inOrder = qs.Define[int, bool]("test/in-order", qs.Inline())

// TestInlineOneByOne checks that inline handlers of a node run one after the other, however long
// one takes.
func TestInlineOneByOne(t *testing.T) {
	t.Parallel()
	var at, most atomic.Int64
	c, p := pair(t, qs.Config{}, func(n *qs.Node) {
		inOrder.Handle(n, func(_ context.Context, i int) (bool, error) {
			most.Store(max(most.Load(), at.Add(1)))
			defer at.Add(-1)
			pause := time.NewTimer(5 * time.Millisecond) // the loop passes the lead of a callback on after 1 to 2
			<-pause.C
			return true, nil
		})
	})
	_ = c
	var all []*qs.Future[bool]
	for i := range 10 {
		all = append(all, inOrder.Go(testContext(t), p, i))
	}
	for _, f := range all {
		_, err := f.Wait(testContext(t))
		require.NoError(t, err)
	}
	require.EqualValues(t, 1, most.Load(), "at a time")
}

var (
	relayed = qs.Define[string, int]("test/relayed")
	backTo  = qs.Define[int, int]("test/back-to")
)

// TestCallbackIsCalledBack checks that a callback in Serve may make a call whose handler calls
// back: that request also arrives by itself, and does not wait for the callback.
func TestCallbackIsCalledBack(t *testing.T) {
	t.Parallel()
	s := server(t, qs.Config{}, func(n *qs.Node) {
		backTo.Handle(n, func(_ context.Context, in int) (int, error) { return in + 1, nil })
	})
	other := server(t, qs.Config{}, func(n *qs.Node) {
		relayed.Handle(n, func(ctx context.Context, to string) (int, error) {
			p, err := n.Peer(ctx, to)
			if err != nil {
				return 0, err
			}
			return backTo.Call(ctx, p, 41)
		})
	})
	p := peer(t, s, other.Addr().String())
	type outcome struct {
		v   int
		err error
	}
	ended := make(chan outcome, 1)
	require.NoError(t, s.HG().Post(func() {
		v, err := relayed.Call(testContext(t), p, s.Addr().String())
		ended <- outcome{v, err}
	}))
	require.Equal(t, outcome{42, nil}, <-ended)
}

var together = qs.Define[int, bool]("test/together")

// TestRequestsArriveTogether checks that requests that arrive together are handled by the goroutine that drives,
// too, whatever one of them does: wait for the others, end the goroutine, panic, or take long. All
// of them end, and later ones.
func TestRequestsArriveTogether(t *testing.T) {
	t.Parallel()
	const n = 8
	for what, does := range map[string]func(in int, others *sync.WaitGroup){
		"returns":          func(int, *sync.WaitGroup) {},
		"waits for others": func(_ int, others *sync.WaitGroup) { others.Wait() },
		"panics":           func(in int, _ *sync.WaitGroup) { panicIf(in%3 == 1) },
		"exits": func(in int, _ *sync.WaitGroup) {
			if in%3 == 1 {
				runtime.Goexit()
			}
		},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			var others atomic.Pointer[sync.WaitGroup]
			s := server(t, qs.Config{}, func(n *qs.Node) {
				together.Handle(n, func(_ context.Context, in int) (bool, error) {
					all := others.Load()
					all.Done()
					does(in, all)
					return isOnDriver(), nil
				})
			})
			p := peer(t, open(t, "tcp://", qs.Config{}), s.Addr().String())
			driven := 0
			for range 50 {
				all := &sync.WaitGroup{}
				all.Add(n)
				others.Store(all)
				var calls []*qs.Future[bool]
				for i := range n {
					calls = append(calls, together.Go(testContext(t), p, i))
				}
				for i, f := range calls {
					by, err := f.Wait(testContext(t))
					if i%3 == 1 && (what == "panics" || what == "exits") {
						require.ErrorIs(t, err, hg.ErrPanic)
					} else {
						require.NoError(t, err)
					}
					if by {
						driven++
					}
				}
			}
			t.Logf("%d of %d handlers were run by the goroutine that drives", driven, 50*n)
			if what == "returns" {
				require.Greater(t, driven, n)
			}
		})
	}
}

func panicIf(b bool) {
	if b {
		panic("on purpose")
	}
}
