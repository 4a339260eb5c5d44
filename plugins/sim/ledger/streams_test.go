package ledger

import (
	"encoding/binary"
	"errors"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/internal/raceflag"
	"github.com/quicksilver-rpc/quicksilver/internal/test/long"
	"github.com/quicksilver-rpc/quicksilver/na"
	"github.com/quicksilver-rpc/quicksilver/plugins/sim"
)

var (
	streamSeeds = flag.Int("sim.streams", long.Or(300, 10_000), "seeds that TestStreams runs")
	streamSeed  = flag.Uint64("sim.stream", 0, "the one seed that TestStreams runs; 0 runs many")
)

// A streamWorld is one seed: nodes that call one another with streams, beside messages and puts,
// cancel, reset and crash, under faults and with limits of a few places.
//
//	work ─► calm: no new calls, no faults ─► each stream ends but those of paused ends ─► these continue, too ─► audit ─► close
//
// The ledger has a line for each stream, whose bytes follow from its number and their offsets.
type streamWorld struct {
	seed    uint64
	w       *sim.World
	rng     *rand.Rand
	cfg     na.Config
	clean   bool // nothing may be lost
	crashes int
	nodes   []*streamNode // those that are alive
	lines   []*streamLine
	calls   []*streamCall
	made    uint64
	calmed  bool
	resumed bool // paused ends continue, too
	failed  error

	resets, whole, lost, opened int
}

// A streamLine is one stream.
type streamLine struct {
	n        int
	up, bulk bool
	total    int // bytes that are to be written
	wrote    int
	read     int
	ended    bool // CloseWrite was called, or Fail
	fails    bool // Fail was
	reset    bool // an end of it was reset or closed before its end, or its call never ran
	gone     bool // a node with one of its ends has crashed
	eof      bool
	err      error // the error that its reader got
	there    bool  // the target has opened it
	stalled  bool  // one of its ends is stalled until the others have ended
}

// A streamCall is one call with streams.
type streamCall struct {
	n        int
	lines    []*streamLine
	from, to *streamNode
	op       *na.Op
	ended    bool
	ends     []*streamEnd // at the origin
}

// A streamEnd is one end of a stream.
type streamEnd struct {
	*na.Stream
	line    *streamLine
	sends   bool
	ready   int // how often step was called
	tried   int // ready when the answer was ErrAgain
	again   bool
	stalled bool // it stands still
	done    bool
}

// A heldRequest is one that a target has taken and not dealt with.
type heldRequest struct {
	env  *na.Envelope
	call *streamCall
}

// A streamNode is a node with its program.
type streamNode struct {
	s        *streamWorld
	i        int
	rng      *rand.Rand
	node     *sim.Node
	cls      *na.Class
	nctx     *na.Context
	mem      *na.Mem // that others put to
	pending  int     // operations that have not ended, but for the receive
	ends     []*streamEnd
	calls    []*streamCall
	held     []heldRequest
	begun    int
	receives bool
	quiet    bool // nothing is left here
	crashed  bool
}

func newStreamWorld(seed uint64) *streamWorld {
	s := &streamWorld{seed: seed, rng: newRand(seed, 3000)}
	r := newRand(seed, 3001)
	pick := func(of ...int) int { return of[r.IntN(len(of))] }
	cfg := sim.Config{Seed: seed, Level: sim.Level(r.IntN(2)), NoAssist: r.IntN(4) == 0}
	if r.IntN(3) == 0 {
		s.clean = true
		cfg.Faults = sim.Faults{Jitter: time.Duration(r.IntN(100)) * time.Microsecond, Narrow: float64(r.IntN(2))}
	} else {
		cfg.Faults = sim.Storm().Draw(r)
		cfg.Faults.CorruptBulk = false // no checksum covers it
		s.crashes = r.IntN(3)
	}
	s.cfg = na.Config{
		Room: int64(pick(0, 0, 1, 20_000, 70_000, 1<<20)), Eager: pick(256, 1024, 4096), Envelopes: 1 + r.IntN(8),
		IdleTimeout: time.Duration(pick(0, 1, int(time.Second))),
	}
	s.w = sim.NewWorld(cfg)
	for i := range 2 + r.IntN(2) {
		s.nodes = append(s.nodes, nil)
		s.start(i)
	}
	return s
}

func (s *streamWorld) fail(format string, args ...any) {
	if s.failed == nil {
		s.failed = fmt.Errorf(format, args...)
	}
}

