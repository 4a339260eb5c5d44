package soak

import (
	"bytes"
	"container/heap"
	"context"
	"encoding/binary"
	"errors"
	"math/rand/v2"
	"runtime"
	"slices"
	"sort"
	"time"

	"github.com/quicksilver-rpc/quicksilver/bulk"
	"github.com/quicksilver-rpc/quicksilver/hg"
)

// A load is the origin. One goroutine drives it and runs its callbacks; what another may do is cancel.
type load struct {
	s       *soak
	class   *hg.Class
	hctx    *hg.Context
	ledger  ledger
	rng     *rand.Rand
	slots   []*slot
	errands errands
	on      bool // slots go on
	open    int  // calls, withdraws and regions that have not ended
	untold  int  // withdraws of which nobody has heard what came

	late      int // writes after the end
	bystander int
	longest   time.Duration
	cancels   []time.Duration // from Cancel to the callback
}

// A slot makes one call after the other.
type slot struct {
	l      *load
	t      *target
	h      *hg.Handle
	n      int  // calls so far
	busy   bool // a call has not ended
	token  uint64
	rpc    string
	in     []byte
	mem    []byte // its own, used by pulls and pushes
	used   int    // of mem by this call
	region *bulk.Handle
	poison bool // mem must not have been written since
	begun  time.Time
	cut    time.Time // when Cancel was called
}

const poison = 0xE7

func newLoad(s *soak) (*load, error) {
	l := &load{s: s, rng: rand.New(rand.NewPCG(s.Seed, 1)), ledger: ledger{outcomes: map[string]int64{}}, on: true}
	var err error
	if l.class, err = hg.Open(s.Transport+"://", s.HG); err != nil {
		return nil, err
	}
	for _, name := range rpcs {
		if _, err := l.class.RegisterRPC(hg.RPC{Name: name, OneWay: name == rpcNote}); err != nil {
			return nil, err
		}
	}
	if l.hctx, err = l.class.NewContext(); err != nil {
		return nil, err
	}
	for _, t := range s.targets {
		for range s.Slots {
			h, err := l.hctx.Create(t.peer, hg.HashName(rpcEcho))
			if err != nil {
				return nil, err
			}
			sl := &slot{l: l, t: t, h: h, mem: make([]byte, s.MaxBulk)}
			l.slots = append(l.slots, sl)
			l.plan(0, sl.next)
		}
	}
	return l, nil
}

// drive moves the load on until end, or without more load until nothing is open.
func (l *load) drive(end time.Time, on bool) {
	l.on = on
	l.until(end, func() bool { return !on && l.open == 0 })
}

// until drives the context until end, or until done reports true.
func (l *load) until(end time.Time, done func() bool) {
	for !done() {
		left := time.Until(end)
		if left <= 0 {
			return
		}
		wait := min(left, 20*time.Millisecond)
		if len(l.errands) > 0 {
			wait = min(wait, time.Until(l.errands[0].at))
		}
		_ = l.hctx.Progress(max(wait, 0))
		l.hctx.Trigger(0)
		l.runErrands()
	}
}

// runErrands runs those whose time has come.
func (l *load) runErrands() {
	due := time.Now()
	for len(l.errands) > 0 && !l.errands[0].at.After(due) {
		heap.Pop(&l.errands).(errand).do()
	}
}

// cancelAtRandom cancels calls of every other slot from another goroutine, those of the spared target excepted: where
// something is stuck, half of the calls wait until it moves or is given up.
func (l *load) cancelAtRandom(ctx context.Context) {
	rng := rand.New(rand.NewPCG(l.s.Seed, 2))
	for pause(ctx, time.Duration(rng.ExpFloat64()*float64(time.Millisecond))) {
		l.slots[(l.s.Slots+rng.IntN(len(l.slots)-l.s.Slots))|1].h.Cancel()
	}
}

// knock calls every target until it answers; it returns how many do not in time.
func (l *load) knock(patience time.Duration) (silent int) {
	for _, t := range l.s.targets {
		end, answered := time.Now().Add(patience), false
		sl := l.slots[t.i*l.s.Slots]
		for l.until(end, func() bool { return !sl.busy }); !answered && !sl.busy && time.Now().Before(end); {
			sl.call(rpcEcho, func(err error) { answered = err == nil })
			l.until(end, func() bool { return !sl.busy })
		}
		if !answered {
			silent++
			l.ledger.note("target %d does not answer", t.i)
		}
	}
	return silent
}

// close ends the origin.
func (l *load) close() {
	ctx, stop := context.WithTimeout(context.Background(), 10*time.Second)
	defer stop()
	_ = l.class.Shutdown(ctx)
}

