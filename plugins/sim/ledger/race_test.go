package ledger

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/quicksilver-rpc/quicksilver/hg"
	"github.com/quicksilver-rpc/quicksilver/hg/codec"
	"github.com/quicksilver-rpc/quicksilver/na"
	"github.com/quicksilver-rpc/quicksilver/plugins/sim"
)

// A race is one seed: a world whose nodes send each other requests and withdraw them, so that the withdrawal arrives about when the handler would start.
//
//	work: forward, withdraw, cancel, faults ─► calm ─► every handle once more ─► every envelope once more ─► close ─► audit
type race struct {
	seed   uint64
	opts   raceOptions
	w      *sim.World
	cfg    sim.Config
	rng    *rand.Rand
	racers []*racer // those that are alive
	names  []string
	ger    []int // envelopes that each name guarantees
	made   uint64
	failed error

	asked   int // calls that were withdrawn, or were to be withdrawn
	crashes int
	calmed  bool
	calls   []*raceCall // by token
	came    map[string]int

	far    int64 // messages destroyed at their destination
	late   int64 // answers without a receiver
	stalls int64 // requests that had to wait for an envelope
	full   int   // times that a node was seen with requests that wait for MaxActive
}

// raceOptions are the options of a race; the zero value is the fastest race, without faults.
type raceOptions struct {
	races     int           // calls that are withdrawn
	until     time.Duration // duration of the work, instead
	span      time.Duration // from a call to the action on it; 0: a few round trips
	envelopes int           // guaranteed to each peer; 0: drawn
	plain     bool          // nothing but forward and withdraw, and withdraw for half of the calls only
	faults    sim.Faults
	crashes   int
}

// isClean reports whether no session is ever lost.
func (o *raceOptions) isClean() bool {
	f := o.faults
	return o.crashes == 0 && f.Reset == 0 && f.Clog == 0 && f.Pause == 0 && f.Partition == 0 && f.Refuse == 0 && f.Corrupt == 0
}

// drawRace draws the kind of race of a seed: half of them have no loss.
func drawRace(seed uint64, races int) *race {
	r := newRand(seed, 1000)
	o := raceOptions{races: races}
	at := func(most time.Duration) time.Duration {
		return time.Duration(r.Int64N(int64(most))) * time.Duration(r.IntN(2))
	}
	o.faults = sim.Faults{Jitter: at(20 * time.Microsecond), Stall: at(20 * time.Microsecond)}
	if kind := r.IntN(4); kind >= 2 {
		o.faults.Reset = 0.01 * r.Float64() * float64(r.IntN(2))
		o.faults.Clog, o.faults.ClogFor = 0.02*r.Float64()*float64(r.IntN(2)), 200*time.Microsecond
		o.faults.Partition, o.faults.PartitionFor = 0.01*r.Float64()*float64(r.IntN(2)), 5*time.Millisecond
		o.faults.Refuse, o.faults.Narrow = 0.2*r.Float64(), r.Float64()*float64(r.IntN(2))
		if kind == 3 {
			o.crashes, o.faults.Silence = 1+r.IntN(2), float64(r.IntN(2))
		}
	}
	return newRace(seed, o)
}

func newRace(seed uint64, opts raceOptions) *race {
	s := &race{seed: seed, opts: opts, rng: newRand(seed, 1001), crashes: opts.crashes, came: map[string]int{}}
	s.cfg = sim.Config{Seed: seed, Level: sim.Level(s.rng.IntN(2)), NoAssist: s.rng.IntN(4) == 0, Faults: opts.faults}
	s.w = sim.NewWorld(s.cfg)
	if s.opts.span == 0 {
		s.opts.span = 4 * (s.cfg.Faults.Jitter + s.cfg.Faults.Stall + 5*time.Microsecond)
	}
	for i := range 2 + s.rng.IntN(3) {
		s.names = append(s.names, fmt.Sprintf("n%d", i))
		ger := 1 + s.rng.IntN(8)
		if opts.envelopes > 0 {
			ger = opts.envelopes
		}
		s.ger = append(s.ger, ger)
	}
	return s
}

