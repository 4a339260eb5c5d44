package ledger

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/quicksilver-rpc/quicksilver/bulk"
	"github.com/quicksilver-rpc/quicksilver/hg"
	"github.com/quicksilver-rpc/quicksilver/hg/codec"
	"github.com/quicksilver-rpc/quicksilver/na"
	"github.com/quicksilver-rpc/quicksilver/plugins/sim"
)

// A stressRun is one seed: two nodes that do everything that a handle allows, and everything that it
// refuses, wherever user code can run: in callbacks, handlers, codecs, and between the completions
// of one Trigger. The only requirement on the outcome is that everything ends exactly once; the
// purpose is to cover the tables of the state machines.
type stressRun struct {
	w      *sim.World
	nodes  []*stressNode
	failed error
}

// A stressNode is the program of one node, and the codec of its class.
type stressNode struct {
	codec.Codec
	s    *stressRun
	i    int
	rng  *rand.Rand
	cls  *hg.Class
	hctx *hg.Context

	open    int // callbacks that have not run
	depth   int // of Trigger inside Trigger
	inCodec int
	working bool
	closing bool // the class is being closed with work in flight

	handles []*hg.Handle
	kept    []hg.Request // requests that are answered later
	moves   []*bulk.Op
	region  *bulk.Handle
	key     []byte // of the other node's region
}

var errStrain = errors.New("the codec does not want to")

// runStress is the whole life of a strain; its world is over.
func runStress(seed uint64) (*sim.World, error) {
	r := newRand(seed, 2000)
	cfg := sim.Config{Seed: seed, NoAssist: r.IntN(4) == 0}
	if r.IntN(2) == 0 {
		cfg.Faults = sim.Faults{Jitter: 20 * time.Microsecond, Reset: 0.02 * r.Float64(), Clog: 0.02, ClogFor: time.Millisecond, Narrow: r.Float64()}
	}
	s := &stressRun{w: sim.NewWorld(cfg)}
	defer s.w.Close()
	for i := range 2 {
		a := &stressNode{Codec: codec.Raw, s: s, i: i, rng: newRand(seed, 2001+uint64(i)), working: true, closing: r.IntN(3) == 0}
		s.nodes = append(s.nodes, a)
		node := s.w.Node(fmt.Sprintf("s%d", i))
		node.Go(func() { a.main(node) })
	}
	if err := s.w.Run(10 * time.Minute); err != nil {
		return s.w, errors.Join(s.failed, err)
	}
	return s.w, s.failed
}

func (s *stressRun) fail(format string, args ...any) {
	if s.failed == nil {
		s.failed = fmt.Errorf("strain: "+format, args...)
	}
}

// check fails the run for an operation that was refused without a valid reason.
func (a *stressNode) check(what string, err error, may ...na.Code) {
	if err == nil || errors.Is(err, errStrain) || slices.Contains(append(may, na.ErrClosed, na.ErrAgain, na.ErrNoCredit), na.CodeOf(err)) {
		return
	}
	a.s.fail("%s: %v", what, err)
}

// expectOnce returns a function that a callback calls, and fails the run if it is called twice.
func (a *stressNode) expectOnce(what string) func() {
	a.open++
	n := 0
	return func() {
		a.open--
		if n++; n != 1 {
			a.s.fail("%s had %d callbacks", what, n)
		}
	}
}

