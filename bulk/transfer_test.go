package bulk_test

import (
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/bulk"
	"github.com/quicksilver-rpc/quicksilver/hg"
	"github.com/quicksilver-rpc/quicksilver/hg/inspect"
	"github.com/quicksilver-rpc/quicksilver/internal/test/transports"
	"github.com/quicksilver-rpc/quicksilver/na"
)

var seedFlag = flag.Uint64("bulk.seed", 0, "seed of the random tests; 0 draws one")

// newRand returns a source of random numbers whose seed is printed when the test fails.
func newRand(t *testing.T) *rand.Rand {
	seed := *seedFlag
	if seed == 0 {
		seed = rand.Uint64()
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("replay with -bulk.seed=%d", seed)
		}
	})
	return rand.New(rand.NewPCG(seed, 0))
}

// TestSpecRefused checks that the error of every bad field names it, nothing is started and done
// does not run.
func TestSpecRefused(t *testing.T) {
	transports.Each(t, func(t *testing.T, n *transports.Net) {
		p := newPair(t, n)
		there := decodeRemote(t, newHandle(t, p.octx, bulk.Options{Access: bulk.ReadWrite}, make([]byte, 1000)))
		here := newLocalHandle(t, p.mctx, make([]byte, 500))
		closed, err := bulk.Create(p.mctx, bulk.Options{Access: bulk.LocalOnly}, make([]byte, 500))
		require.NoError(t, err)
		require.NoError(t, closed.Close())
		for _, c := range []struct {
			says   string
			is     error
			change func(s *bulk.Spec)
		}{
			{"Spec.Dir is 2", hg.ErrInvalid, func(s *bulk.Spec) { s.Dir = 2 }},
			{"Spec.Remote is not set", hg.ErrInvalid, func(s *bulk.Spec) { s.Remote = nil }},
			{"Spec.Local is not set", hg.ErrInvalid, func(s *bulk.Spec) { s.Local = nil }},
			{"Spec.Local is a remote handle", hg.ErrInvalid, func(s *bulk.Spec) { s.Local = there }},
			{"Spec.Local is a remote handle", hg.ErrInvalid, func(s *bulk.Spec) { s.Local = new(bulk.Handle) }},
			{"Spec.Size is -1", hg.ErrInvalid, func(s *bulk.Spec) { s.Size = -1 }},
			{"Spec.Size is -9223372036854775808", hg.ErrInvalid, func(s *bulk.Spec) { s.Size = -1 << 63 }},
			{"501 bytes at Spec.LocalOffset 0 lie", hg.ErrInvalid, func(s *bulk.Spec) { s.Size = 501 }},
			{"100 bytes at Spec.LocalOffset 401 lie", hg.ErrInvalid, func(s *bulk.Spec) { s.LocalOffset = 401 }},
			{"0 bytes at Spec.LocalOffset 501 lie", hg.ErrInvalid, func(s *bulk.Spec) { s.LocalOffset, s.Size = 501, 0 }},
			{"bytes at Spec.LocalOffset -1 lie", hg.ErrInvalid, func(s *bulk.Spec) { s.LocalOffset = -1 }},
			{"bytes at Spec.LocalOffset 9223372036854775807 lie", hg.ErrInvalid, func(s *bulk.Spec) { s.LocalOffset = 1<<63 - 1 }},
			{"100 bytes at Spec.RemoteOffset 901 lie", hg.ErrInvalid, func(s *bulk.Spec) { s.RemoteOffset = 901 }},
			{"bytes at Spec.RemoteOffset -1 lie", hg.ErrInvalid, func(s *bulk.Spec) { s.RemoteOffset = -1 }},
			{"bytes at Spec.RemoteOffset 9223372036854775807 lie", hg.ErrInvalid, func(s *bulk.Spec) { s.RemoteOffset = 1<<63 - 1 }},
			{"Spec.Chunk is -1", hg.ErrInvalid, func(s *bulk.Spec) { s.Chunk = -1 }},
			{"Spec.Chunk is 1,", hg.ErrInvalid, func(s *bulk.Spec) { s.Chunk = 1 }},
			{"Spec.Chunk is 4095", hg.ErrInvalid, func(s *bulk.Spec) { s.Chunk = 4095 }},
			{"Spec.Window is -1", hg.ErrInvalid, func(s *bulk.Spec) { s.Window = -1 }},
			{"Spec.Window is 65", hg.ErrInvalid, func(s *bulk.Spec) { s.Window = 65 }},
			{"Spec.Peer is not set", hg.ErrInvalid, func(s *bulk.Spec) { s.Peer = na.Addr{} }},
			{"local handle is closed", hg.ErrClosed, func(s *bulk.Spec) { s.Local = closed }},
			{"local handle is closed", hg.ErrClosed, func(s *bulk.Spec) { s.Local, s.Size = closed, 0 }},
			{"allows none", na.ErrPermission, func(s *bulk.Spec) { s.Remote, s.Size = new(bulk.Handle), 0 }},
		} {
			for _, dir := range []bulk.Dir{bulk.Pull, bulk.Push} {
				spec := bulk.Spec{Dir: dir, Peer: p.peer, Remote: there, Local: here, Size: 100}
				c.change(&spec)
				op, err := bulk.Transfer(p.mctx, spec, func(*bulk.Op, error) { t.Error("done of a transfer that did not begin") })
				require.ErrorIs(t, err, c.is, c.says)
				require.Contains(t, err.Error(), c.says)
				require.Nil(t, op)
			}
		}
		p.requireIntact()
		require.Zero(t, p.mctx.Stats().NA.Outstanding)
	})
}

