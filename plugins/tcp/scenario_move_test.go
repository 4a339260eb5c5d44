package tcp_test

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/internal/frame"
	"github.com/quicksilver-rpc/quicksilver/na"
	"github.com/quicksilver-rpc/quicksilver/plugins/tcp"
)

// splitMemory cuts n bytes of memory into segments, some of them empty.
func splitMemory(n int, seed uint64) (flat []byte, segs [][]byte) {
	rng := rand.New(rand.NewPCG(seed, 1))
	flat = make([]byte, n)
	for rest := flat; len(rest) > 0; {
		cut := min(rng.IntN(200<<10), len(rest))
		if rng.IntN(8) == 0 {
			cut = min(rng.IntN(3), len(rest))
		}
		segs = append(segs, rest[:cut:cut])
		rest = rest[cut:]
	}
	return flat, segs
}

func fill(b []byte, seed uint64) {
	_, _ = rand.NewChaCha8([32]byte{byte(seed), byte(seed >> 8)}).Read(b)
}

// TestPutGet moves 8 MiB from and to memory of many segments on both sides, at odd offsets.
func TestPutGet(t *testing.T) {
	t.Parallel()
	eachCarrier(t, func(t *testing.T, opts tcp.Options) {
		const size, loff, roff = 8 << 20, 12345, 777
		a := open(t, "tcp://", opts, na.Config{}, 1)
		b := open(t, "tcp://127.0.0.1:0", opts, na.Config{}, 1)
		to := lookup(t, a, b.cls.Addr().String())

		remote, remoteSegs := splitMemory(size+roff+99, 1)
		local, localSegs := splitMemory(size+loff+11, 2)
		mem, err := b.cls.Register(na.ReadWrite, remoteSegs...)
		require.NoError(t, err)
		mine, err := a.cls.NewMem(localSegs...)
		require.NoError(t, err)

		fill(local, 3)
		before := bytes.Clone(remote)
		put, end := newOp(a.ctx())
		require.NoError(t, a.ctx().Put(put, mine, loff, to, mem.Key(), roff, size))
		require.Equal(t, int64(size), requireSuccess(t, "put", end, a, b).N)
		require.True(t, bytes.Equal(local[loff:loff+size], remote[roff:roff+size]), "what was put differs")
		require.True(t, bytes.Equal(before[:roff], remote[:roff]), "bytes before the range were changed")
		require.True(t, bytes.Equal(before[roff+size:], remote[roff+size:]), "bytes after the range were changed")

		fill(remote, 4)
		before = bytes.Clone(local)
		get, end := newOp(a.ctx())
		require.NoError(t, a.ctx().Get(get, mine, loff, to, mem.Key(), roff, size))
		require.Equal(t, int64(size), requireSuccess(t, "get", end, a, b).N)
		require.True(t, bytes.Equal(local[loff:loff+size], remote[roff:roff+size]), "what was got differs")
		require.True(t, bytes.Equal(before[:loff], local[:loff]), "bytes before the range were changed")
		require.True(t, bytes.Equal(before[loff+size:], local[loff+size:]), "bytes after the range were changed")

		closing, end := newOp(b.ctx())
		require.NoError(t, b.ctx().Deregister(closing, mem))
		requireSuccess(t, "deregister", end, b)
	})
}

// TestTinySegments moves memory whose one piece has more segments than a system call takes.
func TestTinySegments(t *testing.T) {
	eachCarrier(t, func(t *testing.T, opts tcp.Options) {
		a := open(t, "tcp://", opts, na.Config{}, 1)
		b := open(t, "tcp://127.0.0.1:0", opts, na.Config{}, 1)
		to := lookup(t, a, b.cls.Addr().String())
		cut := func(n, segments int) (flat []byte, segs [][]byte) {
			flat = make([]byte, n)
			for i := range segments {
				segs = append(segs, flat[i*n/segments:(i+1)*n/segments])
			}
			return flat, segs
		}
		const size = 200_003
		remote, remoteSegs := cut(size, 1000)
		local, localSegs := cut(size, 1024)
		mem, err := b.cls.Register(na.ReadWrite, remoteSegs...)
		require.NoError(t, err)
		mine, err := a.cls.NewMem(localSegs...)
		require.NoError(t, err)
		for i := range uint64(5) {
			fill(local, 2*i)
			put, end := newOp(a.ctx())
			require.NoError(t, a.ctx().Put(put, mine, 0, to, mem.Key(), 0, size))
			requireSuccess(t, "put", end, a, b)
			require.True(t, bytes.Equal(local, remote), "what was put differs")
			fill(remote, 2*i+1)
			get, end := newOp(a.ctx())
			require.NoError(t, a.ctx().Get(get, mine, 0, to, mem.Key(), 0, size))
			requireSuccess(t, "get", end, a, b)
			require.True(t, bytes.Equal(local, remote), "what was got differs")
		}
	})
}