func (a *stressNode) main(node *sim.Node) {
	cfg := hg.Config{Codec: a, MaxActive: 1 + a.rng.IntN(4), MaxLent: 64 << 10}
	cfg.NA = na.Config{Plugins: []na.Plugin{node.Plugin()}, Envelopes: 1 + a.rng.IntN(3), Eager: 256 << a.rng.IntN(3), SendQueue: 1 + a.rng.IntN(8),
		PeerTimeout: 500 * time.Millisecond}
	var err error
	if a.cls, err = hg.Open("sim://"+node.Name(), cfg); err != nil {
		a.s.fail("open: %v", err)
		return
	}
	_, _ = a.cls.Register("work", a.handle)
	_, _ = a.cls.RegisterRPC(hg.RPC{Name: "note", Handler: a.handle, OneWay: true})
	_, _ = a.cls.Register("nobody", nil)
	a.hctx, _ = a.cls.NewContext()
	a.region, _ = bulk.Create(a.hctx, bulk.Options{Access: bulk.ReadOnly}, make([]byte, 64<<10))
	a.s.nodes[1-a.i].key, _ = a.region.MarshalBinary()
	for range 5 {
		h, err := a.hctx.Create(a.drawPeer(), hg.HashName("work"))
		a.check("create", err)
		a.handles = append(a.handles, h)
	}
	for range 150 {
		a.doOne()
		if a.rng.IntN(8) == 0 { // much ends before the next Trigger
			for range 1 + a.rng.IntN(8) {
				a.s.w.Sleep(time.Duration(a.rng.IntN(60)) * time.Microsecond)
				_ = a.hctx.NA().Progress(0)
			}
		}
		if a.rng.IntN(2) == 0 {
			_ = a.hctx.Progress(time.Duration(a.rng.IntN(60)) * time.Microsecond)
		}
		a.trigger()
	}
	a.working = false
	other := a.s.nodes[1-a.i]
	end := a.s.w.Now() + time.Minute
	for !a.closing && (a.open > 0 || other.working || !other.closing && other.open > 0) {
		a.answer()
		a.hctx.Trigger(0)
		_ = a.hctx.Progress(time.Millisecond)
		if a.s.w.Now() > end {
			a.s.fail("node %d: %d operations have not ended", a.i, a.open)
			break
		}
	}
	_ = a.cls.Close()
	for end := a.s.w.Now() + time.Second; !a.cls.NA().Closed() && a.s.w.Now() < end; {
		a.answer()
		a.hctx.Trigger(0)
		_ = a.hctx.Progress(time.Millisecond)
	}
	if a.open != 0 {
		a.s.fail("node %d: %d operations have not ended with the context", a.i, a.open)
	}
	for _, h := range a.handles {
		h.Close()
	}
}

func (a *stressNode) drawPeer() na.Addr {
	i := 1 - a.i
	if a.rng.IntN(8) == 0 {
		i = a.i
	}
	addr, _ := na.ParseAddr(fmt.Sprintf("sim://s%d", i))
	return addr
}

func (a *stressNode) drawSize() int { return a.rng.IntN(1 + 1<<a.rng.IntN(15)) }

// trigger runs callbacks, inside one too.
func (a *stressNode) trigger() {
	if a.depth < 3 {
		a.depth++
		a.hctx.Trigger(a.rng.IntN(4))
		a.depth--
	}
}

// doOne does one random act. It may be called wherever user code runs.
func (a *stressNode) doOne() {
	h := a.handles[a.rng.IntN(len(a.handles))]
	switch r := a.rng.IntN(100); {
	case r < 35 && a.working:
		a.forward(h)
	case r < 45:
		h.Cancel()
	case r < 50:
		h.Abandon()
	case r < 62:
		ended := a.expectOnce("a withdraw")
		if err := h.Withdraw(time.Duration(a.rng.IntN(2)*a.rng.IntN(100))*time.Microsecond, func(*hg.Handle, hg.WithdrawResult) { ended() }); err != nil {
			a.open--
			a.check("withdraw", err, na.ErrBusy)
		}
	case r < 66:
		rpc := []string{"work", "work", "note", "nobody"}[a.rng.IntN(4)]
		a.check("reset", h.Reset(a.drawPeer(), hg.HashName(rpc)), na.ErrBusy)
	case r < 69:
		if _, err := h.OutputRaw(); na.CodeOf(err) == na.ErrBusy && a.rng.IntN(4) == 0 {
			a.trigger()
		}
	case r < 75:
		h.SetTimeout(time.Duration(a.rng.IntN(2)*(1+a.rng.IntN(200))) * time.Microsecond)
	case r < 85:
		a.actInTrigger(1 + a.rng.IntN(3))
	case r < 92 && len(a.kept) > 0:
		a.kept[a.rng.IntN(len(a.kept))].Cancel()
	case r < 94 && len(a.moves) > 0:
		a.moves[a.rng.IntN(len(a.moves))].Cancel()
	default:
		a.answer()
	}
}

// actInTrigger does random acts between the completions of one Trigger.
func (a *stressNode) actInTrigger(times int) {
	a.runBetweenEnds(func() {
		a.doOne()
		a.doOne()
		if times > 1 {
			a.actInTrigger(times - 1)
		}
	})
}

// runBetweenEnds runs f between the completions of one Trigger: as the callback of an operation of
// the user's, behind those that have ended by now.
func (a *stressNode) runBetweenEnds(f func()) {
	op := a.hctx.NA().NewOp(func(*na.Op, na.Result) { f() })
	if a.hctx.NA().Timer(op, time.Hour) == nil {
		op.Cancel()
	}
}

