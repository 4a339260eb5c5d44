package bulk_test

import (
	"bytes"
	"context"
	"fmt"
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/bulk"
	"github.com/quicksilver-rpc/quicksilver/hg"
	"github.com/quicksilver-rpc/quicksilver/internal/test/transports"
	"github.com/quicksilver-rpc/quicksilver/na"
	"github.com/quicksilver-rpc/quicksilver/plugins/sim"
)

// A pair is two classes: the owner of memory, which listens, and the mover, which starts transfers and does not listen.
type pair struct {
	*transports.Net
	t            *testing.T
	owner, mover *hg.Class
	octx, mctx   *hg.Context
	peer         na.Addr // the owner, as the mover reaches it
	ownWorld     bool    // a world of its own: only this pair drives the two contexts
}

// moverNode is the address of the mover in the simulator.
const moverNode = "mover"

func newPair(t *testing.T, n *transports.Net) *pair { return newPairWith(t, n, hg.Config{}) }

func newPairWith(t *testing.T, n *transports.Net, cfg hg.Config) *pair {
	p := &pair{Net: n, t: t}
	p.owner, p.octx = n.Target(cfg)
	if n.Sim {
		cfg.NA.Plugins = []na.Plugin{n.World.Node(moverNode).Plugin()}
	}
	p.mover, p.mctx = n.Origin(cfg)
	p.peer = p.owner.Addr()
	p.rpc("ping", func(h hg.Request) error { return h.Respond("pong", nil) })
	return p
}

// newWorld returns a pair in a simulator of its own. World and Sim are all of the Net that may be used.
func newWorld(t *testing.T, cfg sim.Config) *pair {
	w := sim.NewWorld(cfg)
	p := &pair{Net: &transports.Net{Sim: true, World: w}, t: t, ownWorld: true}
	open := func(addr, node string) (*hg.Class, *hg.Context) {
		cls, err := hg.Open(addr, hg.Config{NA: na.Config{Plugins: []na.Plugin{w.Node(node).Plugin()}}})
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, cls.Shutdown(context.Background())) })
		hctx, err := cls.NewContext()
		require.NoError(t, err)
		return cls, hctx
	}
	p.owner, p.octx = open("sim://node1", "node1")
	p.mover, p.mctx = open("sim://", moverNode)
	p.peer = p.owner.Addr()
	p.rpc("ping", func(h hg.Request) error { return h.Respond("pong", nil) })
	return p
}

// Until drives all contexts until done reports true.
func (p *pair) Until(done func() bool) {
	p.t.Helper()
	if !p.ownWorld {
		p.Net.Until(done)
		return
	}
	for end := time.Now().Add(time.Minute); !done(); {
		for _, hctx := range []*hg.Context{p.octx, p.mctx} {
			hctx.Trigger(0)
			_ = hctx.Progress(0)
		}
		if time.Now().After(end) {
			p.t.Fatalf("nothing happened for a minute:\n%+v\n%+v", p.octx.Stats(), p.mctx.Stats())
		}
	}
}

// withT returns p for the use of a subtest.
func (p *pair) withT(t *testing.T) *pair {
	q := *p
	q.t = t
	return &q
}

// rpc registers an RPC that the owner serves.
func (p *pair) rpc(name string, handler hg.Handler) hg.ID {
	p.t.Helper()
	_, err := p.owner.Register(name, handler)
	require.NoError(p.t, err)
	id, err := p.mover.Register(name, nil)
	require.NoError(p.t, err)
	return id
}

// stepUntil drives both sides in steps as small as can be, one callback of package na at a time and none of a layer
// above, until done reports true: transfers are met in the middle.
func (p *pair) stepUntil(done func() bool) {
	p.t.Helper()
	end := time.Now().Add(time.Minute)
	for turn := 0; !done(); turn++ {
		hctx := p.octx
		if turn%2 == 0 {
			hctx = p.mctx
		}
		if hctx.NA().Trigger(1) == 0 {
			_ = hctx.NA().Progress(0)
		}
		if time.Now().After(end) {
			p.t.Fatalf("nothing happened for a minute:\n%+v\n%+v", p.octx.Stats(), p.mctx.Stats())
		}
	}
}

// triggerUntil calls Trigger, and Progress never, until done reports true. In the simulator one Trigger must do.
// Elsewhere a goroutine of the transport may be inside a copy from or to user memory at this very moment, which is
// waited for.
func (p *pair) triggerUntil(hctx *hg.Context, done func() bool) {
	p.t.Helper()
	hctx.Trigger(0)
	for end := time.Now().Add(10 * time.Second); !done() && !p.Sim; hctx.Trigger(0) {
		runtime.Gosched()
		if time.Now().After(end) {
			p.t.Fatalf("nothing to trigger for 10 s: %+v", hctx.Stats())
		}
	}
	require.True(p.t, done(), "Trigger runs the callback, without Progress")
}

// decodeRemote returns h as a peer has it.
func decodeRemote(t testing.TB, h *bulk.Handle) *bulk.Handle {
	t.Helper()
	b, err := h.MarshalBinary()
	require.NoError(t, err)
	r := new(bulk.Handle)
	require.NoError(t, r.UnmarshalBinary(b))
	return r
}

// newHandle makes a handle that is closed when the test ends, if the test did not close it.
func newHandle(t testing.TB, hctx *hg.Context, opts bulk.Options, segs ...[]byte) *bulk.Handle {
	t.Helper()
	h, err := bulk.Create(hctx, opts, segs...)
	require.NoError(t, err)
	t.Cleanup(func() { _ = h.Close() })
	return h
}

