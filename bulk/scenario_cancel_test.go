package bulk_test

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/bulk"
	"github.com/quicksilver-rpc/quicksilver/hg"
	"github.com/quicksilver-rpc/quicksilver/internal/test/transports"
	"github.com/quicksilver-rpc/quicksilver/plugins/sim"
)

// A transferTest is a transfer that a test interferes with: memory of the owner, memory of the mover, and how the transfer
// ended.
type transferTest struct {
	*pair
	dir                       bulk.Dir
	size                      int
	ownerMem, moverMem        *memory
	remoteHandle, localHandle *bulk.Handle
	spec                      bulk.Spec
	outcome
}

// eachDir runs f over every transport and in both directions.
func eachDir(t *testing.T, f func(t *testing.T, p *pair, dir bulk.Dir)) {
	transports.Each(t, func(t *testing.T, n *transports.Net) {
		p := newPair(t, n)
		for _, dir := range []bulk.Dir{bulk.Pull, bulk.Push} {
			t.Run(dir.String(), func(t *testing.T) {
				f(t, p.withT(t), dir)
			})
		}
	})
}

// newTransferTest makes memory of size bytes on both sides: the source is full of the pattern 1, the destination of zeroes.
func newTransferTest(t *testing.T, p *pair, dir bulk.Dir, size int) *transferTest {
	s := &transferTest{pair: p.withT(t), dir: dir, size: size}
	s.ownerMem = newMemory(size/3, size-size/3)
	s.moverMem = newMemory(size/5, size-size/5)
	if dir == bulk.Pull {
		s.ownerMem.fill(1)
	} else {
		s.moverMem.fill(1)
	}
	p.mctx.Trigger(0) // left by an earlier scene
	s.remoteHandle = newHandle(t, p.octx, bulk.Options{Access: bulk.ReadWrite, Eager: -1}, s.ownerMem.segs...)
	s.localHandle = newLocalHandle(t, p.mctx, s.moverMem.segs...)
	s.spec = bulk.Spec{Dir: dir, Remote: decodeRemote(t, s.remoteHandle), Local: s.localHandle, Size: int64(size), Chunk: 64 << 10, Window: 2}
	return s
}

func (s *transferTest) start() *bulk.Op {
	s.t.Helper()
	s.spec.Peer = s.peer
	op, err := bulk.Transfer(s.mctx, s.spec, s.done)
	require.NoError(s.t, err)
	return op
}

// cancel cancels the transfer, whose done then runs without Progress.
func (s *transferTest) cancel(op *bulk.Op) {
	s.t.Helper()
	op.Cancel()
	s.triggerUntil(s.mctx, func() bool { return s.calls > 0 })
	s.requireCanceled()
}

// requireCanceledOrDone is canceled for a transfer whose Trigger ran before the cancel: outside the simulator
// the background pollers of both sides may have moved everything meanwhile.
func (s *transferTest) requireCanceledOrDone() {
	s.t.Helper()
	if s.err != nil || s.Sim {
		s.requireCanceled()
		return
	}
	require.Equal(s.t, 1, s.calls)
	require.Equal(s.t, int64(s.size), s.moved)
	s.requireWholePieces(s.moverMem)
}

// requireCanceled requires that the transfer ended by a cancel, once.
func (s *transferTest) requireCanceled() {
	s.t.Helper()
	require.Equal(s.t, 1, s.calls)
	require.ErrorIs(s.t, s.err, hg.ErrCanceled)
	require.ErrorIs(s.t, s.err, context.Canceled)
	s.requireFailed()
}

// requireFailed requires that the error of a transfer that failed has the number of moved bytes.
func (s *transferTest) requireFailed() {
	s.t.Helper()
	var e *bulk.Error
	require.ErrorAs(s.t, s.err, &e)
	require.Positive(s.t, e.Took)
	require.Equal(s.t, bulk.Error{Dir: s.dir, Peer: s.peer, Took: e.Took, Moved: s.moved, Size: int64(s.size), Err: e.Err}, *e)
	require.Less(s.t, s.moved, int64(s.size))
	if s.dir == bulk.Pull { // of a push the owner's side is seen when the rest has arrived: see afterwards
		s.requireWholePieces(s.moverMem)
	}
}

// requireWholePieces requires that as many bytes as were moved are in place, in whole pieces.
func (s *transferTest) requireWholePieces(to *memory) {
	s.t.Helper()
	got, source := to.bytes(), pattern(1, 0, s.size)
	found := int64(0)
	for at := 0; at < s.size; at += int(s.spec.Chunk) {
		end := min(at+int(s.spec.Chunk), s.size)
		if bytes.Equal(got[at:end], source[at:end]) {
			found += int64(end - at)
		}
	}
	require.LessOrEqual(s.t, s.moved, found, "pieces that are reported as moved are not in place")
	require.True(s.t, to.hasIntactCanaries(), "bytes beside the segments were written")
}