func TestPermissions(t *testing.T) {
	transports.Each(t, func(t *testing.T, n *transports.Net) {
		p := newPair(t, n)
		for _, c := range []struct {
			access     bulk.Access
			pull, push bool
		}{{bulk.ReadOnly, true, false}, {bulk.WriteOnly, false, true}, {bulk.ReadWrite, true, true}} {
			for _, dir := range []bulk.Dir{bulk.Pull, bulk.Push} {
				for _, eager := range []int{0, -1} {
					theirs, mine := newMemory(1000), newMemory(1000)
					theirs.fill(1)
					mine.fill(2)
					there := newHandle(t, p.octx, bulk.Options{Access: c.access, Eager: eager}, theirs.segs...)
					spec := bulk.Spec{Dir: dir, Peer: p.peer, Remote: decodeRemote(t, there), Local: newLocalHandle(t, p.mctx, mine.segs...), Size: 1000}
					if dir == bulk.Pull && c.pull || dir == bulk.Push && c.push {
						e := p.transfer(spec)
						require.NoError(t, e.err)
						require.Empty(t, describeDiff(mine.bytes(), theirs.bytes()))
						continue
					}
					_, err := bulk.Transfer(p.mctx, spec, func(*bulk.Op, error) { t.Error("done of a transfer that did not begin") })
					require.ErrorIs(t, err, na.ErrPermission)
					require.Contains(t, err.Error(), c.access.String())
					require.Contains(t, err.Error(), dir.String())
				}
			}
		}
	})
}

// TestChunks checks the edges of pieces and windows.
func TestChunks(t *testing.T) {
	t.Parallel()
	eachDir(t, func(t *testing.T, p *pair, dir bulk.Dir) {
		for _, c := range []struct {
			size, chunk int64
			window      int
			calls       int64 // of OnProgress at most; 0 for none
		}{
			{0, 0, 0, 0},
			{0, 4096, 64, 0},
			{1, 0, 0, 1},
			{1, 4096, 1, 1},
			{4095, 4096, 1, 1},
			{4096, 4096, 1, 1},
			{4097, 4096, 1, 2},
			{8192, 4096, 64, 2},
			{100_000, 4096, 1, 25},
			{100_000, 4096, 64, 25},
			{300_001, 4097, 64, 74},
			{300_001, 262_144, 2, 2},
			{300_001, 300_000, 1, 2},
			{300_001, 300_001, 1, 1},
			{300_001, 1 << 62, 64, 1},
			{300_001, 0, 0, 1},
		} {
			theirs, mine := newMemory(300_100), newMemory(300_100)
			theirs.fill(1)
			mine.fill(2)
			from, to := theirs.bytes(), mine.bytes()
			if dir == bulk.Push {
				from, to = to, from
			}
			copy(to[30:], from[20:20+c.size])
			there := newHandle(t, p.octx, bulk.Options{Access: bulk.ReadWrite}, theirs.segs...)
			spec := bulk.Spec{Dir: dir, Remote: decodeRemote(t, there), Local: newLocalHandle(t, p.mctx, mine.segs...), Size: c.size, Chunk: c.chunk, Window: c.window,
				RemoteOffset: 20, LocalOffset: 30}
			if dir == bulk.Push {
				spec.RemoteOffset, spec.LocalOffset = 30, 20
			}
			notified, last := int64(0), int64(0)
			spec.OnProgress = func(op *bulk.Op, moved int64) {
				notified++
				require.Greater(t, moved, last)
				require.Equal(t, c.size, op.Size())
				last = moved
			}
			e := p.withT(t).transfer(spec)
			require.NoError(t, e.err)
			require.Equal(t, c.size, e.moved)
			require.Equal(t, c.size, last, "the last call reports all bytes")
			require.LessOrEqual(t, notified, c.calls)
			if c.calls > 0 {
				require.Positive(t, notified)
			}
			got := mine
			if dir == bulk.Push {
				got = theirs
			}
			require.Empty(t, describeDiff(got.bytes(), to), "%+v", c)
			require.True(t, theirs.hasIntactCanaries() && mine.hasIntactCanaries())
		}
	})
}

