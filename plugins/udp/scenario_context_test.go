package udp_test

import (
	"context"
	"fmt"
	"net/netip"
	"regexp"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/internal/test/long"
	"github.com/quicksilver-rpc/quicksilver/internal/test/relay"
	"github.com/quicksilver-rpc/quicksilver/na"
	"github.com/quicksilver-rpc/quicksilver/plugins/udp"
	"github.com/quicksilver-rpc/quicksilver/plugins/udp/internal/arq"
)

// patience is how long anything in these tests may take.
const patience = 20 * time.Second

// A node is a class with its contexts. The goroutine of the test drives them all, in await.
type node struct {
	cls  *na.Class
	ctxs []*na.Context
}

// open opens a class with some contexts, and closes it at the end of the test.
func open(t testing.TB, addr string, opts udp.Options, contexts int) *node {
	t.Helper()
	cls, err := na.Open(addr, na.Config{Plugins: []na.Plugin{udp.New(opts)}})
	require.NoError(t, err)
	return openContexts(t, cls, contexts)
}

// openContexts opens contexts of a class, and closes it at the end of the test.
func openContexts(t testing.TB, cls *na.Class, contexts int) *node {
	t.Helper()
	n := &node{cls: cls}
	for range contexts {
		c, err := cls.NewContext()
		require.NoError(t, err)
		n.ctxs = append(n.ctxs, c)
	}
	t.Cleanup(func() {
		_ = cls.Close()
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		require.NoError(t, cls.Shutdown(ctx))
	})
	return n
}

func driveUntil(t testing.TB, what string, done func() bool, nodes ...*node) {
	t.Helper()
	for end := time.Now().Add(patience); !done(); {
		require.Less(t, time.Now(), end, "%s: nothing happens", what)
		for _, n := range nodes {
			for _, c := range n.ctxs {
				_ = c.Progress(100 * time.Microsecond)
				c.Trigger(0)
			}
		}
	}
}

// sendMessage sends a message from one context to another, and returns the name that the receiver has for
// the sender.
func sendMessage(t testing.TB, from *na.Context, to na.Addr, at *na.Context, text string, nodes ...*node) (sender na.Addr) {
	t.Helper()
	sent, got := false, ""
	require.NoError(t, at.RecvUnexpected(at.NewOp(func(_ *na.Op, r na.Result) {
		require.NoError(t, r.Err)
		got, sender = string(r.Envelope.Data), r.Addr
		r.Envelope.Free()
	})))
	require.NoError(t, from.SendUnexpected(from.NewOp(func(_ *na.Op, r na.Result) {
		require.NoError(t, r.Err)
		sent = true
	}), to, 1, []byte(text)))
	driveUntil(t, text, func() bool { return sent && got != "" }, nodes...)
	require.Equal(t, text, got)
	return sender
}

// TestContexts checks that every context of a class is reached at its one address from each of
// another's, in any order of the calls; and the answers arrive on the same session.
func TestContexts(t *testing.T) {
	t.Parallel()
	eachSocket(t, func(t *testing.T, opts udp.Options) {
		a, b := open(t, "udp://127.0.0.1:0", opts, 3), open(t, "udp://127.0.0.1:0", opts, 3)
		for i := 2; i >= 0; i-- {
			for j, at := range b.ctxs {
				sender := sendMessage(t, a.ctxs[i], b.cls.Addr().WithTarget(j), at, fmt.Sprintf("from %d to %d", i, j), a, b)
				require.Equal(t, a.cls.Addr().WithTarget(i), sender.Named())
				sendMessage(t, at, sender, a.ctxs[i], "answer", a, b)
			}
		}
		for _, c := range append(a.ctxs, b.ctxs...) {
			require.Equal(t, 3, c.Stats().Peers)
		}
	})
}

