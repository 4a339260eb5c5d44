package na

import (
	"bytes"
	"fmt"
	"math"
	"math/rand/v2"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/internal/test/beginnings"
)

// TestSlicesOracle compares Slices with a model: all bytes in one line.
func TestSlicesOracle(t *testing.T) {
	c, _ := newFake(t, Config{})
	r := rand.New(rand.NewPCG(3, 3))
	for range 400 {
		var segs [][]byte
		var line []*byte
		for range r.IntN(5) {
			seg := make([]byte, r.IntN(7))
			for i := range seg {
				line = append(line, &seg[i])
			}
			segs = append(segs, seg)
		}
		m, err := c.Class().NewMem(segs...)
		require.NoError(t, err)
		require.EqualValues(t, len(line), m.Len())
		for off := range len(line) + 1 {
			for n := range len(line) - off + 1 {
				var got []*byte
				head := [][]byte{{1}}
				out := m.Slices(head, int64(off), int64(n))
				require.Equal(t, head[0], out[0], "Slices appends")
				for _, s := range out[1:] {
					require.NotEmpty(t, s, "an empty slice")
					for i := range s {
						got = append(got, &s[i])
					}
				}
				require.Len(t, got, n)
				for i := range got {
					require.Same(t, line[off+i], got[i], "byte %d of %d at %d of %v", i, n, off, segs)
				}
			}
		}
	}
}

func TestInRange(t *testing.T) {
	edge := []int64{math.MinInt64, -1, 0, 1, 2, 9, 10, 11, math.MaxInt64 - 1, math.MaxInt64}
	for _, off := range edge {
		for _, n := range edge {
			for _, size := range []int64{0, 1, 10, math.MaxInt64} {
				// In numbers without end.
				want := off >= 0 && n >= 0 && uint64(off)+uint64(n) <= uint64(size)
				require.Equal(t, want, InRange(off, n, size), "%d bytes at %d of %d", n, off, size)
			}
		}
	}
}

func TestNewMem(t *testing.T) {
	c, f := newFake(t, Config{})
	cls := c.Class()
	_, err := cls.NewMem(make([][]byte, 16385)...)
	require.ErrorIs(t, err, ErrInvalid)
	require.ErrorContains(t, err, "16385 memory segments, limit 16384")
	for _, bad := range []Access{NoAccess, 4, 255} {
		_, err := cls.Register(bad, []byte("x"))
		require.ErrorIs(t, err, ErrInvalid, "access %d", bad)
	}
	require.Empty(t, f.e.dom.mems)
	m, err := cls.Register(ReadOnly, []byte("abc"), []byte("d"))
	require.NoError(t, err)
	require.Same(t, m, f.e.dom.mems[m.Key().Token].m)
	require.Equal(t, [][]byte{[]byte("abc"), []byte("d")}, m.Segments())
	require.EqualValues(t, 4, m.Key().Len)
	require.Equal(t, ReadOnly, m.Key().Access)
	require.NotZero(t, m.Key().Token)
	require.EqualValues(t, 1, cls.Regions())
	require.EqualValues(t, 1, c.Stats().Regions)
	private, err := cls.NewMem([]byte("abc"))
	require.NoError(t, err)
	require.Zero(t, private.Key().Token)
	require.Equal(t, NoAccess, private.Key().Access)
	requireDeregister(t, c, m)
	require.Empty(t, f.e.dom.mems)
	require.Zero(t, cls.Regions())
}

// requireDeregister takes m back, which must need a Trigger only.
func requireDeregister(t *testing.T, c *Context, m *Mem) {
	t.Helper()
	ran := 0
	require.NoError(t, c.Deregister(c.NewOp(func(_ *Op, r Result) { require.NoError(t, r.Err); ran++ }), m))
	c.Trigger(0)
	require.Equal(t, 1, ran)
}

func TestMemUsers(t *testing.T) {
	c, f := newFake(t, Config{})
	m, err := c.Class().Register(ReadWrite, make([]byte, 8))
	require.NoError(t, err)
	require.True(t, m.Acquire())
	require.True(t, m.acquireLocal())
	ran := 0
	op := c.NewOp(func(_ *Op, r Result) {
		require.NoError(t, r.Err)
		require.EqualValues(t, 8, r.N)
		ran++
	})
	require.NoError(t, c.Deregister(op, m))
	require.False(t, m.Acquire(), "a new request after Deregister")
	require.True(t, m.acquireLocal(), "one more of this process, while it is in use")
	require.ErrorIs(t, c.Deregister(c.NewOp(func(*Op, Result) { t.Error("a refused Deregister has ended") }), m), ErrClosed)
	for range 3 {
		require.Zero(t, c.Trigger(0))
		m.Release()
	}
	require.Equal(t, 1, c.Trigger(0))
	require.Equal(t, 1, ran)
	require.False(t, m.acquireLocal(), "after Deregister has ended")
	require.False(t, m.Acquire())

	// The local side of an operation counts, from start to end.
	private, err := c.Class().NewMem(make([]byte, 8))
	require.NoError(t, err)
	get := c.NewOp(func(*Op, Result) {})
	key := Key{Len: 8, Access: ReadWrite}
	require.NoError(t, c.Get(get, private, 0, fakePeer, key, 0, 8))
	require.NoError(t, c.Deregister(op, private))
	require.Zero(t, c.Trigger(0))
	f.end(get, Result{})
	require.Equal(t, 2, c.Trigger(0))
	require.ErrorIs(t, c.Get(get, private, 0, fakePeer, key, 0, 8), ErrRevoked)
	require.ErrorIs(t, c.Put(get, private, 0, fakePeer, key, 0, 8), ErrRevoked)
	require.False(t, get.Busy())
	require.Zero(t, c.Live())
}

