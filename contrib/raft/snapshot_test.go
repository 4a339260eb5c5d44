package raftqs

import (
	"bytes"
	"errors"
	"io"
	"math/rand/v2"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hashicorp/raft"
	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/qs"
)

// A countingReader gives n bytes, and counts those that were read.
type countingReader struct {
	left int64
	read atomic.Int64
}

func (c *countingReader) Read(p []byte) (int, error) {
	n := min(int64(len(p)), c.left)
	if n == 0 {
		return 0, io.EOF
	}
	for i := int64(0); i < n; { // bytes are distinguished by their offset, modulo the length of pattern, which is prime
		i += int64(copy(p[i:n], pattern[(c.read.Load()+i)%int64(len(pattern)):]))
	}
	c.left -= n
	c.read.Add(n)
	return int(n), nil
}

var pattern = func() []byte {
	b := make([]byte, 65521)
	r := rand.New(rand.NewPCG(1, 2))
	for i := range b {
		b[i] = byte(r.Uint32())
	}
	return b
}()

func newSnapshotRequest(size int64) *raft.InstallSnapshotRequest {
	return &raft.InstallSnapshotRequest{RPCHeader: header, SnapshotVersion: 1, Term: 10,
		LastLogIndex: 100, LastLogTerm: 9,
		Configuration: []byte("c"), ConfigurationIndex: 5, Size: size}
}

// TestSnapshot checks that request and bytes arrive, no more than the announced size, and the
// response is returned.
func TestSnapshot(t *testing.T) {
	eachTransport(t, Options{}, func(t *testing.T, from, to *Transport) {
		for _, size := range []int64{0, 1, 2048, 100_000, 9 << 20} {
			var got []byte
			var args any
			done := make(chan error, 1)
			var resp raft.InstallSnapshotResponse
			go func() {
				done <- from.InstallSnapshot("to", to.LocalAddr(), newSnapshotRequest(size), &resp,
					&countingReader{left: size + 10})
			}()
			rpc := receive(t, to.Consumer())
			args = rpc.Command
			got, err := io.ReadAll(rpc.Reader)
			rpc.Respond(&raft.InstallSnapshotResponse{Term: 11, Success: true}, err)
			require.NoError(t, receive(t, done))
			require.Equal(t, raft.InstallSnapshotResponse{Term: 11, Success: true}, resp)
			require.Equal(t, newSnapshotRequest(size), args)
			var want bytes.Buffer
			_, _ = io.Copy(&want, &countingReader{left: size})
			require.Equal(t, size, int64(len(got)))
			require.True(t, bytes.Equal(want.Bytes(), got))
		}
	})
}

// TestSnapshotSlowFollower checks that a follower that does not read blocks the leader after a few
// MiB.
func TestSnapshotSlowFollower(t *testing.T) {
	eachTransport(t, Options{}, func(t *testing.T, from, to *Transport) {
		const size = 32 << 20
		data := &countingReader{left: size}
		done := make(chan error, 1)
		go func() {
			done <- from.InstallSnapshot("to", to.LocalAddr(), newSnapshotRequest(size),
				&raft.InstallSnapshotResponse{}, data)
		}()
		rpc := receive(t, to.Consumer())
		_, err := io.ReadFull(rpc.Reader, make([]byte, 1<<20))
		require.NoError(t, err)
		require.Less(t, data.read.Load(), int64(20<<20))
		n, err := io.Copy(io.Discard, rpc.Reader)
		require.NoError(t, err)
		require.EqualValues(t, size-1<<20, n)
		rpc.Respond(&raft.InstallSnapshotResponse{Success: true}, nil)
		require.NoError(t, receive(t, done))
	})
}

// TestSnapshotReaderFails checks that the follower gets an error instead of a truncated snapshot,
// and the leader gets the error of its reader.
func TestSnapshotReaderFails(t *testing.T) {
	eachTransport(t, Options{}, func(t *testing.T, from, to *Transport) {
		broken := errors.New("bad sector")
		done := make(chan error, 1)
		go func() {
			data := io.MultiReader(&countingReader{left: 3 << 20}, errReader{broken})
			done <- from.InstallSnapshot("to", to.LocalAddr(), newSnapshotRequest(6<<20),
				&raft.InstallSnapshotResponse{}, data)
		}()
		rpc := receive(t, to.Consumer())
		_, err := io.Copy(io.Discard, rpc.Reader)
		require.Error(t, err)
		rpc.Respond(&raft.InstallSnapshotResponse{}, err)
		require.ErrorIs(t, receive(t, done), broken)
	})
}

type errReader struct{ err error }

func (r errReader) Read([]byte) (int, error) { return 0, r.err }

// TestSnapshotPeerGone checks that when a process ends during a snapshot, the other one is released
// at once, although the timeout is an hour.
func TestSnapshotPeerGone(t *testing.T) {
	t.Parallel()
	for _, scheme := range schemes {
		for _, leader := range []bool{true, false} {
			name := scheme + "/follower"
			if leader {
				name = scheme + "/leader"
			}
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				var from, to *Transport
				o := Options{Timeout: time.Hour}
				one := openNode(t, listenAddr(scheme), qs.Config{},
					func(n *qs.Node) { from = NewTransport(n, o) })
				defer from.Close()
				two := openNode(t, listenAddr(scheme), qs.Config{},
					func(n *qs.Node) { to = NewTransport(n, o) })
				defer to.Close()
				done := make(chan error, 1)
				go func() {
					done <- from.InstallSnapshot("to", to.LocalAddr(), newSnapshotRequest(32<<20),
						&raft.InstallSnapshotResponse{}, &countingReader{left: 32 << 20})
				}()
				rpc := receive(t, to.Consumer())
				_, err := io.ReadFull(rpc.Reader, make([]byte, 1<<20))
				require.NoError(t, err)
				if leader {
					require.NoError(t, one.Close())
					copied := make(chan error, 1)
					go func() {
						_, err := io.Copy(io.Discard, rpc.Reader)
						copied <- err
					}()
					require.Error(t, receive(t, copied))
				} else {
					require.NoError(t, two.Close())
				}
				require.Error(t, receive(t, done))
			})
		}
	}
}

// TestSnapshotBesideHeartbeats checks that heartbeats are answered while a snapshot is in progress,
// and while it is blocked.
func TestSnapshotBesideHeartbeats(t *testing.T) {
	eachTransport(t, Options{}, func(t *testing.T, from, to *Transport) {
		to.SetHeartbeatHandler(func(rpc raft.RPC) {
			rpc.Respond(&raft.AppendEntriesResponse{Success: true},
				nil)
		})
		const size = 32 << 20
		done := make(chan error, 1)
		go func() {
			done <- from.InstallSnapshot("to", to.LocalAddr(), newSnapshotRequest(size),
				&raft.InstallSnapshotResponse{}, &countingReader{left: size})
		}()
		rpc := receive(t, to.Consumer())
		for range 8 {
			require.NoError(t, from.AppendEntries("to", to.LocalAddr(), heartbeatRequest,
				&raft.AppendEntriesResponse{}))
			_, err := io.CopyN(io.Discard, rpc.Reader, size/8)
			require.NoError(t, err)
		}
		rpc.Respond(&raft.InstallSnapshotResponse{Success: true}, nil)
		require.NoError(t, receive(t, done))
	})
}
