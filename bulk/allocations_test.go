package bulk_test

import (
	"fmt"
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/bulk"
	"github.com/quicksilver-rpc/quicksilver/internal/raceflag"
	"github.com/quicksilver-rpc/quicksilver/internal/test/long"
	"github.com/quicksilver-rpc/quicksilver/internal/test/transports"
)

// TestTransfersAllocateLittle checks that a transfer of any size allocates itself and next to
// nothing else, at both ends together.
func TestTransfersAllocateLittle(t *testing.T) {
	transports.Fast(t, func(t *testing.T, n *transports.Net) {
		const rounds = 100
		sizes := []int{4 << 10, 1 << 20, long.Or(4<<20+1, 16<<20+1)}
		if raceflag.Enabled {
			sizes = sizes[:2]
		}
		p := newPair(t, n)
		for _, size := range sizes {
			owned, err := bulk.Create(p.octx, bulk.Options{Access: bulk.ReadWrite}, make([]byte, size))
			require.NoError(t, err)
			local, err := bulk.Create(p.mctx, bulk.Options{Access: bulk.LocalOnly}, make([]byte, size))
			require.NoError(t, err)
			there := decodeRemote(t, owned)
			for _, dir := range []bulk.Dir{bulk.Pull, bulk.Push} {
				var failed error
				ended := 0
				done := func(_ *bulk.Op, err error) {
					ended++
					if err != nil {
						failed = err
					}
				}
				transfers := func() (allocations, most int64) {
					begun := time.Now()
					var before, after runtime.MemStats
					runtime.ReadMemStats(&before)
					for ended = 0; ended < rounds; {
						want := ended + 1
						_, err := bulk.Transfer(p.mctx, bulk.Spec{Dir: dir, Peer: p.peer, Remote: there, Local: local, Size: int64(size)}, done)
						require.NoError(t, err)
						for ended < want {
							p.mctx.Trigger(0)
							_ = p.octx.Progress(0)
							p.octx.Trigger(0)
							_ = p.mctx.Progress(0)
						}
					}
					runtime.ReadMemStats(&after)
					require.NoError(t, failed)
					// Background pollers drive contexts that no goroutine drives, and wake up every 2 ms.
					return int64(after.Mallocs - before.Mallocs), 2*rounds + 50 + time.Since(begun).Milliseconds()
				}
				transfers() // fills the lists of spare parts
				got, most := transfers()
				require.LessOrEqual(t, got, most, fmt.Sprintf("%d transfers, %v %d", rounds, dir, size))
			}
			require.NoError(t, owned.Close())
			require.NoError(t, local.Close())
		}
	})
}