// TestMemRevokeRace checks that memory with concurrent users is taken back once, after the last
// user, and is not accessed afterwards.
func TestMemRevokeRace(t *testing.T) {
	c, _ := newFake(t, Config{})
	for range 60 {
		buf := make([]byte, 8)
		m, err := c.Class().Register(ReadWrite, buf)
		require.NoError(t, err)
		var users atomic.Int32
		var refused atomic.Int32
		var wg sync.WaitGroup
		var mu sync.Mutex // users write one after the other
		for g := range 4 {
			take := m.Acquire
			if g%2 == 1 {
				take = m.acquireLocal
			}
			wg.Go(func() {
				for take() {
					users.Add(1)
					mu.Lock()
					buf[0]++
					mu.Unlock()
					users.Add(-1)
					m.Release()
					runtime.Gosched()
				}
			})
			wg.Go(func() {
				op := c.NewOp(func(*Op, Result) {
					if n := users.Load(); n != 0 {
						t.Errorf("taken back with %d users", n)
					}
					buf[0] = 0
				})
				if err := c.Deregister(op, m); err != nil {
					refused.Add(1)
				}
			})
		}
		for wall := time.Now(); c.Trigger(0) == 0; {
			require.Less(t, time.Since(wall), time.Minute)
		}
		wg.Wait()
		require.EqualValues(t, 3, refused.Load())
		require.Zero(t, c.Trigger(0))
		require.Zero(t, c.Class().Regions())
	}
}

func TestKey(t *testing.T) {
	k := Key{Len: 1 << 40, Access: WriteOnly}
	for i := range k.Token {
		k.Token[i] = 0xc0 + byte(i)
	}
	b := k.Append([]byte("head"))
	require.Len(t, b, 4+KeySize)
	require.Equal(t, "head\xc0\xc1\xc2\xc3\xc4\xc5\xc6\xc7\xc8\xc9\xca\xcb\xcc\xcd\xce\xcf\x00\x00\x00\x00\x00\x01\x00\x00\x02", string(b))
	got, err := DecodeKey(append(b[4:], "tail"...))
	require.NoError(t, err)
	require.Equal(t, k, got)
	for n := range KeySize {
		_, err := DecodeKey(b[4 : 4+n])
		require.ErrorIs(t, err, ErrProtocol)
	}
	for i, v := range map[int]byte{4 + 23: 0x80, 4 + 24: 4} {
		bad := bytes.Clone(b)
		bad[i] = v
		_, err := DecodeKey(bad[4:])
		require.ErrorIs(t, err, ErrProtocol)
	}
	for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%x", "%q", "%d"} {
		for _, text := range []string{fmt.Sprintf(verb, k), fmt.Sprintf(verb, &k), fmt.Sprintf(verb, []Key{k}), fmt.Sprintf(verb, struct{ K Key }{k})} {
			for _, leak := range []string{"c0", "C0", "192", "\xc0\xc1"} {
				require.NotContains(t, text, leak, "the token, printed with %s", verb)
			}
		}
	}
	require.Equal(t, "region of 1099511627776 bytes (write)", k.String())
}

func TestAccess(t *testing.T) {
	for a, want := range map[Access]string{NoAccess: "none", ReadOnly: "read", WriteOnly: "write", ReadWrite: "read+write", 4: "none"} {
		require.Equal(t, want, a.String())
	}
	require.True(t, ReadWrite.Can(ReadOnly))
	require.True(t, ReadWrite.Can(ReadWrite))
	require.False(t, ReadOnly.Can(ReadWrite))
	require.False(t, ReadOnly.Can(WriteOnly))
	require.True(t, NoAccess.Can(NoAccess))
}

func FuzzDecodeKey(f *testing.F) {
	beginnings.Seed(f, Key{Len: 10, Access: ReadOnly}.Append(nil))
	f.Fuzz(func(t *testing.T, b []byte) {
		k, err := DecodeKey(b)
		if err != nil {
			return
		}
		if k.Len < 0 || k.Access&^ReadWrite != 0 {
			t.Fatalf("accepted %v", k)
		}
		if got := k.Append(nil); !bytes.Equal(got, b[:KeySize]) {
			t.Fatalf("got %x, want %x", got, b[:KeySize])
		}
	})
}
