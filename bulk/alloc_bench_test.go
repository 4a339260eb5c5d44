package bulk_test

import (
	"context"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/bulk"
	"github.com/quicksilver-rpc/quicksilver/hg"
	"github.com/quicksilver-rpc/quicksilver/internal/pool"
	"github.com/quicksilver-rpc/quicksilver/na"
	"github.com/quicksilver-rpc/quicksilver/plugins/sm"
)

// BenchmarkPullAlloc measures the cost of a pull of Alloc memory in addition to copy.
func BenchmarkPullAlloc(b *testing.B) {
	open := func(addr string) *hg.Context {
		cls, err := hg.Open(addr, hg.Config{NA: na.Config{Plugins: []na.Plugin{sm.New(sm.Options{})}}})
		require.NoError(b, err)
		b.Cleanup(func() { require.NoError(b, cls.Shutdown(context.Background())) })
		hctx, err := cls.NewContext()
		require.NoError(b, err)
		return hctx
	}
	owner, mover := open("sm://bench-*"), open("sm://")
	for _, size := range []int{1 << 20, 64 << 20} {
		theirs, err := bulk.Alloc(size)
		require.NoError(b, err)
		mine := make([]byte, size)
		for i := range theirs {
			theirs[i], mine[i] = byte(i), 1
		}
		b.Run(fmt.Sprintf("copy/%d", size), func(b *testing.B) {
			b.SetBytes(int64(size))
			for range b.N {
				copy(mine, theirs)
			}
		})
		h, err := bulk.Create(owner, bulk.Options{Access: bulk.ReadOnly}, theirs)
		require.NoError(b, err)
		l, err := bulk.Create(mover, bulk.Options{}, mine)
		require.NoError(b, err)
		enc, err := h.MarshalBinary()
		require.NoError(b, err)
		r := &bulk.Handle{}
		require.NoError(b, r.UnmarshalBinary(enc))
		spec := bulk.Spec{Peer: owner.Class().Addr(), Remote: r, Local: l, Size: int64(size)}
		require.NoError(b, bulk.Do(context.Background(), mover, spec))
		b.Run(fmt.Sprintf("pull/%d", size), func(b *testing.B) {
			b.SetBytes(int64(size))
			for range b.N {
				if err := bulk.Do(context.Background(), mover, spec); err != nil {
					b.Fatal(err)
				}
			}
		})
		require.NoError(b, h.CloseWait(context.Background()))
		require.NoError(b, l.CloseWait(context.Background()))
		bulk.Free(theirs)
		pool.ReleaseUnused()
	}
}
