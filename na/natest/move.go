package natest

import (
	"bytes"
	"fmt"
	"math"
	"math/rand/v2"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/internal/raceflag"
	"github.com/quicksilver-rpc/quicksilver/internal/test/long"
	"github.com/quicksilver-rpc/quicksilver/na"
)

var moveRules = []rule{
	{name: "MoveSizes", check: moveSizes,
		why: "put and get are exact for every size and offset, zero bytes and the very end included"},
	{name: "MoveBounds", engine: true, check: moveBounds,
		why: "no byte outside the memory of either side is touched, whatever the offsets; the owner checks for itself"},
	{name: "MovePermission", engine: true, check: movePermission,
		why: "memory is reached in the mode that its owner registered it for, also by peers that forge the mode in the key"},
	{name: "MoveWrongKey", engine: true, check: moveWrongKey,
		why: "an unknown key gives no access, and the session continues"},
	{name: "MoveGuessing", engine: true, check: moveGuessing,
		why: "a peer that tries keys that never existed is cut off after few of them, and no other peer is; old keys may be tried without limit"},
	{name: "MoveAfterDeregister", engine: true, check: moveAfterDeregister,
		why: "memory that was taken back is out of reach for ever"},
	{name: "MoveSegments", check: moveSegments,
		why: "scattered memory behaves as one linear space on both sides, compared byte by byte with a model"},
	{name: "MoveMaxSegments", check: moveMaxSegments,
		why: "as many segments as Limits allows do work, one more is refused"},
	{name: "MoveOverlap", check: moveOverlap,
		why: "segments of local memory may overlap: the same bytes may be sent twice"},
	{name: "MoveLarge", check: moveLarge,
		why: "16 MiB arrive exactly, in both directions at once, and messages get through meanwhile"},
	{name: "MoveMany", check: moveMany,
		why: "more transfers than the plugin carries at a time wait for their turn; none is lost"},
	{name: "MoveSelf", engine: true, check: moveSelf,
		why: "a process reaches its own registered memory as a peer does"},
	{name: "LocalDeregistered", check: localDeregistered,
		why: "local memory that is deregistered while a transfer uses it is waited for; the transfer is exact and the session lives"},
	{name: "LocalDeregisteredCancel", check: localDeregisteredCancel,
		why: "canceling the transfer gets its local memory back without waiting for the peer"},
	{name: "DeregisterDuringMove", check: deregisterDuringMove,
		why: "taking memory back needs no peer: once it has ended, the memory is neither read nor written"},
	{name: "DeregisterTwice", engine: true, check: deregisterTwice,
		why: "memory is taken back once; the second try is an error and runs no callback"},
}

func moveSizes(b *bed) {
	a, t := b.pair(na.Config{})
	const size = 600_000
	theirs := make([]byte, size)
	key := t.register(na.ReadWrite, theirs).Key()
	for i, c := range []struct{ loff, roff, n int64 }{
		{0, 0, 0}, {0, 0, 1}, {7, 3, 1}, {size, size, 0}, {size - 1, size - 1, 1}, {1, 0, 4095}, {0, 1, 4096}, {3, 5, 4097},
		{0, 0, 65536}, {11, 13, 262143}, {0, 0, 262144}, {17, 0, 262145}, {0, 9, size - 9}, {0, 0, size},
	} {
		ours := pattern(i, size)
		local := a.private(ours)
		copy(theirs, pattern(1000+i, size))
		want := bytes.Clone(theirs)
		copy(want[c.roff:c.roff+c.n], ours[c.loff:])
		require.Equal(b, c.n, a.put(local, c.loff, t.Self(), key, c.roff, c.n).requireOK().N, "bytes put")
		require.True(b, bytes.Equal(want, theirs), "put of %+v", c)

		copy(theirs, pattern(2000+i, size))
		want = bytes.Clone(ours)
		copy(want[c.loff:c.loff+c.n], theirs[c.roff:])
		require.Equal(b, c.n, a.get(local, c.loff, t.Self(), key, c.roff, c.n).requireOK().N, "bytes got")
		require.True(b, bytes.Equal(want, ours), "get of %+v", c)
	}
}

