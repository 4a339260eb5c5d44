package qs_test

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/hg"
	"github.com/quicksilver-rpc/quicksilver/hg/codec"
	"github.com/quicksilver-rpc/quicksilver/qs"
)

// BenchmarkCall compares typed calls with those of bytes, 32 in flight, 64 bytes each way: -cpu 1
// shows the cost of each.
func BenchmarkCall(b *testing.B) {
	echo := qs.Define[[]byte, []byte]("bench/echo", qs.WithCodec(codec.Msgpack))
	in := make([]byte, 64)
	for _, side := range []string{"raw", "typed"} {
		b.Run(side, func(b *testing.B) {
			s := server(b, qs.Config{}, func(n *qs.Node) {
				if side == "typed" {
					echo.Handle(n, func(_ context.Context, in []byte) ([]byte, error) { return in, nil })
					return
				}
				_, err := n.HG().Class().Register(echo.Name(), func(r hg.Request) error {
					in, err := r.InputRaw()
					if err != nil {
						return err
					}
					return r.RespondRaw(in, nil)
				})
				require.NoError(b, err)
			})
			c := open(b, "tcp://", qs.Config{})
			to := peer(b, c, s.Addr().String())
			if side == "raw" {
				_, err := c.HG().Class().Register(echo.Name(), nil)
				require.NoError(b, err)
			}
			var left atomic.Int64
			left.Store(int64(b.N))
			b.ReportAllocs()
			b.ResetTimer()
			var all sync.WaitGroup
			for range 32 {
				all.Go(func() {
					if side == "typed" {
						for left.Add(-1) >= 0 {
							if _, err := echo.Call(context.Background(), to, in); err != nil {
								b.Error(err)
							}
						}
						return
					}
					h, err := c.HG().Create(to.Addr(), hg.HashName(echo.Name()))
					if err != nil {
						b.Error(err)
						return
					}
					defer h.Close()
					for left.Add(-1) >= 0 {
						if _, err := h.CallRaw(context.Background(), in); err != nil {
							b.Error(err)
						}
					}
				})
			}
			all.Wait()
		})
	}
}