// TestContextCloses checks that the others are reached as before when one is closed, the first one
// too; when there is none left, a dial fails with an error that states that; and a new context has
// the address again.
func TestContextCloses(t *testing.T) {
	t.Parallel()
	eachSocket(t, func(t *testing.T, opts udp.Options) {
		b := open(t, "udp://127.0.0.1:0", opts, 3)
		dial := func(target int) error {
			a := open(t, "udp://", opts, 1)
			var end *na.Result
			require.NoError(t, a.ctxs[0].SendUnexpected(a.ctxs[0].NewOp(func(_ *na.Op, r na.Result) { end = &r }), b.cls.Addr().WithTarget(target), 1, []byte("x")))
			driveUntil(t, "refusal", func() bool { return end != nil }, a, b)
			require.ErrorIs(t, end.Err, na.ErrUnreachable)
			require.Equal(t, na.NotRun, end.Fate)
			return end.Err
		}
		require.ErrorContains(t, dial(7), "no such context: 7")
		for i := range 3 {
			a := open(t, "udp://", opts, 1)
			for j := i; j < 3; j++ {
				sendMessage(t, a.ctxs[0], b.cls.Addr().WithTarget(j), b.ctxs[j], "hi", a, b)
			}
			b.ctxs[i].Close()
			driveUntil(t, "close", b.ctxs[i].Closed, a, b)
			if i < 2 {
				require.ErrorContains(t, dial(i), fmt.Sprintf("no such context: %d", i))
			}
		}
		if !opts.Portable { // there only a timeout reveals it
			start := time.Now()
			require.ErrorContains(t, dial(0), "no response")
			t.Log("after", time.Since(start))
		}
		c, err := b.cls.NewContext()
		require.NoError(t, err)
		b.ctxs = append(b.ctxs, c)
		a := open(t, "udp://", opts, 1)
		sendMessage(t, a.ctxs[0], b.cls.Addr().WithTarget(c.ID()), c, "again", a, b)
	})
}

// TestEveryPair checks that with any profile and mode of one class and of the other, messages pass
// both ways and memory is written.
func TestEveryPair(t *testing.T) {
	t.Parallel()
	var all []udp.Options
	for _, profile := range []string{"modern", "seed"} {
		for _, ack := range []string{"adaptive", "lazy", "eager"} {
			all = append(all, udp.Options{Profile: profile, Ack: ack})
		}
	}
	for _, near := range all {
		for _, far := range all {
			t.Run(fmt.Sprintf("%s %s to %s %s", near.Profile, near.Ack, far.Profile, far.Ack), func(t *testing.T) {
				a, b := open(t, "udp://", near, 1), open(t, "udp://127.0.0.1:0", far, 1)
				sender := sendMessage(t, a.ctxs[0], b.cls.Addr(), b.ctxs[0], "there", a, b)
				sendMessage(t, b.ctxs[0], sender, a.ctxs[0], "and back", a, b)
				putBytes(t, a, b, 300_000)
			})
		}
	}
}

// putBytes writes n bytes from one node into memory of the other.
func putBytes(t testing.TB, from, to *node, n int64) {
	t.Helper()
	src, dst := make([]byte, n), make([]byte, n)
	for i := range src {
		src[i] = byte(i ^ i>>8)
	}
	there, err := to.cls.Register(na.WriteOnly, dst)
	require.NoError(t, err)
	here, err := from.cls.NewMem(src)
	require.NoError(t, err)
	var end *na.Result
	c := from.ctxs[0]
	require.NoError(t, c.Put(c.NewOp(func(_ *na.Op, r na.Result) { end = &r }), here, 0, to.cls.Addr(), there.Key(), 0, n))
	driveUntil(t, "put", func() bool { return end != nil }, from, to)
	require.NoError(t, end.Err)
	require.Equal(t, src, dst)
}

