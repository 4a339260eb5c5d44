package group_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/contrib/group"
	"github.com/quicksilver-rpc/quicksilver/hg"
	"github.com/quicksilver-rpc/quicksilver/plugins/sim"
	"github.com/quicksilver-rpc/quicksilver/qs"
)

// A fakeSource is a Source with the reports of a test.
type fakeSource struct{ report func(group.Member) }

func (d *fakeSource) Watch(report func(group.Member)) error { d.report = report; return nil }
func (d *fakeSource) Leave(context.Context) error           { return nil }
func (d *fakeSource) Close() error                          { return nil }

var echo = qs.Define[string, string]("test/echo")

// runSim runs do on a client with the group of a fakeSource. Servers a, b and c echo their names,
// after an hour if asked to "hang".
func runSim(t *testing.T, do func(ctx context.Context, w *sim.World, n *qs.Node, d *fakeSource, g *group.Group)) {
	w := sim.NewWorld(sim.Config{Seed: 1})
	defer w.Close()
	open := func(addr string) *qs.Node {
		n, err := qs.Open(addr, qs.Config{HG: hg.Config{NA: hg.NetConfig{Plugins: []hg.Plugin{w.Plugin()}}}})
		require.NoError(t, err)
		return n
	}
	serving, stop := context.WithCancel(context.Background())
	defer stop()
	for _, name := range []string{"a", "b", "c"} {
		w.Go(name, func() {
			n := open("sim://" + name)
			echo.Handle(n, func(ctx context.Context, in string) (string, error) {
				if in == "hang" {
					return "", n.HG().Sleep(ctx, time.Hour)
				}
				return name, nil
			})
			_ = n.Serve(serving)
		})
	}
	w.Go("client", func() {
		defer stop()
		n := open("sim://")
		defer n.Close()
		ctx, end := n.HG().NA().WithTimeout(context.Background(), time.Hour)
		defer end()
		d := &fakeSource{}
		g, err := group.Over(n, "client", d)
		require.NoError(t, err)
		do(ctx, w, n, d, g)
		require.NoError(t, g.Close())
	})
	require.NoError(t, w.Run(2*time.Hour))
}

func newMember(name string, incarnation uint64, s group.State) group.Member {
	return group.Member{Name: name, Addr: "sim://" + name, Serves: []string{"kv"}, Incarnation: incarnation, State: s}
}

// TestEvents checks that the reports of a source become events, in order, and views.
func TestEvents(t *testing.T) {
	t.Parallel()
	moved := newMember("a", 2, group.Alive)
	moved.Addr = "sim://b"
	for _, c := range []struct {
		say  []group.Member
		want []string
		view []string
	}{
		{[]group.Member{newMember("a", 1, 0), newMember("a", 1, 0)}, []string{"joined a/1"}, []string{"a/1"}},
		{[]group.Member{newMember("a", 1, 1)}, []string{"joined a/1", "suspected a/1"}, []string{"a/1"}},
		{[]group.Member{newMember("a", 1, 0), newMember("a", 1, 1), newMember("a", 1, 0)}, []string{"joined a/1", "suspected a/1", "back a/1"}, []string{"a/1"}},
		{[]group.Member{newMember("a", 1, 0), newMember("a", 1, 2), newMember("a", 1, 3)}, []string{"joined a/1", "failed a/1"}, nil},
		{[]group.Member{newMember("a", 1, 0), newMember("a", 1, 3), newMember("a", 2, 0)}, []string{"joined a/1", "left a/1", "back a/2"}, []string{"a/2"}},
		{[]group.Member{newMember("a", 1, 0), newMember("a", 2, 0), newMember("a", 1, 2)}, []string{"joined a/1", "failed a/1", "back a/2"}, []string{"a/2"}},
		{[]group.Member{newMember("a", 2, 0), newMember("a", 1, 0), newMember("a", 1, 3)}, []string{"joined a/2"}, []string{"a/2"}},
		{[]group.Member{newMember("a", 2, 0), moved}, []string{"joined a/2", "changed a/2"}, []string{"a/2"}},
		{[]group.Member{newMember("a", 1, 2)}, nil, nil},
		{[]group.Member{newMember("b", 1, 0), newMember("a", 1, 0)}, []string{"joined b/1", "joined a/1"}, []string{"a/1", "b/1"}},
	} {
		runSim(t, func(ctx context.Context, w *sim.World, n *qs.Node, d *fakeSource, g *group.Group) {
			text := func(m group.Member) string { return fmt.Sprintf("%s/%d", m.Name, m.Incarnation) }
			var got, iterated, view []string
			epoch := uint64(0)
			defer g.OnEvent(func(e group.Event) {
				require.GreaterOrEqual(t, e.Epoch, epoch)
				epoch = e.Epoch
				got = append(got, e.Kind.String()+" "+text(e.Member))
			})()
			iterating, stop := context.WithCancel(ctx)
			n.HG().NA().Spawn(func() {
				for e := range g.Events(iterating) {
					iterated = append(iterated, e.Kind.String()+" "+text(e.Member))
				}
				iterated = append(iterated, "end")
			})
			w.Sleep(time.Millisecond)
			for _, m := range c.say {
				d.report(m)
			}
			w.Sleep(time.Millisecond)
			stop()
			w.Sleep(time.Second)
			require.Equal(t, c.want, got)
			require.Equal(t, append(slices.Clone(c.want), "end"), iterated)
			for _, m := range g.View().Members {
				view = append(view, text(m))
			}
			require.Equal(t, c.view, view)
			require.Equal(t, epoch, g.View().Epoch)
		})
	}
}