// requireReleased requires that done gave the memory back: later writes of the mover to it reach no
// operation. The session is used up to its last byte meanwhile, and works.
func (s *transferTest) requireReleased() {
	s.t.Helper()
	s.moverMem.fillByte(0xee)
	s.requireIntact()
	require.Equal(s.t, 1, s.calls)
	require.True(s.t, s.moverMem.isFilledWith(0xee), "the local memory was written after done")
	source := pattern(1, 0, s.size)
	if s.dir == bulk.Pull {
		require.Empty(s.t, describeDiff(s.ownerMem.bytes(), source))
		return
	}
	s.requireWholePieces(s.ownerMem)
	const block = 1 << 10
	got := s.ownerMem.bytes()
	for at := 0; at < s.size; at += block {
		end := min(at+block, s.size)
		if bytes.Equal(got[at:end], source[at:end]) {
			continue
		}
		for i, b := range got[at:end] { // from the source, or not written, or the rest of a piece that was not finished
			if b != source[at+i] && b != 0 {
				s.t.Fatalf("byte %d of the owner is %#x: the local memory was read after done", at+i, b)
			}
		}
	}
}

func TestCancelThenTriggerWithoutProgress(t *testing.T) {
	eachDir(t, func(t *testing.T, p *pair, dir bulk.Dir) {
		t.Run("before anything moved", func(t *testing.T) {
			s := newTransferTest(t, p, dir, 512<<10)
			op := s.start()
			op.Cancel()
			require.Zero(t, s.calls, "done runs in Trigger")
			s.cancel(op)
			if s.Sim { // elsewhere the background poller may have moved the first pieces already
				require.Zero(t, op.Moved())
			}
			s.requireReleased()
		})
		t.Run("in the middle", func(t *testing.T) {
			s := newTransferTest(t, p, dir, 512<<10)
			op := s.start()
			s.stepUntil(func() bool { return op.Moved() > int64(s.size)/3 })
			require.Zero(t, s.calls)
			s.cancel(op)
			require.Positive(t, s.moved)
			s.requireReleased()
		})
		t.Run("nobody drives the owner", func(t *testing.T) {
			s := newTransferTest(t, p, dir, 512<<10)
			op := s.start()
			_ = s.mctx.Progress(0) // and no Trigger, with the help of which the background pollers of both sides might move everything
			s.cancel(op)
			s.requireReleased()
		})
		t.Run("at every piece", func(t *testing.T) {
			const pieces = 8
			for k := range pieces - 1 {
				s := newTransferTest(t, p, dir, pieces*16<<10)
				s.spec.Chunk, s.spec.Window = 16<<10, 1
				op := s.start()
				s.stepUntil(func() bool { return op.Moved() >= int64(k)*s.spec.Chunk })
				s.cancel(op)
				want := int64(k) * s.spec.Chunk
				if !s.Sim && s.moved != want {
					want += s.spec.Chunk // the next had ended by then, unseen
				}
				require.Equal(t, want, s.moved)
				s.requireReleased()
			}
		})
	})
}

// TestCancelInsideChunk stops the owner in the middle of a piece: half of it is here, and more than
// half in flight.
func TestCancelInsideChunk(t *testing.T) {
	transports.Each(t, func(t *testing.T, n *transports.Net) {
		p := newPair(t, n)
		g := newStallProxy(p)
		p.requireIntact() // connects
		for _, dir := range []bulk.Dir{bulk.Pull, bulk.Push} {
			for _, passed := range []int{100, 300_000, 700_001} {
				t.Run(fmt.Sprintf("%v/%d bytes passed", dir, passed), func(t *testing.T) {
					s := newTransferTest(t, p, dir, 1500<<10)
					s.spec.Chunk = 1500 << 10
					g.stallAfter(passed, dir == bulk.Pull)
					op := s.start()
					s.stepUntil(g.isStalled)
					for range 20 {
						_ = s.mctx.Progress(0)
					}
					s.cancel(op)
					require.Zero(t, s.moved)
					s.moverMem.fillByte(0xee) // at once: the rest of the piece has not arrived
					g.resume()
					s.requireReleased()
				})
			}
		}
	})
}

