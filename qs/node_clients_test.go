package qs_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/internal/test/testcert"
	"github.com/quicksilver-rpc/quicksilver/plugins/sim"
	"github.com/quicksilver-rpc/quicksilver/qs"
)

// namedCert returns a certificate for a DNS name, which is the client's name then.
func namedCert(name string) tls.Certificate {
	return testcert.NewWith(func(c *x509.Certificate) { c.DNSNames = []string{name} })
}

// TestClientLimits checks that the share of a name is that of all sessions with it, streams
// included; other names have their own. A handler that ends, by a panic too, gives its place back.
func TestClientLimits(t *testing.T) {
	t.Parallel()
	hold := qs.Define[string, string]("clients/hold")
	items := qs.DefineStream[struct{}, int]("clients/items")
	for _, scheme := range []string{"tcp", "udp"} {
		t.Run(scheme, func(t *testing.T) {
			t.Parallel()
			own, shop, cron := testcert.New(), namedCert("shop.test"), namedCert("cron.test")
			at, leave := make(chan struct{}, 8), make(chan struct{})
			cfg := quietConfig()
			cfg.TLS = trustingConfig(own, shop, cron)
			cfg.ClientLimits = map[string]qs.ClientLimit{"": {MaxConcurrent: 1}, "shop.test": {MaxConcurrent: 2}}
			s := serverAt(t, scheme+"://127.0.0.1:0", cfg, func(n *qs.Node) {
				hold.Handle(n, func(_ context.Context, how string) (string, error) {
					switch how {
					case "hold":
						at <- struct{}{}
						<-leave
					case "panic":
						panic("oh")
					}
					return how, nil
				})
				items.Handle(n, func(ctx context.Context, _ struct{}, _ func(int) error) error {
					at <- struct{}{}
					<-ctx.Done()
					return ctx.Err()
				})
			})
			cfg.ClientLimits[""] = qs.ClientLimit{} // the node has a copy
			client := func(cert tls.Certificate) qs.Peer {
				return peer(t, open(t, scheme+"://", qs.Config{TLS: trustingConfig(cert, own)}), s.Addr().String())
			}
			ctx := testContext(t)
			one, two, other := client(shop), client(shop), client(cron)
			_, err := hold.Call(ctx, one, "panic")
			require.Error(t, err)

			first := hold.Go(ctx, one, "hold")
			<-at
			streaming, stop := context.WithCancel(ctx)
			defer stop()
			streamed := make(chan struct{})
			go func() {
				defer close(streamed)
				for range items.Call(streaming, two, struct{}{}) {
				}
			}()
			<-at
			for _, to := range []qs.Peer{one, two} {
				_, err = hold.Call(ctx, to, "at once")
				require.ErrorIs(t, err, qs.ErrExhausted)
				require.Equal(t, qs.NotRun, qs.FateOf(err))
				require.ErrorContains(t, err, `client "shop.test": 2 handlers`)
			}
			_, err = hold.Call(ctx, other, "at once")
			require.NoError(t, err, "another name has a share of its own")
			second := hold.Go(ctx, other, "hold")
			<-at
			_, err = hold.Call(ctx, other, "at once")
			require.ErrorContains(t, err, `client "cron.test": 1 handlers`)
			close(leave)
			_, err = first.Wait(ctx)
			require.NoError(t, err)
			_, err = second.Wait(ctx)
			require.NoError(t, err)
			_, err = hold.Call(ctx, two, "at once")
			require.NoError(t, err)
			stop()
			<-streamed
		})
	}
}

// TestClientRate checks that a rate is a token bucket: a burst may begin at once, and then the
// given number a second. Clients without a verified name have one share.
func TestClientRate(t *testing.T) {
	t.Parallel()
	oneAtATime(t)
	add := qs.Define[int, int]("clients/add")
	w := sim.NewWorld(sim.Config{})
	defer w.Close()
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	w.Go("server", func() {
		n := simulated(t, w, "sim://server", qs.Config{HG: quietConfig().HG, ClientLimits: map[string]qs.ClientLimit{"": {Rate: 2, Burst: 3}}})
		add.Handle(n, func(_ context.Context, in int) (int, error) { return in + 1, nil })
		require.NoError(t, n.Serve(ctx))
	})
	w.Go("client", func() {
		defer stop()
		w.Sleep(time.Millisecond)
		var to []qs.Peer
		for range 2 {
			n := simulated(t, w, "sim://", qs.Config{})
			defer n.Close()
			p, err := n.Peer(ctx, "sim://server")
			require.NoError(t, err)
			to = append(to, p)
		}
		ran := func() (n int) {
			for i := range 8 {
				_, err := add.Call(ctx, to[i%2], 1)
				if err == nil {
					n++
					continue
				}
				require.ErrorIs(t, err, qs.ErrExhausted)
				require.Equal(t, qs.NotRun, qs.FateOf(err))
				require.ErrorContains(t, err, "clients without a verified name: more than 2 requests per second")
			}
			return n
		}
		require.Equal(t, 3, ran())
		w.Sleep(time.Second)
		require.Equal(t, 2, ran())
		w.Sleep(time.Hour)
		require.Equal(t, 3, ran(), "a long pause earns no more than the burst")
	})
	require.NoError(t, w.Run(24*time.Hour))
}

// TestClientLimitsRemoveNames checks that names without a use are removed, so that the table has a
// limit.
func TestClientLimitsRemoveNames(t *testing.T) {
	t.Parallel()
	n := open(t, "tcp://", qs.Config{ClientLimits: map[string]qs.ClientLimit{"": {MaxConcurrent: 1}}})
	for i := range 5000 {
		names, err := n.UseShare(fmt.Sprint(i))
		require.NoError(t, err)
		require.LessOrEqual(t, names, 1025)
	}
	for _, bad := range []qs.ClientLimit{{MaxConcurrent: -1}, {Rate: -1}, {Rate: math.NaN()}, {Rate: math.Inf(1)}, {Burst: 1}, {Rate: 1, Burst: -1}} {
		_, err := qs.Open("tcp://", qs.Config{ClientLimits: map[string]qs.ClientLimit{"x": bad}})
		require.ErrorIs(t, err, qs.ErrInvalid, "%+v", bad)
	}
}