// TestFailedMember checks that calls to a member that fails end at once, with the correct fate, and
// calls to others continue; a Resolver's Peer uses another member and returns. A member that claims
// the address of another does not end calls to that one.
func TestFailedMember(t *testing.T) {
	t.Parallel()
	runSim(t, func(ctx context.Context, w *sim.World, n *qs.Node, d *fakeSource, g *group.Group) {
		for _, name := range []string{"a", "b"} {
			d.report(newMember(name, 1, group.Alive))
		}
		kv, err := n.PeerWith(ctx, qs.PeerOptions{Resolver: g}, "kv")
		require.NoError(t, err)
		b, err := n.PeerWith(ctx, qs.PeerOptions{Resolver: g}, "b")
		require.NoError(t, err)
		out, err := echo.Call(ctx, kv, "x")
		require.NoError(t, err)
		require.Equal(t, "a", out)
		hangs, lives := echo.Go(ctx, kv, "hang"), echo.Go(ctx, b, "hang")
		w.Sleep(time.Millisecond)
		w.Node("a").Pause(0)
		begun := w.Now()
		w.Sleep(time.Second)
		d.report(newMember("a", 1, group.Suspected))
		w.Sleep(time.Millisecond)
		require.False(t, isDone(hangs), "a suspicion ends nothing")
		liar := newMember("liar", 1, group.Alive)
		liar.Addr = "sim://b"
		d.report(liar)
		liar.State = group.Failed
		d.report(liar)
		d.report(newMember("a", 1, group.Failed))
		_, err = hangs.Wait(ctx)
		require.ErrorIs(t, err, qs.ErrPeerLost)
		require.Equal(t, qs.MaybeRan, qs.FateOf(err))
		require.Contains(t, err.Error(), "member a of the group has failed")
		require.Less(t, w.Now()-begun, 1100*time.Millisecond)
		for range 10 {
			out, err = echo.Call(ctx, kv, "x")
			require.NoError(t, err)
			require.Equal(t, "b", out)
		}
		require.False(t, isDone(lives), "calls to others continue")
		w.Node("a").Resume()
		d.report(newMember("a", 2, group.Alive))
		w.Sleep(time.Second)
		out, err = echo.Call(ctx, kv, "x")
		require.NoError(t, err)
		require.Equal(t, "a", out, "it is back")
		lives.Cancel()
	})
}

func isDone[T any](f *qs.Future[T]) bool {
	select {
	case <-f.Done():
		return true
	default:
		return false
	}
}