// A randomTransfer is a random transfer with the memory of both sides as plain slices.
type randomTransfer struct {
	spec               bulk.Spec
	ownerMem, moverMem *memory
	want               [2][]byte // of both sides
	remoteHandle       *bulk.Handle
	outcome
}

func randomSegments(r *rand.Rand) []int {
	segs := make([]int, 1+r.IntN(1+r.IntN(40)))
	for i := range segs {
		switch r.IntN(4) {
		case 0:
			segs[i] = r.IntN(3)
		default:
			segs[i] = r.IntN(1 + r.IntN(8000))
		}
	}
	return segs
}

func totalLen(segs []int) int64 {
	n := 0
	for _, s := range segs {
		n += s
	}
	return int64(n)
}

// newRandomTransfer makes a transfer of any shape, and returns its expected result.
func newRandomTransfer(t *testing.T, p *pair, r *rand.Rand) *randomTransfer {
	d := &randomTransfer{}
	a, b := randomSegments(r), randomSegments(r)
	d.ownerMem, d.moverMem = newMemory(a...), newMemory(b...)
	d.ownerMem.fill(r.IntN(100))
	d.moverMem.fill(100 + r.IntN(100))
	s := &d.spec
	s.Dir = bulk.Dir(r.IntN(2))
	s.Size = r.Int64N(min(totalLen(a), totalLen(b)) + 1)
	s.RemoteOffset = r.Int64N(totalLen(a) - s.Size + 1)
	s.LocalOffset = r.Int64N(totalLen(b) - s.Size + 1)
	s.Window = r.IntN(65)
	if r.IntN(3) > 0 {
		s.Chunk = 4096 + int64(r.IntN(1+r.IntN(20_000)))
	}
	access := []bulk.Access{bulk.ReadWrite, bulk.ReadOnly}[r.IntN(2)]
	if s.Dir == bulk.Push {
		access |= bulk.WriteOnly
	}
	d.remoteHandle = newHandle(t, p.octx, bulk.Options{Access: access, Eager: []int{0, -1, 64 << 10}[r.IntN(3)], Bind: r.IntN(2) == 0}, d.ownerMem.segs...)
	s.Remote, s.Local = decodeRemote(t, d.remoteHandle), newLocalHandle(t, p.mctx, d.moverMem.segs...)
	if s.Peer = p.peer; !s.Remote.Owner().IsZero() && r.IntN(2) == 0 {
		s.Peer = na.Addr{}
	}
	theirs, mine := d.ownerMem.bytes(), d.moverMem.bytes()
	if s.Dir == bulk.Pull {
		copy(mine[s.LocalOffset:], theirs[s.RemoteOffset:s.RemoteOffset+s.Size])
	} else {
		copy(theirs[s.RemoteOffset:], mine[s.LocalOffset:s.LocalOffset+s.Size])
	}
	d.want = [2][]byte{theirs, mine}
	return d
}

// TestTransferOracle compares random segments, offsets, sizes, pieces and windows in both
// directions, several at a time, with copy on slices.
func TestTransferOracle(t *testing.T) {
	transports.Each(t, func(t *testing.T, n *transports.Net) {
		p := newPair(t, n)
		r := newRand(t)
		groups := 12
		if n.Sim {
			groups = 60
		}
		for range groups {
			group := make([]*randomTransfer, 5)
			for i := range group {
				d := newRandomTransfer(t, p, r)
				group[i] = d
				_, err := bulk.Transfer(p.mctx, d.spec, d.done)
				require.NoError(t, err)
			}
			for _, d := range group {
				n.Until(func() bool { return d.calls > 0 })
				require.NoError(t, d.err)
				require.Equal(t, d.spec.Size, d.moved)
			}
			for _, d := range group {
				require.NoError(t, d.remoteHandle.CloseWait(t.Context()))
				require.Equal(t, 1, d.calls)
				what := fmt.Sprintf("%v of %d bytes, %d to %d, pieces of %d, window %d", d.spec.Dir, d.spec.Size, d.spec.RemoteOffset,
					d.spec.LocalOffset, d.spec.Chunk, d.spec.Window)
				require.Empty(t, describeDiff(d.ownerMem.bytes(), d.want[0]), "the owner's side of %s", what)
				require.Empty(t, describeDiff(d.moverMem.bytes(), d.want[1]), "the mover's side of %s", what)
				require.True(t, d.ownerMem.hasIntactCanaries() && d.moverMem.hasIntactCanaries(), what)
			}
		}
	})
}

