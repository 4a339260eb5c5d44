package qs_test

import (
	"bytes"
	"context"
	"io"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/hg"
	"github.com/quicksilver-rpc/quicksilver/internal/test/long"
	"github.com/quicksilver-rpc/quicksilver/qs"
)

// A handlerBarrier is the work of tests in which more calls are in flight than handlers may run.
type handlerBarrier struct {
	begun atomic.Int64  // handlers that have begun
	want  int64         // once so many have,
	full  chan struct{} // this is closed
	open  chan struct{} // handlers wait for this
}

// newHandlerBarrier returns a handlerBarrier whose handlers wait until a given number of them have begun, and until
// the test closes open.
func newHandlerBarrier(handlers int) *handlerBarrier {
	return &handlerBarrier{want: int64(handlers), full: make(chan struct{}), open: make(chan struct{})}
}

func (c *handlerBarrier) enter(ctx context.Context) error {
	if c.begun.Add(1) == c.want {
		close(c.full)
	}
	select {
	case <-c.open:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// wait waits until the handlers have begun.
func (c *handlerBarrier) wait(ctx context.Context, t *testing.T) {
	t.Helper()
	select {
	case <-c.full:
	case <-ctx.Done():
		t.Errorf("got %d handlers that have begun, want %d", c.begun.Load(), c.want)
	}
}

// The methods of a handlerBarrier.
var (
	barrierItems = qs.DefineStream[int, []byte]("crowd/items") // so many of 16 KiB
	barrierPut   = qs.Define[qs.Source, int]("crowd/put")
	barrierGet   = qs.Define[qs.Sink, int]("crowd/get")
	barrierWait  = qs.Define[struct{}, struct{}]("crowd/wait")
	barrierKeep  = qs.Define[[]byte, struct{}]("crowd/keep")
	barrierEcho  = qs.Define[[]byte, int]("crowd/echo")
)

const (
	crowdItem  = 16 << 10
	crowdBytes = 100_000 // of a put and a get
)

func (c *handlerBarrier) serve(n *qs.Node) {
	barrierItems.Handle(n, func(ctx context.Context, n int, send func([]byte) error) error {
		if n < 0 { // at once
			n = -n
		} else if err := c.enter(ctx); err != nil {
			return err
		}
		var err error
		for item := make([]byte, crowdItem); n > 0 && err == nil; n-- {
			err = send(item)
		}
		return err
	})
	barrierPut.Handle(n, func(ctx context.Context, in qs.Source) (int, error) {
		if err := c.enter(ctx); err != nil {
			return 0, err
		}
		got, err := io.Copy(io.Discard, in.Reader(ctx))
		return int(got), err
	})
	barrierGet.Handle(n, func(ctx context.Context, in qs.Sink) (int, error) {
		if err := c.enter(ctx); err != nil {
			return 0, err
		}
		return in.Writer(ctx).Write(make([]byte, crowdBytes))
	})
	barrierWait.Handle(n, func(ctx context.Context, _ struct{}) (struct{}, error) { return struct{}{}, c.enter(ctx) })
	barrierKeep.Handle(n, func(ctx context.Context, _ []byte) (struct{}, error) { return struct{}{}, c.enter(ctx) })
	barrierEcho.Handle(n, func(_ context.Context, in []byte) (int, error) { return len(in), nil })
}

// shortContext bounds the wait for a call that ends unless there is a fault.
func shortContext(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(testContext(t), time.Minute)
	t.Cleanup(cancel)
	return ctx
}

// isAnswered has a node ping a peer.
func isAnswered(t testing.TB, ctx context.Context, n *qs.Node, to qs.Peer) {
	t.Helper()
	_, err := to.Ping(ctx)
	require.NoError(t, err, "ping")
	h, err := n.HG().Create(to.Addr(), hg.HashName(hg.HealthRPC))
	require.NoError(t, err)
	defer h.Close()
	_, err = h.CallRaw(ctx, nil)
	require.NoError(t, err, "health")
}

// stream takes all items of a stream.
func (c *handlerBarrier) stream(ctx context.Context, t *testing.T, to qs.Peer, want int) {
	n := 0
	for item, err := range barrierItems.Call(ctx, to, want) {
		if !assert.NoError(t, err, "after %d items of %d", n, want) {
			return
		}
		assert.Len(t, item, crowdItem)
		n++
	}
	assert.Equal(t, want, n)
}

// streams has streams in flight to a server that runs most handlers at a time, with a ping and
// another call at the same time.
func (c *handlerBarrier) streams(t *testing.T, n *qs.Node, to qs.Peer, streams int) {
	ctx := shortContext(t)
	var all sync.WaitGroup
	for range streams {
		all.Go(func() { c.stream(ctx, t, to, 20) }) // more than are in flight at once
	}
	all.Go(func() {
		got, err := barrierEcho.Call(ctx, to, make([]byte, 100))
		assert.NoError(t, err)
		assert.Equal(t, 100, got)
	})
	c.wait(ctx, t)
	isAnswered(t, ctx, n, to) // while those that have begun hold all places, and those that wait all envelopes
	close(c.open)
	all.Wait()
}

// TestStreamsBeyondHandlerLimit checks that as many streams of one client as there are places for
// handlers, and more, all end in order.
func TestStreamsBeyondHandlerLimit(t *testing.T) {
	t.Parallel()
	for _, v := range []struct {
		at      string
		streams int
	}{{"tcp://127.0.0.1:0", 128}, {"tcp://127.0.0.1:0", 200}, {"udp://127.0.0.1:0", 200}, {"sm://*", 200}} {
		scheme, _, _ := strings.Cut(v.at, "://")
		t.Run(scheme, func(t *testing.T) {
			if scheme == "sm" && runtime.GOOS != "linux" {
				t.Skip("sm needs Linux")
			}
			c := newHandlerBarrier(128)
			s := serverAt(t, v.at, qs.Config{}, c.serve)
			n := open(t, scheme+"://", qs.Config{})
			c.streams(t, n, peer(t, n, s.Addr().String()), v.streams)
		})
	}
	t.Run("workers", func(t *testing.T) { // each waits for one, and those beyond keep their envelopes meanwhile
		c := newHandlerBarrier(8)
		n, to := pair(t, qs.Config{MaxConcurrent: 8}, c.serve)
		c.streams(t, n, to, 60)
	})
	t.Run("itself", func(t *testing.T) {
		c := newHandlerBarrier(128)
		s := server(t, qs.Config{}, c.serve)
		c.streams(t, s, peer(t, s, s.Addr().String()), 200)
	})
}

// TestStreamsOfManyClients checks the same when all clients together use all places.
func TestStreamsOfManyClients(t *testing.T) {
	t.Parallel()
	clients, each, cfg := long.Or(3, 9), long.Or(8, 114), qs.Config{}
	if !long.On {
		cfg.HG.MaxActive = 20
	}
	c := newHandlerBarrier(long.Or(20, 1024))
	s := server(t, cfg, c.serve)
	ctx := shortContext(t)
	var all sync.WaitGroup
	for range clients {
		n := open(t, "tcp://", qs.Config{})
		to := peer(t, n, s.Addr().String())
		for range each {
			all.Go(func() { c.stream(ctx, t, to, 20) })
		}
	}
	c.wait(ctx, t)
	n := open(t, "tcp://", qs.Config{})
	isAnswered(t, ctx, n, peer(t, n, s.Addr().String()))
	close(c.open)
	all.Wait()
}

// TestLongCallsAndStream checks that a stream continues during long calls, which hold all places
// but its own, and all envelopes.
func TestLongCallsAndStream(t *testing.T) {
	t.Parallel()
	c := newHandlerBarrier(127)
	n, to := pair(t, qs.Config{}, c.serve)
	ctx := shortContext(t)
	var all sync.WaitGroup
	items := 0
	for _, err := range barrierItems.Call(ctx, to, -40) {
		require.NoError(t, err)
		if items++; items > 1 {
			continue
		}
		for range 170 {
			all.Go(func() {
				_, err := barrierWait.Call(ctx, to, struct{}{})
				assert.NoError(t, err)
			})
		}
		c.wait(ctx, t)
		isAnswered(t, ctx, n, to)
	}
	require.Equal(t, 40, items)
	close(c.open)
	all.Wait()
}

// put lends r, and get has so many bytes written to w.
func (c *handlerBarrier) put(ctx context.Context, t *testing.T, to qs.Peer, r io.Reader) {
	got, err := barrierPut.Call(ctx, to, qs.Reader(r))
	assert.NoError(t, err)
	assert.Equal(t, crowdBytes, got)
}

func (c *handlerBarrier) get(ctx context.Context, t *testing.T, to qs.Peer, w io.Writer) {
	got, err := barrierGet.Call(ctx, to, qs.Writer(w))
	assert.NoError(t, err)
	assert.Equal(t, crowdBytes, got)
}

// A gatedStream is a reader and a writer that waits until the test opens it.
type gatedStream struct {
	open <-chan struct{}
	r    io.Reader
	n    int
}

func (g *gatedStream) Read(b []byte) (int, error) {
	<-g.open
	return g.r.Read(b)
}

func (g *gatedStream) Write(b []byte) (int, error) {
	<-g.open
	g.n += len(b)
	return len(b), nil
}

// TestSlowReadersAndWriters checks that as many uploads whose readers wait, and downloads whose
// writers do, as the caller has places for handlers, and more, do not delay any other.
func TestSlowReadersAndWriters(t *testing.T) {
	t.Parallel()
	c := newHandlerBarrier(200)
	close(c.open)
	cfg := qs.Config{}
	cfg.HG.MaxActivePerPeer = 1000
	n, to := pair(t, cfg, c.serve)
	ctx := shortContext(t)
	gateOpen := make(chan struct{})
	var all sync.WaitGroup
	for range 100 {
		all.Go(func() { c.put(ctx, t, to, &gatedStream{open: gateOpen, r: bytes.NewReader(make([]byte, crowdBytes))}) })
		all.Go(func() {
			w := gatedStream{open: gateOpen}
			c.get(ctx, t, to, &w)
			assert.Equal(t, crowdBytes, w.n)
		})
	}
	c.wait(ctx, t)
	for range 3 {
		c.put(ctx, t, to, bytes.NewReader(make([]byte, crowdBytes)))
		var into bytes.Buffer
		c.get(ctx, t, to, &into)
		require.Equal(t, crowdBytes, into.Len())
		isAnswered(t, ctx, n, to)
	}
	close(gateOpen)
	all.Wait()
}

// TestUploadsEachWay has two processes call each other with more uploads and downloads than either
// has places.
func TestUploadsEachWay(t *testing.T) {
	t.Parallel()
	for _, at := range []string{"tcp://127.0.0.1:0", "udp://127.0.0.1:0", "sm://*"} {
		scheme, _, _ := strings.Cut(at, "://")
		t.Run(scheme, func(t *testing.T) {
			if scheme == "sm" && runtime.GOOS != "linux" {
				t.Skip("sm needs Linux")
			}
			testUploadsEachWay(t, at, qs.Config{})
		})
	}
}

func testUploadsEachWay(t *testing.T, at string, cfg qs.Config) {
	c := newHandlerBarrier(2 * 128)
	a, b := serverAt(t, at, cfg, c.serve), serverAt(t, at, cfg, c.serve)
	ctx := shortContext(t)
	var all sync.WaitGroup
	ab, ba := peer(t, a, b.Addr().String()), peer(t, b, a.Addr().String())
	for _, to := range []qs.Peer{ab, ba} {
		for range 100 {
			all.Go(func() { c.put(ctx, t, to, bytes.NewReader(make([]byte, crowdBytes))) })
			all.Go(func() {
				var into bytes.Buffer
				c.get(ctx, t, to, &into)
				assert.Equal(t, crowdBytes, into.Len())
			})
		}
	}
	c.wait(ctx, t)
	isAnswered(t, ctx, a, ab)
	isAnswered(t, ctx, b, ba)
	close(c.open)
	all.Wait()
}
