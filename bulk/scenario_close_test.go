package bulk_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"testing"
	"weak"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/bulk"
	"github.com/quicksilver-rpc/quicksilver/hg"
	"github.com/quicksilver-rpc/quicksilver/internal/test/transports"
	"github.com/quicksilver-rpc/quicksilver/na"
)

// revoke closes the owner's handle, whose callback then runs without Progress on either side. Then
// the owner overwrites the memory.
func (s *transferTest) revoke() {
	s.t.Helper()
	calls := 0
	require.NoError(s.t, s.remoteHandle.CloseFunc(func(err error) {
		calls++
		assert.NoError(s.t, err)
	}))
	require.Zero(s.t, calls, "the callback runs in Trigger")
	s.triggerUntil(s.octx, func() bool { return calls > 0 })
	require.Equal(s.t, 1, calls)
	s.ownerMem.fillByte(0xee)
}

// requireRevoked requires that the transfer ends because of that, without taking later bytes for data. If
// all of it was requested before, it may also have been complete in time.
func (s *transferTest) requireRevoked(maybe bool) {
	s.t.Helper()
	s.Until(func() bool { return s.calls > 0 })
	require.Equal(s.t, 1, s.calls)
	if s.err == nil && maybe {
		require.Equal(s.t, int64(s.size), s.moved)
		if s.dir == bulk.Pull {
			s.requireWholePieces(s.moverMem)
		}
	} else {
		require.ErrorIs(s.t, s.err, na.ErrRevoked)
		s.requireFailed()
	}
	s.requireIntact()
	require.Equal(s.t, 1, s.calls)
	require.True(s.t, s.ownerMem.isFilledWith(0xee), "the memory was written after Close had completed")
	require.True(s.t, s.ownerMem.hasIntactCanaries() && s.moverMem.hasIntactCanaries(), "bytes beside the segments were written")
}

func TestCloseWhileAPeerTransfers(t *testing.T) {
	t.Parallel()
	eachDir(t, func(t *testing.T, p *pair, dir bulk.Dir) {
		for _, window := range []int{1, 2, 64} {
			for _, part := range []int64{0, 3, 7} {
				s := newTransferTest(t, p, dir, 320<<10)
				s.spec.Chunk, s.spec.Window = 32<<10, window
				op := s.start()
				s.stepUntil(func() bool { return op.Moved() >= part*s.spec.Chunk })
				asked := op.Moved() + int64(window)*s.spec.Chunk
				s.revoke()
				require.Zero(t, s.calls)
				s.requireRevoked(asked >= int64(s.size))
			}
		}
		require.Zero(t, p.octx.Stats().NA.Regions)
	})
}

// TestCloseWhileAPeerIsFrozen freezes the peer in the middle of a piece: the memory is free all the
// same. Later the peer continues.
func TestCloseWhileAPeerIsFrozen(t *testing.T) {
	t.Parallel()
	transports.Each(t, func(t *testing.T, n *transports.Net) {
		p := newPair(t, n)
		g := newStallProxy(p)
		p.requireIntact() // connects
		for _, dir := range []bulk.Dir{bulk.Pull, bulk.Push} {
			for _, passed := range []int{100, 300_000} {
				t.Run(fmt.Sprintf("%v/%d bytes passed", dir, passed), func(t *testing.T) {
					size := 1500 << 10
					if dir == bulk.Pull && !p.Sim {
						size = 8 << 20 // more than the system buffers while the peer does not read
					}
					s := newTransferTest(t, p, dir, size)
					s.spec.Chunk = 1500 << 10
					g.stallAfter(passed, dir == bulk.Pull)
					op := s.start()
					s.stepUntil(g.isStalled)
					s.revoke()
					require.Zero(t, s.calls, "the peer has not been notified")
					require.Zero(t, op.Moved())
					g.resume()
					s.requireRevoked(false)
				})
			}
		}
	})
}

