package ledger

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/quicksilver-rpc/quicksilver/bulk"
	"github.com/quicksilver-rpc/quicksilver/hg"
	"github.com/quicksilver-rpc/quicksilver/na"
)

// rpcName names the RPCs of a scenario; input begins with the call's token.
type rpcName struct {
	name string
	act  actions
}

var rpcs = []rpcName{{"echo", 0}, {"later", actLater}, {"never", actNever}, {"silent", actSilent}, {"fail", actFail}, {"grow", actGrow},
	{"pull", actPull}, {"push", actPush}, {"relay", actRelay}, {"note", actNote}}

// A lentRegion is memory that a call lends to others.
type lentRegion struct {
	region *bulk.Handle
	memory []byte
	closed bool
	early  bool // closed before the call had ended
	moving int  // transfers in flight
}

// doOne does one random act.
func (a *actor) doOne() {
	s := a.s
	if a.lot.IntN(16) == 0 && s.isOn(actWait) {
		a.callInCoroutine()
		return
	}
	switch r := a.rng.IntN(100); {
	case r < 5 && s.isOn(actLookup):
		a.lookup()
	case r < 14 && s.isOn(actCancel):
		a.cancelSomething()
	case r < 23 && s.isOn(actWithdraw):
		a.withdrawSomething()
	case r < 25 && s.isOn(actAbandon):
		a.abandonSomething()
	case r < 33:
		a.answerKept(a.rng.IntN(3))
	case r < 40 && s.isOn(actClose):
		a.closeSomething()
	default:
		a.forward()
	}
}

// doInCallback does random acts in a callback or handler, in addition to its work.
func (a *actor) doInCallback(l *originHandle) {
	if !a.s.isOn(actCallback) || a.rng.IntN(8) > 0 || a.depth >= 2 {
		return
	}
	a.depth++
	defer func() { a.depth-- }()
	switch r := a.rng.IntN(64); {
	case r < 14:
		a.cancelSomething()
	case r < 26 && l != nil && !l.busy && a.ops < a.s.quota && slices.Contains(a.handles, l):
		a.call(l, "", nil)
	case r < 32 && a.ops < a.s.quota:
		a.forward()
	case r < 38:
		a.withdrawSomething()
	case r < 40:
		a.abandonSomething()
	case r < 45:
		a.answerKept(1)
	case r < 49:
		a.closeSomething()
	case r < 53:
		a.anyContext().Trigger(1)
	case r < 56:
		a.check(a.anyContext())
	case r < 59:
		_ = a.anyContext().Progress(0)
	case r < 61:
		a.anyContext().Wake()
	case r < 63 && l != nil:
		l.h.SetTimeout(0)
	case r < 64 && a.s.Closes > 0 && a.rng.IntN(4) == 0:
		a.finalize()
	}
}

// drawPeer draws an address: mostly another node, sometimes itself, or a context that may not be there.
func (a *actor) drawPeer() na.Addr {
	addr := na.MakeAddr("sim://"+a.s.names[a.rng.IntN(len(a.s.names))], 0)
	if a.rng.IntN(4) == 0 {
		addr = addr.WithTarget(a.rng.IntN(3))
	}
	return addr
}

// forward calls something, with a new handle or one that is idle.
func (a *actor) forward() {
	hctx := a.anyContext()
	for _, old := range a.handles {
		if !old.busy && old.h.HG() == hctx && a.rng.IntN(2) == 0 {
			a.call(old, "", nil)
			return
		}
	}
	if l := a.create(hctx); l != nil {
		a.call(l, "", nil)
	}
}

func (a *actor) create(hctx *hg.Context) *originHandle {
	h, err := hctx.Create(a.drawPeer(), hg.HashName("echo"))
	if err != nil {
		a.failUnlessClosing("create", err)
		return nil
	}
	l := &originHandle{h: h}
	a.handles = append(a.handles, l)
	return l
}

