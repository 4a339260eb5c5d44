package qs_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/hg"
	"github.com/quicksilver-rpc/quicksilver/na"
	"github.com/quicksilver-rpc/quicksilver/qs"
	"github.com/quicksilver-rpc/quicksilver/qs/httpgate"
)

// TestNoMethodAndDraining checks that a method that the server does not serve ends every kind of
// call, in every layer, with ErrNoMethod, and a server that drains with ErrDraining; nothing has
// run. Retry does not repeat the first, and makes the second at another address.
func TestNoMethodAndDraining(t *testing.T) {
	t.Parallel()
	type lending struct {
		From qs.Source
		Into qs.Sink
	}
	var (
		plain  = qs.Define[string, string]("refusals/plain")
		stream = qs.DefineStream[int, int]("refusals/stream")
		duplex = qs.DefineDuplex[int, int, int]("refusals/duplex")
		upload = qs.DefineUpload[int, int, int]("refusals/upload")
		lend   = qs.Define[lending, int]("refusals/lend")
	)
	register := func(n *qs.Node) {
		plain.Handle(n, func(_ context.Context, in string) (string, error) { return in, nil })
		stream.Handle(n, func(context.Context, int, func(int) error) error { return nil })
		duplex.Handle(n, func(context.Context, int, *qs.DuplexServer[int, int]) error { return nil })
		upload.Handle(n, func(context.Context, int, *qs.Receiver[int]) (int, error) { return 1, nil })
		lend.Handle(n, func(context.Context, lending) (int, error) { return 1, nil })
	}
	healthy := server(t, qs.Config{}, register)
	for _, c := range []struct {
		name     string
		code     qs.Code
		number   uint8
		says     string
		register func(n *qs.Node)
		attempts int // of a call by Retry that has another address
		status   int
		connect  string
	}{
		{"no such method", qs.ErrNoMethod, 2, "is not served by tcp://", func(*qs.Node) {}, 1, http.StatusNotImplemented, "unimplemented"},
		{"draining", qs.ErrDraining, 73, "the target is shutting down", register, 2, http.StatusServiceUnavailable, "unavailable"},
	} {
		t.Run(c.name, func(t *testing.T) {
			srv := server(t, qs.Config{}, c.register)
			attempts := 0
			counts := func(ctx context.Context, _ *qs.Call, next func(context.Context) error) error {
				attempts++
				return next(ctx)
			}
			client := open(t, "tcp://", qs.Config{})
			retrying := open(t, "tcp://", qs.Config{ClientInterceptors: []qs.Interceptor{qs.Retry(qs.RetryPolicy{Backoff: -1}), counts}})
			to := peer(t, client, srv.Addr().String())
			alone, both := peer(t, retrying, srv.Addr().String()), peer(t, retrying, srv.Addr().String(), healthy.Addr().String())
			below := open(t, "tcp://", qs.Config{})                                       // makes calls of package hg
			for _, p := range []qs.Peer{to, alone, peer(t, below, srv.Addr().String())} { // a session from before the drain
				_, err := p.Ping(testContext(t))
				require.NoError(t, err)
			}
			if c.code == qs.ErrDraining {
				srv.HG().NA().Drain()
			}
			ctx := testContext(t)
			_, err := below.HG().Class().Register("refusals/plain", nil)
			require.NoError(t, err)
			for kind, call := range map[string]func() error{
				"hg": func() error {
					h, err := below.HG().Create(srv.Addr(), hg.HashName("refusals/plain"))
					require.NoError(t, err)
					defer h.Close()
					_, err = h.CallRaw(ctx, nil)
					return err
				},
				"call": func() error { _, err := plain.Call(ctx, to, "x"); return err },
				"go":   func() error { _, err := plain.Go(ctx, to, "x").Wait(ctx); return err },
				"stream": func() (err error) {
					for _, err = range stream.Call(ctx, to, 1) {
					}
					return err
				},
				"duplex": func() error { d := duplex.Call(ctx, to, 1); defer d.Close(); _, err := d.Receive(); return err },
				"upload": func() error {
					u := upload.Call(ctx, to, 1)
					defer u.Close()
					if err := u.Send(1); err != nil && err != io.EOF {
						return err
					}
					_, err := u.CloseAndReceive()
					return err
				},
				"bytes": func() error {
					_, err := lend.Call(ctx, to, lending{qs.Bytes(make([]byte, 1<<20)), qs.Buffer(make([]byte, 10))})
					return err
				},
				"reader": func() error {
					_, err := lend.Call(ctx, to, lending{qs.Reader(strings.NewReader("x")), qs.Writer(io.Discard)})
					return err
				},
			} {
				err := call()
				require.ErrorIs(t, err, c.code, kind)
				require.ErrorIs(t, err, hg.ErrRemote, kind)
				require.ErrorIs(t, err, qs.ErrRefused, kind)
				require.Equal(t, c.number, uint8(qs.CodeOf(err)), kind)
				require.Equal(t, c.code, hg.CodeOf(err), kind)
				require.Equal(t, qs.NotRun, qs.FateOf(err), kind)
				require.ErrorContains(t, err, c.says, kind)
				remote, _ := hg.RemoteOf(err)
				if c.code == qs.ErrNoMethod {
					require.Contains(t, remote.Text, "method refusals/", kind)
					require.NotContains(t, remote.Text, "target:", "the name is in the text, and the ID says no more")
				}
				require.False(t, errors.Is(err, qs.ErrNoEntry) || errors.Is(err, qs.ErrNotReady), kind)
			}

			_, err = plain.Call(ctx, both, "x")
			require.Equal(t, c.attempts, attempts)
			if c.attempts == 1 {
				require.ErrorIs(t, err, c.code)
			} else {
				require.NoError(t, err, "the other address answers")
			}
			attempts = 0
			_, err = plain.Call(ctx, alone, "x")
			require.ErrorIs(t, err, c.code)
			require.Equal(t, c.code == qs.ErrNoMethod, attempts == 1, "a refusal for want of a method is not repeated")

			gate := httpgate.New(to, httpgate.Options{}, httpgate.Unary(plain))
			paths := []string{"/refusals/plain"}
			if c.code == qs.ErrNoMethod {
				paths = append(paths, "/refusals/unknown") // to the gate
			}
			for _, path := range paths {
				r := httptest.NewRequest(http.MethodPost, path, strings.NewReader(`"x"`))
				r.Header.Set("Content-Type", "application/json")
				w := httptest.NewRecorder()
				gate.ServeHTTP(w, r)
				require.Equal(t, c.status, w.Code)
				require.Contains(t, w.Body.String(), `"code":"`+c.connect+`"`)
				require.Contains(t, w.Body.String(), `"fate":"not_run","code":`+fmt.Sprint(c.number)+`,"name":"`+c.code.Error())
				if c.code == qs.ErrNoMethod {
					require.Contains(t, w.Body.String(), "method "+path[1:]+" is not served by")
				}
			}
		})
	}
}

