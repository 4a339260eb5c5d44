package bulk_test

// The bulk cases of C Mercury's own unit tests (Testing/unit/hg/test_bulk.c), each under a name that matches, over
// every transport and in both directions; and the cancel that is not reached there.

import (
	"errors"
	"fmt"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/bulk"
	"github.com/quicksilver-rpc/quicksilver/hg"
	"github.com/quicksilver-rpc/quicksilver/internal/test/transports"
	"github.com/quicksilver-rpc/quicksilver/na"
)

const bufSize = 256 << 10

// moveIn requests a transfer between the target's own memory and the origin's.
type moveIn struct {
	Memory       *bulk.Handle
	Dir          bulk.Dir
	RemoteOffset int64
	LocalOffset  int64
	Size         int64
	Bound        bool   // the owner is the process in the handle, not the caller
	Cancel       bool   // in the middle
	Next         string // forward to there
}

type moveOut struct {
	Moved    int64
	Canceled bool
	Context  int
}

// serveMove pulls and verifies every byte, or pushes a pattern, then answers with the number of
// bytes.
func serveMove(h hg.Request) error {
	var in moveIn
	if err := h.Input(&in); err != nil {
		return err
	}
	mine := newMemory(int(in.LocalOffset), int(in.Size), 64)
	if in.Dir == bulk.Push {
		mine.fill(2)
	}
	l, err := bulk.Create(h.HG(), bulk.Options{Access: bulk.LocalOnly}, mine.segs...)
	if err != nil {
		return err
	}
	spec := bulk.Spec{Dir: in.Dir, Remote: in.Memory, RemoteOffset: in.RemoteOffset, Local: l, LocalOffset: in.LocalOffset, Size: in.Size}
	if !in.Bound {
		spec.Peer = h.Peer()
	}
	if in.Cancel {
		spec.Chunk, spec.Window = 4<<10, 2
		spec.OnProgress = func(op *bulk.Op, _ int64) { op.Cancel() }
	}
	_ = h.Detach()
	_, err = bulk.Transfer(h.HG(), spec, func(op *bulk.Op, err error) {
		out := moveOut{Moved: op.Moved(), Context: h.HG().ID()}
		if in.Cancel && errors.Is(err, hg.ErrCanceled) {
			out.Canceled, err = true, nil
		} else if err == nil && in.Dir == bulk.Pull {
			err = verifyPulled(mine, &in)
		}
		if err != nil {
			_ = h.RespondError(err, nil)
			return
		}
		_ = h.Respond(&out, nil)
	})
	return errors.Join(err, l.Close())
}

func verifyPulled(mine *memory, in *moveIn) error {
	want := make([]byte, in.LocalOffset+in.Size+64)
	copy(want[in.LocalOffset:], pattern(1, int(in.RemoteOffset), int(in.Size)))
	if d := describeDiff(mine.bytes(), want); d != "" {
		return errors.New(d)
	}
	if !mine.hasIntactCanaries() {
		return errors.New("bytes beside the segments were written")
	}
	return nil
}

// An offsets is where a transfer begins on both sides, and its size.
type offsets struct{ origin, local, size int64 }

// big are the combinations of the C suite for a buffer that is not small.
var big = []offsets{
	{0, 0, bufSize},
	{bufSize/2 + 1, 0, bufSize / 4},
	{bufSize/2 + 1, bufSize / 4, bufSize / 8},
}

func equalSegments(n, size int) []int {
	sizes := make([]int, n)
	for i := range sizes {
		sizes[i] = size
	}
	return sizes
}

func TestMercuryBulk(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name string
		segs []int
		at   []offsets
		bind bool
	}{
		{"Null", []int{0, 0}, []offsets{{0, 0, 0}}, false},
		{"ContiguousSizeZero", []int{bufSize}, []offsets{{0, 0, 0}}, false},
		{"ContiguousFull", []int{bufSize}, big[:1], false},
		{"ContiguousPartial", []int{bufSize}, big[1:2], false},
		{"ContiguousPartialBothOffsets", []int{bufSize}, big[2:], false},
		{"Bind", []int{bufSize}, big, true},
		{"Small2x8", []int{8, 8}, []offsets{{0, 0, 16}, {8, 0, 8}, {4, 2, 8}}, false},
		{"Segmented16", equalSegments(16, bufSize/16), big, false},
		{"OverSegmented1024", equalSegments(1024, bufSize/1024), big, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			transports.Each(t, func(t *testing.T, n *transports.Net) {
				m := newMercuryPair(t, n)
				h := m.handle(m.octx, "move")
				defer h.Close()
				for _, dir := range []bulk.Dir{bulk.Pull, bulk.Push} {
					for _, at := range c.at {
						t.Run(fmt.Sprintf("%v %d of %d to %d", dir, at.size, at.origin, at.local), func(t *testing.T) {
							m.move(h, &moveIn{Dir: dir, RemoteOffset: at.origin, LocalOffset: at.local, Size: at.size, Bound: c.bind}, c.segs...)
						})
					}
				}
			})
		})
	}
	t.Run("BindForwarded", func(t *testing.T) { transports.Each(t, mercuryForwarded) })
	t.Run("BulkCancel", func(t *testing.T) { transports.Each(t, mercuryCancel) })
	t.Run("SeveralContexts", func(t *testing.T) { transports.Each(t, mercuryContexts) })
}

// mercuryPair is an origin, which owns memory, and a target, which moves data.
type mercuryPair struct {
	*transports.Net
	t              *testing.T
	target, origin *hg.Class
	tctx, octx     *hg.Context
}