// TestCancelAfterTheEnd checks that a cancel when everything has arrived is too late: success wins.
func TestCancelAfterTheEnd(t *testing.T) {
	eachDir(t, func(t *testing.T, p *pair, dir bulk.Dir) {
		s := newTransferTest(t, p, dir, 300_000)
		op := s.start()
		s.stepUntil(func() bool { return op.Moved() == int64(s.size) })
		require.Zero(t, s.calls)
		op.Cancel()
		op.Cancel()
		s.mctx.Trigger(0)
		require.Equal(t, 1, s.calls)
		require.NoError(t, s.err)
		require.Empty(t, describeDiff(s.moverMem.bytes(), s.ownerMem.bytes()))
		op.Cancel()
		s.mctx.Trigger(0)
		s.requireIntact()
		require.Equal(t, 1, s.calls)

		for _, size := range []int64{0, 300_000} { // it begins and ends at once, or not
			var e outcome
			spec := s.spec
			spec.Size = size
			op, err := bulk.Transfer(s.mctx, spec, e.done)
			require.NoError(t, err)
			op.Cancel()
			s.triggerUntil(s.mctx, func() bool { return e.calls > 0 })
			require.Equal(t, 1, e.calls)
			if size == 0 {
				require.NoError(t, e.err, "a transfer of nothing has ended when it begins")
			} else {
				require.ErrorIs(t, e.err, hg.ErrCanceled)
			}
		}
		s.requireIntact()
	})
}

// TestCancelWithChunksQueued cancels when pieces have ended and wait for Trigger: they count, and
// nothing follows them.
func TestCancelWithChunksQueued(t *testing.T) {
	eachDir(t, func(t *testing.T, p *pair, dir bulk.Dir) {
		s := newTransferTest(t, p, dir, 512<<10)
		op := s.start()
		for s.mctx.NA().Upper().Queued() < 2 { // both pieces of the window
			_ = s.octx.Progress(0)
			s.octx.Trigger(0)
			_ = s.mctx.NA().Progress(0)
		}
		require.Zero(t, op.Moved())
		s.cancel(op)
		require.Equal(t, 2*s.spec.Chunk, s.moved)
		s.requireReleased()
	})
}

func TestCancelFromManyGoroutines(t *testing.T) {
	eachDir(t, func(t *testing.T, p *pair, dir bulk.Dir) {
		canceled := 0
		for i := range 16 {
			s := newTransferTest(t, p, dir, 192<<10)
			s.spec.Chunk = 16 << 10
			op := s.start()
			var wg sync.WaitGroup
			for g := range 8 {
				wg.Go(func() {
					for range i + g {
						_ = s.mctx.NA().Upper().Queued()
					}
					op.Cancel()
				})
			}
			s.Until(func() bool { return s.calls > 0 })
			wg.Wait()
			s.mctx.Trigger(0)
			require.Equal(t, 1, s.calls)
			if s.err != nil {
				s.requireCanceled()
				canceled++
			}
		}
		t.Logf("%d of 16 canceled", canceled)
		p.requireIntact()
	})
}

// TestCancelRacesTransfer races Cancel with every step of a transfer; goroutines of its own drive
// the mover.
func TestCancelRacesTransfer(t *testing.T) {
	eachDir(t, func(t *testing.T, p *pair, dir bulk.Dir) {
		p.Serve(p.octx, 1)
		p.Serve(p.mctx, 2)
		theirs, mine := newMemory(256<<10), newMemory(256<<10)
		from := theirs
		if dir == bulk.Push {
			from = mine
		}
		from.fill(1)
		there := newHandle(t, p.octx, bulk.Options{Access: bulk.ReadWrite}, theirs.segs...)
		spec := bulk.Spec{Dir: dir, Peer: p.peer, Remote: decodeRemote(t, there), Local: newLocalHandle(t, p.mctx, mine.segs...), Size: 256 << 10, Chunk: 8 << 10}
		canceled := 0
		for i := range 60 {
			over := make(chan error, 2)
			notified := make(chan int64, 64)
			spec.OnProgress = func(_ *bulk.Op, moved int64) { notified <- moved }
			op, err := bulk.Transfer(p.mctx, spec, func(_ *bulk.Op, err error) { over <- err })
			require.NoError(t, err)
			for range i / 10 * (i % 3) { // a little later in each round; calls of OnProgress may be few
				select {
				case <-notified:
				case err := <-over:
					over <- err
				}
			}
			op.Cancel()
			if err := <-over; err != nil {
				require.ErrorIs(t, err, hg.ErrCanceled)
				require.Less(t, op.Moved(), int64(256<<10))
				canceled++
			} else {
				require.Equal(t, int64(256<<10), op.Moved())
			}
			require.Empty(t, over)
		}
		t.Logf("%d of 60 canceled", canceled)
		require.Positive(t, canceled)
		require.Equal(t, 1, p.mctx.Stats().NA.Peers)
		require.Zero(t, p.mctx.Stats().NA.PeersLost)
	})
}