// TestSegmentCounts transfers from one segment to the maximum, of odd lengths that differ on the
// two sides (F62): every byte arrives, and none outside of the segments is touched.
func TestSegmentCounts(t *testing.T) {
	eachDir(t, func(t *testing.T, p *pair, dir bulk.Dir) {
		const size = 9001
		split := func(count, step int) *memory {
			sizes := make([]int, count)
			left := size
			for i := range count - 1 {
				sizes[i] = min(left, (i*step)%(2*size/count+1))
				left -= sizes[i]
			}
			sizes[count-1] = left
			return newMemory(sizes...)
		}
		for i, counts := range [][2]int{{1, 16384}, {16384, 1}, {2, 3}, {7, 64}, {511, 1023}, {4096, 4096}, {16384, 16384}} {
			theirs, mine := split(counts[0], 3), split(counts[1], 7)
			theirs.fill(i)
			mine.fill(100 + i)
			want := theirs.bytes()
			if dir == bulk.Push {
				want = mine.bytes()
			}
			there := newHandle(t, p.octx, bulk.Options{Access: bulk.ReadWrite}, theirs.segs...)
			e := p.transfer(bulk.Spec{Dir: dir, Remote: decodeRemote(t, there), Local: newLocalHandle(t, p.mctx, mine.segs...), Size: size, Chunk: 4 << 10})
			require.NoError(t, e.err)
			require.Empty(t, describeDiff(theirs.bytes(), want), "%d segments to %d", counts[0], counts[1])
			require.Empty(t, describeDiff(mine.bytes(), want), "%d segments to %d", counts[0], counts[1])
			require.True(t, theirs.hasIntactCanaries() && mine.hasIntactCanaries(), "bytes beside the segments")
		}
		_, err := bulk.Create(p.mctx, bulk.Options{Access: bulk.ReadOnly}, newMemory(make([]int, 16385)...).segs...)
		require.ErrorIs(t, err, hg.ErrInvalid)
		require.ErrorContains(t, err, "16385 memory segments, limit 16384")
	})
}

// TestOnProgress checks that OnProgress gets increasing counts, never twice at a time, never after
// done, and all in the end; several goroutines call Trigger.
func TestOnProgress(t *testing.T) {
	t.Parallel()
	eachDir(t, func(t *testing.T, p *pair, dir bulk.Dir) {
		p.Serve(p.octx, 1)
		p.Serve(p.mctx, 4)
		const size = 256 << 10
		there := newHandle(t, p.octx, bulk.Options{Access: bulk.ReadWrite}, make([]byte, size))
		here := newLocalHandle(t, p.mctx, make([]byte, size))
		for range 6 {
			var inside, over atomic.Int32
			var last atomic.Int64
			end := make(chan error, 2)
			_, err := bulk.Transfer(p.mctx, bulk.Spec{Dir: dir, Peer: p.peer, Remote: decodeRemote(t, there), Local: here, Size: size, Chunk: 4 << 10,
				OnProgress: func(op *bulk.Op, moved int64) {
					assert.EqualValues(t, 1, inside.Add(1), "two calls at a time")
					assert.Zero(t, over.Load(), "a call after done")
					assert.Greater(t, moved, last.Swap(moved))
					assert.LessOrEqual(t, moved, op.Moved())
					p.mctx.Trigger(1) // in any callback, nested calls included
					inside.Add(-1)
				}}, func(_ *bulk.Op, err error) {
				assert.Zero(t, inside.Load(), "done while OnProgress runs")
				over.Store(1)
				end <- err
			})
			require.NoError(t, err)
			require.NoError(t, <-end)
			require.EqualValues(t, size, last.Load())
			require.Empty(t, end)
		}
	})
}

// TestOnProgressOnceATrigger checks that a Trigger that calls OnProgress calls it once, although
// bytes arrive meanwhile: it would not return before the last of them.
func TestOnProgressOnceATrigger(t *testing.T) {
	t.Parallel()
	eachDir(t, func(t *testing.T, p *pair, dir bulk.Dir) {
		s := newTransferTest(t, p, dir, 400_000)
		s.spec.Chunk, s.spec.Window = 4<<10, 1
		calls := 0
		s.spec.OnProgress = func(op *bulk.Op, moved int64) {
			calls++
			s.Until(func() bool { return op.Moved() > moved || op.Moved() == op.Size() })
		}
		s.start()
		rounds := 0
		s.Until(func() bool {
			before := calls
			s.mctx.Trigger(1)
			require.LessOrEqual(t, calls, before+1, "calls of OnProgress in one Trigger")
			rounds += calls - before
			return s.calls > 0
		})
		require.NoError(t, s.err)
		require.Positive(t, rounds)
	})
}