func newMercuryPair(t *testing.T, n *transports.Net) *mercuryPair {
	m := &mercuryPair{Net: n, t: t}
	m.target, m.tctx = n.Target(hg.Config{})
	m.origin, m.octx = n.Target(hg.Config{}) // the owner of a bound handle must be reachable
	m.register(m.target)
	m.register(m.origin)
	return m
}

func (m *mercuryPair) register(cls *hg.Class) {
	m.t.Helper()
	_, err := cls.Register("move", serveMove)
	require.NoError(m.t, err)
	_, err = cls.Register("forward", serveForward)
	require.NoError(m.t, err)
}

func (m *mercuryPair) handle(octx *hg.Context, name string) *hg.Handle {
	m.t.Helper()
	h, err := octx.Create(m.target.Addr(), hg.HashName(name))
	require.NoError(m.t, err)
	return h
}

// move has the target move data from or to new memory of the origin, and verifies every byte.
func (m *mercuryPair) move(h *hg.Handle, in *moveIn, segs ...int) moveOut {
	m.t.Helper()
	opts := bulk.Options{Access: bulk.ReadOnly, Bind: in.Bound}
	theirs := newMemory(segs...)
	if in.Dir == bulk.Push {
		opts.Access = bulk.WriteOnly
	} else {
		theirs.fill(1)
	}
	before := theirs.bytes()
	var err error
	in.Memory, err = bulk.Create(h.HG(), opts, theirs.segs...)
	require.NoError(m.t, err)
	calls := 0
	require.NoError(m.t, h.Forward(in, func(_ *hg.Handle, e error) { calls++; err = e }))
	m.Until(func() bool { return calls > 0 })
	require.NoError(m.t, err)
	var out moveOut
	require.NoError(m.t, h.Output(&out))
	require.NoError(m.t, in.Memory.CloseWait(m.t.Context()))
	require.True(m.t, theirs.hasIntactCanaries(), "bytes beside the segments were written")
	if in.Cancel {
		return out
	}
	require.Equal(m.t, in.Size, out.Moved)
	want := before
	if in.Dir == bulk.Push {
		copy(want[in.RemoteOffset:], pattern(2, int(in.LocalOffset), int(in.Size)))
	}
	require.Empty(m.t, describeDiff(theirs.bytes(), want))
	return out
}

// serveForward passes the handle on to another process, or to this one, which moves the data of the first.
func serveForward(h hg.Request) error {
	var in moveIn
	if err := h.Input(&in); err != nil {
		return err
	}
	next, err := na.ParseAddr(in.Next)
	if err != nil {
		return err
	}
	f, err := h.HG().Create(next, hg.HashName("move"))
	if err != nil {
		return err
	}
	defer f.Close()
	_ = h.Detach()
	return f.Forward(&in, func(f *hg.Handle, err error) {
		var out moveOut
		if err == nil {
			err = f.Output(&out)
		}
		if err != nil {
			_ = h.RespondError(err, nil)
			return
		}
		_ = h.Respond(&out, nil)
	})
}

func mercuryForwarded(t *testing.T, n *transports.Net) {
	m := newMercuryPair(t, n)
	other, _ := n.Target(hg.Config{})
	m.register(other)
	h := m.handle(m.octx, "forward")
	defer h.Close()
	for _, next := range []*hg.Class{m.target, other} {
		for _, dir := range []bulk.Dir{bulk.Pull, bulk.Push} {
			for _, at := range append(big, offsets{1, 3, 500}) {
				in := &moveIn{Dir: dir, RemoteOffset: at.origin, LocalOffset: at.local, Size: at.size, Bound: true, Next: next.Addr().String()}
				m.move(h, in, bufSize/2, bufSize/2)
			}
			m.move(h, &moveIn{Dir: dir, Size: 100, Bound: true, Next: next.Addr().String()}, 100) // along with the handle
		}
	}
}

func mercuryCancel(t *testing.T, n *transports.Net) {
	m := newMercuryPair(t, n)
	h := m.handle(m.octx, "move")
	defer h.Close()
	for _, dir := range []bulk.Dir{bulk.Pull, bulk.Push} {
		for range 3 {
			out := m.move(h, &moveIn{Dir: dir, Size: bufSize, Cancel: true}, bufSize)
			assert.Positive(t, out.Moved)
			if n.Sim { // elsewhere everything may have arrived before OnProgress is called for the first piece
				assert.True(t, out.Canceled)
			}
			assert.Equal(t, out.Canceled, out.Moved < bufSize)
			m.move(h, &moveIn{Dir: dir, Size: bufSize}, bufSize)
		}
	}
}

// mercuryContexts runs the mover on context 2 of the target; the handle belongs to context 1 of the
// origin.
func mercuryContexts(t *testing.T, n *transports.Net) {
	m := newMercuryPair(t, n)
	from := []*hg.Context{m.octx, n.Context(m.origin), n.Context(m.origin)}
	for range 2 {
		n.Context(m.target)
	}
	for _, c := range []struct{ from, target int }{{1, 2}, {0, 1}, {2, 0}, {1, 1}} {
		h := m.handle(from[c.from], "move")
		require.NoError(t, h.SetTarget(c.target))
		for _, dir := range []bulk.Dir{bulk.Pull, bulk.Push} {
			for _, bound := range []bool{false, true} {
				out := m.move(h, &moveIn{Dir: dir, RemoteOffset: 5, LocalOffset: 7, Size: 150_000, Bound: bound}, 50_000, 125_000)
				require.Equal(t, c.target, out.Context)
			}
		}
		h.Close()
	}
}
