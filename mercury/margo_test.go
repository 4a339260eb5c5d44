package mercury_test

import (
	"context"
	"encoding/hex"
	"fmt"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/mercury"
	"github.com/quicksilver-rpc/quicksilver/mercury/internal/xnet"
)

var get = mercury.DefineMargo[uint32, string]("get")

// TestProvider checks that providers whose numbers are set at run time serve the same methods, each
// until it is closed.
func TestProvider(t *testing.T) {
	n, client := open(t, mercury.Config{}), open(t, mercury.Config{})
	ctx := testContext(t)
	var providers []*mercury.Provider
	for _, id := range []uint16{0, 42, mercury.DefaultProvider} {
		p, err := n.Provide(id, fmt.Sprint("store ", id))
		require.NoError(t, err)
		require.Equal(t, id, p.ID())
		get.HandleAt(p, func(_ context.Context, key uint32) (string, error) {
			return fmt.Sprint(p.Identity(), " has ", key), nil
		})
		providers = append(providers, p)
	}
	_, err := n.Provide(42, "another")
	require.ErrorIs(t, err, mercury.ErrExists)
	_, err = n.Provide(7, "a\x00b")
	require.ErrorIs(t, err, mercury.ErrInvalid)
	for _, p := range providers {
		who, err := mercury.Identity(ctx, client, n.Addr(), p.ID())
		require.NoError(t, err)
		require.Equal(t, p.Identity(), who)
		out, err := get.At(p.ID()).Call(ctx, client, n.Addr(), 5)
		require.NoError(t, err)
		require.Equal(t, who+" has 5", out)
	}
	out, err := get.Call(ctx, client, n.Addr(), 5) // of no provider
	require.NoError(t, err)
	require.Equal(t, "store 65535 has 5", out)

	p := providers[1]
	require.Panics(t, func() { get.HandleAt(p, func(context.Context, uint32) (string, error) { return "", nil }) })
	require.NoError(t, p.Close())
	require.NoError(t, p.Close())
	require.Panics(t, func() { get.HandleAt(p, func(context.Context, uint32) (string, error) { return "", nil }) })
	_, err = get.At(42).Call(ctx, client, n.Addr(), 5)
	require.ErrorIs(t, err, mercury.ErrNoMethod)
	require.Equal(t, mercury.NotRun, mercury.FateOf(err))
	_, err = mercury.Identity(ctx, client, n.Addr(), 42)
	require.ErrorIs(t, err, mercury.ErrNoMethod)
	_, err = get.At(0).Call(ctx, client, n.Addr(), 5)
	require.NoError(t, err, "others continue")
	_, err = n.Provide(42, "the next")
	require.NoError(t, err)
	require.PanicsWithValue(t, "mercury: method sum has no providers: define it with DefineMargo", func() { sum.At(3) })
}

// TestProviderHandlerReplaced checks that the close of a provider does not remove a handler that
// has replaced its own.
func TestProviderHandlerReplaced(t *testing.T) {
	n := open(t, mercury.Config{})
	tick := mercury.DefineMargo[int32, int32]("tick")
	same := func(_ context.Context, i int32) (int32, error) { return i, nil }
	p, err := n.Provide(9, "first")
	require.NoError(t, err)
	tick.HandleAt(p, same)
	require.True(t, n.RemoveHandler(tick.At(9).ID()))
	tick.At(9).Handle(n, same)
	require.NoError(t, p.Close())
	out, err := tick.At(9).Call(testContext(t), n, n.Addr(), 1)
	require.NoError(t, err)
	require.EqualValues(t, 1, out)
}

// TestRemoveHandler checks that a handler that is removed while it runs, and while requests wait
// for it, still answers these. The next ones are refused.
func TestRemoveHandler(t *testing.T) {
	n := open(t, mercury.Config{MaxActive: 1})
	running, goOn := make(chan struct{}, 3), make(chan struct{})
	n.Handle(1, func(r *mercury.Request) {
		running <- struct{}{}
		<-goOn
		_ = r.Respond([]byte("old"))
	})
	n.HandleInline(2, func(r *mercury.Request) { _ = r.Respond([]byte("inline")) })
	d := dialDouble(t, n, 44)
	for tag := range uint64(3) {
		d.sendRequest(tag, 1, 0, nil)
	}
	d.sendRequest(3, 2, 0, nil) // behind the three, which are accepted when it is answered
	d.recvResponse(3)
	<-running
	require.True(t, n.RemoveHandler(1))
	require.False(t, n.RemoveHandler(1))
	require.True(t, n.RemoveHandler(2))
	for _, id := range []uint64{1, 2} {
		d.sendRequest(4, id, 0, nil)
		r, _ := d.recvResponse(4)
		require.EqualValues(t, 2, r.Code)
	}
	n.HandleInline(1, func(r *mercury.Request) { _ = r.Respond([]byte("new")) })
	d.sendRequest(5, 1, 0, nil)
	_, out := d.recvResponse(5)
	require.Equal(t, "new", string(out))
	close(goOn)
	for tag := range uint64(3) {
		_, out := d.recvResponse(tag)
		require.Equal(t, "old", string(out))
	}
}