// TestPeerLost has the owner of the memory exit in the middle, close to the end as well.
func TestPeerLost(t *testing.T) {
	transports.Each(t, func(t *testing.T, n *transports.Net) {
		for _, dir := range []bulk.Dir{bulk.Pull, bulk.Push} {
			for _, part := range []int{1, 50, 97} {
				t.Run(fmt.Sprintf("%v/%d%%", dir, part), func(t *testing.T) {
					p := newPair(t, n)
					s := newTransferTest(t, p, dir, 400<<10)
					s.spec.Chunk, s.spec.Window = 4<<10, 1
					notified := int64(0)
					s.spec.OnProgress = func(_ *bulk.Op, moved int64) { notified = moved }
					op := s.start()
					s.stepUntil(func() bool { return op.Moved() >= int64(s.size*part/100) })
					require.NoError(t, p.owner.Close())
					n.Until(func() bool { return s.calls > 0 })
					require.ErrorIs(t, s.err, na.ErrPeerLost)
					s.requireFailed()
					require.GreaterOrEqual(t, s.moved, int64(s.size*part/100))
					require.Equal(t, s.moved, notified)
					require.Zero(t, p.mctx.Stats().NA.Outstanding)
					s.moverMem.fillByte(0xee)
					for range 100 {
						_ = p.mctx.Progress(0)
						p.mctx.Trigger(0)
					}
					require.True(t, s.moverMem.isFilledWith(0xee))
					require.Equal(t, 1, s.calls)

					var e outcome // the next transfer reaches no process
					_, err := bulk.Transfer(p.mctx, s.spec, e.done)
					require.NoError(t, err)
					n.Until(func() bool { return e.calls > 0 })
					require.ErrorIs(t, e.err, hg.ErrUnreachable)
				})
			}
		}
	})
}

// TestPeerReplaced has the owner exit while no piece is in flight, and another process take its
// address: the transfer does not continue there.
func TestPeerReplaced(t *testing.T) {
	eachDir(t, func(t *testing.T, first *pair, dir bulk.Dir) {
		p := newPair(t, first.Net)
		s := newTransferTest(t, p, dir, 512<<10)
		s.spec.Window = 1
		op := s.start()
		s.stepUntil(func() bool { return op.Moved() > 0 })
		for p.mctx.NA().Upper().Queued() == 0 { // the next chunk, whose callback has not run
			_ = p.octx.Progress(0)
			p.octx.Trigger(0)
			_ = p.mctx.NA().Progress(0)
		}
		p.Undriven(p.mctx)
		require.NoError(t, p.owner.Close())
		p.Until(p.owner.NA().Closed)
		_, octx := p.Open(p.owner.Addr().String(), hg.Config{})
		for p.mctx.Stats().NA.Peers > 0 {
			_ = p.mctx.NA().Progress(0) // there is something to trigger: it returns at once
			_ = octx.Progress(0)
		}
		for s.calls == 0 {
			p.mctx.Trigger(0)
			_ = p.mctx.Progress(time.Millisecond)
			octx.Trigger(0)
			_ = octx.Progress(0)
		}
		require.ErrorIs(t, s.err, na.ErrPeerLost)
		s.requireFailed()
		require.Zero(t, octx.Stats().NA.Peers)
	})
}

// TestPeerSilent has an owner that sends nothing, as a process that was stopped: its silence ends
// the transfer.
func TestPeerSilent(t *testing.T) {
	t.Parallel()
	transports.Each(t, func(t *testing.T, n *transports.Net) {
		p := newPairWith(t, n, hg.Config{NA: na.Config{PeerTimeout: 500 * time.Millisecond}})
		g := newStallProxy(p)
		s := newTransferTest(t, p, bulk.Pull, 1<<20)
		g.stallAfter(300_000, true)
		op := s.start()
		s.stepUntil(g.isStalled)
		begun := p.mctx.Now()
		for s.calls == 0 {
			_ = s.mctx.Progress(time.Second)
			s.mctx.Trigger(0)
		}
		require.ErrorIs(t, s.err, na.ErrPeerLost)
		s.requireFailed()
		require.Equal(t, op.Moved(), s.moved)
		took := p.mctx.Now() - begun
		require.Greater(t, took, 300*time.Millisecond)
		require.Less(t, took, 5*time.Second)
		s.moverMem.fillByte(0xee)
		g.resume()
		p.requireWorks()
		require.True(t, s.moverMem.isFilledWith(0xee))
		require.Equal(t, 1, s.calls)
	})
}