// report says what is known without the logs of the targets.
func (l *load) report(r *Report) {
	st := l.hctx.Stats()
	r.Left = int(st.NA.Regions+st.Lent+st.Pulled+st.Active) + st.NA.Leases + st.NA.Queued + st.NA.Outstanding + st.NA.Envelopes
	if r.Left > 0 {
		l.ledger.note("left: %+v", st)
	}
	for _, sl := range l.slots {
		sl.lookAtPoison()
	}
	if l.untold > 0 {
		l.ledger.note("%d withdraws have no result", l.untold)
	}
	r.LateWrites, r.Bystander, r.Untold = l.late, l.bystander, l.untold
	r.LateDropped, r.PeersLost = st.NA.LateDropped, st.NA.PeersLost
	r.Longest = l.longest.Seconds()
	slices.Sort(l.cancels)
	if n := len(l.cancels); n > 0 {
		ms := func(i int) float64 { return float64(l.cancels[i].Microseconds()) / 1000 }
		r.Cancels, r.CancelP999, r.CancelMax = n, ms(n*999/1000), ms(n-1)
		// One that waits for its target does so until that goes on or is given up. The machine may stand still once.
		if slow := l.s.PeerTimeout / 2; l.cancels[n*999/1000] > slow {
			r.SlowCancels = n - sort.Search(n, func(i int) bool { return l.cancels[i] > slow })
			l.ledger.note("a cancel took %v", l.cancels[n-1])
		}
	}
}

// next begins another call, of a kind that is drawn.
func (sl *slot) next() {
	l := sl.l
	if !l.on {
		return
	}
	rpc := rpcEcho
	switch r := l.rng.IntN(100); {
	case r < 60:
	case r < 64:
		rpc = rpcGrow
	case r < 69:
		rpc = rpcLater
	case r < 71:
		rpc = rpcSilent
	case r < 74:
		rpc = rpcFail
	case r < 75:
		rpc = rpcPanic
	case r < 80:
		rpc = rpcNote
	case r < 90:
		rpc = rpcPull
	default:
		rpc = rpcPush
	}
	sl.call(rpc, nil)
	if sl.t.i > 0 {
		sl.disturb()
	}
}

// disturb draws what else happens to the call.
func (sl *slot) disturb() {
	l, n := sl.l, sl.n
	soon := time.Duration(l.rng.ExpFloat64() * float64(2*time.Millisecond))
	still := func(do func()) func() {
		return func() {
			if sl.n == n {
				do()
			}
		}
	}
	switch r := l.rng.IntN(100); {
	case r < 15:
		l.plan(soon, still(func() { sl.cut = time.Now(); sl.h.Cancel() }))
	case r < 18:
		l.plan(soon, still(sl.withdraw))
	case r < 21:
		l.plan(soon, still(sl.h.Abandon))
	}
}

// withdraw takes the call back if it can be. Somebody must hear once what came of it.
func (sl *slot) withdraw() {
	l, token, told := sl.l, sl.token, 0
	if sl.h.Withdraw(time.Second, func(*hg.Handle, hg.WithdrawResult) {
		if told++; told > 1 {
			l.ledger.doubled++
			l.ledger.note("the withdraw of call %d ended again", token)
			return
		}
		l.open--
		l.untold--
	}) == nil {
		l.open++
		l.untold++
	}
}

// size draws a length, small ones as likely as large ones.
func (l *load) size(most int64) int {
	bits := 1
	for int64(1)<<bits < most {
		bits++
	}
	return int(l.rng.Int64N(min(1<<l.rng.IntN(bits+1), most)) + 1)
}

// call makes one call. then, if it is not nil, hears of its end instead of the next call.
func (sl *slot) call(rpc string, then func(error)) {
	l := sl.l
	sl.token, sl.rpc, sl.begun, sl.cut = l.ledger.begin(rpc == rpcNote), rpc, time.Now(), time.Time{}
	sl.in = binary.LittleEndian.AppendUint64(sl.in[:0], sl.token)
	var timeout time.Duration
	if sl.t.i > 0 && then == nil && l.rng.IntN(10) == 0 {
		timeout = time.Duration(1 + l.rng.Int64N(int64(time.Second)))
	}
	sl.h.SetTimeout(timeout)
	err := sl.h.Reset(sl.t.peer, hg.HashName(rpc))
	switch rpc {
	case rpcPull, rpcPush:
		err = errors.Join(err, sl.publish())
	case rpcGrow:
		sl.in = binary.LittleEndian.AppendUint32(sl.in, uint32(l.size(64<<10)))
	default:
		sl.in = tokenBytes(sl.in, sl.token, l.size(16<<10))
	}
	l.open++
	sl.busy = true
	token := sl.token
	if err == nil {
		err = sl.h.ForwardRaw(sl.in, func(_ *hg.Handle, err error) { sl.ended(token, err, then) })
	}
	if err != nil {
		sl.ended(token, err, then)
	}
}