func (s *streamWorld) summary() string {
	return fmt.Sprintf("clean %v, crashes %d, %d nodes, Room %d, Eager %d, Envelopes %d; %d streams, %d opened, %d whole, %d reset, %d lost, virtual %v", s.clean,
		s.crashes, len(s.nodes), s.cfg.Room, s.cfg.Eager, s.cfg.Envelopes, len(s.lines), s.opened, s.whole, s.resets, s.lost, s.w.Now())
}

// run is the whole life of the world.
func (s *streamWorld) run() error {
	defer s.w.Close()
	s.w.Go("chaos", s.runFaults)
	if err := s.w.Run(time.Hour); err != nil {
		return errors.Join(s.failed, err)
	}
	if s.failed == nil {
		s.audit()
	}
	return s.failed
}

const streamCalls = 10 // of each node

// runFaults crashes nodes, and calms the world when the work is done.
func (s *streamWorld) runFaults() {
	for left := s.crashes; s.failed == nil; {
		s.w.Sleep(time.Duration(1+s.rng.IntN(3000)) * time.Microsecond)
		begun, want := 0, len(s.nodes)*streamCalls
		for _, n := range s.nodes {
			begun += n.begun
		}
		if begun >= want || s.w.Now() > 2*time.Minute {
			break
		}
		if left > 0 && begun*(s.crashes+1) >= want*(s.crashes-left+1) {
			left--
			s.crash(s.rng.IntN(len(s.nodes)))
		}
	}
	s.w.SetFaults(sim.Faults{})
	s.w.Heal()
	s.calmed = true
}

func (s *streamWorld) crash(i int) {
	old := s.nodes[i]
	old.crashed = true
	for _, c := range s.calls {
		for _, l := range c.lines {
			l.gone = l.gone || c.from == old || c.to == old
		}
	}
	old.node.Crash()
	s.w.Sleep(time.Duration(s.rng.IntN(20_000)) * time.Microsecond)
	s.start(i).begun = old.begun
}

func (s *streamWorld) start(i int) *streamNode {
	s.made++
	n := &streamNode{s: s, i: i, rng: newRand(s.seed, 3001+s.made), node: s.w.Node(fmt.Sprint("n", i))}
	s.nodes[i] = n
	n.node.Go(n.main)
	return n
}

func (n *streamNode) main() {
	cfg := n.s.cfg
	cfg.Plugins = []na.Plugin{n.node.Plugin()}
	var err error
	if n.cls, err = na.Open(fmt.Sprint("sim://n", n.i), cfg); err != nil {
		panic(err)
	}
	if n.nctx, err = n.cls.NewContext(); err != nil {
		panic(err)
	}
	n.mem, _ = n.cls.Register(na.WriteOnly, make([]byte, 5000)) // a post may fail
	for n.s.failed == nil && !n.s.calmed {
		if n.begun < streamCalls && n.rng.IntN(3) == 0 {
			n.doOne()
		}
		n.actAndDrive()
	}
	limit, resumed := n.nctx.Now()+10*time.Minute, false
	for n.s.failed == nil && !n.s.allQuiet() {
		if n.s.resumed = n.s.resumed || n.s.isQuiet(); n.s.resumed && !resumed {
			limit, resumed = n.nctx.Now()+10*time.Minute, true
		}
		n.actAndDrive()
		n.quiet = n.pending == 0 && len(n.ends) == 0 && len(n.held) == 0 && n.nctx.Stats().Streams == 0 && n.nctx.Stats().Envelopes == 0
		if n.nctx.Now() > limit {
			n.reportStuck()
		}
	}
	n.close()
}

func (s *streamWorld) allQuiet() bool {
	return !slices.ContainsFunc(s.nodes, func(n *streamNode) bool { return !n.quiet })
}

// isQuiet reports whether every stream has ended, except those of paused ends.
func (s *streamWorld) isQuiet() bool {
	return !slices.ContainsFunc(s.nodes, func(n *streamNode) bool {
		return n.pending > 0 || len(n.held) > 0 || slices.ContainsFunc(n.ends, func(e *streamEnd) bool { return !e.line.stalled })
	})
}

// reportStuck reports the streams that make no progress although there are no faults.
func (n *streamNode) reportStuck() {
	text := ""
	for _, n := range n.s.nodes {
		text += fmt.Sprintf("\nnode %d: %d operations, %d requests held, %d callbacks, %+v", n.i, n.pending, len(n.held), n.nctx.Upper().Queued(), n.nctx.Stats())
		for _, e := range n.ends {
			text += fmt.Sprintf("\nend of stream %d, sends %v: %+v, moved %d, again %v, ready %d of %d", e.line.n, e.sends, *e.line, e.Moved(), e.again, e.ready, e.tried)
		}
	}
	n.s.fail("something stands still: %s", text)
}