// TestRemoveUnderCalls adds and removes handlers while they are called: each call runs, or is
// refused and certainly did not.
func TestRemoveUnderCalls(t *testing.T) {
	n, client := open(t, mercury.Config{}), open(t, mercury.Config{})
	ctx := testContext(t)
	var wg sync.WaitGroup
	errs := make(chan error, 8)
	for range 8 {
		wg.Go(func() {
			for range 200 {
				if out, err := get.At(9).Call(ctx, client, n.Addr(), 5); err != nil && mercury.FateOf(err) != mercury.NotRun || err == nil && out != "here" {
					errs <- fmt.Errorf("%q: %w", out, err)
					return
				}
			}
		})
	}
	done := make(chan struct{})
	go func() { wg.Wait(); close(done) }()
	for ended := false; !ended; {
		p, err := n.Provide(9, "comes and goes")
		require.NoError(t, err)
		get.HandleAt(p, func(context.Context, uint32) (string, error) { return "here", nil })
		require.NoError(t, p.Close())
		select {
		case <-done:
			ended = true
		default:
		}
	}
	close(errs)
	require.NoError(t, <-errs)
}

// TestDoubleMargo sends Margo's own RPCs as its client does: the identity of a provider, and the
// end of the process, which is reported once.
func TestDoubleMargo(t *testing.T) {
	n := open(t, mercury.Config{})
	_, err := n.Provide(42, "yokan")
	require.NoError(t, err)
	d := dialDouble(t, n, 45)
	front := make([]byte, 8)
	d.sendRequest(1, 0x6e31f542<<32|42, 0, front)
	r, out := d.recvResponse(1)
	require.Zero(t, r.Code)
	require.Equal(t, "00000000"+"0600000000000000"+"796f6b616e00"+"0001", hex.EncodeToString(out))
	d.sendRequest(2, 0x6e31f542<<32|43, 0, front)
	r, _ = d.recvResponse(2)
	require.EqualValues(t, 2, r.Code)

	shutdown := mercury.MargoID("__shutdown__", mercury.DefaultProvider)
	d.sendRequest(3, shutdown, 0, front)
	r, _ = d.recvResponse(3)
	require.EqualValues(t, 2, r.Code, "not without consent")
	stopped := make(chan struct{}, 2)
	n.EnableShutdown(func() { stopped <- struct{}{} })
	for range 2 {
		d.sendRequest(4, shutdown, 0, front)
		r, out = d.recvResponse(4)
		require.Zero(t, r.Code)
		require.Equal(t, make([]byte, 8), out, "Margo's HG_SUCCESS, and a return value of 0")
	}
	<-stopped
	require.Empty(t, stopped)
	require.Panics(t, func() { n.EnableShutdown(func() {}) })
	client := open(t, mercury.Config{})
	require.NoError(t, mercury.ShutdownRemote(testContext(t), client, n.Addr()))
	err = mercury.ShutdownRemote(testContext(t), client, open(t, mercury.Config{}).Addr())
	require.ErrorIs(t, err, mercury.ErrNoMethod)

	addr, accept, _ := listen(t)
	client = open(t, mercury.Config{Checksums: mercury.Off})
	errs := make(chan error, 1)
	for _, answer := range []string{"\x00\x00\x00\x00\x00\x00\x00\x00", "\x00\x00\x00\x00\xff\xff\xff\xff"} {
		go func() { errs <- mercury.ShutdownRemote(testContext(t), client, addr) }()
		if answer[4] == 0 {
			var s xnet.Setup
			d, s = accept()
			d.accept(s)
		}
		tag, r, in := d.recvRequest()
		require.Equal(t, shutdown, r.ID)
		require.Equal(t, front, in)
		d.sendResponse(tag, 0, 0, []byte(answer))
		if err = <-errs; answer[4] == 0 {
			require.NoError(t, err)
		} else {
			require.ErrorIs(t, err, mercury.ErrPermission)
			require.Equal(t, mercury.Ran, mercury.FateOf(err))
		}
	}
}