// TestDialledMember checks that a call that has not reached a failed member did not run.
func TestDialledMember(t *testing.T) {
	t.Parallel()
	runSim(t, func(ctx context.Context, w *sim.World, n *qs.Node, d *fakeSource, g *group.Group) {
		d.report(newMember("a", 1, group.Alive))
		a, err := n.PeerWith(ctx, qs.PeerOptions{Resolver: g}, "a")
		require.NoError(t, err)
		w.Sleep(time.Millisecond)
		w.Partition("client", "a", true)
		call := echo.Go(ctx, a, "x")
		w.Sleep(10 * time.Millisecond)
		d.report(newMember("a", 1, group.Failed))
		_, err = call.Wait(ctx)
		require.ErrorIs(t, err, qs.ErrPeerLost)
		require.Equal(t, qs.NotRun, qs.FateOf(err))
		require.Less(t, w.Now(), 100*time.Millisecond)
		_, err = echo.Call(ctx, a, "x")
		require.ErrorIs(t, err, qs.ErrUnreachable, "there is no member of that name")
	})
}

// TestByKey checks that calls of one key go to its first owner, and to the next while the first is
// absent.
func TestByKey(t *testing.T) {
	t.Parallel()
	runSim(t, func(ctx context.Context, w *sim.World, n *qs.Node, d *fakeSource, g *group.Group) {
		for _, name := range []string{"a", "b", "c"} {
			d.report(newMember(name, 1, group.Alive))
		}
		kv, err := n.PeerWith(ctx, qs.PeerOptions{Resolver: g, Balancer: g.ByKey(func(c *qs.Call) string {
			if c == nil {
				return ""
			}
			k, _ := c.Metadata.Get("key")
			return k
		})}, "kv")
		require.NoError(t, err)
		used := map[string]bool{}
		var moved string
		for i := range 20 {
			key := fmt.Sprint(i)
			owners := g.View().Owners(key, 2)
			out, err := echo.Call(qs.WithMetadata(ctx, "key", key), kv, "x")
			require.NoError(t, err)
			require.Equal(t, owners[0].Name, out)
			if used[out] = true; out == "a" {
				moved = key
			}
		}
		require.Len(t, used, 3)
		next := g.View().Owners(moved, 2)[1].Name
		d.report(newMember("a", 1, group.Left))
		w.Sleep(time.Millisecond)
		out, err := echo.Call(qs.WithMetadata(ctx, "key", moved), kv, "x")
		require.NoError(t, err)
		require.Equal(t, next, out)
	})
}

// TestRemove checks that a removed callback is not called any more, wherever its event was queued.
func TestRemove(t *testing.T) {
	runSim(t, func(ctx context.Context, w *sim.World, n *qs.Node, d *fakeSource, g *group.Group) {
		calls := 0
		var remove func()
		remove = g.OnEvent(func(group.Event) {
			calls++
			remove()
		})
		d.report(newMember("a", 1, group.Alive))
		d.report(newMember("b", 1, group.Alive))
		require.NoError(t, n.HG().Sleep(ctx, time.Second))
		require.Equal(t, 1, calls)
	})
}

// TestEventEndsItsGoroutine checks that a callback that ends its goroutine, as FailNow does, is
// still called with the next events.
func TestEventEndsItsGoroutine(t *testing.T) {
	t.Parallel()
	d := &fakeSource{}
	g, err := group.Over(serveNode(t), "client", d)
	require.NoError(t, err)
	defer g.Close()
	got := make(chan string, 6)
	defer g.OnEvent(func(e group.Event) {
		got <- e.Member.Name
		runtime.Goexit()
	})()
	for i := range cap(got) {
		d.report(newMember(fmt.Sprint("m", i), 1, group.Alive))
	}
	for i := range cap(got) {
		select {
		case name := <-got:
			require.Equal(t, fmt.Sprint("m", i), name)
		case <-time.After(10 * time.Second):
			t.Fatalf("it was called for %d of %d events", i, cap(got))
		}
	}
}

// A failingSource is a Source that cannot begin.
type failingSource struct{ fakeSource }

func (*failingSource) Watch(func(group.Member)) error { return errors.New("no network") }

func TestSourceFails(t *testing.T) {
	t.Parallel()
	_, err := group.Over(nil, "x", &failingSource{})
	require.ErrorContains(t, err, "no network")
}