// call forwards an idle handle: any RPC, or, with a name, that one with this input after the token;
// done gets the outcome.
func (a *actor) call(l *originHandle, name string, input []byte, done ...func(err error)) bool {
	s := a.s
	relayed := name != ""
	if !relayed {
		name = s.rpcs[a.rng.IntN(len(s.rpcs))]
		if a.rng.IntN(30) == 0 && s.isOn(actNobody) {
			name = "nobody"
		}
	}
	to := a.drawPeer()
	if err := l.h.Reset(to, hg.HashName(name)); err != nil {
		a.failUnlessClosing("reset of an idle handle", err)
		return false
	}
	c := a.beginCall("call")
	c.to, c.oneWay, c.handle = to.WithTarget(0), name == "note", l
	c.deadline = a.drawTimeout(l, relayed)
	in := binary.LittleEndian.AppendUint64(a.room[:0], c.token)
	switch {
	case relayed:
		in = append(in, input...)
	case name == "pull", name == "push", name == "relay":
		var err error
		if in, err = a.lend(c, name, l.h.HG(), in); err != nil {
			a.recordRefusal(c, err)
			return false
		}
	default:
		in = append(in, tokenPattern(c.token, drawLen(a.rng, s.MaxSize))...)
	}
	a.room = in
	if err := l.h.SetMeta(s.metaOf(c.token)); err != nil {
		s.fail("metadata of call %x: %v", c.token, err)
	}
	l.busy, l.call = true, c
	err := l.h.Forward(in, func(h *hg.Handle, err error) {
		l.busy = false
		c.handleEnd(err)
		if err == nil && !c.oneWay {
			a.checkOutput(name, c, h)
		}
		a.takeBackMemory(c)
		for _, f := range done {
			f(err)
		}
		a.doInCallback(l)
	})
	if err != nil {
		l.busy = false
		a.recordRefusal(c, err)
		a.takeBackMemory(c)
		return false
	}
	if c.deadline > 0 {
		a.timed = append(a.timed, c)
	}
	a.planCancel(l, c)
	return true
}

// callInCoroutine makes a call for which a coroutine of its own waits. The audit makes no
// assumption about its order.
func (a *actor) callInCoroutine() {
	s := a.s
	l := a.create(a.anyContext())
	if l == nil {
		return
	}
	name := []string{"echo", "later", "grow", "fail"}[a.lot.IntN(4)]
	to := a.drawPeer()
	if err := l.h.Reset(to, hg.HashName(name)); err != nil {
		a.failUnlessClosing("reset of a new handle", err)
		return
	}
	c := a.beginCall("call")
	c.to, c.handle, c.deadline = to.WithTarget(0), l, a.drawTimeout(l, false)
	in := binary.LittleEndian.AppendUint64(nil, c.token)
	in = append(in, tokenPattern(c.token, waitedHead+drawLen(a.lot, s.MaxSize))...)
	if err := l.h.SetMeta(s.metaOf(c.token)); err != nil {
		s.fail("metadata of call %x: %v", c.token, err)
	}
	l.busy, l.call = true, c
	a.open--
	a.callers++
	a.node.Go(func() {
		out, err := l.h.CallRaw(context.Background(), in)
		a.callers--
		a.open++
		l.busy = false
		c.handleEnd(err)
		if err == nil {
			s.reach[reachWaited]++
			a.checkAnswer(name, c, out) // the handle may be closed by now
		}
	})
}

// drawTimeout bounds some calls: from a microsecond to 10 s; and all those that handlers wait for,
// since two nodes with few handlers would wait for each other for ever. It returns when the time is
// up.
func (a *actor) drawTimeout(l *originHandle, relayed bool) time.Duration {
	d := time.Duration(0)
	switch some := a.rng.IntN(4) == 0; {
	case relayed:
		d = time.Second
	case some && a.s.isOn(actDeadline):
		d = 1000 + size(a.rng, 10*time.Second)
	}
	l.h.SetTimeout(d)
	if d == 0 {
		return 0
	}
	return a.s.w.Now() + d
}