func (n *streamNode) close() {
	for _, e := range n.ends {
		e.Close()
	}
	for _, h := range n.held {
		h.env.Free()
	}
	clean := n.s.failed == nil
	for _, p := range n.nctx.Peers() {
		if clean && p.RoomHeld != 0 {
			n.s.fail("node %d holds %d bytes of room of %v", n.i, p.RoomHeld, p.Addr)
		}
	}
	_ = n.cls.Close()
	for i := 0; !n.cls.Closed() && i < 100_000; i++ {
		n.nctx.Trigger(0)
		_ = n.nctx.Progress(100 * time.Microsecond)
	}
	if st := n.nctx.Stats(); clean && (!n.cls.Closed() || st.Reserved != 0 || st.Streams != 0 || n.nctx.Live() != 0) {
		n.s.fail("node %d: closed %v, %d live, %+v", n.i, n.cls.Closed(), n.nctx.Live(), st)
	}
}

// startOp starts an operation whose end is counted.
func (n *streamNode) startOp(start func(op *na.Op) error, done func(r na.Result)) *na.Op {
	op := n.nctx.NewOp(func(_ *na.Op, r na.Result) {
		n.pending--
		done(r)
	})
	n.pending++
	if err := start(op); err != nil {
		n.pending--
		done(na.Result{Err: err})
	}
	return op
}

// receive has a receive for requests posted, one after the other.
func (n *streamNode) receive() {
	if n.receives {
		return
	}
	op := n.nctx.NewOp(func(op *na.Op, r na.Result) {
		n.receives = false
		if r.Err != nil {
			return
		}
		if k := binary.LittleEndian.Uint64(r.Envelope.Data[8:]); k > 0 {
			n.held = append(n.held, heldRequest{r.Envelope, n.s.calls[k-1]})
		} else {
			r.Envelope.Free()
		}
	})
	n.receives = n.nctx.RecvUnexpected(op) == nil // a post may fail
}

// actAndDrive does some acts, and drives.
func (n *streamNode) actAndDrive() {
	n.receive()
	for i := 0; i < len(n.held); i++ {
		if n.s.calmed || n.rng.IntN(4) == 0 {
			h := n.held[i]
			n.held = slices.Delete(n.held, i, i+1)
			n.answer(h)
			i--
		}
	}
	for _, e := range n.ends {
		e.pump(n)
	}
	n.ends = slices.DeleteFunc(n.ends, func(e *streamEnd) bool { return e.done })
	if !n.s.calmed && n.rng.IntN(30) == 0 && len(n.ends) > 0 {
		n.ends[n.rng.IntN(len(n.ends))].kill(n)
	}
	if !n.s.calmed && n.rng.IntN(60) == 0 && len(n.calls) > 0 {
		c := n.calls[n.rng.IntN(len(n.calls))]
		if !c.ended {
			c.op.Cancel()
		}
	}
	_ = n.nctx.Progress(time.Duration(n.rng.IntN(300)) * time.Microsecond)
	n.nctx.Trigger(0)
}

// doOne starts a random operation.
func (n *streamNode) doOne() {
	to := n.s.nodes[n.rng.IntN(len(n.s.nodes))]
	addr := na.MakeAddr(fmt.Sprint("sim://n", to.i), 0)
	switch n.rng.IntN(6) {
	case 0: // a message
		n.startOp(func(op *na.Op) error {
			return n.nctx.SendUnexpected(op, addr, 1, make([]byte, 16+n.rng.IntN(200)))
		}, func(na.Result) {})
	case 1: // a put
		m, err := n.cls.NewMem(make([]byte, 1+n.rng.IntN(5000)))
		if err == nil && to.mem != nil {
			n.startOp(func(op *na.Op) error {
				return n.nctx.Put(op, m, 0, addr, to.mem.Key(), 0, m.Len())
			}, func(na.Result) {})
		}
	default:
		n.begun++
		n.call(to, addr)
	}
}