func (s *race) fail(format string, args ...any) {
	if s.failed == nil {
		s.failed = fmt.Errorf(format, args...)
	}
}

func (s *race) summary() string {
	return fmt.Sprintf("seed %d: level %d, no assist %v, envelopes %v, %+v, calls %d, virtual %v",
		s.seed, s.cfg.Level, s.cfg.NoAssist, s.ger, s.opts, len(s.calls), s.w.Now())
}

// run runs the world from beginning to end; its error names the promise that was broken.
func (s *race) run() error {
	defer s.w.Close()
	for i := range s.names {
		s.start(i)
	}
	s.w.Go("chaos", s.runFaults)
	if err := s.w.Run(s.opts.until + 10*time.Minute); err != nil {
		return errors.Join(s.failed, err)
	}
	if s.failed == nil {
		s.audit()
	}
	return s.failed
}

func (s *race) isWorking() bool {
	if s.failed != nil {
		return false
	}
	if s.opts.until > 0 {
		return s.w.Now() < s.opts.until
	}
	return s.asked < s.opts.races
}

// runFaults crashes nodes and restarts them, and calms the world when the work is done.
func (s *race) runFaults() {
	for s.isWorking() {
		s.w.Sleep(time.Duration(s.rng.Int64N(int64(10 * s.opts.span))))
		if s.crashes == 0 || s.rng.IntN(4) > 0 || !s.isWorking() {
			continue
		}
		s.crashes--
		i := s.rng.IntN(len(s.racers))
		old := s.racers[i]
		old.crashed = true
		old.node.Crash()
		s.w.Sleep(time.Duration(s.rng.Int64N(int64(20 * s.opts.span))))
		s.start(i)
	}
	s.w.SetFaults(sim.Faults{})
	s.w.Heal()
	s.calmed = true
}

// start opens a node's class and runs its program.
func (s *race) start(i int) {
	s.made++
	a := &racer{s: s, i: i, rng: newRand(s.seed, 2000+s.made), node: s.w.Node(s.names[i])}
	if i < len(s.racers) {
		s.racers[i] = a
	} else {
		s.racers = append(s.racers, a)
	}
	a.node.Go(a.main)
}

// A racer is the program of one node.
type racer struct {
	s       *race
	i       int
	rng     *rand.Rand
	node    *sim.Node
	crashed bool

	cls     *hg.Class
	hctx    *hg.Context
	entries []*entry
	kept    []keptRequest // requests that are answered later
	holding bool          // no handler begins
	given   []hg.Request  // those that are held back
	open    int           // callbacks that have not run
	idle    int           // turns in which nothing happened
}

// An entry is a handle and the planned action on its call.
type entry struct {
	h    *hg.Handle
	call *raceCall // in flight; nil if the handle is idle
	todo [4]plannedAction
}

// A plannedAction is an action at a certain time.
type plannedAction struct {
	what uint8
	at   time.Duration
}

const (
	doNothing = iota
	doWithdraw
	doWithdrawSoon // with a bound on the wait
	doCancel
	doClose
)

type keptRequest struct {
	h  hg.Request
	at time.Duration
}

// The RPCs of a race; the input begins with the call's token.
var raceRPCs = []string{"now", "later", "note"}

func (a *racer) main() {
	s := a.s
	cfg := hg.Config{Codec: codec.Raw}
	cfg.NA.Plugins = []na.Plugin{a.node.Plugin()}
	cfg.NA.Envelopes = s.ger[a.i]
	cfg.NA.Eager = 256 << (2 * a.rng.IntN(3))
	cfg.NA.PeerTimeout = max(500*time.Millisecond, 10*s.opts.span)
	cfg.MaxActive = []int{1, 2, 4, 1024}[a.rng.IntN(4)]
	cfg.MaxActivePerPeer = []int{1, 2, 128}[a.rng.IntN(3)]
	cfg.Dispatch = func(r hg.Request) {
		if a.holding {
			a.given = append(a.given, r)
		} else {
			_ = r.Run()
		}
	}
	var err error
	if a.cls, err = hg.Open("sim://"+s.names[a.i], cfg); err == nil {
		a.hctx, err = a.cls.NewContext()
	}
	if err != nil {
		s.fail("open: %v", err)
		return
	}
	for _, rpc := range raceRPCs {
		if _, err := a.cls.RegisterRPC(hg.RPC{Name: rpc, Handler: a.handler(rpc), OneWay: rpc == "note"}); err != nil {
			s.fail("register: %v", err)
		}
	}
	for range 1 + a.rng.IntN(8) {
		a.entries = append(a.entries, &entry{})
	}
	for s.isWorking() {
		a.step()
	}
	a.finish()
}