// TestCloseWaitsForOwnTransfers closes a handle that transfers of this process use as their local
// side: they continue, and Close waits for them.
func TestCloseWaitsForOwnTransfers(t *testing.T) {
	eachDir(t, func(t *testing.T, p *pair, dir bulk.Dir) {
		for _, access := range []bulk.Access{bulk.LocalOnly, bulk.ReadWrite} {
			for _, cancel := range []bool{false, true} {
				t.Run(fmt.Sprintf("%v/cancel=%v", access, cancel), func(t *testing.T) {
					s := newTransferTest(t, p, dir, 512<<10)
					s.localHandle = newHandle(t, s.mctx, bulk.Options{Access: access}, s.moverMem.segs...)
					s.spec.Local = s.localHandle
					var published *bulk.Handle
					if access != bulk.LocalOnly {
						published = decodeRemote(t, s.localHandle)
					}
					op := s.start()
					s.stepUntil(func() bool { return op.Moved() > 0 })
					closed, early := 0, false
					require.NoError(t, s.localHandle.CloseFunc(func(err error) {
						closed++
						early = s.calls == 0
						assert.NoError(t, err)
					}))
					_, err := bulk.Transfer(s.mctx, bulk.Spec{Dir: dir, Peer: p.peer, Remote: s.spec.Remote, Local: s.localHandle, Size: 1}, nil)
					require.ErrorIs(t, err, hg.ErrClosed, "no new transfer begins")
					_, err = s.localHandle.MarshalBinary()
					require.Error(t, err)
					if published != nil { // peers are locked out at once
						var e outcome
						_, err = bulk.Transfer(s.octx, bulk.Spec{Peer: s.mctx.Self(), Remote: published,
							Local: newLocalHandle(t, s.octx, make([]byte, 100_000)), Size: 100_000}, e.done)
						if err == nil {
							s.Until(func() bool { return e.calls > 0 })
							err = e.err
						}
						require.Error(t, err)
					}
					if cancel {
						op.Cancel()
						s.triggerUntil(s.mctx, func() bool { return s.calls > 0 })
						s.triggerUntil(s.mctx, func() bool { return closed > 0 })
						if s.err != nil {
							s.requireCanceled()
						}
					} else {
						s.Until(func() bool { return closed > 0 })
						require.NoError(t, s.err)
						require.Empty(t, describeDiff(s.moverMem.bytes(), s.ownerMem.bytes()))
					}
					require.Equal(t, 1, closed)
					require.Equal(t, 1, s.calls)
					require.False(t, early, "Close completed while the transfer went on")
					s.requireIntact()
				})
			}
		}
	})
}

func TestCloseTwice(t *testing.T) {
	transports.Each(t, func(t *testing.T, n *transports.Net) {
		p := newPair(t, n)
		for _, access := range []bulk.Access{bulk.LocalOnly, bulk.ReadOnly, bulk.ReadWrite} {
			h, err := bulk.Create(p.octx, bulk.Options{Access: access}, make([]byte, 10_000))
			require.NoError(t, err)
			calls := 0
			require.NoError(t, h.CloseFunc(func(error) { calls++ }))
			require.ErrorIs(t, h.CloseFunc(func(error) { calls++ }), hg.ErrClosed)
			p.octx.Trigger(0)
			require.Equal(t, 1, calls)
			require.ErrorIs(t, h.Close(), hg.ErrClosed)
			require.ErrorIs(t, h.CloseWait(t.Context()), hg.ErrClosed)
			require.EqualValues(t, 10_000, h.Len(), "a closed handle can still be looked at")
			require.Len(t, h.Segments(), 1)
		}
		h, err := bulk.Create(p.octx, bulk.Options{Access: bulk.ReadWrite}, make([]byte, 10))
		require.NoError(t, err)
		r := decodeRemote(t, h)
		require.NoError(t, r.Close(), "a remote handle needs no Close")
		require.NoError(t, r.Close())
		require.NoError(t, r.CloseWait(t.Context()))
		require.ErrorIs(t, r.CloseFunc(func(error) { t.Error("must not run") }), hg.ErrInvalid)

		var won, lost int
		var mu sync.Mutex
		var wg sync.WaitGroup
		for range 8 {
			wg.Go(func() {
				err := h.Close()
				mu.Lock()
				defer mu.Unlock()
				if err == nil {
					won++
				} else if errors.Is(err, hg.ErrClosed) {
					lost++
				}
			})
		}
		wg.Wait()
		require.Equal(t, 1, won)
		require.Equal(t, 7, lost)
		p.octx.Trigger(0)
		require.Zero(t, p.octx.Stats().NA.Regions)
	})
}

