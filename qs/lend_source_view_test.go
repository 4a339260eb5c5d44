package qs_test

import (
	"context"
	"crypto/sha256"
	"runtime"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/bulk"
	"github.com/quicksilver-rpc/quicksilver/internal/pool"
	"github.com/quicksilver-rpc/quicksilver/na"
	"github.com/quicksilver-rpc/quicksilver/qs"
)

type (
	lookIn struct {
		Body qs.Source
		Wait bool
	}
	lookOut struct {
		Hash   [32]byte
		Shared bool
	}
)

var look = qs.Define[lookIn, lookOut]("test/look")

// TestSourceView checks that a handler reads lent bytes in place: over shared memory those of the
// caller, if they are from Alloc, elsewhere a copy. The caller gets the number of bytes; a view
// ends with the handler; and one whose call has ended returns an error.
func TestSourceView(t *testing.T) {
	for _, at := range []string{"sm://view-*", "tcp://127.0.0.1:0"} {
		t.Run(at[:strings.Index(at, ":")], func(t *testing.T) {
			if at[0] == 's' && runtime.GOOS != "linux" {
				t.Skip("sm is on Linux only")
			}
			mem, err := bulk.Alloc(3 << 20)
			require.NoError(t, err)
			copy(mem, randomBytes(5, 3<<20))
			var kept *bulk.View
			begun, over := make(chan struct{}), make(chan struct{})
			verdict := make(chan error, 1)
			s := serverAt(t, at, qs.Config{}, func(n *qs.Node) {
				look.Handle(n, func(ctx context.Context, in lookIn) (out lookOut, err error) {
					v, err := in.Body.View(ctx)
					if err != nil {
						return out, err
					}
					kept = v
					out = lookOut{sha256.Sum256(v.Bytes()), v.Shared()}
					if in.Wait {
						begun <- struct{}{}
						<-over
						verdict <- v.Close()
					}
					return out, nil
				})
			})
			moved := int64(0)
			c := open(t, at[:strings.Index(at, ":")]+"://", qs.Config{ClientInterceptors: []qs.Interceptor{
				func(ctx context.Context, c *qs.Call, next func(context.Context) error) error {
					err := next(ctx)
					moved = c.BytesMoved
					return err
				},
			}})
			to := peer(t, c, s.Addr().String())
			shared := false
			for _, b := range [][]byte{mem, mem, mem[1:], randomBytes(6, 100_000), mem[:10], {}} {
				out, err := look.Call(testContext(t), to, lookIn{Body: qs.Bytes(b)})
				require.NoError(t, err)
				require.Equal(t, sha256.Sum256(b), out.Hash)
				shared = shared || out.Shared
				if len(b) > 2048 {
					require.EqualValues(t, len(b), moved)
				}
				require.Nil(t, kept.Bytes(), "it ends with the handler")
			}
			for at[0] == 's' && !shared { // the first time it is mapped meanwhile
				out, err := look.Call(testContext(t), to, lookIn{Body: qs.Bytes(mem)})
				require.NoError(t, err)
				shared = out.Shared
			}
			require.Equal(t, at[0] == 's', shared)
			_, err = look.Call(testContext(t), to, lookIn{Body: qs.Reader(strings.NewReader("stream"))})
			require.Error(t, err)
			_, err = qs.Bytes(mem).View(testContext(t))
			require.ErrorIs(t, err, na.ErrUnsupported, "at the caller")
			none, err := (qs.Source{}).View(testContext(t))
			require.NoError(t, err)
			require.Empty(t, none.Bytes())
			require.NoError(t, none.Close())

			ctx, cancel := context.WithCancel(testContext(t))
			go func() {
				<-begun
				cancel()
			}()
			_, err = look.Call(ctx, to, lookIn{Body: qs.Bytes(mem), Wait: true})
			require.ErrorIs(t, err, context.Canceled)
			close(over)
			if err := <-verdict; at[0] == 's' {
				require.ErrorIs(t, err, na.ErrRevoked)
			} else {
				require.NoError(t, err, "it is a copy")
			}
			bulk.Free(mem) // the call has ended: the memory is not in use
			pool.ReleaseUnused()
		})
	}
}