// TestSelfTransfer moves data within a process: between its contexts, with a handle of its own or
// one that traveled.
func TestSelfTransfer(t *testing.T) {
	transports.Each(t, func(t *testing.T, n *transports.Net) {
		cls, first := n.Target(hg.Config{})
		second := n.Context(cls)
		for _, dir := range []bulk.Dir{bulk.Pull, bulk.Push} {
			for _, peer := range []na.Addr{first.Self(), second.Self()} {
				for _, travelled := range []bool{false, true} {
					theirs, mine := newMemory(100_000, 1, 200_000), newMemory(300_001)
					from, to := theirs, mine
					if dir == bulk.Push {
						from, to = mine, theirs
					}
					from.fill(1)
					there := newHandle(t, second, bulk.Options{Access: bulk.ReadWrite}, theirs.segs...)
					r := there
					if travelled {
						r = decodeRemote(t, there)
					}
					spec := bulk.Spec{Dir: dir, Peer: peer, Remote: r, Local: newLocalHandle(t, first, mine.segs...), Size: 300_001, Chunk: 10_000, Window: 3}
					var e outcome
					_, err := bulk.Transfer(first, spec, e.done)
					require.NoError(t, err)
					require.Zero(t, e.calls)
					n.Until(func() bool { return e.calls > 0 })
					require.NoError(t, e.err)
					require.Empty(t, describeDiff(to.bytes(), from.bytes()))

					// Cancel works here too.
					var c outcome
					op, err := bulk.Transfer(first, spec, c.done)
					require.NoError(t, err)
					first.NA().Trigger(1)
					op.Cancel()
					for c.calls == 0 { // no Progress
						require.Positive(t, first.Trigger(0)+second.Trigger(0))
					}
					require.ErrorIs(t, c.err, hg.ErrCanceled)
					require.Positive(t, c.moved)

					require.NoError(t, there.Close())
					e = outcome{}
					_, err = bulk.Transfer(first, spec, e.done)
					require.NoError(t, err)
					n.Until(func() bool { return e.calls > 0 })
					require.ErrorIs(t, e.err, na.ErrRevoked)
				}
			}
		}
		first.Trigger(0)
		require.Zero(t, first.Stats().NA.Regions)
	})
}

// TestTransferWithinOneHandle uses one handle for both sides: the halves of a buffer are exchanged
// through nothing else.
func TestTransferWithinOneHandle(t *testing.T) {
	transports.Each(t, func(t *testing.T, n *transports.Net) {
		_, hctx := n.Target(hg.Config{})
		mem := newMemory(1000, 3000)
		mem.fill(1)
		h := newHandle(t, hctx, bulk.Options{Access: bulk.ReadWrite, Bind: true}, mem.segs...)
		var e outcome
		_, err := bulk.Transfer(hctx, bulk.Spec{Remote: h, RemoteOffset: 0, Local: h, LocalOffset: 2000, Size: 2000}, e.done)
		require.NoError(t, err)
		n.Until(func() bool { return e.calls > 0 })
		require.NoError(t, e.err)
		require.Empty(t, describeDiff(mem.bytes(), append(pattern(1, 0, 2000), pattern(1, 0, 2000)...)))
	})
}

func TestTransferWithoutDone(t *testing.T) {
	eachDir(t, func(t *testing.T, p *pair, dir bulk.Dir) {
		s := newTransferTest(t, p, dir, 100_000)
		s.spec.Peer = p.peer
		op, err := bulk.Transfer(p.mctx, s.spec, nil)
		require.NoError(t, err)
		p.Until(func() bool { return op.Moved() == 100_000 })
		require.NoError(t, s.localHandle.CloseWait(t.Context()))
		require.NoError(t, s.remoteHandle.CloseWait(t.Context()))
		require.Empty(t, describeDiff(s.moverMem.bytes(), s.ownerMem.bytes()))
	})
}