// step is one turn of the work.
func (a *racer) step() {
	s := a.s
	busy := a.hctx.Trigger(a.rng.IntN(4)) > 0
	for _, en := range a.entries {
		if en.call == nil && a.rng.IntN(4) == 0 {
			a.forward(en)
			busy = true
		}
	}
	if a.rng.IntN(16) == 0 && a.hctx.Stats().Waiting > 0 {
		s.full++
	}
	next := a.runDue()
	pause := time.Duration(a.rng.Int64N(int64(s.opts.span)))
	if a.idle++; busy {
		a.idle = 0
	}
	pause <<= min(a.idle/4, 8) // a peer that is lost is waited for
	if at := next - s.w.Now(); next > 0 && at < pause {
		pause = max(at, 0)
	}
	if a.rng.IntN(2) == 0 { // something else to do, or nothing
		s.w.Sleep(pause)
	} else {
		_ = a.hctx.Progress(pause)
	}
}

// runDue runs the deeds that are due, and returns the time of the next one.
func (a *racer) runDue() (next time.Duration) {
	now := a.s.w.Now()
	soon := func(at time.Duration) {
		if next == 0 || at < next {
			next = at
		}
	}
	for _, en := range a.entries {
		for i := range en.todo {
			switch d := &en.todo[i]; {
			case d.what == doNothing:
			case d.at <= now:
				what := d.what
				d.what = doNothing
				a.applyDeed(en, what)
			default:
				soon(d.at)
			}
		}
	}
	left := a.kept[:0]
	for _, k := range a.kept {
		if k.at > now {
			soon(k.at)
			left = append(left, k)
			continue
		}
		if in, err := k.h.InputRaw(); err == nil && a.rng.IntN(16) > 0 { // otherwise it is not answered
			_ = k.h.RespondRaw(in[:8], nil)
		} else {
			_ = k.h.RespondError(na.ErrNoResponse, nil)
		}
	}
	a.kept = left
	return next
}

func (a *racer) applyDeed(en *entry, what uint8) {
	switch what {
	case doWithdraw:
		a.withdraw(en, 0)
	case doWithdrawSoon:
		a.withdraw(en, 1+time.Duration(a.rng.Int64N(int64(a.s.opts.span))))
	case doCancel:
		if en.call != nil {
			en.call.canceled = true
		}
		en.h.Cancel()
	case doClose:
		en.h.Close()
		*en = entry{}
	}
}

// forward begins a call and plans the action on it.
func (a *racer) forward(en *entry) {
	s := a.s
	rpc := raceRPCs[min(a.rng.IntN(10)/4, 2)]
	if !a.call(en, rpc, a.rng.IntN(len(s.names))) {
		return
	}
	c := en.call
	plan := func(i int, what uint8) {
		at := s.w.Now()
		if a.rng.IntN(8) > 0 {
			at += time.Duration(a.rng.Int64N(int64(s.opts.span)))
		}
		en.todo[i] = plannedAction{what, at}
	}
	en.todo = [4]plannedAction{}
	if s.opts.plain {
		if c.token%2 == 0 {
			plan(0, doWithdraw)
		}
		return
	}
	switch r := a.rng.IntN(48); {
	case r < 4:
		plan(0, doWithdrawSoon)
	default:
		plan(0, doWithdraw)
	}
	if a.rng.IntN(6) == 0 {
		plan(1, doWithdraw)
	}
	if a.rng.IntN(12) == 0 {
		plan(2, doCancel)
	}
	if a.rng.IntN(48) == 0 {
		plan(3, doClose)
	}
}