func TestCancelInsideOnProgress(t *testing.T) {
	eachDir(t, func(t *testing.T, p *pair, dir bulk.Dir) {
		s := newTransferTest(t, p, dir, 512<<10)
		notified := 0
		s.spec.OnProgress = func(op *bulk.Op, moved int64) {
			notified++
			require.Positive(t, moved)
			require.Zero(t, s.calls)
			op.Cancel()
			op.Cancel()
		}
		s.start()
		s.Until(func() bool { return s.calls > 0 })
		s.requireCanceledOrDone()
		require.Positive(t, notified)
		s.requireReleased()
	})
}

func TestCancelInsideDoneOfAnother(t *testing.T) {
	eachDir(t, func(t *testing.T, p *pair, dir bulk.Dir) {
		s := newTransferTest(t, p, dir, 512<<10)
		op := s.start()
		small := newTransferTest(t, p, dir, 10_000)
		var e outcome
		small.spec.Peer = p.peer
		_, err := bulk.Transfer(p.mctx, small.spec, func(own *bulk.Op, err error) {
			e.done(own, err)
			own.Cancel() // it has ended: nothing happens
			op.Cancel()
		})
		require.NoError(t, err)
		s.Until(func() bool { return e.calls > 0 })
		s.triggerUntil(s.mctx, func() bool { return s.calls > 0 })
		require.NoError(t, e.err)
		require.Equal(t, 1, e.calls)
		s.requireCanceledOrDone()
		s.requireReleased()
	})
}

// TestCancelBeforeConnected cancels while the session is being made.
func TestCancelBeforeConnected(t *testing.T) {
	eachDir(t, func(t *testing.T, p *pair, dir bulk.Dir) {
		s := newTransferTest(t, p, dir, 512<<10)
		own := newTransferTest(t, p, dir, 512<<10)
		_, fctx := p.Origin(hg.Config{})
		var e outcome
		own.spec.Peer = p.peer
		own.spec.Local = newLocalHandle(t, fctx, own.moverMem.segs...)
		op, err := bulk.Transfer(fctx, own.spec, e.done)
		require.NoError(t, err)
		op.Cancel()
		p.triggerUntil(fctx, func() bool { return e.calls > 0 })
		require.Equal(t, 1, e.calls)
		require.ErrorIs(t, e.err, hg.ErrCanceled)
		require.Zero(t, fctx.Stats().NA.Outstanding)
		s.requireIntact()
	})
}

// TestCancelAtEveryStep calls Cancel, or Close at the owner, after any number of steps, on streams
// that are cut anywhere, with and without a background poller.
func TestCancelAtEveryStep(t *testing.T) {
	r := newRand(t)
	middle, atAll := 0, 0
	for range 25 {
		seed := r.Uint64()
		t.Run(fmt.Sprintf("seed %#x", seed), func(t *testing.T) {
			r := rand.New(rand.NewPCG(seed, 1))
			p := newWorld(t, sim.Config{Seed: seed, Level: sim.LevelB, NoAssist: r.IntN(2) == 0, Faults: sim.Faults{Jitter: time.Duration(r.IntN(20_000))}})
			for range 4 {
				s := newTransferTest(t, p, bulk.Dir(r.IntN(2)), 1+r.IntN(200_000))
				s.spec.Chunk, s.spec.Window = 4096+r.Int64N(60_000), 1+r.IntN(8)
				op := s.start()
				steps := r.IntN(1 + r.IntN(600))
				s.stepUntil(func() bool { steps--; return steps < 0 || op.Moved() == int64(s.size) })
				if atAll++; op.Moved() > 0 && op.Moved() < int64(s.size) {
					middle++
				}
				switch {
				case r.IntN(2) == 0:
					s.revoke()
					s.requireRevoked(true)
				case op.Moved() == int64(s.size):
					op.Cancel()
					s.triggerUntil(s.mctx, func() bool { return s.calls > 0 })
					require.NoError(t, s.err)
				default:
					op.Cancel()
					s.triggerUntil(s.mctx, func() bool { return s.calls > 0 })
					if s.err == nil { // the last pieces had ended, unseen
						s.requireWholePieces(s.moverMem)
						continue
					}
					s.requireCanceled()
					s.requireReleased()
				}
			}
		})
	}
	t.Logf("%d of %d were met in the middle", middle, atAll)
	if atAll == 100 {
		require.Positive(t, middle)
	}
}
