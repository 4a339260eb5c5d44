package qs_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/hg"
	"github.com/quicksilver-rpc/quicksilver/internal/test/long"
	"github.com/quicksilver-rpc/quicksilver/plugins/sim"
	"github.com/quicksilver-rpc/quicksilver/qs"
)

var (
	manyTalk = qs.DefineDuplex[int, int, int]("test/many/talk")
	manyEcho = qs.Define[int, int]("test/many/echo")
)

func serveMany(n *qs.Node) {
	manyTalk.Handle(n, func(_ context.Context, add int, d *qs.DuplexServer[int, int]) error {
		for i, err := range d.All() {
			if err != nil {
				return err
			}
			if err := d.Send(i + add); err != nil {
				return err
			}
		}
		return nil
	})
	manyEcho.Handle(n, func(_ context.Context, i int) (int, error) { return i, nil })
}

// manyStreams returns the configuration of LIMITS for so many streams of one process; 0: the default, which has 2,048.
func manyStreams(many int) qs.Config {
	if many == 0 {
		return qs.Config{}
	}
	return qs.Config{HG: hg.Config{
		NA:                hg.NetConfig{Budget: 64<<20 + int64(many)<<10},
		MaxStreams:        many,
		MaxStreamsPerPeer: many,
	}}
}

// talkMany has the maximum of streams open, each of which makes progress, and one more, which is
// refused. Other calls run at the same time.
func talkMany(ctx context.Context, to qs.Peer, many int) error {
	calls := make([]*qs.DuplexCall[int, int], many)
	for i := range calls {
		calls[i] = manyTalk.Call(ctx, to, i)
		defer calls[i].Close()
	}
	beside := func(i int) error {
		if got, err := manyEcho.Call(ctx, to, i); err != nil || got != i {
			return fmt.Errorf("a call beside the streams: %d, %w", got, err)
		}
		if _, err := to.Ping(ctx); err != nil {
			return fmt.Errorf("hg/ping beside the streams: %w", err)
		}
		return nil
	}
	rounds := func() error {
		for i, c := range calls {
			if err := c.Send(1000); err != nil {
				return fmt.Errorf("item to stream %d of %d: %w", i, many, err)
			}
		}
		for i, c := range calls {
			if got, err := c.Receive(); err != nil || got != 1000+i {
				return fmt.Errorf("item of stream %d of %d: %d, %w", i, many, got, err)
			}
			if i%512 == 0 {
				if err := beside(i); err != nil {
					return err
				}
			}
		}
		return nil
	}
	if err := rounds(); err != nil {
		return err
	}
	one := manyTalk.Call(ctx, to, 7)
	_, err := one.Receive()
	one.Close()
	if want := fmt.Sprintf("limit of %d open streams per peer reached (hg.Config.MaxStreamsPerPeer)", many); !errors.Is(err, qs.ErrExhausted) ||
		qs.FateOf(err) != qs.NotRun || !strings.Contains(err.Error(), want) {
		return fmt.Errorf("one more: got %w, want %q", err, want)
	}
	if err := rounds(); err != nil {
		return err
	}
	calls[0].CloseSend()
	if _, err := calls[0].Receive(); err == nil {
		return errors.New("an item behind the end")
	}
	for again := true; again; { // the place is free when its handler has returned
		one = manyTalk.Call(ctx, to, 7)
		_ = one.Send(1)
		got, err := one.Receive()
		one.Close()
		if again = errors.Is(err, qs.ErrExhausted); !again && (err != nil || got != 8) {
			return fmt.Errorf("one more in the place of another: %d, %w", got, err)
		}
	}
	return beside(0)
}

// TestManyStreams checks that as many streams as the limits allow are open at once and make
// progress, one more is refused, and other calls are not affected; with QUICKSILVER_LONG=1 also
// 10,000, 2,048 in the simulator, else 300.
func TestManyStreams(t *testing.T) {
	t.Parallel()
	for _, many := range long.Or([]int{0, 300}, []int{0, 10_000}) {
		cfg, most := manyStreams(many), many
		if many == 0 {
			most = 2048
		}
		t.Run(fmt.Sprint(most), func(t *testing.T) {
			eachTransport(t, func(t *testing.T, addr string) {
				s := serverAt(t, addr, cfg, serveMany)
				c := open(t, scheme(addr)+"://", cfg)
				require.NoError(t, talkMany(testContext(t), peer(t, c, s.Addr().String()), most))
				(&rowSource{}).waitUntilIdle(t, c, s)
			})
			t.Run("sim", func(t *testing.T) {
				if oneAtATime(t); many == 0 {
					return
				}
				most := min(many, 2048) // the simulator looks at each of them for each event: 10,000 take more than five minutes
				cfg := manyStreams(most)
				w := sim.NewWorld(sim.Config{Seed: 1})
				defer w.Close()
				serving, stop := context.WithCancel(context.Background())
				defer stop()
				w.Node("server").Go(func() {
					s := simulated(t, w, "sim://server", cfg)
					serveMany(s)
					_ = s.Serve(serving)
					_ = s.Close()
				})
				w.Node("client").Go(func() {
					defer stop()
					c := simulated(t, w, "sim://client", cfg)
					w.Sleep(1)
					to, err := c.Peer(context.Background(), "sim://server")
					if err == nil {
						err = talkMany(context.Background(), to, most)
					}
					if err != nil {
						t.Error(err)
					}
					_ = c.Close()
				})
				if err := w.Run(1 << 42); err != nil {
					t.Error(err)
				}
			})
		})
	}
}