// call begins a call with streams.
func (n *streamNode) call(to *streamNode, addr na.Addr) {
	s := n.s
	c := &streamCall{n: len(s.calls) + 1, from: n, to: to}
	s.calls = append(s.calls, c)
	n.calls = append(n.calls, c)
	spec := na.CallSpec{To: addr, Tag: na.Tag(c.n), Msg: make([]byte, 16), Buf: make([]byte, 1)}
	bulk := n.rng.IntN(2) == 0
	for range 1 + n.rng.IntN(4) {
		l := &streamLine{n: len(s.lines), up: n.rng.IntN(2) == 0, bulk: bulk, total: size(n.rng, 1<<(6+n.rng.IntN(12)))}
		s.lines = append(s.lines, l)
		c.lines = append(c.lines, l)
		e := n.end(l, l.up)
		var err error
		if e.Stream, err = n.nctx.Upper().NewStream(l.up, bulk, e.step, nil); err != nil {
			s.fail("NewStream: %v", err)
			return
		}
		c.ends = append(c.ends, e)
		spec.Streams = append(spec.Streams, e.Stream)
	}
	n.ends = append(n.ends, c.ends...)
	binary.LittleEndian.PutUint64(spec.Msg[8:], uint64(c.n))
	c.op = n.startOp(func(op *na.Op) error { return n.nctx.Upper().Call(op, spec) }, func(r na.Result) {
		c.ended = true
		if r.Err == nil && spec.Buf[0] == 0 {
			return // the streams continue
		}
		for _, e := range c.ends {
			if !e.done || e.line.ended { // the target may not have opened it
				e.line.reset = true
				e.Reset(na.ErrTooLate, "the call has failed")
				e.Close()
				e.done = true
			}
		}
	})
}

func (n *streamNode) end(l *streamLine, sends bool) *streamEnd {
	e := &streamEnd{line: l, sends: sends, stalled: n.rng.IntN(6) == 0}
	l.stalled = l.stalled || e.stalled
	return e
}

func (e *streamEnd) step(any) int { e.ready++; return 1 }

// answer deals with a request: it opens its streams and answers, or refuses it.
func (n *streamNode) answer(h heldRequest) {
	h.call.to = n // which may have begun again since the call did
	code := byte(0)
	id := na.StreamID(h.env.Data)
	if n.rng.IntN(8) == 0 {
		code = 1
	}
	for i, l := range h.call.lines {
		if code != 0 {
			l.reset = true
			continue
		}
		e := n.end(l, !l.up)
		var err error
		if e.Stream, err = n.nctx.Upper().OpenStream(h.env, id+uint64(i), l.up, l.bulk, e.step, nil); err != nil {
			if !errors.Is(err, na.ErrPeerLost) {
				n.s.fail("OpenStream of %d: %v", l.n, err)
			}
			l.reset = true
			continue
		}
		if l.there {
			n.s.fail("stream %d is opened twice", l.n)
		}
		l.there = true
		n.s.opened++
		n.ends = append(n.ends, e)
	}
	from := h.env.From
	h.env.Free()
	n.reply(from, na.Tag(h.call.n), []byte{code})
}

// reply answers, and again if the post has failed.
func (n *streamNode) reply(to na.Addr, tag na.Tag, msg []byte) {
	n.startOp(func(op *na.Op) error { return n.nctx.SendExpected(op, to, tag, msg) }, func(r na.Result) {
		if errors.Is(r.Err, na.ErrAgain) || errors.Is(r.Err, na.ErrNoMemory) {
			n.pending++
			n.s.w.After(time.Millisecond, func() { n.pending--; n.reply(to, tag, msg) })
		}
	})
}

// kill ends a stream before its end.
func (e *streamEnd) kill(n *streamNode) {
	if e.done {
		return
	}
	n.s.resets++
	e.line.reset = true
	if n.rng.IntN(2) == 0 {
		e.Reset(na.ErrOverflow, "killed")
	}
	e.Close()
	e.done = true
}

// streamByte returns the byte of a stream at an offset.
func streamByte(line, off int) byte { return byte(line*7 + off ^ off>>8*13) }

// pump writes or reads some.
func (e *streamEnd) pump(n *streamNode) {
	if e.done || e.again && e.ready == e.tried || e.stalled && !n.s.resumed || !n.s.calmed && n.rng.IntN(3) == 0 {
		return
	}
	e.again = false
	if e.sends {
		e.write(n)
		return
	}
	e.receive(n)
}

func (e *streamEnd) write(n *streamNode) {
	l := e.line
	if l.wrote == l.total {
		if !l.ended {
			l.ended, l.fails = true, n.rng.IntN(4) == 0
		}
		if l.fails {
			e.Fail(na.ErrIO, "the reader has failed")
		} else {
			e.CloseWrite()
		}
		if n.rng.IntN(2) == 0 || n.s.calmed {
			e.Close()
			e.done = true
		}
		return
	}
	b := make([]byte, min(l.total-l.wrote, 1+size(n.rng, 40_000)))
	for i := range b {
		b[i] = streamByte(l.n, l.wrote+i)
	}
	k, err := e.give(n, b)
	l.wrote += k
	switch {
	case errors.Is(err, na.ErrAgain):
		e.again, e.tried = true, e.ready
	case err != nil:
		e.over(n, err)
	case k == 0:
		n.s.fail("Write to stream %d of %d bytes: 0 and no error", l.n, len(b))
	}
}

