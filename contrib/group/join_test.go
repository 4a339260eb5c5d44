package group_test

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/contrib/group"
	"github.com/quicksilver-rpc/quicksilver/internal/test/freeport"
	_ "github.com/quicksilver-rpc/quicksilver/plugins/all"
	"github.com/quicksilver-rpc/quicksilver/qs"
	"github.com/quicksilver-rpc/quicksilver/rendezvous"
	"github.com/quicksilver-rpc/quicksilver/rendezvous/protocol"
)

var quiet = slog.New(slog.NewTextHandler(io.Discard, nil))

// serveNode opens a node that serves until the test ends.
func serveNode(t *testing.T) *qs.Node {
	n, err := qs.Open("tcp://127.0.0.1:0", qs.Config{})
	require.NoError(t, err)
	echo.Handle(n, func(_ context.Context, in string) (string, error) { return in, nil })
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- n.Serve(ctx) }()
	t.Cleanup(func() { stop(); require.NoError(t, <-ended) })
	return n
}

func newOptions(name, gossip string, seeds ...string) group.Options {
	return group.Options{Name: name, Gossip: gossip, Seeds: seeds, Serves: []string{"kv"}, Probe: 50 * time.Millisecond, Logger: quiet}
}

func joinGroup(t *testing.T, o group.Options) *group.Group {
	ctx, stop := context.WithTimeout(context.Background(), 30*time.Second)
	defer stop()
	g, err := group.Join(ctx, serveNode(t), o)
	require.NoError(t, err)
	t.Cleanup(func() { _ = g.Close() })
	return g
}

// waitForEvent waits for an event of g.
func waitForEvent(t *testing.T, g *group.Group, want func(group.Event) bool) group.Event {
	ctx, stop := context.WithTimeout(context.Background(), 30*time.Second)
	defer stop()
	for e := range g.Events(ctx) {
		if want(e) {
			return e
		}
	}
	t.Fatalf("it did not happen; the view is %v", g.View().Members)
	return group.Event{}
}

func isEvent(k group.Kind, name string) func(group.Event) bool {
	return func(e group.Event) bool { return e.Kind == k && e.Member.Name == name }
}

// TestJoin checks that members find each other, call each other by the group, and report members
// that leave, fail and return.
func TestJoin(t *testing.T) {
	t.Parallel()
	seed := freeport.Addr(t)
	one := newOptions("one", seed)
	one.Key, one.Meta = []byte("0123456789abcdef"), []byte("rack 7")
	one.Probe = 200 * time.Millisecond // a busy machine delays an answer by more than the others' 50 ms, and this test is about each event
	a := joinGroup(t, one)
	b := newOptions("two", "", seed)
	b.Key, b.Probe = one.Key, one.Probe
	two := joinGroup(t, b)
	c := b
	c.Name = "three"
	three := joinGroup(t, c)
	for _, g := range []*group.Group{a, two, three} {
		for _, name := range []string{"one", "two", "three"} {
			waitForEvent(t, g, isEvent(group.Joined, name))
		}
	}
	m, ok := three.View().Find("one")
	require.True(t, ok)
	require.Equal(t, "rack 7", string(m.Meta))

	client, err := qs.Open("tcp://127.0.0.1:0", qs.Config{})
	require.NoError(t, err)
	defer client.Close()
	d := b
	d.Name, d.Serves = "client", nil
	ctx, stop := context.WithTimeout(context.Background(), 30*time.Second)
	defer stop()
	g, err := group.Join(ctx, client, d)
	require.NoError(t, err)
	addrs := countingBalancer{Balancer: qs.LeastLoaded()}
	kv, err := client.PeerWith(ctx, qs.PeerOptions{Resolver: g, Balancer: &addrs}, "kv")
	require.NoError(t, err)
	for addrs.n < 3 { // one that is suspected at that moment is not in the first view
		_, err = echo.Call(ctx, kv, "x")
		require.NoError(t, err)
	}
	require.Equal(t, 3, addrs.n, "the client serves nothing")

	seen := make(chan group.Event, 100)
	defer g.OnEvent(func(e group.Event) { seen <- e })()
	var all []group.Event
	next := func(k group.Kind, name string) group.Event {
		for {
			select {
			case e := <-seen:
				all = append(all, e)
				if isEvent(k, name)(e) {
					return e
				}
			case <-ctx.Done():
				t.Fatalf("no event %v of %s; there were %v; the view is %v", k, name, all, g.View().Members)
			}
		}
	}
	require.NoError(t, two.Leave(ctx))
	next(group.Leaves, "two")
	require.NoError(t, three.Close())
	next(group.Fails, "three")
	require.True(t, slices.ContainsFunc(all, isEvent(group.Suspects, "three")), "on a busy machine perhaps before it was closed")
	_, ok = g.View().Find("three")
	require.False(t, ok)
	again := joinGroup(t, c)
	e := next(group.Back, "three")
	require.Greater(t, e.Member.Incarnation, m.Incarnation)
	_ = again.Close()
	joinGroup(t, c) // before its failure is detected
	next(group.Fails, "three")
	next(group.Back, "three")
	require.NoError(t, g.Leave(ctx))
}

