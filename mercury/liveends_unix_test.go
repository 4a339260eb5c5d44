//go:build unix

package mercury_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/mercury"
	"github.com/quicksilver-rpc/quicksilver/mercury/perf"
)

// The RPCs of hg_perf_server by which it reads and writes lent memory.
type (
	moveInit struct {
		Mem                                                      mercury.Bulk
		Op, Handle, Handles, Count, Size, Clients, Rank, Servers uint32
		Verify                                                   bool
	}
	moveIn struct {
		Mem          mercury.Bulk
		Handle, Size uint32
	}
)

var (
	moveBegin = mercury.DefineID[moveInit, struct{}]("bw_init", 4)
	moves     = map[string]*mercury.Method[moveIn, struct{}]{
		"put": mercury.DefineID[moveIn, struct{}]("bw_read", 5),
		"get": mercury.DefineID[moveIn, struct{}]("bw_write", 6),
	}
	signals = map[syscall.Signal]mercury.Code{syscall.SIGSTOP: mercury.ErrCanceled, syscall.SIGKILL: mercury.ErrPeerLost}
)

// TestLiveEndsInTransfer stops, or kills, C's server while it reads and writes memory that Go has
// lent. The calls end, and after Close the memory is the caller's: a server that continues loses
// its connection, and leaves no byte behind.
func TestLiveEndsInTransfer(t *testing.T) {
	requirePrograms(t, "hg_perf_server", "hg_first")
	const size, handles = 32 << 20, 3
	for name, move := range moves {
		for sig, want := range signals {
			t.Run(name+" "+sig.String(), func(t *testing.T) {
				addr, cmd := cServer(t, "hg_perf_server", "-z", fmt.Sprint(size), "-x", fmt.Sprint(handles))
				n := open(t, mercury.Config{})
				ctx, cancel := context.WithCancel(testContext(t))
				errs, first := make(chan error, handles), make(chan struct{}, handles)
				var regions []*mercury.Region
				var mems [][]byte
				for i := range uint32(handles) {
					mem := make([]byte, size)
					region, err := n.Lend(mem, mercury.Read|mercury.Write, addr)
					require.NoError(t, err)
					op := uint32(1)
					if name == "put" {
						op = 0
					}
					_, err = moveBegin.Call(ctx, n, addr, moveInit{Mem: region.Bulk(), Op: op, Handle: i, Handles: handles, Count: 1, Size: size, Clients: 1, Servers: 1})
					require.NoError(t, err)
					regions, mems = append(regions, region), append(mems, mem)
					go func() {
						var err error
						for j := 0; err == nil; j++ { // until it blocks
							if _, err = move.Call(ctx, n, addr, moveIn{Handle: i, Size: size}); j == 0 {
								first <- struct{}{}
							}
						}
						errs <- err
					}()
				}
				for range handles {
					<-first
				}
				require.NoError(t, cmd.Process.Signal(sig)) // some transfer is in flight
				if sig == syscall.SIGSTOP {
					cancel()
				}
				for range handles {
					require.ErrorIs(t, <-errs, want)
				}
				cancel()
				for i, region := range regions {
					require.NoError(t, region.Close())
					copy(mems[i], bytes.Repeat([]byte{0xa5}, size))
				}
				if sig == syscall.SIGSTOP {
					require.NoError(t, cmd.Process.Signal(syscall.SIGCONT))
				}
				for err := error(mercury.ErrPeerLost); sig == syscall.SIGSTOP && !errors.Is(err, mercury.ErrNoMethod); {
					_, err = n.Call(testContext(t), addr, 1<<50, nil) // it has lost its connection, or has done all that it was about to do
					require.False(t, errors.Is(err, mercury.ErrTimeout), "%v", err)
				}
				for _, mem := range mems {
					require.Equal(t, size, bytes.Count(mem, []byte{0xa5}))
				}
			})
		}
	}
}

// TestLiveClientEndsInTransfer stops, or kills, C's client while Go reads and writes its memory.
// The same holds for the handler's buffer.
func TestLiveClientEndsInTransfer(t *testing.T) {
	requirePrograms(t, "hg_first", "hg_bw_read", "hg_bw_write")
	const size = 32 << 20
	for name, move := range moves {
		for sig, want := range signals {
			t.Run(name+" "+sig.String(), func(t *testing.T) {
				n := open(t, mercury.Config{})
				var lent mercury.Bulk // read before the other RPC arrives
				moveBegin.Handle(n, func(_ context.Context, in moveInit) (out struct{}, err error) {
					lent = in.Mem
					return
				})
				ctx, cancel := context.WithCancel(testContext(t))
				defer cancel()
				first, errs := make(chan struct{}, 1), make(chan error, 1)
				buf := make([]byte, size)
				var transfer func(context.Context, []byte, int64) (int, error)
				var served atomic.Bool
				move.Handle(n, func(hctx context.Context, in moveIn) (out struct{}, err error) {
					if served.Swap(true) { // the client continues
						return out, mercury.ErrPermission
					}
					remote := mercury.RequestOf(hctx).Remote(lent)
					transfer = remote.Put
					if name == "get" {
						transfer = remote.Get
					}
					for i := 0; err == nil; i++ {
						_, err = transfer(ctx, buf, 0)
						if i == 0 {
							first <- struct{}{}
						}
					}
					errs <- err
					return out, err
				})
				dir := t.TempDir()
				require.NoError(t, os.WriteFile(filepath.Join(dir, hostfile), []byte(n.Addr()+"\n"), 0o644))
				cmd := cCommand(context.Background(), dir, map[string]string{"get": "hg_bw_write", "put": "hg_bw_read"}[name], "-y", fmt.Sprint(size), "-z", fmt.Sprint(size), "-x", "1", "-w", "1")
				require.NoError(t, cmd.Start())
				defer func() {
					_ = cmd.Process.Kill()
					_ = cmd.Wait()
				}()
				<-first
				require.NoError(t, cmd.Process.Signal(sig))
				if sig == syscall.SIGSTOP {
					cancel()
				}
				require.ErrorIs(t, <-errs, want)
				for i := range buf {
					buf[i] = 0xa5
				}
				if sig == syscall.SIGSTOP {
					require.NoError(t, cmd.Process.Signal(syscall.SIGCONT)) // its late answers are thrown away
					_, err := transfer(testContext(t), make([]byte, 1), 0)
					require.True(t, err == nil || errors.Is(err, mercury.ErrPeerLost), "%v", err) // it may have ended by itself
				}
				require.Equal(t, size, bytes.Count(buf, []byte{0xa5}))
			})
		}
	}
}

// TestLiveEnds stops, and kills, C's server: contexts end calls, and so does its exit.
func TestLiveEnds(t *testing.T) {
	requirePrograms(t, "hg_perf_server", "hg_first")
	for _, sig := range []syscall.Signal{syscall.SIGSTOP, syscall.SIGKILL} {
		addr, cmd := cServer(t, "hg_perf_server")
		n := open(t, mercury.Config{})
		_, err := perf.Ping(testContext(t), n, addr)
		require.NoError(t, err)
		require.NoError(t, cmd.Process.Signal(sig))
		_, err = perf.Ping(shortContext(t), n, addr)
		want := map[syscall.Signal]mercury.Code{syscall.SIGSTOP: mercury.ErrTimeout, syscall.SIGKILL: mercury.ErrPeerLost}[sig]
		if sig == syscall.SIGKILL && mercury.CodeOf(err) == mercury.ErrUnreachable {
			continue // its end was noticed before the call
		}
		require.ErrorIs(t, err, want)
	}
}
