package streamnet_test

import (
	"context"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/hg"
	"github.com/quicksilver-rpc/quicksilver/na"
	"github.com/quicksilver-rpc/quicksilver/na/carrier/streamnet"
	"github.com/quicksilver-rpc/quicksilver/na/codes"
)

const patience = 30 * time.Second

// pipes is a network of net.Pipes, which buffer nothing: a write waits until the peer reads.
type pipes struct {
	mu    sync.Mutex
	names map[string]*pipeListener
	wrap  func(nc net.Conn) net.Conn // both ends; nil leaves them as they are
}

func newPipes() *pipes { return &pipes{names: map[string]*pipeListener{}} }

func (p *pipes) options() streamnet.Options {
	return streamnet.Options{Scheme: "pipe", Dial: p.dial, Listen: p.listen}
}

func (p *pipes) dial(ctx context.Context, name string) (net.Conn, error) {
	p.mu.Lock()
	l := p.names[name]
	p.mu.Unlock()
	if l == nil {
		return nil, net.ErrClosed
	}
	ours, theirs := net.Pipe()
	if p.wrap != nil {
		ours, theirs = p.wrap(ours), p.wrap(theirs)
	}
	select {
	case l.conns <- theirs:
		return ours, nil
	case <-l.done:
	case <-ctx.Done():
	}
	_ = ours.Close()
	return nil, net.ErrClosed
}

func (p *pipes) listen(where string) (net.Listener, string, error) {
	l := &pipeListener{conns: make(chan net.Conn), done: make(chan struct{})}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.names[where] = l
	return l, where, nil
}

// A pipeListener accepts what dial has made.
type pipeListener struct {
	conns chan net.Conn
	once  sync.Once
	done  chan struct{}
}

func (l *pipeListener) Accept() (net.Conn, error) {
	select {
	case c := <-l.conns:
		return c, nil
	case <-l.done:
		return nil, net.ErrClosed
	}
}

func (l *pipeListener) Close() error {
	l.once.Do(func() { close(l.done) })
	return nil
}

func (l *pipeListener) Addr() net.Addr { return &net.UnixAddr{Name: "pipe", Net: "pipe"} }

// openNode opens a class over a network with one RPC, "echo", and drives its context until the test ends.
func openNode(t testing.TB, opts streamnet.Options, addr string, cfg na.Config) *hg.Context {
	t.Helper()
	cfg.Plugins = []na.Plugin{streamnet.New(opts)}
	class, err := hg.Open(addr, hg.Config{NA: cfg})
	require.NoError(t, err)
	_, err = class.Register("echo", func(r hg.Request) error {
		var b []byte
		if err := r.Input(&b); err != nil {
			return err
		}
		return r.Respond(b, nil)
	})
	require.NoError(t, err)
	hctx, err := class.NewContext()
	require.NoError(t, err)
	driven := make(chan struct{})
	go func() {
		defer close(driven)
		for hctx.Progress(-1) == nil {
			hctx.Trigger(0)
		}
	}()
	t.Cleanup(func() {
		require.NoError(t, class.Close())
		<-driven
	})
	return hctx
}

// callEcho calls the node at addr and checks the answer.
func callEcho(ctx context.Context, from *hg.Context, addr, text string) error {
	to, err := from.LookupWait(ctx, addr)
	if err != nil {
		return err
	}
	h, err := from.Create(to, hg.HashName("echo"))
	if err != nil {
		return err
	}
	defer h.Close()
	var got []byte
	if err := h.Call(ctx, []byte(text), &got); err != nil {
		return err
	}
	if string(got) != text {
		return codes.WithText(codes.ErrInternal, "another answer: "+string(got))
	}
	return nil
}

// testContext ends what hangs.
func testContext(t testing.TB) context.Context {
	t.Helper()
	ctx, stop := context.WithTimeout(context.Background(), patience)
	t.Cleanup(stop)
	return ctx
}
