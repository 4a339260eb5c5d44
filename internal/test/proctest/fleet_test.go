//go:build unix

package proctest

import (
	"context"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/qs"
)

// An addrList is a Resolver with addresses that are set.
type addrList struct {
	mu      sync.Mutex // guards the fields below
	addrs   []string
	changed chan struct{}
}

func (l *addrList) set(all ...*process) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.addrs = nil
	for _, p := range all {
		l.addrs = append(l.addrs, p.Addr)
	}
	if l.changed != nil {
		close(l.changed)
	}
	l.changed = make(chan struct{})
}

func (l *addrList) Watch(ctx context.Context, _ string, update func([]string, error)) error {
	for ctx.Err() == nil {
		l.mu.Lock()
		addrs, changed := l.addrs, l.changed
		l.mu.Unlock()
		update(addrs, nil)
		select {
		case <-changed:
		case <-ctx.Done():
		}
	}
	return ctx.Err()
}

// A countingBalancer is a Balancer that counts what another one picks.
type countingBalancer struct {
	by     qs.Balancer
	mu     sync.Mutex // guards the field below
	picked map[string]int
}

func (c *countingBalancer) Pick(call *qs.Call, ts []qs.Candidate) int {
	i := c.by.Pick(call, ts)
	if i >= 0 && call != nil {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.picked[ts[i].Addr.String()]++
	}
	return i
}

// countsSince returns what was picked since the last time.
func (c *countingBalancer) countsSince() map[string]int {
	c.mu.Lock()
	defer c.mu.Unlock()
	was := c.picked
	c.picked = map[string]int{}
	return was
}

// TestFleet checks a service of which one process is killed, one is stopped, one is added and one
// is removed, under load. No call fails, removed processes get no calls, and in the end all present
// ones get the same number.
func TestFleet(t *testing.T) {
	t.Parallel()
	eachTransport(t, func(t *testing.T, tr transport) {
		t.Parallel()
		a, b, c, d := tr.startTarget(t, ""), tr.startTarget(t, ""), tr.startTarget(t, ""), tr.startTarget(t, "")
		n, err := qs.Open(tr.origin, qs.Config{PeerTimeout: 2 * time.Second, ClientInterceptors: []qs.Interceptor{qs.Retry(qs.RetryPolicy{})}})
		require.NoError(t, err)
		defer func() { require.NoError(t, n.Close()) }()
		ctx, stop := context.WithTimeout(context.Background(), 2*time.Minute)
		defer stop()
		names, counts := &addrList{}, &countingBalancer{by: qs.RoundRobin(), picked: map[string]int{}}
		names.set(a, b, c)
		to, err := n.PeerWith(ctx, qs.PeerOptions{Resolver: names, Balancer: counts, HealthInterval: 200 * time.Millisecond}, "echo")
		require.NoError(t, err)

		var over atomic.Bool
		var all sync.WaitGroup
		for range 16 { // callers
			all.Go(func() {
				for i := 0; !over.Load(); i++ {
					if out, err := echoes.Call(ctx, to, i); err != nil || out != i {
						t.Errorf("call %d: got %d and error %v", i, out, err)
						return
					}
					_ = n.HG().Sleep(ctx, 10*time.Millisecond)
				}
			})
		}
		// equal waits until exactly these get calls, all equally many.
		equal := func(ps ...*process) {
			t.Helper()
			for {
				counts.countsSince()
				require.NoError(t, n.HG().Sleep(ctx, 200*time.Millisecond))
				got := counts.countsSince()
				least, most := 1<<30, 0
				for _, p := range ps {
					least, most = min(least, got[p.Addr]), max(most, got[p.Addr])
				}
				if len(got) == len(ps) && least > 20 && most <= least+least/20+1 {
					return
				}
				require.NoError(t, ctx.Err(), "%v", got)
			}
		}
		equal(a, b, c)
		a.kill()
		equal(b, c)
		names.set(b, c, d)
		equal(b, c, d)
		b.stop()
		equal(c, d)
		names.set(b, d)
		equal(d)
		b.signal(syscall.SIGCONT)
		equal(b, d)
		over.Store(true)
		all.Wait()
	})
}
