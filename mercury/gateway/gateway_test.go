package gateway_test

import (
	"bytes"
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/hg"
	"github.com/quicksilver-rpc/quicksilver/internal/test/leak"
	"github.com/quicksilver-rpc/quicksilver/mercury"
	"github.com/quicksilver-rpc/quicksilver/mercury/gateway"
	"github.com/quicksilver-rpc/quicksilver/mercury/proc"
	"github.com/quicksilver-rpc/quicksilver/qs"
)

func TestMain(m *testing.M) { leak.Main(m) }

func testContext(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	t.Cleanup(cancel)
	return ctx
}

// newQSNode opens a node that serves until the test ends.
func newQSNode(t testing.TB) *qs.Node {
	n, err := qs.Open("tcp://127.0.0.1:0", qs.Config{})
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	served := make(chan error, 1)
	t.Cleanup(func() {
		cancel()
		_ = n.Close()
		<-served
	})
	go func() { served <- n.Serve(ctx) }()
	return n
}

func newMercuryNode(t testing.TB) *mercury.Node {
	n, err := mercury.Open("ofi+tcp://127.0.0.1:0", mercury.Config{})
	require.NoError(t, err)
	t.Cleanup(func() { _ = n.Close() })
	return n
}

func peer(t testing.TB, from, to *qs.Node) qs.Peer {
	p, err := from.Peer(testContext(t), to.Addr().String())
	require.NoError(t, err)
	return p
}

func fill(n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(i * 7)
	}
	return b
}

// workIn is the input of an RPC of C that reads one memory and writes some of another.
type workIn struct {
	Name string
	From mercury.Bulk
	At   uint32
	To   mercury.Bulk
	End  uint8
}

var work = mercury.Define[workIn, string]("work")

func serveWork(n *mercury.Node) {
	work.Handle(n, func(ctx context.Context, in workIn) (string, error) {
		if in.End != 9 || in.From.Access() != mercury.Read || in.To.Access() != mercury.Write {
			return "", mercury.ErrInvalid
		}
		r := mercury.RequestOf(ctx)
		buf := make([]byte, in.From.Len())
		_, err := r.Remote(in.From).Get(ctx, buf, 0)
		if err == nil {
			_, err = r.Remote(in.To).Put(ctx, buf, int64(in.At))
		}
		return "hello, " + in.Name, err
	})
}