func TestCloseWait(t *testing.T) {
	eachDir(t, func(t *testing.T, p *pair, dir bulk.Dir) {
		t.Run("a peer transfers", func(t *testing.T) {
			s := newTransferTest(t, p, dir, 640<<10)
			op := s.start()
			s.stepUntil(func() bool { return op.Moved() > 0 })
			require.NoError(t, s.remoteHandle.CloseWait(t.Context()))
			s.ownerMem.fillByte(0xee)
			s.requireRevoked(false)
		})
		t.Run("an own transfer goes on", func(t *testing.T) {
			s := newTransferTest(t, p, dir, 640<<10)
			op := s.start()
			s.stepUntil(func() bool { return op.Moved() > 0 })
			ctx, cancel := context.WithCancelCause(t.Context())
			cause := errors.New("enough")
			cancel(cause)
			if err := s.localHandle.CloseWait(ctx); err != nil { // it may have ended meanwhile, over a real network
				require.ErrorIs(t, err, cause)
				require.Contains(t, err.Error(), "in use by a transfer")
			}
			s.Until(func() bool { return s.calls > 0 })
			require.NoError(t, s.err, "CloseWait gave up, the transfer did not")
			require.ErrorIs(t, s.localHandle.CloseWait(t.Context()), hg.ErrClosed)
		})
		t.Run("inside done", func(t *testing.T) {
			s := newTransferTest(t, p, dir, 100_000)
			s.spec.Peer = p.peer
			var err error
			_, start := bulk.Transfer(s.mctx, s.spec, func(op *bulk.Op, e error) {
				s.done(op, e)
				err = s.localHandle.CloseWait(t.Context())
			})
			require.NoError(t, start)
			s.Until(func() bool { return s.calls > 0 })
			require.NoError(t, s.err)
			require.NoError(t, err)
		})
	})
}