func moveBounds(b *bed) {
	a, t := b.pair(na.Config{})
	b.connect(a, t)
	arena := fill(300, guard)
	mem := t.register(na.ReadWrite, arena[100:200:200])
	local := a.private(make([]byte, 100))
	type bounds struct{ loff, roff, n int64 }
	for _, c := range []bounds{
		{0, 0, 101}, {0, 1, 100}, {1, 0, 100}, {0, 100, 1}, {100, 0, 1}, {101, 0, 0}, {0, 101, 0}, {-1, 0, 1}, {0, -1, 1},
		{0, 0, -1}, {math.MaxInt64, 0, 1}, {0, math.MaxInt64, 1}, {1, 0, math.MaxInt64}, {0, 1, math.MaxInt64},
		{math.MinInt64, 0, 1}, {0, math.MinInt64, math.MaxInt64}, {50, 50, math.MaxInt64 - 10},
	} {
		what := fmt.Sprintf("put of %+v", c)
		a.call(what).requireRefused(na.ErrInvalid, func(op *na.Op) error {
			return a.Put(op, local, c.loff, t.Self(), mem.Key(), c.roff, c.n)
		})
		a.call("get").requireRefused(na.ErrInvalid, func(op *na.Op) error {
			return a.Get(op, local, c.loff, t.Self(), mem.Key(), c.roff, c.n)
		})
	}
	a.call("put").requireRefused(na.ErrInvalid, func(op *na.Op) error { return a.Put(op, nil, 0, t.Self(), mem.Key(), 0, 1) })

	forged := mem.Key()
	forged.Len = math.MaxInt64
	for _, c := range []bounds{{0, 100, 1}, {0, 1, 100}, {0, 101, 0}, {0, math.MaxInt64 - 100, 100}} {
		a.put(local, c.loff, t.Self(), forged, c.roff, c.n).requireFails(na.ErrInvalid, na.ErrPermission)
		a.get(local, c.loff, t.Self(), forged, c.roff, c.n).requireFails(na.ErrInvalid, na.ErrPermission)
	}
	a.put(local, 0, t.Self(), forged, 0, 100).requireOK()
	require.Equal(b, fill(100, guard), arena[:100], "bytes before the region")
	require.Equal(b, fill(100, guard), arena[200:], "bytes after the region")
}

func movePermission(b *bed) {
	a, t := b.pair(na.Config{})
	theirs, ours := pattern(1, 100), pattern(2, 100)
	local := a.private(ours)
	read, write := t.register(na.ReadOnly, theirs), t.register(na.WriteOnly, theirs)
	put := func(k na.Key) func(*na.Op) error {
		return func(op *na.Op) error { return a.Put(op, local, 0, t.Self(), k, 0, 100) }
	}
	get := func(k na.Key) func(*na.Op) error {
		return func(op *na.Op) error { return a.Get(op, local, 0, t.Self(), k, 0, 100) }
	}
	a.call("put to memory for reading").requireRefused(na.ErrPermission, put(read.Key()))
	a.call("get from memory for writing").requireRefused(na.ErrPermission, get(write.Key()))
	forge := func(m *na.Mem) na.Key {
		k := m.Key()
		k.Access = na.ReadWrite
		return k
	}
	a.call("forged put").start(put(forge(read))).requireFails(na.ErrPermission)
	a.call("forged get").start(get(forge(write))).requireFails(na.ErrPermission)
	require.Equal(b, pattern(1, 100), theirs)
	require.Equal(b, pattern(2, 100), ours)
	a.call("get").start(get(read.Key())).requireOK()
	require.Equal(b, theirs, ours)
	copy(ours, pattern(3, 100))
	a.call("put").start(put(write.Key())).requireOK()
	require.Equal(b, theirs, ours)
	for _, access := range []na.Access{na.NoAccess, na.ReadWrite + 1, 255} {
		_, err := t.cls.Register(access, theirs)
		require.ErrorIs(b, err, na.ErrInvalid, "register for access %d", access)
	}
}