func (a *stressNode) forward(h *hg.Handle) {
	in := make([]byte, a.drawSize())
	ended := a.expectOnce("a call")
	if err := h.Forward(in, func(*hg.Handle, error) {
		ended()
		if a.rng.IntN(2) == 0 {
			a.doOne()
		}
	}); err != nil {
		a.open--
		a.check("forward", err, na.ErrBusy, na.ErrTimeout)
	}
}

// Append is user code inside Forward and Respond.
func (a *stressNode) Append(dst []byte, v any) ([]byte, error) {
	if a.inCodec < 2 {
		a.inCodec++
		switch a.rng.IntN(8) {
		case 0:
			a.doOne()
			a.doOne()
		case 1:
			a.trigger()
		case 2:
			a.inCodec--
			return dst, errStrain
		}
		a.inCodec--
	}
	return a.Codec.Append(dst, v)
}

// handle is the handler of every RPC.
func (a *stressNode) handle(h hg.Request) error {
	switch a.rng.IntN(8) {
	case 0:
		return errors.New("asked to fail")
	case 1:
		return nil
	case 2:
		_ = h.Detach()
		a.kept = append(a.kept, h)
	case 3:
		_ = h.Detach()
		a.kept = append(a.kept, h)
		a.move(h)
	case 4:
		a.respond(h)
		a.trigger()
	case 5:
		a.respond(h)
		h.Cancel()
		a.actInTrigger(1)
		a.trigger()
	default:
		a.respond(h)
	}
	return nil
}

func (a *stressNode) respond(h hg.Request) {
	var cb hg.RespondFunc
	ended := func() {}
	if a.rng.IntN(2) == 0 {
		ended = a.expectOnce("a response")
		cb = func(h hg.Request, err error) {
			ended()
			switch a.rng.IntN(4) {
			case 0:
				h.Cancel()
			case 1:
				a.respond(h)
			case 2:
				a.doOne()
			}
		}
	}
	if err := h.Respond(make([]byte, a.drawSize()), cb); err != nil {
		if cb != nil {
			a.open--
		}
		a.check("respond", err, na.ErrAnswered, na.ErrUnsupported, na.ErrPeerLost)
	} else if a.rng.IntN(4) == 0 {
		h.Cancel()
		if a.rng.IntN(2) == 0 {
			a.runBetweenEnds(func() {
				h.Cancel()
				a.respond(h)
			})
		}
	}
}

// answer deals with a request that was kept.
func (a *stressNode) answer() {
	if len(a.kept) == 0 {
		return
	}
	i := a.rng.IntN(len(a.kept))
	h := a.kept[i]
	if a.rng.IntN(4) > 0 {
		a.respond(h)
	}
	if a.rng.IntN(3) == 0 {
		if i = slices.Index(a.kept, h); i >= 0 {
			a.kept = slices.Delete(a.kept, i, i+1)
			_ = h.RespondError(na.ErrNoResponse, nil)
		}
	}
}

// move pulls from the origin's memory.
func (a *stressNode) move(h hg.Request) {
	remote := new(bulk.Handle)
	if remote.UnmarshalBinary(a.key) != nil {
		return
	}
	size := 1 + a.rng.Int64N(remote.Len())
	local, err := bulk.Create(a.hctx, bulk.Options{Access: bulk.LocalOnly}, make([]byte, size))
	if err != nil {
		return
	}
	peer, _ := na.ParseAddr(fmt.Sprintf("sim://s%d", 1-a.i))
	spec := bulk.Spec{Peer: peer, Remote: remote, Local: local, Size: size, Chunk: 4096, Window: 1 + a.rng.IntN(4)}
	if a.rng.IntN(2) == 0 {
		spec.OnProgress = func(op *bulk.Op, _ int64) {
			if a.rng.IntN(2) == 0 {
				a.trigger()
			}
			if a.rng.IntN(4) == 0 {
				op.Cancel()
			}
		}
	}
	ended := a.expectOnce("a transfer")
	op, err := bulk.Transfer(a.hctx, spec, func(op *bulk.Op, err error) {
		ended()
		op.Cancel()
		_ = local.Close()
	})
	if err != nil {
		a.open--
		_ = local.Close()
		return
	}
	a.moves = append(a.moves, op)
}