// planCancel sets hooks: a cancel after some events or exactly at the deadline, or a free of the
// memory too early.
func (a *actor) planCancel(l *originHandle, c *callEntry) {
	s := a.s
	cancel := func() {
		if l.call == c && l.busy && !a.hasEnded() {
			if c.deadline == s.w.Now() {
				s.reach[reachTie]++
			}
			c.canceled = true
			l.h.Cancel()
		}
	}
	if a.rng.IntN(6) == 0 && s.isOn(actSoon) {
		s.w.AfterEvents(a.rng.IntN(1<<a.rng.IntN(8)), cancel)
	}
	if c.deadline > 0 && c.deadline < s.w.Now()+20*time.Millisecond && a.rng.IntN(2) == 0 && s.isOn(actCancel) {
		tie := func() { s.w.After(c.deadline-s.w.Now(), cancel) }
		if a.rng.IntN(2) == 0 {
			tie() // the cancel is called first
		} else {
			s.w.AfterEvents(1, tie) // the engine has set its timer by now
		}
	}
	if c.lent != nil && a.rng.IntN(4) == 0 && s.isOn(actFree) {
		s.w.AfterEvents(a.rng.IntN(1<<a.rng.IntN(9)), func() {
			if l.call == c && l.busy && !a.hasEnded() {
				c.lent.early = true
				if c.lent.moving > 0 {
					s.reach[reachFree]++
				}
				a.takeBackMemory(c)
			}
		})
	}
}

// lend makes memory for others and puts its descriptor behind in.
func (a *actor) lend(c *callEntry, name string, hctx *hg.Context, in []byte) ([]byte, error) {
	memory := make([]byte, size(a.rng, a.s.MaxSize))
	copy(memory, tokenPattern(c.token, len(memory)))
	opts := bulk.Options{Access: bulk.ReadOnly, Bind: name == "relay"}
	if name == "push" {
		opts.Access = bulk.WriteOnly
	}
	region, err := bulk.Create(hctx, opts, splitRandom(a.rng, memory)...)
	if err != nil {
		return nil, err
	}
	c.lent = &lentRegion{region: region, memory: memory}
	in = binary.LittleEndian.AppendUint64(in, c.token)
	return region.AppendBinary(in)
}

// takeBackMemory ends the loan of memory; when that has completed peers must not access it.
func (a *actor) takeBackMemory(c *callEntry) {
	l := c.lent
	if l == nil || l.closed {
		return
	}
	l.closed = true
	a.regions++
	if err := l.region.CloseFunc(func(err error) {
		a.regions--
		if err != nil {
			a.s.fail("close of a region: %v", err)
		}
		a.s.fillRetired(fmt.Sprintf("region of call %x", c.token), l.memory)
	}); err != nil {
		a.regions--
		a.s.fail("close of a region: %v", err)
	}
}

// checkOutput compares an answer with the expected one for this call.
func (a *actor) checkOutput(name string, c *callEntry, h *hg.Handle) {
	out, err := h.OutputRaw()
	if err != nil {
		a.s.fail("output of a call that succeeded: %v", err)
		return
	}
	a.s.checkMeta("output", c.token, h.OutputMeta())
	a.checkAnswer(name, c, out)
}

// checkAnswer is checkOutput for the bytes of it.
func (a *actor) checkAnswer(name string, c *callEntry, out []byte) {
	if len(out) < 8 || binary.LittleEndian.Uint64(out) != c.token {
		a.s.fail("call %x got the answer of another: %x", c.token, out[:min(8, len(out))])
		return
	}
	switch name {
	case "echo", "later", "never", "grow":
		if !bytes.Equal(out[8:], tokenPattern(c.token, len(out)-8)) {
			a.s.fail("call %x: output of %d bytes differs", c.token, len(out))
		}
	case "push":
		if !c.lent.early && !bytes.Equal(c.lent.memory, tokenPattern(^c.token, len(c.lent.memory))) {
			a.s.fail("call %x: pushed memory differs", c.token)
		}
	}
}