// TestCallC checks that a Quicksilver program calls a C service through a gateway, and lends it
// memory of two kinds. Bytes that C does not write stay unchanged.
func TestCallC(t *testing.T) {
	service, gwC, gwOurs, client := newMercuryNode(t), newMercuryNode(t), newQSNode(t), newQSNode(t)
	serveWork(service)
	gateway.New(gwOurs, gwC, gateway.Config{Targets: []string{service.Addr()}, Memory: 4 << 20})
	gw := peer(t, client, gwOurs)
	for _, size := range []int{1, 5000, 1<<20 + 1} {
		from, to := fill(size), bytes.Repeat([]byte{0xee}, size+100)
		out, err := gateway.Call(testContext(t), gw, service.Addr(), work.ID(), "Ada", gateway.Lent{Buf: from, Access: mercury.Read}, uint32(40),
			gateway.Lent{Buf: to, Access: mercury.Write}, uint8(9))
		require.NoError(t, err)
		var answer string
		require.NoError(t, proc.Unmarshal(out, &answer))
		require.Equal(t, "hello, Ada", answer)
		want := bytes.Repeat([]byte{0xee}, size+100)
		copy(want[40:], from)
		require.True(t, bytes.Equal(want, to))
	}
	mem := make([]byte, 100)
	lend := gateway.Lent{Buf: mem, Access: mercury.Read}
	for _, c := range []struct {
		what string
		addr string
		id   uint64
		in   []any
		code qs.Code
		fate any
	}{
		{"no target", gwC.Addr(), work.ID(), nil, qs.ErrDenied, qs.NotRun},
		{"unknown", service.Addr(), 5, []any{lend}, qs.ErrNotFound, qs.NotRun},
		{"fails", service.Addr(), work.ID(), []any{"x", lend, uint32(0), lend, uint8(1)}, qs.ErrInternal, qs.Ran},
		{"too much", service.Addr(), work.ID(), []any{gateway.Lent{Buf: make([]byte, 4<<20+1), Access: mercury.Read}}, qs.ErrBadInput, qs.NotRun},
		{"too much together", service.Addr(), work.ID(), []any{gateway.Lent{Buf: make([]byte, 3<<20), Access: mercury.Read}, gateway.Lent{Buf: make([]byte, 3<<20), Access: mercury.Read}},
			qs.ErrExhausted, qs.NotRun},
		{"no access", service.Addr(), work.ID(), []any{gateway.Lent{Buf: mem}}, qs.ErrBadInput, qs.NotRun},
		{"no bytes", service.Addr(), work.ID(), []any{gateway.Lent{Access: mercury.Read}}, qs.ErrBadInput, qs.NotRun},
	} {
		_, err := gateway.Call(testContext(t), gw, c.addr, c.id, c.in...)
		remote, ok := hg.RemoteOf(err)
		require.True(t, ok, "%s: %v", c.what, err)
		require.Equal(t, c.code, remote.Code, c.what)
		require.Equal(t, c.fate, qs.FateOf(err), c.what)
	}
	_, err := gateway.Call(testContext(t), gw, service.Addr(), work.ID(), 5)
	require.ErrorIs(t, err, qs.ErrInvalid)

	service.Handle(1, func(*mercury.Request) { _ = service.Close() })
	for _, want := range []qs.Code{qs.ErrAborted, qs.ErrUnavailable} { // it ends in the first, and is gone at the second
		_, err = gateway.Call(testContext(t), gw, service.Addr(), 1, "x")
		remote, ok := hg.RemoteOf(err)
		require.True(t, ok, "%v", err)
		require.Equal(t, want, remote.Code)
	}
}

// TestCallGivenUp checks that when the caller gives up the gateway does too, and the memory is
// released.
func TestCallGivenUp(t *testing.T) {
	service, gwC, gwOurs, client := newMercuryNode(t), newMercuryNode(t), newQSNode(t), newQSNode(t)
	called := make(chan *mercury.Remote, 1)
	service.Handle(1, func(r *mercury.Request) {
		r.Detach()
		b, _, _ := mercury.ParseBulk(r.Input())
		called <- r.Remote(b)
	})
	gateway.New(gwOurs, gwC, gateway.Config{Targets: []string{"*"}})
	ctx, cancel := context.WithCancel(testContext(t))
	errs := make(chan error, 1)
	gw := peer(t, client, gwOurs)
	mem := make([]byte, 5000)
	go func() {
		_, err := gateway.Call(ctx, gw, service.Addr(), 1, gateway.Lent{Buf: mem, Access: mercury.Write})
		errs <- err
	}()
	m := <-called
	cancel()
	require.ErrorIs(t, <-errs, qs.ErrCanceled)
	for err := error(nil); !errors.Is(err, mercury.ErrPeerLost); { // soon the gateway's memory is not lent any more
		_, err = m.Put(testContext(t), fill(5000), 0)
		require.NotErrorIs(t, err, mercury.ErrTimeout)
	}
	require.Equal(t, make([]byte, 5000), mem)
}

// The service of ours that C clients call: its codec is C's.
type (
	transferIn struct {
		From, To mercury.Bulk
		Off      int64
	}
	moveOut struct {
		Sum  uint64
		Kind string
	}
)

var serveMoves = qs.Define[transferIn, moveOut]("moves", qs.WithCodec(gateway.Proc))