func moveWrongKey(b *bed) {
	a, t := b.pair(na.Config{})
	theirs := pattern(1, 100)
	mem := t.register(na.ReadWrite, theirs)
	local := a.private(fill(100, secret))
	for i := range 40 { // most likely from an earlier instance of the owner
		wrong := mem.Key()
		wrong.Token[i%16] ^= 1
		a.put(local, 0, t.Self(), wrong, 0, 100).requireFails(na.ErrRevoked)
		a.get(local, 0, t.Self(), wrong, 0, 100).requireFails(na.ErrRevoked)
	}
	require.Equal(b, pattern(1, 100), theirs)
	local2 := a.private(make([]byte, 10))
	private, err := a.cls.NewMem(make([]byte, 10))
	require.NoError(b, err)
	k := private.Key()
	k.Access = na.ReadWrite
	a.get(local2, 0, a.Self(), k, 0, 10).requireFails(na.ErrRevoked) // private memory has no key
	a.get(local, 0, t.Self(), mem.Key(), 0, 100).requireOK()
	require.Zero(b, a.Stats().PeersLost)
}

func moveGuessing(b *bed) {
	a, t := b.pair(na.Config{})
	other := b.origin(na.Config{})
	theirs := pattern(1, 100)
	mem := t.register(na.ReadWrite, theirs)
	gone := t.register(na.ReadWrite, theirs)
	t.deregister(gone).requireOK()
	ours := fill(100, secret)
	local := a.private(ours)
	for range 100 {
		a.put(local, 0, t.Self(), gone.Key(), 0, 100).requireFails(na.ErrRevoked)
	}
	require.Zero(b, t.Stats().PeersLost, "sessions lost by a late peer")
	answers := 0
	for i := range 200 { // only a few of them are answered in each session
		wrong := mem.Key()
		wrong.Token[i%16] ^= byte(1 + i)
		answers += map[bool]int{true: 1}[na.CodeOf(a.get(local, 0, t.Self(), wrong, 0, 100).requireFails(na.ErrRevoked, na.ErrPeerLost).Err) == na.ErrRevoked]
		if i%50 == 0 {
			other.get(other.private(make([]byte, 100)), 0, t.Self(), mem.Key(), 0, 100).requireOK()
		}
	}
	require.Equal(b, fill(100, secret), ours)
	require.Equal(b, pattern(1, 100), theirs)
	require.GreaterOrEqual(b, t.Stats().Violations, int64(8), "sessions of a peer that tries keys that were cut")
	require.Greater(b, answers, 100)
	require.Zero(b, other.Stats().PeersLost)
}

func moveAfterDeregister(b *bed) {
	a, t := b.pair(na.Config{})
	theirs := pattern(1, 100)
	local := a.private(fill(100, secret))
	for range 3 {
		mem := t.register(na.ReadWrite, theirs)
		a.get(a.private(make([]byte, 100)), 0, t.Self(), mem.Key(), 0, 100).requireOK()
		t.deregister(mem).requireOK()
		for _, n := range []int64{0, 1, 100} {
			a.put(local, 0, t.Self(), mem.Key(), 0, n).requireFails(na.ErrRevoked)
			a.get(local, 0, t.Self(), mem.Key(), 0, n).requireFails(na.ErrRevoked)
		}
	}
	require.Equal(b, pattern(1, 100), theirs)
	mem := a.register(na.ReadWrite, theirs)
	require.EqualValues(b, 1, a.cls.Regions())
	require.EqualValues(b, 1, a.Stats().Regions)
	require.Zero(b, t.cls.Regions())
	a.deregister(mem).requireOK()
	require.Zero(b, a.cls.Regions())
}