// TestTinySegmentsAtOnce has a whole piece wait in the socket for memory of more segments than a system call takes.
func TestTinySegmentsAtOnce(t *testing.T) {
	eachCarrier(t, func(t *testing.T, opts tcp.Options) {
		const segments, each = 1024, 50
		n, r, to := openJoined(t, opts, na.Config{})
		flat := make([]byte, segments*each)
		var segs [][]byte
		for i := range segments {
			segs = append(segs, flat[i*each:(i+1)*each])
		}
		mem, err := n.cls.NewMem(segs...)
		require.NoError(t, err)
		o, end := newOp(n.ctx())
		require.NoError(t, n.ctx().Get(o, mem, 0, to, someKey(segments*each), 0, segments*each))
		_ = n.ctx().Progress(0)
		get, _ := r.readKind(frame.Get)
		r.sendFront(frame.Header{Kind: frame.Data, Flags: frame.FlagAnswer, Op: get.Op}, segments*each)
		driveUntilStalled(n) // the front is taken in by itself
		theirs := make([]byte, segments*each)
		fill(theirs, 6)
		r.write(theirs)
		r.send(frame.Header{Kind: frame.Done, Op: get.Op}, nil)
		requireSuccess(t, "get", end, n)
		require.True(t, bytes.Equal(theirs, flat))
	})
}

// TestManyMoves runs puts and gets of many sizes at once, both ways, among messages.
func TestManyMoves(t *testing.T) {
	t.Parallel()
	eachCarrier(t, func(t *testing.T, opts tcp.Options) {
		a := open(t, "tcp://127.0.0.1:0", opts, na.Config{}, 1)
		b := open(t, "tcp://127.0.0.1:0", opts, na.Config{}, 1)
		type move struct {
			end         *outcome
			local, want []byte
			what        string
		}
		var moves []move
		seed := uint64(100)
		for _, pair := range [][2]*node{{a, b}, {b, a}} {
			from, owner := pair[0], pair[1]
			to := lookup(t, from, owner.cls.Addr().String())
			for _, n := range []int{0, 1, 31, 4095, 4096, 4097, 64 << 10, 256<<10 - 1, 256 << 10, 256<<10 + 1, 1 << 20, 3<<20 + 17} {
				for _, put := range []bool{true, false} {
					seed++
					local, remote := make([]byte, n), make([]byte, n)
					mem, err := owner.cls.Register(na.ReadWrite, remote)
					require.NoError(t, err)
					mine, err := from.cls.NewMem(local)
					require.NoError(t, err)
					o, end := newOp(from.ctx())
					m := move{end: end, what: fmt.Sprintf("put %v of %d bytes", put, n)}
					if put {
						fill(local, seed)
						m.local, m.want = remote, local
						err = from.ctx().Put(o, mine, 0, to, mem.Key(), 0, int64(n))
					} else {
						fill(remote, seed)
						m.local, m.want = local, remote
						err = from.ctx().Get(o, mine, 0, to, mem.Key(), 0, int64(n))
					}
					require.NoError(t, err)
					moves = append(moves, m)
				}
			}
			sendUnexpected(t, from.ctx(), to, 1, "among them", a, b)
			text, _, _ := recvUnexpected(t, owner.ctx(), a, b)
			require.Equal(t, "among them", text)
		}
		for _, m := range moves {
			requireSuccess(t, m.what, m.end, a, b)
			require.True(t, bytes.Equal(m.local, m.want), "%s: bytes differ", m.what)
		}
	})
}

// TestOneSided checks operations on memory whose owner calls neither Progress nor Trigger.
func TestOneSided(t *testing.T) {
	eachCarrier(t, func(t *testing.T, opts tcp.Options) {
		a := open(t, "tcp://", opts, na.Config{}, 1)
		b := open(t, "tcp://127.0.0.1:0", opts, na.Config{}, 1)
		to := lookup(t, a, b.cls.Addr().String())
		remote, local := make([]byte, 1<<20), make([]byte, 1<<20)
		fill(remote, 5)
		mem, err := b.cls.Register(na.ReadOnly, remote)
		require.NoError(t, err)
		mine, err := a.cls.NewMem(local)
		require.NoError(t, err)
		get, end := newOp(a.ctx())
		require.NoError(t, a.ctx().Get(get, mine, 0, to, mem.Key(), 0, 1<<20))
		requireSuccess(t, "get", end, a)
		require.True(t, bytes.Equal(local, remote))
	})
}