// TestBlockedPeerKeepsSession checks that a peer that computes for longer than PeerTimeout, and drives nothing, is
// not lost, and at most 20 packets are sent again: its context is assisted. Nor is one that is not
// assisted and computes for less.
func TestBlockedPeerKeepsSession(t *testing.T) {
	t.Parallel()
	if runtime.GOOS != "linux" {
		t.Skip("this system has no poller for the background poller")
	}
	for name, tt := range map[string]struct {
		opts    udp.Options
		blocked time.Duration
	}{
		"assisted":   {udp.Options{}, long.Or(5*time.Second/2, 30*time.Second)},
		"unassisted": {udp.Options{Unassisted: true}, 3 * time.Second / 2},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := open(t, "udp://127.0.0.1:0", tt.opts, 1)
			between, err := relay.New(netip.MustParseAddrPort(strings.TrimPrefix(b.cls.Addr().Name(), "udp://")), relay.Rules{})
			require.NoError(t, err)
			t.Cleanup(between.Close)
			var again atomic.Int64
			seen := map[string]bool{}
			between.Watch(func(d []byte, fromTarget bool) {
				if p, err := arq.Parse(d); err == nil && !fromTarget {
					if seq := number.FindString(p.String()); seen[seq] {
						again.Add(1)
					} else if seq != "" {
						seen[seq] = true
					}
				}
			})
			cls, err := na.Open("udp://", na.Config{Plugins: []na.Plugin{udp.New(udp.Options{})}, PeerTimeout: 2 * time.Second})
			require.NoError(t, err)
			a := openContexts(t, cls, 1)
			to := na.MakeAddr("udp://"+between.Addr().String(), 0)
			sender := sendMessage(t, a.ctxs[0], to, b.ctxs[0], "work", a, b)
			var end *na.Result
			c := a.ctxs[0]
			require.NoError(t, c.RecvExpected(c.NewOp(func(_ *na.Op, r na.Result) { end = &r }), to, 1, make([]byte, 10)))
			before := again.Load()
			for until := time.Now().Add(tt.blocked); time.Now().Before(until); { // of b nothing is driven
				_ = c.Progress(10 * time.Millisecond)
				c.Trigger(0)
				require.Nil(t, end, "%+v", end)
				require.LessOrEqual(t, again.Load()-before, int64(20), "packets sent again")
			}
			forth, back, _ := between.Passed()
			t.Logf("%d packets were sent again in %v, of %d and %d", again.Load()-before, tt.blocked, forth, back)
			require.NoError(t, b.ctxs[0].SendExpected(b.ctxs[0].NewOp(func(*na.Op, na.Result) {}), sender, 1, []byte("done")))
			driveUntil(t, "answer", func() bool { return end != nil }, a, b)
			require.NoError(t, end.Err)
			require.Zero(t, c.Stats().PeersLost)
		})
	}
}

// number finds the lane and the number of a packet that has one.
var number = regexp.MustCompile(`^DATA\d seq=\d+`)

// TestContextsShareBulkSocket checks that bulk data arrives at each context of a class after the
// system has given it a socket of its own: at one that was there before, and at one that was opened
// later, also after the others have been closed.
func TestContextsShareBulkSocket(t *testing.T) {
	t.Parallel()
	eachSocket(t, func(t *testing.T, opts udp.Options) {
		a, b := open(t, "udp://", opts, 1), open(t, "udp://127.0.0.1:0", opts, 2)
		src := []byte(strings.Repeat("bulk", 1<<18))
		here, err := a.cls.NewMem(src)
		require.NoError(t, err)
		put := func(target int) {
			dst := make([]byte, len(src))
			there, err := b.cls.Register(na.WriteOnly, dst)
			require.NoError(t, err)
			done, c := false, a.ctxs[0]
			require.NoError(t, c.Put(c.NewOp(func(_ *na.Op, r na.Result) {
				require.NoError(t, r.Err)
				done = true
			}), here, 0, b.cls.Addr().WithTarget(target), there.Key(), 0, int64(len(src))))
			driveUntil(t, fmt.Sprintf("put to %d", target), func() bool { return done }, a, b)
			require.True(t, string(src) == string(dst), "the data at %d differs", target)
		}
		put(0)
		put(1)
		c, err := b.cls.NewContext()
		require.NoError(t, err)
		b.ctxs = append(b.ctxs, c)
		put(2)
		for i := range 2 {
			b.ctxs[i].Close()
			driveUntil(t, "close", b.ctxs[i].Closed, a, b)
			put(2)
		}
	})
}