// give writes some of b, one way or the other.
func (e *streamEnd) give(n *streamNode, b []byte) (k int, err error) {
	if n.rng.IntN(2) == 0 {
		return e.Write(b)
	}
	to, err := e.Reserve(len(b))
	if err == nil {
		k = copy(to, b)
		e.Commit(k)
	}
	return k, err
}

func (e *streamEnd) receive(n *streamNode) {
	l := e.line
	if n.rng.IntN(8) == 0 {
		e.Expect(int64(size(n.rng, 1<<20)))
	}
	b, err := e.Next()
	switch {
	case errors.Is(err, na.ErrAgain):
		e.again, e.tried = true, e.ready
		return
	case errors.Is(err, io.EOF), l.fails && errors.Is(err, na.ErrIO):
		l.eof = true
		if !l.ended || l.read != l.wrote || l.fails == errors.Is(err, io.EOF) {
			n.s.fail("stream %d: %v after %d bytes, %d were written, ended %v, failed %v", l.n, err, l.read, l.wrote, l.ended, l.fails)
		}
		e.Close()
		e.done = true
		return
	case err != nil:
		l.err = err
		e.over(n, err)
		return
	case len(b) == 0:
		n.s.fail("stream %d: Next returned no bytes and no error", l.n)
	}
	b = b[:min(len(b), 1+size(n.rng, 40_000))]
	for i, v := range b {
		if v != streamByte(l.n, l.read+i) {
			n.s.fail("stream %d: byte %d is %#x, want %#x", l.n, l.read+i, v, streamByte(l.n, l.read+i))
			break
		}
	}
	if l.read += len(b); l.read > l.wrote {
		n.s.fail("stream %d: %d bytes were read, %d written", l.n, l.read, l.wrote)
	}
	e.Release(len(b))
}

// over takes note of an error: it has a reason.
func (e *streamEnd) over(n *streamNode, err error) {
	l := e.line
	switch {
	case l.reset && (errors.Is(err, na.ErrCanceled) || errors.Is(err, na.ErrOverflow) || errors.Is(err, na.ErrTooLate)):
	case errors.Is(err, na.ErrPeerLost) && !n.s.clean:
	default:
		n.s.fail("stream %d, up %v, bulk %v, sends %v, ended with %v: %+v", l.n, l.up, l.bulk, e.sends, err, *l)
	}
	l.reset = true
	e.Close()
	e.done = true
}

// audit reads the ledger.
func (s *streamWorld) audit() {
	for _, l := range s.lines {
		switch {
		case l.eof:
			s.whole++
		case errors.Is(l.err, na.ErrPeerLost) || l.gone:
			s.lost++
		case !l.reset:
			s.fail("stream %d has no end: %+v", l.n, *l)
		}
	}
}

// TestStreams crosses streams of calls with messages, puts, cancels, resets, crashes, partitions,
// and small limits: no byte is lost in success, doubled or out of order, no error is without a
// reason, everything ends when the world is calm, and every gauge is at zero then.
func TestStreams(t *testing.T) {
	if *streamSeed != 0 {
		s := newStreamWorld(*streamSeed)
		err := s.run()
		t.Log(s.summary())
		require.NoError(t, err)
		return
	}
	var mu sync.Mutex
	var whole, resets, lost, opened int
	n := *streamSeeds
	if raceflag.Enabled {
		n = min(n, 40)
	}
	took := manySeeds(n, func(seed uint64) bool {
		s := newStreamWorld(seed)
		err := s.run()
		mu.Lock()
		defer mu.Unlock()
		if err != nil {
			t.Errorf("seed %d (replay with: go test ./plugins/sim/ledger -run TestStreams -sim.stream=%d): %v\n%s", seed, seed, err, s.summary())
		}
		whole, resets, lost, opened = whole+s.whole, resets+s.resets, lost+s.lost, opened+s.opened
		return err == nil
	})
	t.Logf("%d seeds in %v: %d streams opened, %d whole, %d reset, %d lost", n, took.Round(time.Millisecond), opened, whole, resets, lost)
	for what, k := range map[string]int{"whole": whole, "reset": resets, "lost": lost} {
		require.Positive(t, k, "no stream was %s", what)
	}
}