// split splits buf into consecutive segments of random sizes, some of them empty.
func split(r *rand.Rand, buf []byte) (segs [][]byte) {
	for len(buf) > 0 {
		n := 0
		switch r.IntN(4) {
		case 1:
			n = 1
		case 2:
			n = r.IntN(9)
		case 3:
			n = r.IntN(len(buf)) + 1
		}
		n = min(n, len(buf))
		segs = append(segs, buf[:n:n])
		buf = buf[n:]
	}
	return segs
}

func moveSegments(b *bed) {
	a, t := b.pair(na.Config{})
	r := rand.New(rand.NewPCG(1, 2))
	for round := range 12 {
		size := []int{50, 300, 5000}[round%3]
		ours, theirs := pattern(round, size), pattern(100+round, size)
		local, remote := a.private(split(r, ours)...), t.register(na.ReadWrite, split(r, theirs)...)
		require.EqualValues(b, size, remote.Len())
		modelA, modelT := bytes.Clone(ours), bytes.Clone(theirs)
		for range 12 {
			n := r.IntN(size + 1)
			loff, roff := r.IntN(size-n+1), r.IntN(size-n+1)
			if r.IntN(2) == 0 {
				copy(modelT[roff:roff+n], modelA[loff:])
				a.put(local, int64(loff), t.Self(), remote.Key(), int64(roff), int64(n)).requireOK()
			} else {
				copy(modelA[loff:loff+n], modelT[roff:])
				a.get(local, int64(loff), t.Self(), remote.Key(), int64(roff), int64(n)).requireOK()
			}
			require.True(b, bytes.Equal(modelA, ours) && bytes.Equal(modelT, theirs),
				"round %d: %d bytes from %d to %d differ from the model", round, n, loff, roff)
		}
		t.deregister(remote).requireOK()
	}
}

func moveMaxSegments(b *bed) {
	a, t := b.pair(na.Config{})
	limit := a.Limits().MaxSegments
	cut := func(buf []byte, n int) (segs [][]byte) {
		for i := range n {
			segs = append(segs, buf[3*i:3*i+3])
		}
		return segs
	}
	ours, theirs := pattern(1, 3*limit+3), pattern(2, 3*limit+3)
	n := int64(3 * limit)
	local, remote := a.private(cut(ours, limit)...), t.register(na.ReadWrite, cut(theirs, limit)...)
	a.put(local, 0, t.Self(), remote.Key(), 0, n).requireOK()
	require.True(b, bytes.Equal(pattern(1, int(n)), theirs[:n]), "put of %d segments", limit)
	copy(theirs, pattern(3, int(n)))
	a.get(local, 0, t.Self(), remote.Key(), 0, n).requireOK()
	require.True(b, bytes.Equal(pattern(3, int(n)), ours[:n]), "get of %d segments", limit)
	a.get(local, 1, t.Self(), remote.Key(), 2, n-2).requireOK()
	require.True(b, bytes.Equal(theirs[2:n], ours[1:n-1]), "get of %d segments, shifted", limit)
	_, err := a.cls.NewMem(cut(ours, limit+1)...)
	require.ErrorIs(b, err, na.ErrInvalid, "one segment more")
	_, err = a.cls.Register(na.ReadOnly, cut(ours, limit+1)...)
	require.ErrorIs(b, err, na.ErrInvalid, "one segment more")
	require.Zero(b, a.cls.Regions())
}

func moveOverlap(b *bed) {
	a, t := b.pair(na.Config{})
	buf := pattern(1, 1000)
	local := a.private(buf[100:900], buf[:500], buf[100:900], buf[899:900])
	want := bytes.Join([][]byte{buf[100:900], buf[:500], buf[100:900], buf[899:900]}, nil)
	theirs := make([]byte, len(want))
	mem := t.register(na.ReadWrite, theirs)
	a.put(local, 0, t.Self(), mem.Key(), 0, local.Len()).requireOK()
	require.True(b, bytes.Equal(want, theirs), "put of segments that overlap")
}