// TestKeys checks that a process with a wrong key, or none, is not admitted, and a process with a
// key does not join a group without one.
func TestKeys(t *testing.T) {
	t.Parallel()
	seed, open := freeport.Addr(t), freeport.Addr(t)
	one := newOptions("one", seed)
	one.Key = []byte("0123456789abcdef")
	g := joinGroup(t, one)
	free := joinGroup(t, newOptions("free", open))
	for _, c := range []struct {
		seed string
		key  []byte
	}{{seed, []byte("fedcba9876543210")}, {seed, nil}, {open, one.Key}} {
		o := newOptions("stranger", "", c.seed)
		o.Key = c.key
		ctx, stop := context.WithTimeout(context.Background(), time.Second)
		_, err := group.Join(ctx, serveNode(t), o)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		stop()
	}
	require.Len(t, g.View().Members, 1)
	require.Len(t, free.View().Members, 1)
}

// TestOptions checks that invalid options are refused.
func TestOptions(t *testing.T) {
	t.Parallel()
	n := serveNode(t)
	for what, o := range map[string]group.Options{
		"Name": {}, "#": {Name: "a#b"}, "Key": {Name: "a", Key: make([]byte, 7)}, "Meta": {Name: "a", Meta: make([]byte, 300)},
		"Probe": {Name: "a", Probe: 1}, "Gossip": {Name: "a", Gossip: "nowhere"}, "Serves": {Name: "a", Serves: []string{string(make([]byte, 600))}},
		"Seeds": {Name: "a", Seeds: []string{"127.0.0.1"}}, "Seeds: address": {Name: "a", Seeds: []string{"127.0.0.1:0"}}, "Gossip: ": {Name: "a", Gossip: "127.0.0.1:65536"},
		"Addr": {Name: "a", Addr: "tcp://", Gossip: "127.0.0.1:0"}, "Addr is": {Name: "a", Addr: "host:7000"},
	} {
		ctx, stop := context.WithTimeout(context.Background(), time.Second) // seeds that are not refused may be tried
		g, err := group.Join(ctx, n, o)
		stop()
		if err == nil {
			_ = g.Close()
		}
		require.ErrorIs(t, err, qs.ErrInvalid, what)
		require.ErrorContains(t, err, what)
	}
}

// TestLeaveTwice checks that a second Leave, and a Leave after Close, return an error.
func TestLeaveTwice(t *testing.T) {
	t.Parallel()
	for what, end := range map[string]func(context.Context, *group.Group) error{
		"left":   func(ctx context.Context, g *group.Group) error { return g.Leave(ctx) },
		"closed": func(_ context.Context, g *group.Group) error { return g.Close() },
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			ctx, stop := context.WithTimeout(context.Background(), 30*time.Second)
			defer stop()
			g := joinGroup(t, newOptions("a", freeport.Addr(t)))
			require.NoError(t, end(ctx, g))
			require.ErrorIs(t, g.Leave(ctx), qs.ErrClosed)
			require.NoError(t, g.Close())
		})
	}
}

// TestRendezvous checks that processes that were started together are a group, without seeds.
func TestRendezvous(t *testing.T) {
	t.Parallel()
	const size = 4
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	ctx, stop := context.WithTimeout(context.Background(), 30*time.Second)
	defer stop()
	var all sync.WaitGroup
	defer all.Wait()
	all.Go(func() {
		_ = rendezvous.Serve(ctx, l, rendezvous.ServerConfig{Size: size, Auth: protocol.Auth{Secret: []byte("secret")}})
	})
	for i := range size {
		n := serveNode(t)
		all.Go(func() {
			m, err := rendezvous.Join(ctx, rendezvous.Config{Addr: l.Addr().String(), Rank: i, Size: size, Auth: protocol.Auth{Secret: []byte("secret")}})
			if err != nil {
				t.Error(err)
				return
			}
			defer m.Close()
			o := newOptions(fmt.Sprint("p", i), "")
			o.Rendezvous = m
			g, err := group.Join(ctx, n, o)
			if err != nil {
				t.Error(err)
				return
			}
			defer g.Close()
			_ = m.Leave()
			left := size
			for range g.Events(ctx) {
				if left--; left == 0 {
					return
				}
			}
			t.Error("not all were found")
		})
	}
}

// TestJoinWithClockBehind checks that a process that starts right after another one of its name has
// failed, with a clock that is behind, becomes the member, for the others and for itself.
func TestJoinWithClockBehind(t *testing.T) {
	t.Parallel()
	seed := freeport.Addr(t)
	patiently := func(o group.Options) group.Options {
		o.Probe = time.Second // no member misses the first one before the second has joined, which need not be above it then
		return o
	}
	a := joinGroup(t, patiently(newOptions("a", seed)))
	ctx, stop := context.WithTimeout(context.Background(), 30*time.Second)
	defer stop()
	now := uint64(time.Now().UnixNano())
	as := func(incarnation uint64) (*group.Group, string) {
		n := serveNode(t)
		g, err := group.JoinAs(ctx, n, patiently(newOptions("d", "", seed)), incarnation)
		require.NoError(t, err)
		t.Cleanup(func() { _ = g.Close() })
		return g, n.Addr().String()
	}
	first, was := as(now + uint64(time.Hour))
	waitForEvent(t, a, func(e group.Event) bool { return e.Member.Addr == was })
	require.NoError(t, first.Close())
	second, is := as(now)
	for _, g := range []*group.Group{a, second} {
		waitForEvent(t, g, func(e group.Event) bool { return e.Member.Addr == is && e.Member.Incarnation > now+uint64(time.Hour) })
		m, _ := g.View().Find("d")
		require.Equal(t, is, m.Addr)
	}
}

// countingBalancer is a Balancer that counts the addresses.
type countingBalancer struct {
	qs.Balancer
	n int
}

func (c *countingBalancer) Pick(call *qs.Call, all []qs.Candidate) int {
	c.n = len(all)
	return c.Balancer.Pick(call, all)
}
