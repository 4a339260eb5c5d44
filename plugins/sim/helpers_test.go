package sim_test

import (
	"bytes"
	"errors"
	"flag"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/na"
	"github.com/quicksilver-rpc/quicksilver/plugins/sim"
)

var seedFlag = flag.Uint64("sim.seed", 1, "seed of the random tests")

// A testNode is a class with one context.
type testNode struct {
	t    testing.TB
	cls  *na.Class
	nctx *na.Context
	// shared: another coroutine may run the callback that this one waits for
	shared bool
}

func (p *testNode) patience() time.Duration {
	if p.shared {
		return 20 * time.Millisecond
	}
	return -1
}

func openTestNode(t testing.TB, w *sim.World, addr string) *testNode {
	t.Helper()
	return openTestNodeWith(t, na.Config{Plugins: []na.Plugin{w.Plugin()}}, addr)
}

func openTestNodeWith(t testing.TB, cfg na.Config, addr string) *testNode {
	t.Helper()
	cls, err := na.Open(addr, cfg)
	require.NoError(t, err)
	nctx, err := cls.NewContext()
	require.NoError(t, err)
	return &testNode{t: t, cls: cls, nctx: nctx}
}

// An outcome is how an operation ended, once it has.
type outcome struct {
	na.Result
	op    *na.Op
	count int
}

// post starts an operation.
func (p *testNode) post(start func(op *na.Op) error) *outcome {
	p.t.Helper()
	o := &outcome{}
	o.op = p.nctx.NewOp(func(_ *na.Op, r na.Result) {
		o.Result = r
		o.count++
	})
	require.NoError(p.t, start(o.op))
	return o
}

// wait drives the party until o has ended.
func (p *testNode) wait(o *outcome) na.Result {
	p.t.Helper()
	for o.count == 0 {
		if err := p.nctx.Progress(p.patience()); err != nil && !errors.Is(err, na.ErrTimeout) {
			require.NoError(p.t, err)
		}
		p.nctx.Trigger(0)
	}
	require.Equal(p.t, 1, o.count)
	return o.Result
}

func (p *testNode) do(start func(op *na.Op) error) na.Result {
	p.t.Helper()
	return p.wait(p.post(start))
}

func (p *testNode) addr() na.Addr { return p.nctx.Self() }

func (p *testNode) send(to na.Addr, tag na.Tag, text string) na.Result {
	p.t.Helper()
	return p.do(func(op *na.Op) error { return p.nctx.SendUnexpected(op, to, tag, []byte(text)) })
}

func (p *testNode) recv() na.Result {
	p.t.Helper()
	return p.do(p.nctx.RecvUnexpected)
}

func (p *testNode) put(m *na.Mem, to na.Addr, key na.Key) na.Result {
	p.t.Helper()
	return p.do(func(op *na.Op) error { return p.nctx.Put(op, m, 0, to, key, 0, m.Len()) })
}

func (p *testNode) get(m *na.Mem, from na.Addr, key na.Key) na.Result {
	p.t.Helper()
	return p.do(func(op *na.Op) error { return p.nctx.Get(op, m, 0, from, key, 0, m.Len()) })
}

// close closes the class and drives it to its end.
func (p *testNode) close() {
	p.t.Helper()
	require.NoError(p.t, p.cls.Close())
	for !p.cls.Closed() {
		p.nctx.Trigger(0)
		if err := p.nctx.Progress(time.Millisecond); err != nil && !errors.Is(err, na.ErrTimeout) {
			break
		}
	}
	require.True(p.t, p.cls.Closed())
}

// mem returns registered memory with a pattern in it, in segments of the given sizes.
func (p *testNode) mem(access na.Access, seed byte, sizes ...int) *na.Mem {
	p.t.Helper()
	m, err := p.cls.Register(access, segments(seed, sizes...)...)
	require.NoError(p.t, err)
	return m
}

// local returns private memory with a pattern in it.
func (p *testNode) local(seed byte, sizes ...int) *na.Mem {
	p.t.Helper()
	m, err := p.cls.NewMem(segments(seed, sizes...)...)
	require.NoError(p.t, err)
	return m
}

// segments returns memory in which every byte follows from its offset and the seed.
func segments(seed byte, sizes ...int) [][]byte {
	var all [][]byte
	off := 0
	for _, n := range sizes {
		all = append(all, bytes.Clone(patternAt(seed, off, n)))
		off += n
	}
	return all
}

var noise = sync.OnceValue(func() []byte {
	b := make([]byte, 9<<20)
	_, _ = rand.NewChaCha8([32]byte{1}).Read(b)
	return b
})

// patternAt returns the n bytes of the pattern at an offset. They must not be modified.
func patternAt(seed byte, off, n int) []byte {
	from := int(seed)*4099 + off
	return noise()[from : from+n]
}

// requirePattern fails the test unless m holds the pattern of seed.
func requirePattern(t testing.TB, m *na.Mem, seed byte) {
	t.Helper()
	off := 0
	for i, s := range m.Segments() {
		if !bytes.Equal(s, patternAt(seed, off, len(s))) {
			t.Fatalf("segment %d of %d bytes at %d does not hold the pattern", i, len(s), off)
		}
		off += len(s)
	}
}

// eachLevel runs a test on both levels.
func eachLevel(t *testing.T, f func(t *testing.T, cfg sim.Config)) {
	t.Helper()
	for name, level := range map[string]sim.Level{"A": sim.LevelA, "B": sim.LevelB} {
		t.Run(name, func(t *testing.T) { f(t, sim.Config{Seed: *seedFlag, Level: level}) })
	}
}