func moveLarge(b *bed) {
	a, t := b.pair(na.Config{})
	const size = 16 << 20
	src, dst := pattern(1, size), make([]byte, size)
	in := t.register(na.WriteOnly, make([]byte, size))
	out := t.register(na.ReadOnly, pattern(2, size))
	put := a.put(a.private(src), 0, t.Self(), in.Key(), 0, size)
	get := a.get(a.private(dst), 0, t.Self(), out.Key(), 0, size)
	for i := range 20 {
		a.send(t.Self(), na.Tag(i), nil)
		require.Equal(b, na.Tag(i), t.next().tag)
	}
	require.EqualValues(b, size, put.requireOK().N)
	require.EqualValues(b, size, get.requireOK().N)
	require.True(b, bytes.Equal(src, in.Segments()[0]), "16 MiB put")
	require.True(b, bytes.Equal(out.Segments()[0], dst), "16 MiB got")
}

func moveMany(b *bed) {
	a, t := b.pair(na.Config{})
	const n, size = 500, 300
	theirs := pattern(1, n*size)
	get, put := t.register(na.ReadOnly, theirs), t.register(na.WriteOnly, make([]byte, n*size))
	ours, mine := make([]byte, n*size), pattern(2, n*size)
	dst, src := a.private(ours), a.private(mine)
	for i := range int64(n) {
		a.get(dst, i*size, t.Self(), get.Key(), i*size, size)
		a.put(src, i*size, t.Self(), put.Key(), i*size, size)
	}
	for _, c := range b.all() {
		c.requireOK()
	}
	require.True(b, bytes.Equal(theirs, ours), "%d gets", n)
	require.True(b, bytes.Equal(mine, put.Segments()[0]), "%d puts", n)
}

func moveSelf(b *bed) {
	t, o := b.listen(na.Config{}), b.origin(na.Config{})
	for _, pair := range [][2]*side{{t, t}, {t, b.context(t.cls)}, {o, o}, {o, b.context(o.cls)}} {
		from, to := pair[0], pair[1]
		const size = 700_000
		mem := to.register(na.ReadWrite, pattern(1, size))
		theirs := mem.Segments()[0]
		ours := make([]byte, size)
		local := from.private(ours[:300_001], ours[300_001:])
		from.get(local, 0, to.Self(), mem.Key(), 0, size).requireOK()
		require.True(b, bytes.Equal(theirs, ours), "get from %s", to.name)
		copy(ours, pattern(2, size))
		from.put(local, 10, to.Self(), mem.Key(), 5, size-10).requireOK()
		require.True(b, bytes.Equal(ours[10:], theirs[5:size-5]), "put to %s", to.name)
		to.deregister(mem).requireOK()
		from.get(local, 0, to.Self(), mem.Key(), 0, 1).requireFails(na.ErrRevoked)
	}
}

// steps holds the numbers of steps after which rules interfere with a transfer. The intervals
// between them increase.
var steps = func() []int {
	if raceflag.Enabled && !long.On {
		return []int{0, 1, 2, 3, 5, 7, 9, 10, 15, 20, 27, 40}
	}
	return []int{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 12, 15, 20, 27, 40}
}()

// moving is the number of bytes that rules transfer in order to interfere with the transfer. It is
// more than a plugin transfers in one step.
const moving = 1 << 20