// TestResultCannotBeSent checks a handler's result that cannot be sent: the caller gets the reason,
// and the handler's next answer arrives.
func TestResultCannotBeSent(t *testing.T) {
	t.Parallel()
	const most = 10_000
	echo := qs.Define[int, []byte]("test/size")
	eachTransport(t, func(t *testing.T, addr string) {
		next := func(ctx context.Context, _ *qs.Call, next func(context.Context) error) error { return next(ctx) }
		for _, interceptors := range [][]qs.Interceptor{nil, {next}} { // two paths of the response
			n := serverAt(t, addr, qs.Config{HG: hg.Config{MaxOutput: most}, ServerInterceptors: interceptors}, func(n *qs.Node) {
				echo.Handle(n, func(_ context.Context, size int) ([]byte, error) { return make([]byte, size), nil })
			})
			to := peer(t, open(t, addr, qs.Config{}), n.Addr().String())
			for _, size := range []int{64, most + 1, 100, most - 3, most, 1000} { // 3 bytes are its head
				got, err := echo.Call(testContext(t), to, size)
				if size > most-3 {
					require.ErrorIs(t, err, hg.ErrRemote)
					require.ErrorIs(t, err, hg.ErrOverflow)
					require.Equal(t, hg.ErrOverflow, qs.CodeOf(err))
					remote, _ := hg.RemoteOf(err)
					require.Equal(t, hg.ErrOverflow, remote.Code)
					require.ErrorContains(t, err, "exceeds the target's hg.Config.MaxOutput of 10000; use a qs.Sink or a bulk.Handle")
					require.Equal(t, qs.Ran, qs.FateOf(err))
					continue
				}
				require.NoError(t, err)
				require.Len(t, got, size)
			}
			small := peer(t, open(t, addr, qs.Config{HG: hg.Config{MaxOutput: 50}}), n.Addr().String())
			_, err := echo.Call(testContext(t), small, 64)
			require.ErrorIs(t, err, hg.ErrOverflow)
			require.ErrorContains(t, err, "output of 66 bytes exceeds this process's hg.Config.MaxOutput of 50; use a qs.Sink or a bulk.Handle")
			require.Equal(t, qs.Ran, qs.FateOf(err))
		}
	})
}