func (a *actor) lookup() {
	c := a.beginCall("lookup")
	want := a.drawPeer()
	l, err := a.anyContext().Lookup(want.String(), func(addr na.Addr, err error) {
		c.handleEnd(err)
		if err == nil && addr != want {
			a.s.fail("lookup of %v gave %v", want, addr)
		}
		a.doInCallback(nil)
	})
	if err != nil {
		a.recordRefusal(c, err)
		return
	}
	a.lookups = append(a.lookups, &lookup{l, c})
}

func (a *actor) cancelSomething() {
	cancel := func(c *callEntry, f func()) {
		if c != nil && c.callbacks == 0 {
			c.canceled = true
			if a.s.w.Now() == c.deadline {
				a.s.reach[reachTie]++
			}
			if a.depth > 0 {
				a.s.reach[reachCallback]++
			}
		}
		f()
	}
	switch r := a.rng.IntN(10); {
	case r < 7 && len(a.handles) > 0:
		l := a.handles[a.rng.IntN(len(a.handles))]
		cancel(l.call, l.h.Cancel)
	case r < 9 && len(a.moves) > 0:
		m := a.moves[a.rng.IntN(len(a.moves))]
		cancel(m.c, m.op.Cancel)
	case len(a.lookups) > 0:
		l := a.lookups[a.rng.IntN(len(a.lookups))]
		cancel(l.c, l.l.Cancel)
	}
}

// withdrawSomething takes a request back; that of a call which has ended, too.
func (a *actor) withdrawSomething() {
	if len(a.handles) == 0 || a.ops >= a.s.quota {
		return
	}
	l := a.handles[a.rng.IntN(len(a.handles))]
	if l.call == nil || l.call.refused {
		return
	}
	c := a.beginCall("withdraw")
	c.of = l.call
	timeout := time.Duration(0)
	if a.rng.IntN(4) == 0 {
		timeout = time.Duration(1 + a.rng.IntN(50_000_000))
	}
	c.over = c.of.callbacks > 0 || c.of.canceled
	ended := c.of.callbacks > 0
	if err := l.h.Withdraw(timeout, func(_ *hg.Handle, r hg.WithdrawResult) {
		if ended && r != hg.TooLate {
			a.s.fail("call %x was over, its withdraw gave %v", c.of.token, r)
		}
		c.result = r
		c.of.withdrawn = c.of.withdrawn || r != hg.TooLate
		c.handleEnd(nil)
		a.s.w.Note("withdraw", c.token, uint64(r))
		a.doInCallback(l)
	}); err != nil {
		a.recordRefusal(c, err)
	}
}

// abandonSomething cancels a call and notifies the target.
func (a *actor) abandonSomething() {
	if len(a.handles) > 0 {
		l := a.handles[a.rng.IntN(len(a.handles))]
		if l.busy {
			l.call.canceled = true
		}
		l.h.Abandon()
	}
}

// closeSomething closes an origin's handle, in flight or not.
func (a *actor) closeSomething() {
	if len(a.handles) == 0 {
		return
	}
	i := a.rng.IntN(len(a.handles))
	l := a.handles[i]
	a.handles = slices.Delete(a.handles, i, i+1)
	l.h.Close()
}

