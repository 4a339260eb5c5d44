package tcp_test

import (
	"context"
	"errors"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/na"
	"github.com/quicksilver-rpc/quicksilver/plugins/tcp"
)

// patience is how long anything in these tests may take.
const patience = 20 * time.Second

// variants are the two carriers.
var variants = map[string]tcp.Options{"epoll": {}, "portable": {Portable: true}}

// eachCarrier runs fn over both carriers.
func eachCarrier(t *testing.T, fn func(t *testing.T, opts tcp.Options)) {
	for name, opts := range variants {
		if opts.Portable || runtime.GOOS == "linux" {
			t.Run(name, func(t *testing.T) { fn(t, opts) })
		}
	}
}

// A node is a class with its contexts. The goroutine of the test drives them all, in await.
type node struct {
	t    testing.TB
	cls  *na.Class
	ctxs []*na.Context
}

func (n *node) ctx() *na.Context { return n.ctxs[0] }

// open opens a class with some contexts, and closes it at the end of the test.
func open(t testing.TB, addr string, opts tcp.Options, cfg na.Config, contexts int) *node {
	t.Helper()
	cfg.Plugins = []na.Plugin{tcp.New(opts)}
	cls, err := na.Open(addr, cfg)
	require.NoError(t, err)
	n := &node{t: t, cls: cls}
	t.Cleanup(n.close)
	for range contexts {
		c, err := cls.NewContext()
		require.NoError(t, err)
		n.ctxs = append(n.ctxs, c)
	}
	return n
}

// close closes the class and drains it.
func (n *node) close() {
	_ = n.cls.Close()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	for _, c := range n.ctxs {
		require.NoError(n.t, c.Shutdown(ctx))
	}
	require.True(n.t, n.cls.Closed() || len(n.ctxs) == 0)
}

// startDriver has a goroutine drive Progress of a node until the returned function is called.
func startDriver(n *node) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	c := n.ctx()
	var one sync.WaitGroup
	one.Go(func() {
		for ctx.Err() == nil {
			_ = c.Progress(time.Millisecond)
		}
	})
	return func() {
		cancel()
		one.Wait()
	}
}

// driveUntil drives the contexts of all nodes until done reports true.
func driveUntil(t testing.TB, what string, done func() bool, nodes ...*node) {
	t.Helper()
	end := time.Now().Add(patience)
	for i := 0; !done(); i++ {
		require.True(t, time.Now().Before(end), "waited too long for: %s", what)
		moved := false
		for _, n := range nodes {
			for _, c := range n.ctxs {
				moved = c.Progress(0) == nil || moved
				c.Trigger(0)
			}
		}
		if !moved && !done() {
			c := nodes[i%len(nodes)].ctx()
			_ = c.Progress(time.Millisecond)
			c.Trigger(0)
		}
	}
}

// An outcome is the result of an operation.
type outcome struct {
	na.Result
	n int // times that the callback ran
}

func (o *outcome) done() bool { return o.n > 0 }

func (o *outcome) recordResult(_ *na.Op, r na.Result) {
	o.Result = r
	o.n++
}

// newOp returns an operation and its outcome.
func newOp(c *na.Context) (*na.Op, *outcome) {
	o := &outcome{}
	return c.NewOp(o.recordResult), o
}

// requireSuccess waits for the end of an operation, which must be a success.
func requireSuccess(t testing.TB, what string, o *outcome, nodes ...*node) na.Result {
	t.Helper()
	driveUntil(t, what, o.done, nodes...)
	require.NoError(t, o.Err, what)
	require.Equal(t, 1, o.n)
	return o.Result
}

// lookup resolves the address of another node.
func lookup(t testing.TB, from *node, text string) na.Addr {
	t.Helper()
	o, end := newOp(from.ctx())
	require.NoError(t, from.ctx().Lookup(o, text))
	return requireSuccess(t, "lookup", end, from).Addr
}

// sendUnexpected sends a message and waits until it has left.
func sendUnexpected(t testing.TB, c *na.Context, to na.Addr, tag na.Tag, text string, nodes ...*node) {
	t.Helper()
	o, end := newOp(c)
	require.NoError(t, c.SendUnexpected(o, to, tag, []byte(text)))
	requireSuccess(t, "send "+text, end, nodes...)
}

// recvUnexpected waits for a message.
func recvUnexpected(t testing.TB, c *na.Context, nodes ...*node) (string, na.Addr, na.Tag) {
	t.Helper()
	o, end := newOp(c)
	require.NoError(t, c.RecvUnexpected(o))
	r := requireSuccess(t, "receive unexpected", end, nodes...)
	text := string(r.Envelope.Data)
	r.Envelope.Free()
	return text, r.Addr, r.Tag
}

// requireCode fails the test unless err matches want.
func requireCode(t testing.TB, want na.Code, err error) {
	t.Helper()
	require.True(t, errors.Is(err, want), "got error %v, want %v", err, want)
}