// TestOtherKindIsErrProtocol checks for all pairs of kinds with a response that a call of a method
// that the server has defined as another kind is refused with ErrProtocol, and that the same code
// of a handler does not match.
func TestOtherKindIsErrProtocol(t *testing.T) {
	t.Parallel()
	const name = "refusals/kind"
	var (
		plain  = qs.Define[int, int](name)
		stream = qs.DefineStream[int, int](name)
		upload = qs.DefineUpload[int, int, int](name)
		duplex = qs.DefineDuplex[int, int, int](name)
	)
	fails := func() error { return qs.Refuse(qs.Errorf(na.ErrProtocol, "the handler's own")) }
	servers := map[string]func(*qs.Node){
		"method": func(n *qs.Node) { plain.Handle(n, func(context.Context, int) (int, error) { return 0, fails() }) },
		"stream": func(n *qs.Node) {
			stream.Handle(n, func(context.Context, int, func(int) error) error { return fails() })
		},
		"upload": func(n *qs.Node) {
			upload.Handle(n, func(context.Context, int, *qs.Receiver[int]) (int, error) { return 0, fails() })
		},
		"duplex": func(n *qs.Node) {
			duplex.Handle(n, func(context.Context, int, *qs.DuplexServer[int, int]) error { return fails() })
		},
	}
	calls := map[string]func(ctx context.Context, to qs.Peer) error{
		"method": func(ctx context.Context, to qs.Peer) error { _, err := plain.Call(ctx, to, 1); return err },
		"stream": func(ctx context.Context, to qs.Peer) (err error) {
			for _, err = range stream.Call(ctx, to, 1) {
			}
			return err
		},
		"upload": func(ctx context.Context, to qs.Peer) error {
			u := upload.Call(ctx, to, 1)
			defer u.Close()
			_, err := u.CloseAndReceive()
			return err
		},
		"duplex": func(ctx context.Context, to qs.Peer) error {
			d := duplex.Call(ctx, to, 1)
			defer d.Close()
			_, err := d.Receive()
			return err
		},
	}
	for kind, register := range servers {
		srv := server(t, qs.Config{}, register)
		for called, call := range calls {
			err := call(testContext(t), peer(t, open(t, "tcp://", qs.Config{}), srv.Addr().String()))
			pair := called + " called, " + kind + " served"
			require.ErrorIs(t, err, qs.ErrRefused, pair)
			require.Equal(t, qs.NotRun, qs.FateOf(err), pair)
			remote, ok := hg.RemoteOf(err)
			require.True(t, ok, pair)
			require.Equal(t, na.ErrProtocol, remote.Code, pair)
			if called == kind {
				require.NotErrorIs(t, err, na.ErrProtocol, pair)
				require.Equal(t, hg.ErrRemote, qs.CodeOf(err), pair)
				continue
			}
			require.ErrorIs(t, err, na.ErrProtocol, pair)
			require.Equal(t, na.ErrProtocol, qs.CodeOf(err), pair)
			require.ErrorContains(t, err, "is defined as a", pair)
		}
	}
}