// TestH14CloseInsideCallbackOfCanceledForward runs the sequence of the Mercury cancellation page
// with bulk data: the origin cancels the RPC while the target is pulling, closes the bulk handle in
// the callback, and uses the memory and the RPC handle again when the close has completed.
func TestH14CloseInsideCallbackOfCanceledForward(t *testing.T) {
	transports.Each(t, func(t *testing.T, n *transports.Net) {
		for _, dir := range []bulk.Dir{bulk.Pull, bulk.Push} {
			t.Run(dir.String(), func(t *testing.T) {
				target, tctx := n.Target(hg.Config{})
				origin, octx := n.Origin(hg.Config{})
				mine := newMemory(512 << 10)
				mine.fill(2)
				var (
					op  *bulk.Op
					got outcome
				)
				_, err := target.Register("slow", func(h hg.Request) error {
					var remote bulk.Handle
					if err := h.Input(&remote); err != nil {
						return err
					}
					l, err := bulk.Create(tctx, bulk.Options{Access: bulk.LocalOnly}, mine.segs...)
					if err != nil {
						return err
					}
					_ = h.Detach()
					op, err = bulk.Transfer(tctx, bulk.Spec{Dir: dir, Peer: h.Peer(), Remote: &remote, Local: l, Size: remote.Len(),
						Chunk: 32 << 10, Window: 2}, func(op *bulk.Op, err error) {
						got.done(op, err)
						assert.NoError(t, h.Respond(nil, nil))
					})
					return errors.Join(err, l.Close())
				})
				require.NoError(t, err)
				id, err := origin.Register("slow", nil)
				require.NoError(t, err)

				theirs := newMemory(512 << 10)
				theirs.fill(1)
				there := newHandle(t, octx, bulk.Options{Access: bulk.ReadWrite, Eager: -1}, theirs.segs...)
				h, err := octx.Create(target.Addr(), id)
				require.NoError(t, err)
				defer h.Close()
				p := &pair{Net: n, t: t, octx: octx, mctx: tctx}
				step, again := "", 0
				require.NoError(t, h.Forward(there, func(h *hg.Handle, err error) {
					assert.ErrorIs(t, err, hg.ErrCanceled)
					step = "canceled"
					assert.NoError(t, there.CloseFunc(func(err error) {
						assert.NoError(t, err)
						step = "closed"
						theirs.fillByte(0xee)
					}))
				}))
				n.Until(func() bool { return op != nil })
				p.stepUntil(func() bool { return op.Moved() > 0 })
				h.Cancel()
				p.triggerUntil(octx, func() bool { return step != "" })
				p.triggerUntil(octx, func() bool { return step == "closed" })
				require.Zero(t, got.calls)
				n.Until(func() bool { return got.calls > 0 })
				require.ErrorIs(t, got.err, na.ErrRevoked)
				if dir == bulk.Pull {
					found := 0
					for at, b := 0, mine.bytes(); at < len(b); at += 32 << 10 {
						if bytes.Equal(b[at:at+32<<10], pattern(1, at, 32<<10)) {
							found += 32 << 10
						}
					}
					require.LessOrEqual(t, got.moved, int64(found))
				}
				require.True(t, theirs.isFilledWith(0xee), "the memory was written after the close had completed")

				// The same RPC handle and the same memory, anew.
				theirs.fill(3)
				there = newHandle(t, octx, bulk.Options{Access: bulk.ReadWrite, Eager: -1}, theirs.segs...)
				mine.fill(4)
				got = outcome{}
				require.NoError(t, h.Forward(there, func(_ *hg.Handle, err error) {
					again++
					assert.NoError(t, err)
				}))
				n.Until(func() bool { return again > 0 })
				require.NoError(t, got.err)
				require.Empty(t, describeDiff(mine.bytes(), theirs.bytes()))
				require.NoError(t, there.CloseWait(t.Context()))
				require.Zero(t, octx.Stats().NA.Regions)
				require.Zero(t, octx.Stats().NA.PeersLost)
			})
		}
	})
}

// TestCloseRacesTransfers races Close with transfers of a peer, each side being driven by
// goroutines of its own. In either order: the peer has every byte, or an error; and nothing is
// written after the close.
func TestCloseRacesTransfers(t *testing.T) {
	eachDir(t, func(t *testing.T, p *pair, dir bulk.Dir) {
		p.Serve(p.octx, 1)
		p.Serve(p.mctx, 1)
		const size = 64 << 10
		theirs, mine := newMemory(size), newMemory(size)
		here := newLocalHandle(t, p.mctx, mine.segs...)
		good, bad := 0, 0
		for i := range 40 {
			from, to := theirs, mine
			if dir == bulk.Push {
				from, to = mine, theirs
			}
			from.fill(i)
			to.fillByte(0)
			there := newHandle(t, p.octx, bulk.Options{Access: bulk.ReadWrite, Eager: -1}, theirs.segs...)
			over, notified, closed := make(chan error, 2), make(chan bool, 64), make(chan error, 2)
			_, err := bulk.Transfer(p.mctx, bulk.Spec{Dir: dir, Peer: p.peer, Remote: decodeRemote(t, there), Local: here, Size: size,
				Chunk: 4 << 10, Window: 4, OnProgress: func(*bulk.Op, int64) { notified <- true }}, func(_ *bulk.Op, err error) { over <- err })
			require.NoError(t, err)
			for range i % 5 {
				select {
				case <-notified:
				case err := <-over:
					over <- err
				}
			}
			require.NoError(t, there.CloseFunc(func(err error) { closed <- err }))
			require.NoError(t, <-closed)
			after := theirs.bytes()
			err = <-over
			require.Empty(t, describeDiff(theirs.bytes(), after), "the memory was written after the close had completed")
			if err != nil {
				require.ErrorIs(t, err, na.ErrRevoked)
				bad++
			} else {
				require.Empty(t, describeDiff(to.bytes(), from.bytes()))
				good++
			}
			require.Empty(t, over)
			require.Empty(t, closed)
		}
		t.Logf("%d succeeded, %d were revoked", good, bad)
		require.Positive(t, bad)
		require.Zero(t, p.mctx.Stats().NA.PeersLost)
	})
}

