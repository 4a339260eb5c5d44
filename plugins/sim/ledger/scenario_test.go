package ledger

import (
	"encoding/binary"
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

// A scenario is one seed: a world, nodes with random programs, and the ledger.
type scenario struct {
	seed   uint64
	w      *sim.World
	cfg    sim.Config
	rng    *rand.Rand
	nodes  []*actor // those that are alive
	names  []string
	quota  int
	calmed time.Duration // when faults and new work ended; 0 before
	failed error

	ops      int64
	made     uint64
	crashes  int
	calls    []*callEntry
	executed map[uint64]int // by token
	outcomes map[string]int64
	late     int64
	watched  []watched
}

// A callEntry is one line of the ledger: a forward, a transfer, a lookup or a withdraw.
type callEntry struct {
	token     uint64
	kind      string
	by        *actor
	callbacks int
	err       error
	oneWay    bool
	of        *callEntry // of a withdraw: the call
	result    hg.WithdrawResult
}

// watched is memory that nobody may write any more.
type watched struct {
	what string
	b    []byte
}

const poison = 0xE7

func newScenario(seed uint64) *scenario {
	s := &scenario{seed: seed, rng: drawing(seed, 0), executed: map[uint64]int{}, outcomes: map[string]int64{}}
	s.cfg = sim.Config{Seed: seed, Level: sim.Level(s.rng.IntN(2)), NoAssist: s.rng.IntN(4) == 0}
	s.cfg.Faults = sim.Storm().Draw(s.rng)
	s.w = sim.NewWorld(s.cfg)
	for i := range 2 + s.rng.IntN(3) {
		s.names = append(s.names, fmt.Sprintf("n%d", i))
	}
	s.quota = 220 / len(s.names)
	s.crashes = s.rng.IntN(3) / 1 * s.rng.IntN(2)
	return s
}

func (s *scenario) summary() string {
	return fmt.Sprintf("seed %d: level %d, %d nodes, faults %+v, ops %d, outcomes %v, virtual %v", s.seed, s.cfg.Level, len(s.names),
		s.cfg.Faults, s.ops, s.outcomes, s.w.Now())
}

func (s *scenario) fail(format string, args ...any) {
	if s.failed == nil {
		s.failed = fmt.Errorf(format, args...)
	}
}

// run is the whole life of the world; its error says which promise was broken.
func (s *scenario) run() error {
	defer s.w.Close()
	for i := range s.names {
		s.start(i)
	}
	s.w.Go("chaos", s.chaos)
	if err := s.w.Run(30 * time.Minute); err != nil {
		return errors.Join(s.failed, err)
	}
	s.audit()
	return s.failed
}

// chaos crashes nodes and restarts them, and calms the world when the work is done.
func (s *scenario) chaos() {
	for {
		s.w.Sleep(time.Duration(1+s.rng.IntN(200)) * time.Millisecond)
		working := 0
		for _, a := range s.nodes {
			if a.ops < s.quota {
				working++
			}
		}
		if working == 0 {
			break
		}
		if s.crashes > 0 && s.rng.IntN(20) == 0 {
			s.crashes--
			i := s.rng.IntN(len(s.nodes))
			old := s.nodes[i]
			old.crashed = true
			old.node.Crash()
			s.w.Sleep(time.Duration(s.rng.IntN(2000)) * time.Millisecond)
			next := s.start(i)
			next.ops = old.ops
		}
	}
	s.w.SetFaults(sim.Faults{})
	s.w.Heal()
	s.calmed = s.w.Now()
}

// start opens a node's class and runs its program.
func (s *scenario) start(i int) *actor {
	s.made++
	a := &actor{s: s, i: i, id: s.made, rng: drawing(s.seed, s.made), node: s.w.Node(s.names[i])}
	if i < len(s.nodes) {
		s.nodes[i] = a
	} else {
		s.nodes = append(s.nodes, a)
	}
	a.node.Go(a.main)
	return a
}

// audit reads the ledger when everything has ended.
func (s *scenario) audit() {
	for _, c := range s.calls {
		ran := s.executed[c.token]
		if ran > 1 {
			s.fail("%s %x ran %d times", c.kind, c.token, ran)
		}
		if c.by.crashed {
			if c.callbacks > 1 {
				s.fail("%s %x of a crashed node had %d callbacks", c.kind, c.token, c.callbacks)
			}
			continue
		}
		if c.callbacks != 1 {
			s.fail("%s %x had %d callbacks", c.kind, c.token, c.callbacks)
			continue
		}
		switch c.kind {
		case "call":
		case "withdraw":
			s.auditWithdraw(c)
			continue
		default:
			s.outcomes[outcomeOf(c.err)]++
			continue
		}
		s.outcomes[outcomeOf(c.err)]++
		switch {
		case c.err == nil && !c.oneWay && ran != 1:
			s.fail("call %x succeeded and ran %d times", c.token, ran)
		case c.err != nil && hg.FateOf(c.err) == na.NotRun && ran != 0:
			s.fail("call %x did not run, says %q, and ran", c.token, c.err)
		case c.err != nil && hg.FateOf(c.err) == na.Ran && ran != 1:
			s.fail("call %x ran, says %q, and did not", c.token, c.err)
		}
	}
	for _, m := range s.watched {
		for i, b := range m.b {
			if b != poison {
				s.fail("%s was written at %d after its end", m.what, i)
				break
			}
		}
	}
}

// auditWithdraw: what was withdrawn never ran; what nobody knows of ended with an error.
func (s *scenario) auditWithdraw(c *callEntry) {
	s.outcomes[c.result.String()]++
	of := c.of
	switch c.result {
	case hg.Withdrawn:
		if s.executed[of.token] != 0 || !errors.Is(of.err, hg.ErrCanceled) || hg.FateOf(of.err) != na.NotRun {
			s.fail("call %x was withdrawn, ran %d times and ended with %v", of.token, s.executed[of.token], of.err)
		}
	case hg.TooLate:
	case hg.Indeterminate:
		if of.err == nil && !of.oneWay {
			s.fail("nobody knows about call %x, and it succeeded", of.token)
		}
	default:
		s.fail("withdraw of call %x gave %v", of.token, c.result)
	}
}

func outcomeOf(err error) string {
	var remote *hg.RemoteError
	switch {
	case err == nil:
		return "ok"
	case errors.As(err, &remote):
		return "remote"
	case errors.Is(err, hg.ErrCanceled):
		return "canceled"
	case errors.Is(err, hg.ErrUnreachable):
		return "unreachable"
	case errors.Is(err, hg.ErrPeerLost):
		return "lost"
	case errors.Is(err, na.ErrRevoked):
		return "revoked"
	}
	return na.CodeOf(err).Error()
}

// retire fills memory whose operation has ended; audit looks whether it stayed so.
func (s *scenario) retire(what string, b []byte) {
	for i := range b {
		b[i] = poison
	}
	s.watched = append(s.watched, watched{what, b})
}

// An actor is the program of one node: it originates calls and serves those of the others.
type actor struct {
	s       *scenario
	i       int
	id      uint64
	rng     *rand.Rand
	node    *sim.Node
	crashed bool

	cls     *hg.Class
	hctxs   []*hg.Context
	ops     int
	n       uint64
	open    int // operations whose callbacks are to come
	handles []*live
	moves   []*bulk.Op
	lookups []*hg.Lookup
	kept    []*hg.Handle // requests that are answered later, or never
	regions int          // bulk handles whose Close has not completed
}

// live is an origin's handle.
type live struct {
	h    *hg.Handle
	busy bool
	call *callEntry // the last
}

// The RPCs of a scenario; input begins with the call's token.
var rpcs = []string{"echo", "later", "silent", "fail", "grow", "pull", "push", "note"}

func (a *actor) main() {
	s := a.s
	var err error
	name := "sim://" + s.names[a.i]
	cfg := hg.Config{Codec: codec.Raw}
	cfg.NA.Plugins = []na.Plugin{a.node.Plugin()}
	cfg.NA.Envelopes = 1 + a.rng.IntN(32)
	if a.cls, err = hg.Open(name, cfg); err != nil {
		s.fail("open %s: %v", name, err)
		return
	}
	for _, rpc := range rpcs {
		if _, err := a.cls.RegisterRPC(hg.RPC{Name: rpc, Handler: a.handler(rpc), OneWay: rpc == "note"}); err != nil {
			s.fail("register: %v", err)
		}
	}
	_, _ = a.cls.Register("nobody", nil)
	for range 1 + a.rng.IntN(2) {
		hctx, err := a.cls.NewContext()
		if err != nil {
			s.fail("context: %v", err)
			return
		}
		a.hctxs = append(a.hctxs, hctx)
	}
	for a.ops < s.quota {
		a.act()
		a.progress(time.Duration(a.rng.IntN(3000)) * time.Microsecond)
	}
	a.settle()
	a.shutdown()
}

// progress drives the node a little.
func (a *actor) progress(d time.Duration) {
	hctx := a.hctxs[a.rng.IntN(len(a.hctxs))]
	for _, c := range a.hctxs {
		c.Trigger(a.rng.IntN(4))
	}
	_ = hctx.Progress(d)
	hctx.Trigger(a.rng.IntN(8))
}

// settle serves until all work of all nodes has ended; it must within 30 s of calm.
func (a *actor) settle() {
	s := a.s
	for {
		for _, c := range a.hctxs {
			c.Trigger(0)
			_ = c.Progress(time.Millisecond)
			c.Trigger(0)
		}
		if s.calmed == 0 {
			continue
		}
		a.answerKept(len(a.kept))
		quiet := true
		for _, b := range s.nodes {
			if b.open > 0 || b.regions > 0 || len(b.kept) > 0 {
				quiet = false
			}
		}
		if quiet {
			break
		}
		if s.w.Now() > s.calmed+30*time.Second {
			for _, c := range s.calls {
				if c.callbacks == 0 && !c.by.crashed {
					s.fail("%s %x of node %s has not ended 30 s after calm", c.kind, c.token, s.names[c.by.i])
				}
			}
			s.fail("regions or kept handles are left 30 s after calm")
			break
		}
	}
	for _, l := range a.handles {
		l.h.Close()
	}
	a.handles = nil
	end := s.w.Now() + 10*time.Second
	for _, c := range a.hctxs {
		for {
			st := c.Stats()
			if st.NA.Regions == 0 && st.Lent == 0 && st.Pulled == 0 && st.NA.Leases == 0 && st.NA.Queued == 0 &&
				st.NA.Outstanding == 0 && st.NA.Envelopes == 0 && st.Handles == 0 {
				s.late += st.NA.LateDropped
				break
			}
			if s.w.Now() > end || s.failed != nil {
				s.fail("node %s: something is left at the end: %+v", s.names[a.i], st)
				break
			}
			for _, c := range a.hctxs {
				_ = c.Progress(time.Millisecond)
				c.Trigger(0)
			}
			a.answerKept(len(a.kept)) // requests whose calls were over long ago
		}
	}
}

func (a *actor) shutdown() {
	_ = a.cls.Close()
	for end := a.s.w.Now() + time.Second; !a.cls.Closed(); {
		for _, c := range a.hctxs {
			c.Trigger(0)
			_ = c.Progress(time.Millisecond)
		}
		if a.s.w.Now() > end {
			a.s.fail("node %s: Close has not completed: %+v", a.s.names[a.i], a.hctxs[0].Stats())
			return
		}
	}
}

// begin writes a line of the ledger.
func (a *actor) begin(kind string) *callEntry {
	a.n++
	c := &callEntry{token: a.id<<32 | a.n, kind: kind, by: a}
	a.s.calls = append(a.s.calls, c)
	a.s.ops++
	a.ops++
	a.open++
	return c
}

// refused takes a line back: the operation was not accepted.
func (a *actor) refused(c *callEntry) {
	if c.callbacks != 0 {
		a.s.fail("%s %x was refused and had a callback", c.kind, c.token)
	}
	a.s.calls = a.s.calls[:len(a.s.calls)-1]
	a.open--
}

func (c *callEntry) ended(err error) {
	c.callbacks++
	c.err = err
	c.by.open--
	c.by.s.w.Note("end", c.token, uint64(na.CodeOf(err)))
}

// act does one random thing.
func (a *actor) act() {
	switch r := a.rng.IntN(100); {
	case r < 60:
		a.forward()
	case r < 65:
		a.lookup()
	case r < 74:
		a.cancelSomething()
	case r < 83:
		a.withdrawSomething()
	case r < 85:
		a.abandonSomething()
	case r < 93:
		a.answerKept(a.rng.IntN(3))
	default:
		a.closeSomething()
	}
}

// peer draws an address: mostly another node, sometimes itself, or a context that may not be there.
func (a *actor) peer() na.Addr {
	addr, err := na.ParseAddr("sim://" + a.s.names[a.rng.IntN(len(a.s.names))])
	if err != nil {
		panic(err)
	}
	if a.rng.IntN(4) == 0 {
		addr = addr.WithTarget(a.rng.IntN(3))
	}
	return addr
}

// size draws a length, small ones as likely as large ones.
func (a *actor) size(max int) int {
	bits := 1
	for 1<<bits < max {
		bits++
	}
	return a.rng.IntN(min(1<<a.rng.IntN(bits+1), max) + 1)
}

func (a *actor) forward() {
	hctx := a.hctxs[a.rng.IntN(len(a.hctxs))]
	rpc := rpcs[a.rng.IntN(len(rpcs))]
	if a.rng.IntN(30) == 0 {
		rpc = "nobody"
	}
	var l *live
	for _, old := range a.handles {
		if !old.busy && old.h.Context() == hctx && a.rng.IntN(2) == 0 {
			l = old
			if err := l.h.Reset(a.peer(), hg.HashName(rpc)); err != nil {
				a.s.fail("reset of an idle handle: %v", err)
				return
			}
			break
		}
	}
	if l == nil {
		h, err := hctx.Create(a.peer(), hg.HashName(rpc))
		if err != nil {
			a.s.fail("create: %v", err)
			return
		}
		l = &live{h: h}
		a.handles = append(a.handles, l)
	}
	c := a.begin("call")
	c.oneWay = rpc == "note"
	in := binary.LittleEndian.AppendUint64(nil, c.token)
	var region *bulk.Handle
	var memory []byte
	switch rpc {
	case "pull", "push":
		memory = make([]byte, a.size(96<<10))
		access := bulk.ReadOnly
		if rpc == "push" {
			access = bulk.WriteOnly
		}
		pattern(memory, c.token)
		var err error
		if region, err = bulk.Create(hctx, access, split(a.rng, memory)...); err != nil {
			a.s.fail("bulk create: %v", err)
			return
		}
		if in, err = region.AppendBinary(in); err != nil {
			a.s.fail("encode: %v", err)
			return
		}
	default:
		in = append(in, make([]byte, a.size(24<<10))...)
	}
	l.busy, l.call = true, c
	err := l.h.Forward(in, func(h *hg.Handle, err error) {
		l.busy = false
		c.ended(err)
		if err == nil && !c.oneWay {
			a.checkOutput(rpc, c, h, in, memory)
		}
		if region != nil {
			a.closeRegion(region, memory, c)
		}
		if a.rng.IntN(20) == 0 {
			a.cancelSomething()
		}
	})
	if err != nil {
		l.busy = false
		a.refused(c)
		if !errors.Is(err, na.ErrAgain) {
			a.s.fail("forward: %v", err)
		}
		if region != nil {
			a.closeRegion(region, memory, c)
		}
	}
}

// checkOutput compares an answer with what this very call must give.
func (a *actor) checkOutput(rpc string, c *callEntry, h *hg.Handle, in, memory []byte) {
	out, err := h.OutputRaw()
	if err != nil {
		a.s.fail("output of a call that succeeded: %v", err)
		return
	}
	if len(out) < 8 || binary.LittleEndian.Uint64(out) != c.token {
		a.s.fail("call %x got the answer of another: %x", c.token, out[:min(8, len(out))])
		return
	}
	switch rpc {
	case "echo", "later":
		if !slices.Equal(out, in) {
			a.s.fail("call %x: echo of %d bytes differs", c.token, len(in))
		}
	case "grow":
		for i := 8; i < len(out); i++ {
			if out[i] != byte(c.token)+byte(i) {
				a.s.fail("call %x: output differs at %d of %d", c.token, i, len(out))
				return
			}
		}
	case "push":
		if !patterned(memory, ^c.token) {
			a.s.fail("call %x: pushed memory differs", c.token)
		}
	}
}

// closeRegion takes memory back; when that has completed nobody may touch it.
func (a *actor) closeRegion(region *bulk.Handle, memory []byte, c *callEntry) {
	a.regions++
	if err := region.Close(func(err error) {
		a.regions--
		if err != nil {
			a.s.fail("close of a region: %v", err)
		}
		a.s.retire(fmt.Sprintf("region of call %x", c.token), memory)
	}); err != nil {
		a.regions--
		a.s.fail("close of a region: %v", err)
	}
}

func (a *actor) lookup() {
	c := a.begin("lookup")
	hctx := a.hctxs[a.rng.IntN(len(a.hctxs))]
	want := a.peer()
	l, err := hctx.Lookup(want.String(), func(addr na.Addr, err error) {
		c.ended(err)
		if err == nil && addr != want {
			a.s.fail("lookup of %v gave %v", want, addr)
		}
	})
	if err != nil {
		a.refused(c)
		a.s.fail("lookup: %v", err)
		return
	}
	a.lookups = append(a.lookups, l)
}

func (a *actor) cancelSomething() {
	switch r := a.rng.IntN(10); {
	case r < 7 && len(a.handles) > 0:
		a.handles[a.rng.IntN(len(a.handles))].h.Cancel()
	case r < 9 && len(a.moves) > 0:
		a.moves[a.rng.IntN(len(a.moves))].Cancel()
	case len(a.lookups) > 0:
		a.lookups[a.rng.IntN(len(a.lookups))].Cancel()
	}
}

// withdrawSomething takes a request back; that of a call which has ended, too.
func (a *actor) withdrawSomething() {
	if len(a.handles) == 0 {
		return
	}
	l := a.handles[a.rng.IntN(len(a.handles))]
	if l.call == nil {
		return
	}
	c := a.begin("withdraw")
	c.of = l.call
	timeout := time.Duration(0)
	if a.rng.IntN(4) == 0 {
		timeout = time.Duration(1 + a.rng.IntN(50_000_000))
	}
	over := c.of.callbacks > 0
	if err := l.h.Withdraw(timeout, func(_ *hg.Handle, r hg.WithdrawResult) {
		if over && r != hg.TooLate {
			a.s.fail("call %x was over, its withdraw gave %v", c.of.token, r)
		}
		c.result = r
		c.ended(nil)
		a.s.w.Note("withdraw", c.token, uint64(r))
		if a.rng.IntN(20) == 0 {
			a.cancelSomething()
		}
	}); err != nil {
		a.refused(c)
		a.s.fail("withdraw: %v", err)
	}
}

// abandonSomething is a cancel of a call that the target hears of.
func (a *actor) abandonSomething() {
	if len(a.handles) > 0 {
		a.handles[a.rng.IntN(len(a.handles))].h.Abandon()
	}
}

// closeSomething closes an origin's handle, in flight or not.
func (a *actor) closeSomething() {
	if len(a.handles) == 0 {
		return
	}
	i := a.rng.IntN(len(a.handles))
	a.handles[i].h.Close()
	a.handles = slices.Delete(a.handles, i, i+1)
}

// answerKept deals with n of the requests that were kept.
func (a *actor) answerKept(n int) {
	for ; n > 0 && len(a.kept) > 0; n-- {
		i := a.rng.IntN(len(a.kept))
		h := a.kept[i]
		a.kept = slices.Delete(a.kept, i, i+1)
		if in, err := h.InputRaw(); err == nil && a.rng.IntN(8) > 0 {
			_ = h.RespondRaw(in, nil)
			if a.rng.IntN(4) == 0 {
				h.Cancel()
			}
		}
		h.Close()
	}
}

// handler serves an RPC.
func (a *actor) handler(rpc string) hg.Handler {
	return func(h *hg.Handle) error {
		in, err := h.InputRaw()
		if err != nil || len(in) < 8 {
			return fmt.Errorf("input of %d bytes: %v", len(in), err)
		}
		token := binary.LittleEndian.Uint64(in)
		a.s.executed[token]++
		a.s.w.Note("run", token, uint64(len(in)))
		switch rpc {
		case "echo":
			return h.RespondRaw(in, nil)
		case "later":
			a.kept = append(a.kept, h.Ref())
		case "fail":
			return errors.New("asked to fail")
		case "grow":
			out := make([]byte, 8+a.size(48<<10))
			for i := range out {
				out[i] = byte(token) + byte(i)
			}
			binary.LittleEndian.PutUint64(out, token)
			return h.RespondRaw(out, nil)
		case "pull", "push":
			return a.move(h, rpc, token, in[8:])
		}
		return nil // silent, note
	}
}

// move pulls from the origin's memory, or pushes to it, and answers when that has ended.
func (a *actor) move(h *hg.Handle, rpc string, token uint64, descriptor []byte) error {
	remote := new(bulk.Handle)
	if err := remote.UnmarshalBinary(descriptor); err != nil {
		return err
	}
	local := make([]byte, remote.Len())
	spec := bulk.Spec{Dir: bulk.Pull, Peer: h.Addr(), Remote: remote, Size: remote.Len(), Chunk: 4096 << a.rng.IntN(5), Window: 1 + a.rng.IntN(8)}
	if rpc == "push" {
		spec.Dir = bulk.Push
		pattern(local, ^token)
	}
	lh, err := bulk.Create(h.Context(), bulk.LocalOnly, split(a.rng, local)...)
	if err != nil {
		return err
	}
	spec.Local = lh
	last := int64(0)
	spec.OnProgress = func(_ *bulk.Op, moved int64) {
		if moved < last {
			a.s.fail("transfer %x went back from %d to %d", token, last, moved)
		}
		last = moved
	}
	c := a.begin("transfer")
	h.Ref()
	op, err := bulk.Transfer(h.Context(), spec, func(op *bulk.Op, err error) {
		c.ended(err)
		if err == nil && rpc == "pull" && !patterned(local, token) {
			a.s.fail("transfer for call %x: pulled memory differs", token)
		}
		a.s.retire(fmt.Sprintf("local memory of the %s for call %x", rpc, token), local)
		if err != nil {
			_ = h.RespondError(na.CodeOf(err), err.Error(), nil)
		} else {
			_ = h.RespondRaw(binary.LittleEndian.AppendUint64(nil, token), nil)
		}
		h.Close()
	})
	if err != nil {
		a.refused(c)
		h.Close()
		return err
	}
	if a.moves = append(a.moves, op); len(a.moves) > 32 {
		a.moves = a.moves[1:]
	}
	return nil
}

// pattern fills b with bytes that depend on the token and their position.
func pattern(b []byte, token uint64) {
	for i := range b {
		b[i] = byte(uint64(i)*0x9e3779b97f4a7c15>>56) ^ byte(token) ^ byte(i)
	}
}

func patterned(b []byte, token uint64) bool {
	for i := range b {
		if b[i] != byte(uint64(i)*0x9e3779b97f4a7c15>>56)^byte(token)^byte(i) {
			return false
		}
	}
	return true
}

// split cuts b into segments.
func split(r *rand.Rand, b []byte) [][]byte {
	var segs [][]byte
	for n := 1 + r.IntN(6); n > 1 && len(b) > 1; n-- {
		at := 1 + r.IntN(len(b)-1)
		segs = append(segs, b[:at:at])
		b = b[at:]
	}
	return append(segs, b)
}