// TestServeC checks that a C client calls a Quicksilver service through a gateway. The service
// reads and writes what the client lends, while it handles its request.
func TestServeC(t *testing.T) {
	client, gwC, gwOurs, service := newMercuryNode(t), newMercuryNode(t), newQSNode(t), newQSNode(t)
	kept := make(chan context.Context, 1)
	var lent mercury.Bulk
	serveMoves.Handle(service, func(ctx context.Context, in transferIn) (out moveOut, err error) {
		buf := make([]byte, in.From.Len()-in.Off)
		if err = gateway.Get(ctx, in.From, buf, in.Off); err != nil {
			return out, err
		}
		for _, b := range buf {
			out.Sum += uint64(b)
		}
		if err = gateway.Put(ctx, in.To, buf, in.Off); err != nil {
			return out, err
		}
		bad := gateway.Get(ctx, in.From, make([]byte, 1), in.From.Len())
		if r, ok := hg.RemoteOf(bad); !ok || r.Code != qs.ErrBadInput {
			return out, bad
		}
		lent = in.From
		kept <- ctx
		return moveOut{out.Sum, "moved"}, nil
	})
	g := gateway.New(gwOurs, gwC, gateway.Config{})
	g.Forward("moves", mercury.ID("moves"), peer(t, gwOurs, service))
	g.Forward("nothing", mercury.ID("nothing"), peer(t, gwOurs, service))
	moves := mercury.Define[transferIn, moveOut]("moves")
	for _, size := range []int{8, 5000, 3<<20 + 5} {
		from, to := fill(size), make([]byte, size)
		in := transferIn{Off: int64(size / 3)}
		for b, mem := range map[*mercury.Bulk][]byte{&in.From: from, &in.To: to} {
			access := mercury.Read
			if b == &in.To {
				access = mercury.Write
			}
			r, err := client.Lend(mem, access, gwC.Addr())
			require.NoError(t, err)
			defer r.Close()
			*b = r.Bulk()
		}
		out, err := moves.Call(testContext(t), client, gwC.Addr(), in)
		require.NoError(t, err)
		want := make([]byte, size)
		copy(want[in.Off:], from[in.Off:])
		require.True(t, bytes.Equal(want, to))
		require.Equal(t, "moved", out.Kind)
		require.NotZero(t, out.Sum)

		err = gateway.Get(<-kept, lent, make([]byte, 1), 0)
		r, ok := hg.RemoteOf(err) // or its own end is detected first
		require.True(t, err != nil && (!ok || r.Code == qs.ErrNotFound), "%v", err)
	}
	_, err := client.Call(testContext(t), gwC.Addr(), mercury.ID("nothing"), nil)
	require.Equal(t, mercury.ErrUnreachable, mercury.CodeOf(err), "it did not run")
	_, err = client.Call(testContext(t), gwC.Addr(), mercury.ID("moves"), []byte("rubbish"))
	require.ErrorIs(t, err, mercury.ErrRemote)
	require.NoError(t, service.Close())
	_, err = client.Call(testContext(t), gwC.Addr(), mercury.ID("moves"), nil)
	require.ErrorIs(t, err, mercury.ErrRemote)
}

// TestNull checks that NULL passes through the codec, in a struct and alone.
func TestNull(t *testing.T) {
	type named struct{ Name *string }
	for _, v := range []any{named{}, &named{}, (*string)(nil), new(*string)} {
		b, err := gateway.Proc.Append(nil, v)
		require.NoError(t, err)
		require.Equal(t, make([]byte, 8), b)
	}
	text := "old"
	back := &text
	require.NoError(t, gateway.Proc.Decode(make([]byte, 8), &back))
	require.Nil(t, back)
}

// TestNoGateway checks that a service that was not called through a gateway has no memory of a C
// client to read.
func TestNoGateway(t *testing.T) {
	service, client := newQSNode(t), newQSNode(t)
	got := make(chan error, 1)
	m := qs.Define[struct{}, struct{}]("plain")
	m.Handle(service, func(ctx context.Context, _ struct{}) (out struct{}, err error) {
		got <- gateway.Get(ctx, mercury.Bulk{}, make([]byte, 1), 0)
		return
	})
	_, err := m.Call(testContext(t), peer(t, client, service), struct{}{})
	require.NoError(t, err)
	require.ErrorIs(t, <-got, qs.ErrInvalid)
}