// TestEncodeRacesClose encodes handles in some goroutines while another closes them: they have a
// key and the data, or an error.
func TestEncodeRacesClose(t *testing.T) {
	transports.Each(t, func(t *testing.T, n *transports.Net) {
		_, hctx := n.Origin(hg.Config{})
		for range 50 {
			mem := newMemory(1000, 1000)
			mem.fill(1)
			h, err := bulk.Create(hctx, bulk.Options{Access: bulk.ReadOnly}, mem.segs...)
			require.NoError(t, err)
			var wg sync.WaitGroup
			for range 3 {
				wg.Go(func() {
					for {
						b, err := h.MarshalBinary()
						if err != nil {
							assert.ErrorIs(t, err, hg.ErrClosed)
							return
						}
						assert.True(t, bytes.HasSuffix(b, pattern(1, 0, 2000)))
					}
				})
			}
			require.NoError(t, h.CloseWait(t.Context()))
			mem.fillByte(0xee) // it is ours again
			wg.Wait()
		}
		require.Zero(t, hctx.Stats().NA.Regions)
	})
}

// TestCloseReleasesMemory checks that published memory is kept alive until Close has completed, and
// not longer.
func TestCloseReleasesMemory(t *testing.T) {
	transports.Each(t, func(t *testing.T, n *transports.Net) {
		p := newPair(t, n)
		buf := bytes.Repeat([]byte{7}, 1<<16)
		alive := weak.Make(&buf[0])
		h, err := bulk.Create(p.octx, bulk.Options{Access: bulk.ReadWrite}, buf)
		require.NoError(t, err)
		r := decodeRemote(t, h)
		buf = nil
		for range 3 {
			runtime.GC()
		}
		mine := newMemory(1 << 16)
		pull := bulk.Spec{Remote: r, Local: newLocalHandle(t, p.mctx, mine.segs...), Size: 1 << 16}
		require.NoError(t, p.transfer(pull).err)
		require.True(t, mine.isFilledWith(7))
		require.NotNil(t, alive.Value())
		require.NoError(t, h.CloseWait(t.Context()))
		h = nil
		require.ErrorIs(t, p.transfer(pull).err, na.ErrRevoked)
		for range 100 {
			if runtime.GC(); alive.Value() == nil {
				return
			}
		}
		t.Fatal("the memory is still referred to")
	})
}

// TestCloseAfterTheContext checks that a handle can be closed when its context is closed already,
// and its callback still runs. When that is drained it cannot: the memory is taken back all the
// same, and Closed stays true.
func TestCloseAfterTheContext(t *testing.T) {
	transports.Each(t, func(t *testing.T, n *transports.Net) {
		cls, hctx := n.Origin(hg.Config{})
		h, err := bulk.Create(hctx, bulk.Options{Access: bulk.ReadWrite}, make([]byte, 10))
		require.NoError(t, err)
		other, err := bulk.Create(hctx, bulk.Options{Access: bulk.ReadWrite}, make([]byte, 10))
		require.NoError(t, err)
		require.NoError(t, cls.Close())
		calls := 0
		require.NoError(t, h.CloseFunc(func(error) { calls++ }))
		require.ErrorContains(t, cls.Shutdown(t.Context()), "1 region left")
		require.Equal(t, 1, calls)
		require.ErrorIs(t, other.CloseFunc(func(error) { calls++ }), hg.ErrClosed)
		require.Zero(t, cls.NA().Regions())
		require.Zero(t, hctx.Trigger(0))
		require.Equal(t, 1, calls)
		require.True(t, hctx.NA().Closed())
	})
}