func TestManyTransfers(t *testing.T) {
	transports.Each(t, func(t *testing.T, n *transports.Net) {
		p := newPair(t, n)
		const count, each = 64, 60_000
		theirs := newMemory(equalSegments(count, each)...)
		theirs.fill(1)
		there := decodeRemote(t, newHandle(t, p.octx, bulk.Options{Access: bulk.ReadWrite}, theirs.segs...))
		all := make([]outcome, count)
		mine := make([]*memory, count)
		left := count
		for i := range all {
			dir := bulk.Dir(i % 2)
			mine[i] = newMemory(each)
			if dir == bulk.Push {
				mine[i].fill(i + 2)
			}
			_, err := bulk.Transfer(p.mctx, bulk.Spec{Dir: dir, Peer: p.peer, Remote: there, RemoteOffset: int64(i * each),
				Local: newLocalHandle(t, p.mctx, mine[i].segs...), Size: each, Chunk: 4 << 10, Window: 64}, func(op *bulk.Op, err error) {
				all[i].done(op, err)
				left--
			})
			require.NoError(t, err)
		}
		n.Until(func() bool { return left == 0 })
		for i := range all {
			require.NoError(t, all[i].err)
			require.Equal(t, 1, all[i].calls)
			require.Empty(t, describeDiff(mine[i].bytes(), theirs.segs[i]), i)
			if i%2 == 0 {
				require.Empty(t, describeDiff(theirs.segs[i], pattern(1, i*each, each)))
			}
		}
		p.requireIntact()
	})
}

// TestOverlappingPushes has several peers push to the same bytes at once: each byte is one of
// theirs.
func TestOverlappingPushes(t *testing.T) {
	transports.Each(t, func(t *testing.T, n *transports.Net) {
		p := newPair(t, n)
		const size = 200_000
		theirs := newMemory(size/2, size/2)
		there := decodeRemote(t, newHandle(t, p.octx, bulk.Options{Access: bulk.WriteOnly}, theirs.segs...))
		left := 0
		for i := range 4 {
			mctx := p.mctx
			if i%2 == 1 {
				_, mctx = n.Origin(hg.Config{})
			}
			mine := newMemory(size)
			mine.fillByte(byte(i + 1))
			left++
			_, err := bulk.Transfer(mctx, bulk.Spec{Dir: bulk.Push, Peer: p.peer, Remote: there, Local: newLocalHandle(t, mctx, mine.segs...), Size: size,
				Chunk: 10_000}, func(_ *bulk.Op, err error) {
				assert.NoError(t, err)
				left--
			})
			require.NoError(t, err)
		}
		n.Until(func() bool { return left == 0 })
		counts := [256]int{}
		for _, b := range theirs.bytes() {
			counts[b]++
		}
		require.Equal(t, size, counts[1]+counts[2]+counts[3]+counts[4])
		require.True(t, theirs.hasIntactCanaries())
	})
}

func TestTransferInsideDone(t *testing.T) {
	t.Parallel()
	eachDir(t, func(t *testing.T, p *pair, dir bulk.Dir) {
		s := newTransferTest(t, p, dir, 100_000)
		s.spec.Peer = p.peer
		s.spec.Chunk = 16 << 10
		left := 20
		var next func(op *bulk.Op, err error)
		next = func(op *bulk.Op, err error) {
			assert.NoError(t, err)
			if left--; left > 0 {
				_, err := bulk.Transfer(s.mctx, s.spec, next)
				assert.NoError(t, err)
			}
		}
		next(nil, nil)
		p.Until(func() bool { return left == 0 })
		require.Empty(t, describeDiff(s.moverMem.bytes(), s.ownerMem.bytes()))
	})
}

// TestWrongPeer checks that a handle is valid with its owner only.
func TestWrongPeer(t *testing.T) {
	eachDir(t, func(t *testing.T, p *pair, dir bulk.Dir) {
		s := newTransferTest(t, p, dir, 100_000)
		other, octx := p.Target(hg.Config{})
		bystander := newMemory(100_000)
		newHandle(t, octx, bulk.Options{Access: bulk.ReadWrite}, bystander.segs...)
		s.moverMem.fillByte(0xaa)
		s.spec.Peer = other.Addr()
		e := p.withT(t).transfer(s.spec)
		require.ErrorIs(t, e.err, na.ErrRevoked)
		require.Contains(t, e.err.Error(), other.Addr().String())
		require.Zero(t, e.moved)
		require.True(t, bystander.isFilledWith(0))
		require.True(t, s.moverMem.isFilledWith(0xaa))

		s.spec.Peer = other.Addr().WithTarget(5)
		e = p.withT(t).transfer(s.spec)
		require.ErrorIs(t, e.err, hg.ErrUnreachable)
		s.spec.Peer = na.MakeAddr("other://x", 0)
		if _, err := bulk.Transfer(p.mctx, s.spec, e.done); err == nil {
			p.Until(func() bool { return e.calls > 1 })
			err = e.err
			require.ErrorIs(t, err, hg.ErrUnsupported)
		}
		s.requireWorks()
	})
}

