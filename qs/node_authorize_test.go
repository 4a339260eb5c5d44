package qs_test

import (
	"bytes"
	"context"
	"runtime"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/hg"
	"github.com/quicksilver-rpc/quicksilver/qs"
)

// TestAuthorizeByName checks that an authorizer with the names of the program's methods, at both
// ends, lets through all that belongs to their calls, and nothing else of the library's.
func TestAuthorizeByName(t *testing.T) {
	cfg := qs.Config{Authorize: func(_ context.Context, c *qs.Call) error {
		if strings.HasPrefix(c.Method, "test/") {
			return nil
		}
		return qs.Errorf(qs.ErrDenied, "%s is not of the program", c.Method)
	}}
	for _, at := range []string{"tcp://127.0.0.1:0", "udp://127.0.0.1:0", "sm://*"} {
		scheme, _, _ := strings.Cut(at, "://")
		t.Run(scheme, func(t *testing.T) {
			t.Parallel()
			if scheme == "sm" && runtime.GOOS != "linux" {
				t.Skip("sm needs Linux")
			}
			s := serverAt(t, at, cfg, func(n *qs.Node) {
				serveBulk(t, n)
				new(rowSource).serve(n)
			})
			c := open(t, scheme+"://", cfg)
			to := peer(t, c, s.Addr().String())
			n := 0
			for _, err := range rows.Call(testContext(t), to, rowsIn{N: 2000, Size: 1000}) {
				require.NoError(t, err)
				n++
			}
			require.Equal(t, 2000, n)
			data := randomBytes(7, 9<<20)
			got, err := put.Call(testContext(t), to, putIn{"copy", qs.Reader(bytes.NewReader(data))})
			require.NoError(t, err)
			require.Equal(t, hashOf(data), got)
			var into bytes.Buffer
			_, err = get.Call(testContext(t), to, getIn{"copy", len(data), qs.Writer(&into)})
			require.NoError(t, err)
			require.True(t, bytes.Equal(data, into.Bytes()))
			h, err := c.HG().Create(s.Addr(), hg.HashName(hg.HealthRPC))
			require.NoError(t, err)
			defer h.Close()
			_, err = h.CallRaw(testContext(t), nil)
			require.ErrorIs(t, err, qs.ErrDenied)
		})
	}
}

// TestAuthorizeBlocks checks that while Authorize blocks for hg/ping, for a method that is Inline
// and for one that is not, calls and pings of others continue, and streams, for which it is not
// called.
func TestAuthorizeBlocks(t *testing.T) {
	t.Parallel()
	inline := qs.Define[int, int]("test/inline", qs.Inline())
	plain, counts := qs.Define[int, int]("test/plain"), qs.DefineStream[int, int]("test/counts")
	blocked, free := make(chan string, 4), make(chan struct{})
	var first sync.Map
	srv := server(t, qs.Config{Authorize: func(_ context.Context, c *qs.Call) error {
		if _, asked := first.LoadOrStore(c.Method, true); !asked {
			blocked <- c.Method
			<-free
		}
		return nil
	}}, func(n *qs.Node) {
		echo := func(_ context.Context, i int) (int, error) { return i, nil }
		inline.Handle(n, echo)
		plain.Handle(n, echo)
		counts.Handle(n, func(_ context.Context, most int, send func(int) error) error {
			for i := range most {
				if err := send(i); err != nil {
					return err
				}
			}
			return nil
		})
	})
	first.Store("test/counts", true)
	a := open(t, "tcp://", qs.Config{})
	pa := peer(t, a, srv.Addr().String())
	b := open(t, "tcp://", qs.Config{})
	pb := peer(t, b, srv.Addr().String())
	held := make(chan error, 4)
	go func() { held <- callHG(testContext(t), a, pa, hg.PingRPC) }()
	go func() { _, err := inline.Call(testContext(t), pa, 1); held <- err }()
	go func() { _, err := plain.Call(testContext(t), pa, 1); held <- err }()
	for range 3 {
		<-blocked
	}
	for i := range 20 {
		for _, m := range []*qs.Method[int, int]{inline, plain} {
			got, err := m.Call(testContext(t), pb, i)
			require.NoError(t, err)
			require.Equal(t, i, got)
		}
		_, err := pb.Ping(testContext(t))
		require.NoError(t, err)
		require.NoError(t, callHG(testContext(t), b, pb, hg.PingRPC))
	}
	_, err := pa.Ping(testContext(t))
	require.NoError(t, err, "of whom a request is blocked")
	n := 0
	for _, err := range counts.Call(testContext(t), pb, 1000) {
		require.NoError(t, err)
		n++
	}
	require.Equal(t, 1000, n)
	require.Empty(t, held)
	close(free)
	for range 3 {
		require.NoError(t, <-held)
	}
}

// TestAuthorizeHealthBesideWorkers checks that Authorize is called for hg/health and hg/ping on
// goroutines of their own: they are answered when all workers are busy.
func TestAuthorizeHealthBesideWorkers(t *testing.T) {
	t.Parallel()
	busy := qs.Define[int, int]("test/busy")
	at, free := make(chan bool, 4), make(chan struct{})
	srv := server(t, qs.Config{MaxConcurrent: 2, Authorize: func(context.Context, *qs.Call) error { return nil }}, func(n *qs.Node) {
		busy.Handle(n, func(context.Context, int) (int, error) {
			at <- true
			<-free
			return 0, nil
		})
	})
	a := open(t, "tcp://", qs.Config{})
	to := peer(t, a, srv.Addr().String())
	ended := make(chan error, 4)
	for range 4 {
		go func() { _, err := busy.Call(testContext(t), to, 1); ended <- err }()
	}
	<-at
	<-at
	for _, rpc := range []string{hg.PingRPC, hg.HealthRPC} {
		for range 3 {
			require.NoError(t, callHG(testContext(t), a, to, rpc))
		}
	}
	close(free)
	for range 4 {
		require.NoError(t, <-ended)
	}
}