// publish makes the memory of a call reachable.
func (sl *slot) publish() error {
	l := sl.l
	sl.lookAtPoison()
	sl.poison, sl.used = false, l.size(l.s.MaxBulk)
	access := bulk.WriteOnly
	if sl.rpc == rpcPull {
		access = bulk.ReadOnly
		fillToken(sl.mem[:sl.used], sl.token)
	}
	var err error
	if sl.region, err = bulk.Create(l.hctx, bulk.Options{Access: access}, sl.mem[:sl.used]); err != nil {
		return err
	}
	sl.in, err = sl.region.AppendBinary(sl.in)
	return err
}

// lookAtPoison looks whether memory was written that was taken back.
func (sl *slot) lookAtPoison() {
	if sl.poison && slices.ContainsFunc(sl.mem[:sl.used], func(b byte) bool { return b != poison }) {
		sl.l.late++
		sl.l.ledger.note("memory was written after a call before %d had ended", sl.token)
	}
}

// ended is the callback of every call.
func (sl *slot) ended(token uint64, err error, then func(error)) {
	l := sl.l
	now := time.Now()
	sl.n++
	sl.busy = false
	l.open--
	l.ledger.end(token, err)
	l.longest = max(l.longest, now.Sub(sl.begun))
	if !sl.cut.IsZero() && errors.Is(err, hg.ErrCanceled) {
		l.cancels = append(l.cancels, now.Sub(sl.cut))
	}
	sl.check(err)
	again := func() { l.again(sl, err) }
	if then != nil {
		again = func() { then(err) }
	}
	if sl.region == nil {
		again()
		return
	}
	region := sl.region
	sl.region = nil
	l.open++
	closed := func(error) {
		l.open--
		for i := range sl.used {
			sl.mem[i] = poison
		}
		sl.poison = true
		again()
	}
	if region.CloseFunc(closed) != nil {
		closed(nil)
	}
}

// again makes the slot's next call: soon where there is nobody.
func (l *load) again(sl *slot, err error) {
	wait := time.Duration(0)
	if err != nil && !errors.Is(err, hg.ErrCanceled) {
		wait = time.Duration(l.rng.Int64N(int64(20 * time.Millisecond)))
	}
	l.plan(wait, sl.next)
}

// check looks at the answer, and at what may not be.
func (sl *slot) check(err error) {
	l := sl.l
	remote, ok := errors.AsType[*hg.RemoteError](err)
	switch {
	case ok && remote.Text == errWrong:
		l.wrong(sl, "the target got wrong bytes")
	case err == nil && sl.rpc != rpcNote:
		sl.checkAnswer()
	case ok && (sl.rpc == rpcFail || sl.rpc == rpcPanic || sl.rpc == rpcSilent), err == nil:
	case sl.t.i == 0 && !errors.Is(err, hg.ErrAgain):
		l.bystander++
		l.ledger.note("call %d of the spared target: %v", sl.token, err)
	}
}

func (sl *slot) checkAnswer() {
	l := sl.l
	out, err := sl.h.OutputRaw()
	if err != nil || len(out) < 8 || binary.LittleEndian.Uint64(out) != sl.token {
		l.wrong(sl, "the answer is that of another call")
		return
	}
	good := true
	switch sl.rpc {
	case rpcEcho, rpcLater:
		good = bytes.Equal(out, sl.in)
	case rpcGrow:
		good = uint32(len(out)-8) == binary.LittleEndian.Uint32(sl.in[8:]) && isToken(out[8:], sl.token)
	case rpcPush:
		good = isToken(sl.mem[:sl.used], ^sl.token)
	case rpcSilent, rpcFail, rpcPanic:
		good = false
	}
	if !good {
		l.wrong(sl, "wrong bytes")
	}
}

func (l *load) wrong(sl *slot, what string) {
	l.ledger.wrong++
	l.ledger.note("%s call %d: %s", sl.rpc, sl.token, what)
}

// An errand is what is to be done at a time.
type errand struct {
	at time.Time
	do func()
}

func (l *load) plan(in time.Duration, do func()) {
	heap.Push(&l.errands, errand{time.Now().Add(in), do})
}

// errands is a heap.
type errands []errand

func (p errands) Len() int           { return len(p) }
func (p errands) Less(i, j int) bool { return p[i].at.Before(p[j].at) }
func (p errands) Swap(i, j int)      { p[i], p[j] = p[j], p[i] }
func (p *errands) Push(v any)        { *p = append(*p, v.(errand)) }
func (p *errands) Pop() any {
	last := len(*p) - 1
	v := (*p)[last]
	(*p)[last] = errand{}
	*p = (*p)[:last]
	return v
}

// pause waits, and reports false when ctx has ended.
func pause(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}

var canStop = runtime.GOOS != "windows"