func TestClosedContext(t *testing.T) {
	eachDir(t, func(t *testing.T, p *pair, dir bulk.Dir) {
		_, mctx := p.Origin(hg.Config{})
		s := newTransferTest(t, p, dir, 512<<10)
		small := newTransferTest(t, p, bulk.Pull, 100)
		here := newLocalHandle(t, mctx, s.moverMem.segs...)
		spec := s.spec
		spec.Peer, spec.Local = p.peer, here
		var e outcome
		op, err := bulk.Transfer(mctx, spec, e.done)
		require.NoError(t, err)
		q := *s.pair
		q.mctx = mctx
		q.stepUntil(func() bool { return op.Moved() > 0 })
		mctx.Close()
		p.triggerUntil(mctx, func() bool { return e.calls > 0 })
		require.ErrorIs(t, e.err, hg.ErrClosed)
		require.Equal(t, 1, e.calls)
		for _, size := range []int64{0, 1, 100} {
			for _, r := range []*bulk.Handle{spec.Remote, small.spec.Remote} {
				_, err = bulk.Transfer(mctx, bulk.Spec{Dir: dir, Peer: p.peer, Remote: r, Local: here, Size: size}, e.done)
				require.ErrorIs(t, err, hg.ErrClosed)
				require.True(t, strings.Contains(err.Error(), "closed"))
			}
		}
		p.Until(mctx.NA().Closed)
		_, err = bulk.Transfer(mctx, spec, e.done)
		require.ErrorIs(t, err, hg.ErrClosed)
		require.Equal(t, 1, e.calls)
		p.withT(t).requireWorks()
	})
}

func TestErrorText(t *testing.T) {
	addr := na.MakeAddr("tcp://10.0.0.7:9000", 0)
	cause := &na.OpError{Op: "get", Addr: addr, Err: hg.ErrCanceled}
	err := error(&bulk.Error{Dir: bulk.Pull, Peer: addr, Took: 2030 * time.Millisecond, Moved: 3145728, Size: 16777216, Err: cause})
	require.Equal(t, "bulk: pull from tcp://10.0.0.7:9000: operation canceled (moved 3145728 of 16777216 bytes in 2.03s)", err.Error())
	require.ErrorIs(t, err, hg.ErrCanceled)
	require.Equal(t, hg.ErrCanceled, na.CodeOf(err))
	require.Equal(t, cause, errors.Unwrap(err))
	err = &bulk.Error{Dir: bulk.Push, Peer: addr, Size: 10, Err: hg.ErrTimeout}
	require.Equal(t, "bulk: push to tcp://10.0.0.7:9000: deadline exceeded (moved 0 of 10 bytes)", err.Error())
	e, ok := errors.AsType[*bulk.Error](err)
	require.True(t, ok && e.Timeout())
}

// TestTransferIsListed checks that hg.Context.Calls shows a transfer with its progress until it has
// ended.
func TestTransferIsListed(t *testing.T) {
	transports.Each(t, func(t *testing.T, n *transports.Net) {
		p := newPair(t, n)
		there := decodeRemote(t, newHandle(t, p.octx, bulk.Options{Access: bulk.ReadWrite}, make([]byte, 8<<10)))
		here := newLocalHandle(t, p.mctx, make([]byte, 8<<10))
		spec := bulk.Spec{Dir: bulk.Pull, Peer: p.peer, Remote: there, Local: here, Size: 8 << 10, Chunk: 4 << 10, Window: 1}
		var seen []inspect.Call
		spec.OnProgress = func(_ *bulk.Op, moved int64) { seen = append(seen, p.mctx.Calls()...) }
		ended := false
		_, err := bulk.Transfer(p.mctx, spec, func(_ *bulk.Op, err error) {
			require.NoError(t, err)
			require.Empty(t, p.mctx.Calls())
			ended = true
		})
		require.NoError(t, err)
		seen = append(seen, p.mctx.Calls()...)
		p.Until(func() bool { return ended })
		require.GreaterOrEqual(t, len(seen), 2)
		for n, i := range seen {
			if n > 0 && i.State == "moved" { // the last OnProgress is called then
				i.State = "moving"
			}
			require.Equal(t, inspect.Call{Kind: inspect.EventTransfer, RPC: "pull", Peer: p.peer, State: "moving", Age: i.Age, ID: 1, Moved: i.Moved, Size: 8 << 10}, i)
			require.Positive(t, i.Age)
		}
		require.Zero(t, seen[0].Moved)
		require.Positive(t, seen[len(seen)-1].Moved)
	})
}