// handler serves an RPC.
func (a *actor) handler(name string) hg.Handler {
	return func(h hg.Request) error {
		s := a.s
		in, err := h.InputRaw()
		if err != nil || len(in) < 8 {
			return fmt.Errorf("input of %d bytes: %v", len(in), err)
		}
		token := binary.LittleEndian.Uint64(in)
		s.entry(token).ran++
		s.w.Note("run", token, uint64(len(in)))
		s.checkMeta("input", token, h.Meta())
		if err := h.SetOutputMeta(s.metaOf(token)); err != nil {
			s.fail("metadata for the output of call %x: %v", token, err)
		}
		if w := (sessionPath{h.Peer(), h.HG()}); len(in) <= waitedHead && !a.few {
			if before := a.order[w]; before > token {
				s.fail("call %x from %v arrived after call %x", token, w.from, before)
			}
			a.order[w] = token
		}
		switch name {
		case "echo":
			err = a.respond(h, token, in)
		case "later":
			_ = h.Detach()
			a.kept = append(a.kept, h)
		case "never":
			_ = h.Detach()
			a.nevers = append(a.nevers, h)
		case "fail":
			err = errors.New("asked to fail")
		case "grow":
			out := binary.LittleEndian.AppendUint64(a.room[:0], token)
			a.room = append(out, tokenPattern(token, drawLen(a.rng, s.MaxSize))...)
			err = a.respond(h, token, a.room)
		case "pull", "push":
			err = a.move(h, name, token, in[8:])
		case "relay":
			err = a.relay(h, token, in[8:])
		}
		a.doInCallback(nil)
		return err // nothing was answered: silent, note
	}
}

// relay has another node pull from the origin's memory.
func (a *actor) relay(h hg.Request, token uint64, in []byte) error {
	l := a.create(h.HG())
	if l == nil {
		return na.ErrClosed
	}
	_ = h.Detach()
	if !a.call(l, "pull", in, func(err error) { a.answerMoved(h, token, err) }) {
		return na.ErrAgain
	}
	return nil
}

// move pulls from the origin's memory, or pushes to it, and answers when that has ended. The input
// has the token of the call that lends the memory, and the descriptor.
func (a *actor) move(h hg.Request, name string, token uint64, in []byte) error {
	s := a.s
	remote := new(bulk.Handle)
	if len(in) < 8 {
		return na.ErrInvalid
	}
	owner := s.entry(binary.LittleEndian.Uint64(in))
	if err := remote.UnmarshalBinary(in[8:]); err != nil {
		return err
	}
	local := make([]byte, remote.Len())
	spec := bulk.Spec{Dir: bulk.Pull, Remote: remote, Size: remote.Len(), Chunk: 4096 << a.rng.IntN(5), Window: 1 + a.rng.IntN(8)}
	if remote.Owner().IsZero() {
		spec.Peer = h.Peer()
	}
	if name == "push" {
		spec.Dir = bulk.Push
		copy(local, tokenPattern(^owner.token, len(local)))
	}
	lh, err := bulk.Create(h.HG(), bulk.Options{Access: bulk.LocalOnly}, splitRandom(a.rng, local)...)
	if err != nil {
		return err
	}
	spec.Local = lh
	last := int64(0)
	spec.OnProgress = func(_ *bulk.Op, moved int64) {
		if moved < last {
			s.fail("transfer %x went back from %d to %d", token, last, moved)
		}
		last = moved
	}
	c := a.beginCall("transfer")
	c.of = owner
	_ = h.Detach()
	owner.lent.moving++
	op, err := bulk.Transfer(h.HG(), spec, func(op *bulk.Op, err error) {
		owner.lent.moving--
		c.handleEnd(err)
		whole := last
		if err == nil {
			whole = spec.Size
		}
		if name == "pull" && (err == nil || spec.Window == 1) && !bytes.Equal(local[:whole], tokenPattern(owner.token, int(whole))) {
			s.fail("transfer for call %x: %d bytes that were pulled differ", token, whole)
		}
		s.fillRetired(fmt.Sprintf("local memory of the %s for call %x", name, token), local)
		a.answerMoved(h, token, err)
		a.doInCallback(nil)
	})
	if err != nil {
		owner.lent.moving--
		a.recordRefusal(c, err)
		return err
	}
	if a.moves = append(a.moves, &transfer{op, c}); len(a.moves) > 32 {
		a.moves = a.moves[1:]
	}
	return nil
}
