package perf_test

import (
	"context"
	"encoding/binary"
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/internal/test/leak"
	"github.com/quicksilver-rpc/quicksilver/mercury"
	"github.com/quicksilver-rpc/quicksilver/mercury/perf"
)

func TestMain(m *testing.M) { leak.Main(m) }

// TestBothSides checks that the client measures the server, in every way, with its data verified.
func TestBothSides(t *testing.T) {
	server, err := mercury.Open("ofi+tcp://127.0.0.1:0", mercury.Config{})
	require.NoError(t, err)
	defer server.Close()
	ended := make(chan struct{}, 1)
	perf.Serve(server, func() { ended <- struct{}{} })
	client, err := mercury.Open("ofi+tcp://127.0.0.1:0", mercury.Config{})
	require.NoError(t, err)
	defer client.Close()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	_, err = perf.Ping(ctx, client, server.Addr())
	require.NoError(t, err)
	for _, size := range []int{64, 10_000} {
		r, err := perf.Rate(ctx, client, server.Addr(), perf.Options{Size: size, InFlight: 4, For: 5 * time.Millisecond})
		require.NoError(t, err)
		require.Positive(t, r.Calls)
	}
	for _, writes := range []bool{true, false} {
		r, err := perf.Bandwidth(ctx, client, server.Addr(), writes, perf.Options{Size: 1<<20 + 4, InFlight: 2, For: 5 * time.Millisecond, Verify: true})
		require.NoError(t, err)
		require.Equal(t, r.Calls*(1<<20+4), r.Bytes)
	}
	require.NoError(t, perf.Done(ctx, client, server.Addr()))
	<-ended
}

// TestSmallBuffers checks that a client that requests any number of small buffers gets those that
// the server has memory for. They are released when it has disconnected.
func TestSmallBuffers(t *testing.T) {
	server, err := mercury.Open("ofi+tcp://127.0.0.1:0", mercury.Config{})
	require.NoError(t, err)
	defer server.Close()
	perf.Serve(server, nil)
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	in := make([]byte, 45) // no memory, then eight numbers and a flag
	le := binary.LittleEndian
	for i, v := range []uint32{1, 0, 1, 1, 4, 1, 0, 1} {
		le.PutUint32(in[8+4*i:], v)
	}
	in = in[:41]
	for n := range 2 {
		client, err := mercury.Open("ofi+tcp://127.0.0.1:0", mercury.Config{})
		require.NoError(t, err)
		for i := uint32(0); err == nil && (n == 0 || i < 1000); i++ { // the second one need not have all again
			require.Less(t, i, uint32(20_000))
			le.PutUint32(in[12:], i)
			if _, err = client.Call(ctx, server.Addr(), 4, in); i == 0 { // the other client's are forgotten soon
				for ; mercury.CodeOf(err) == mercury.ErrNoMemory; _, err = client.Call(ctx, server.Addr(), 4, in) {
					require.NoError(t, ctx.Err())
				}
			}
		}
		if n == 0 {
			require.Equal(t, mercury.ErrNoMemory, mercury.CodeOf(err))
		} else {
			require.NoError(t, err)
		}
		require.NoError(t, client.Close())
	}
}

// TestManyBuffers checks that a transfer takes little memory beside its buffers, for any number of
// them.
func TestManyBuffers(t *testing.T) {
	server, err := mercury.Open("ofi+tcp://127.0.0.1:0", mercury.Config{})
	require.NoError(t, err)
	defer server.Close()
	perf.Serve(server, nil)
	client, err := mercury.Open("ofi+tcp://127.0.0.1:0", mercury.Config{})
	require.NoError(t, err)
	defer client.Close()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	in := make([]byte, 8, 41) // no memory, then eight numbers and a flag
	for _, v := range []uint32{1, 0, 1, 8 << 20, 1, 1, 0, 1} {
		in = binary.LittleEndian.AppendUint32(in, v)
	}
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	_, err = client.Call(ctx, server.Addr(), 4, append(in, 0))
	require.NoError(t, err)
	_, err = client.Call(ctx, server.Addr(), 6, append(make([]byte, 12), 1, 0, 0, 0))
	require.ErrorIs(t, err, mercury.ErrRemote)
	runtime.ReadMemStats(&after)
	require.Less(t, after.TotalAlloc-before.TotalAlloc, uint64(32<<20))
}

// TestHugeBuffers checks that buffers whose total size does not fit an int64 are refused, and that
// other clients still get theirs.
func TestHugeBuffers(t *testing.T) {
	server, err := mercury.Open("ofi+tcp://127.0.0.1:0", mercury.Config{})
	require.NoError(t, err)
	defer server.Close()
	perf.Serve(server, nil)
	client, err := mercury.Open("ofi+tcp://127.0.0.1:0", mercury.Config{})
	require.NoError(t, err)
	defer client.Close()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	request := func(count, size uint32) mercury.Code {
		in := make([]byte, 8, 41) // no memory, then eight numbers and a flag
		for _, v := range []uint32{1, 0, 1, count, size, 1, 0, 1} {
			in = binary.LittleEndian.AppendUint32(in, v)
		}
		_, err := client.Call(ctx, server.Addr(), 4, append(in, 0))
		return mercury.CodeOf(err)
	}
	require.Equal(t, mercury.ErrOverflow, request(1<<32-1, 1<<32-1))
	require.Equal(t, mercury.ErrOverflow, request(1<<32-1, 1<<31))
	require.Zero(t, request(1, 64))
}