// newLocalHandle makes a handle for the local side of transfers.
func newLocalHandle(t testing.TB, hctx *hg.Context, segs ...[]byte) *bulk.Handle {
	t.Helper()
	return newHandle(t, hctx, bulk.Options{}, segs...)
}

// outcome records how a transfer ended.
type outcome struct {
	calls int
	err   error
	moved int64
}

func (e *outcome) done(op *bulk.Op, err error) {
	e.calls++
	e.err = err
	e.moved = op.Moved()
}

// transfer runs spec on the mover's side, with all its segments in flight, and returns its error.
func (p *pair) transfer(spec bulk.Spec) outcome {
	p.t.Helper()
	var e outcome
	if spec.Peer.IsZero() {
		spec.Peer = p.peer
	}
	_, err := bulk.Transfer(p.mctx, spec, e.done)
	require.NoError(p.t, err)
	p.Until(func() bool { return e.calls > 0 })
	require.Equal(p.t, 1, e.calls)
	return e
}

// requireIntact requires that RPC and full transfers work over one and the same session as before.
func (p *pair) requireIntact() {
	p.t.Helper()
	p.requireWorks()
	require.Equal(p.t, 1, p.mctx.Stats().NA.Peers, "the session is the same")
	require.Zero(p.t, p.mctx.Stats().NA.PeersLost)
	require.Zero(p.t, p.octx.Stats().NA.PeersLost)
	require.Zero(p.t, p.octx.Stats().NA.Violations)
	require.Zero(p.t, p.mctx.Stats().NA.Violations)
}

// requireWorks requires that RPC and full transfers work.
func (p *pair) requireWorks() {
	p.t.Helper()
	h, err := p.mctx.Create(p.peer, hg.HashName("ping"))
	require.NoError(p.t, err)
	calls := 0
	require.NoError(p.t, h.Forward(nil, func(_ *hg.Handle, e error) { calls++; err = e }))
	p.Until(func() bool { return calls > 0 })
	require.NoError(p.t, err)
	h.Close()

	for _, dir := range []bulk.Dir{bulk.Pull, bulk.Push} {
		theirs, mine := newMemory(70_000), newMemory(70_000)
		from, to := theirs, mine
		if dir == bulk.Push {
			from, to = mine, theirs
		}
		from.fill(77)
		there := newHandle(p.t, p.octx, bulk.Options{Access: bulk.ReadWrite, Eager: -1}, theirs.segs...)
		e := p.transfer(bulk.Spec{Dir: dir, Remote: decodeRemote(p.t, there), Local: newLocalHandle(p.t, p.mctx, mine.segs...), Size: 70_000, Chunk: 16 << 10})
		require.NoError(p.t, e.err)
		require.True(p.t, bytes.Equal(from.bytes(), to.bytes()), "a whole transfer moves the right bytes")
		require.NoError(p.t, there.Close())
	}
}

// period is prime: no two pages, pieces or segments hold the same.
const period = 65521

var cycle = func() []byte {
	b := make([]byte, 2*period)
	x := uint32(1)
	for i := range period {
		x = x*1664525 + 1013904223
		b[i] = byte(x >> 24)
		b[i+period] = b[i]
	}
	return b
}()

// pattern returns the n bytes from offset off on of the pattern number seed.
func pattern(seed, off, n int) []byte {
	b := make([]byte, 0, n)
	at := (off + seed*7919) % period
	for len(b) < n {
		b = append(b, cycle[at:at+min(period, n-len(b))]...)
	}
	return b
}

// A memory is segments of given lengths, each between canaries.
type memory struct {
	segs     [][]byte
	canaries [][]byte
}

const canary = 0xc5

func newMemory(sizes ...int) *memory {
	m := &memory{}
	total := 16
	for _, n := range sizes {
		total += n + 16
	}
	raw := bytes.Repeat([]byte{canary}, total)
	m.canaries = append(m.canaries, raw[:16])
	at := 16
	for _, n := range sizes {
		seg := raw[at : at+n : at+n]
		clear(seg)
		m.segs = append(m.segs, seg)
		m.canaries = append(m.canaries, raw[at+n:at+n+16])
		at += n + 16
	}
	return m
}

// fill writes a pattern over the linear space of all segments.
func (m *memory) fill(seed int) {
	at := 0
	for _, s := range m.segs {
		at += copy(s, pattern(seed, at, len(s)))
	}
}

// fillByte writes one byte everywhere.
func (m *memory) fillByte(b byte) {
	for _, s := range m.segs {
		copy(s, bytes.Repeat([]byte{b}, len(s)))
	}
}

// bytes returns a copy of the linear space.
func (m *memory) bytes() []byte { return bytes.Join(m.segs, nil) }

// isFilledWith reports whether every byte is b.
func (m *memory) isFilledWith(b byte) bool {
	for _, s := range m.segs {
		if n := bytes.Count(s, []byte{b}); n != len(s) {
			return false
		}
	}
	return true
}

// hasIntactCanaries reports whether nothing was written outside the segments.
func (m *memory) hasIntactCanaries() bool {
	for _, c := range m.canaries {
		if bytes.Count(c, []byte{canary}) != len(c) {
			return false
		}
	}
	return true
}

// describeDiff describes the first difference of two byte slices, or returns "".
func describeDiff(got, want []byte) string {
	if len(got) != len(want) {
		return fmt.Sprintf("got %d bytes, want %d", len(got), len(want))
	}
	if bytes.Equal(got, want) {
		return ""
	}
	for i := range got {
		if got[i] != want[i] {
			return fmt.Sprintf("byte %d of %d: got %#x, want %#x", i, len(got), got[i], want[i])
		}
	}
	return ""
}