func localDeregistered(b *bed) {
	b.rounds(steps, func(k int) {
		a, t := b.pair(na.Config{})
		b.connect(a, t)
		mem := t.register(na.ReadWrite, make([]byte, moving))
		theirs := mem.Segments()[0]
		local := a.register(na.ReadOnly, pattern(k, moving))
		ours := local.Segments()[0]
		move := func(c *call, what string) {
			for range k {
				b.step()
			}
			over := a.deregister(local)
			if !c.ended() {
				a.trigger()
				// If the plugin works concurrently, the transfer may have completed in between, with its
				// callback about to be queued.
				require.False(b, over.ended() && !c.ended() && !b.net.Concurrent, "%s: local memory was given back while the transfer went on", what)
			}
			c.requireOK()
			over.requireOK()
			require.True(b, bytes.Equal(ours, theirs), "%s whose local memory was deregistered after %d turns", what, k)
		}
		move(a.put(local, 0, t.Self(), mem.Key(), 0, moving), "put")
		copy(theirs, pattern(k+100, moving))
		local = a.register(na.WriteOnly, ours)
		move(a.get(local, 0, t.Self(), mem.Key(), 0, moving), "get")
		a.call("get into memory that was taken back").requireRefused(na.ErrRevoked, func(op *na.Op) error {
			return a.Get(op, local, 0, t.Self(), mem.Key(), 0, 1)
		})
		require.Zero(b, a.Stats().PeersLost+t.Stats().PeersLost, "sessions lost")
		b.drain(a, t)
	})
}

func localDeregisteredCancel(b *bed) {
	a, t := b.pair(na.Config{})
	b.connect(a, t)
	theirs := t.mine(moving)
	for _, k := range steps {
		local := a.register(na.ReadOnly, pattern(k, moving))
		move, key := a.put, theirs.in
		if k%2 == 1 {
			move, key = a.get, theirs.out
		}
		c := move(local, 0, t.Self(), key, 0, moving)
		for range k {
			b.step()
		}
		over := a.deregister(local)
		if r := c.cancelNow(); r.Err != nil {
			require.ErrorIs(b, r.Err, na.ErrCanceled)
		}
		require.NoError(b, over.cancelNow().Err, "deregister after the transfer was canceled: the memory is not used")
	}
	b.connect(a, t)
}

func deregisterDuringMove(b *bed) {
	b.rounds(steps, func(k int) {
		a, t := b.pair(na.Config{})
		b.connect(a, t)
		out, in := t.register(na.ReadOnly, pattern(1, moving)), t.register(na.WriteOnly, make([]byte, moving))
		ours := make([]byte, moving)
		get := a.get(a.private(ours), 0, t.Self(), out.Key(), 0, moving)
		put := a.put(a.private(pattern(2, moving)), 0, t.Self(), in.Key(), 0, moving)
		for range k {
			b.step()
		}
		a.parked = true // the peer does nothing from here on
		for _, m := range []*na.Mem{out, in} {
			t.deregister(m).requireOK()
			copy(m.Segments()[0], fill(moving, secret))
		}
		a.parked = false
		if r := get.wait(); r.Err == nil {
			require.True(b, bytes.Equal(pattern(1, moving), ours), "a get that ended with success has wrong bytes")
		} else {
			require.ErrorIs(b, r.Err, na.ErrRevoked)
		}
		if r := put.wait(); r.Err != nil {
			require.ErrorIs(b, r.Err, na.ErrRevoked)
		}
		b.drain(a, t)
		require.Negative(b, bytes.IndexByte(ours, secret), "memory was read after Deregister had ended, %d turns into the transfer", k)
		require.True(b, bytes.Equal(fill(moving, secret), in.Segments()[0]), "memory was written after Deregister had ended, %d turns into the transfer", k)
		a.get(a.private(ours), 0, t.Self(), out.Key(), 0, 1).requireFails(na.ErrRevoked)
		a.put(a.private(ours), 0, t.Self(), in.Key(), 0, 1).requireFails(na.ErrRevoked)
	})
}

func deregisterTwice(b *bed) {
	s := b.listen(na.Config{})
	for _, m := range []*na.Mem{s.register(na.ReadWrite, make([]byte, 10)), s.private(make([]byte, 10))} {
		s.deregister(m).requireOK()
		s.call("second deregister").requireRefused(na.ErrClosed, func(op *na.Op) error { return s.Deregister(op, m) })
	}
	m := s.register(na.ReadOnly) // no segments at all
	require.Zero(b, m.Len())
	s.deregister(m).requireOK()
}