// call forwards, and writes a line of the ledger.
func (a *racer) call(en *entry, rpc string, to int) bool {
	s := a.s
	addr := na.MakeAddr("sim://"+s.names[to], 0)
	var err error
	if en.h == nil {
		en.h, err = a.hctx.Create(addr, hg.HashName(rpc))
	} else {
		err = en.h.Reset(addr, hg.HashName(rpc))
	}
	if err != nil {
		s.fail("no handle for %s: %v", rpc, err)
		return false
	}
	c := &raceCall{token: uint64(len(s.calls)), by: a, to: to, oneWay: rpc == "note"}
	s.calls = append(s.calls, c)
	var room [64]byte
	in := binary.LittleEndian.AppendUint64(room[:0], c.token)
	switch a.rng.IntN(16) {
	case 0: // larger than a message
		c.large = true
		in = append(in, make([]byte, 300+a.rng.IntN(8<<10))...)
	case 1, 2, 3:
		in = append(in, make([]byte, a.rng.IntN(200))...)
	}
	en.call = c
	h := en.h
	err = h.ForwardRaw(in, func(h *hg.Handle, err error) {
		a.open--
		c.handleEnd(err)
		if err == nil && !c.oneWay {
			if out, err := h.OutputRaw(); err != nil || len(out) != 8 || binary.LittleEndian.Uint64(out) != c.token {
				s.fail("call %d has the answer of another: %x, %v", c.token, out, err)
			}
		}
		if en.h != h {
			return // it was closed since
		}
		en.call = nil
		if s.opts.plain || !s.isWorking() {
			return
		}
		switch a.rng.IntN(16) { // a callback may do anything with its handle
		case 0:
			en.todo[0].what = doNothing
			a.withdrawAndRecord(h, c, 0)
		case 1:
			h.Cancel()
		case 2:
			a.forward(en)
		}
	})
	if err != nil {
		en.call = nil
		s.calls = s.calls[:len(s.calls)-1]
		s.fail("forward: %v", err)
		return false
	}
	a.open++
	return true
}

// withdraw takes the call of a handle back, or tries to when there is none any more.
func (a *racer) withdraw(en *entry, timeout time.Duration) {
	if c := en.call; c != nil {
		a.withdrawAndRecord(en.h, c, timeout)
	}
}

// withdrawAndRecord is Withdraw with a line in the ledger.
func (a *racer) withdrawAndRecord(h *hg.Handle, c *raceCall, timeout time.Duration) {
	k := withdrawal{over: c.callbacks > 0 || c.canceled, ended: c.callbacks > 0, bounded: c.bounded}
	if !k.over && len(c.asks) == 0 {
		a.s.asked++
	}
	c.asks = append(c.asks, k)
	c.bounded = c.bounded || timeout > 0
	i := len(c.asks) - 1
	a.open++
	if err := h.Withdraw(timeout, func(_ *hg.Handle, r hg.WithdrawResult) {
		a.open--
		c.asks[i].reported++
		c.asks[i].r = r
		a.s.w.Note("told", c.token, uint64(r))
	}); err != nil {
		a.s.fail("withdraw of call %d: %v", c.token, err)
	}
}

// handler serves an RPC.
func (a *racer) handler(rpc string) hg.Handler {
	return func(h hg.Request) error {
		in, err := h.InputRaw()
		if err != nil || len(in) < 8 {
			a.s.fail("input of %d bytes: %v", len(in), err)
			return nil
		}
		token := binary.LittleEndian.Uint64(in)
		c := a.s.calls[token]
		c.ran++
		a.s.w.Note("run", token, uint64(len(in)))
		switch rpc {
		case "now":
			return h.RespondRaw(in[:8], nil)
		case "later":
			_ = h.Detach()
			a.kept = append(a.kept, keptRequest{h, a.s.w.Now() + time.Duration(a.rng.Int64N(int64(a.s.opts.span)))})
		}
		return nil
	}
}
