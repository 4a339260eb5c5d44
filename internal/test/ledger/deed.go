package ledger

import (
	"context"
	"errors"
	"math/rand/v2"
	"runtime"
	"sync/atomic"
	"time"

	"github.com/quicksilver-rpc/quicksilver/hg"
	"github.com/quicksilver-rpc/quicksilver/qs"
)

// Deeds is a set of the actions of callers.
type Deeds uint32

const (
	DeedCancel Deeds = 1 << iota // Future.Cancel
	DeedAbandon
	DeedWithdraw
	DeedHedge
	DeedDeadline
	DeedContext // the context of a call is canceled
	DeedNote    // a one-way call
	DeedLend    // memory
	DeedStream  // a reader or a writer
	DeedExit    // of which some end their goroutine
	DeedRetry
	DeedTwice // an interceptor that repeats
	DeedHang  // handlers that wait for the end of their context
	DeedPanic
	DeedSpare // an interceptor that sends the request to a second address
	DeedFirst // of several calls the first that succeeds
	DeedAll   // one call to several peers
	DeedPick  // of an address by load, or in turn
	DeedsEnd
)

// A caller makes one call after the other.
type caller struct {
	*nodeLife
	rng *rand.Rand
	mem []byte // its own, lent to calls

	taken [][]byte // of mem, back from the last call
}

func newCaller(l *nodeLife, seed uint64) *caller {
	return &caller{nodeLife: l, rng: rand.New(rand.NewPCG(l.Seed, seed)), mem: make([]byte, l.MaxData)}
}

func (c *caller) run() {
	for i := 0; !c.over.Load() && (c.Rounds == 0 || i < c.Rounds); i++ {
		if c.Pause > 0 {
			c.Sleep(time.Duration(c.rng.Int64N(int64(c.Pause))))
		}
		c.callOnce()
	}
	c.checkPoison()
}

// A request is one call and its state.
type request struct {
	*caller
	id       ID
	ctx      context.Context
	cancel   context.CancelFunc
	deadline bool
	attempts atomic.Int32
	to       qs.Peer
	in       askInput
	lend     *lend // nil if nothing is lent
	how      Deeds // action on it; 0 for none
	again    bool
	inline   bool
	times    int // peers that it goes to at once; 0 for one
}

type future interface {
	Cancel()
	Abandon()
	Withdraw(ctx context.Context) hg.WithdrawResult
	Wait(ctx context.Context) (askAnswer, error)
	Done() <-chan struct{}
}

// shouldDo reports, one time in n, that a deed that is not off is to be done.
func (c *caller) shouldDo(d Deeds, n int) bool { return c.rng.IntN(n) == 0 && c.Off&d == 0 }

// drawSize draws a length, small ones as likely as large ones.
func (c *caller) drawSize(most int) int {
	bits := 1
	for 1<<bits < most {
		bits++
	}
	return min(1<<c.rng.IntN(bits+1), most) - c.rng.IntN(2)
}

// callOnce makes one drawn call, or a deed of two.
func (c *caller) callOnce() {
	var err error
	switch {
	case c.sprints:
		r := c.drawRequest()
		err = r.makeAndEnd()
	case c.shouldDo(DeedNote, 20):
		err = c.sendOneWay()
	case c.shouldDo(DeedHedge, 12):
		err = c.callHedged()
	case c.shouldDo(DeedFirst, 12):
		err = c.callFirst()
	case c.shouldDo(DeedAll, 12):
		err = c.callAll()
	default:
		r := c.drawRequest()
		err = r.makeAndEnd()
	}
	if err != nil && !c.sprints && c.rng.IntN(2) == 0 {
		c.Sleep(time.Duration(c.rng.Int64N(int64(10 * time.Millisecond))))
	}
}

// newRequest draws where a call goes.
func (c *caller) newRequest() *request {
	r := &request{caller: c, to: c.peers[c.rng.IntN(len(c.peers))], again: c.rng.IntN(3) == 0}
	return r
}

// drawRequest draws a call.
func (c *caller) drawRequest() *request {
	r := c.newRequest()
	if c.sprints && c.rng.IntN(50) > 0 { // few handlers get a cancel, and wait until the deadline
		r.to, r.how = c.peers[0], []Deeds{DeedAbandon, DeedAbandon, DeedAbandon, DeedAbandon, DeedAbandon, DeedAbandon, DeedWithdraw, DeedCancel}[c.rng.IntN(8)]
		if c.Off&r.how != 0 {
			r.how = 0
		} else if c.Off&DeedHang == 0 && c.rng.IntN(4) > 0 {
			r.in.Act = actHang
		}
		return r
	}
	switch {
	case c.shouldDo(DeedCancel, 8):
		r.how = DeedCancel
	case c.shouldDo(DeedAbandon, 8):
		r.how = DeedAbandon
	case c.shouldDo(DeedWithdraw, 12):
		r.how = DeedWithdraw
	case c.shouldDo(DeedContext, 12):
		r.how = DeedContext
	case c.shouldDo(DeedDeadline, 8):
		r.how = DeedDeadline
	}
	switch n := c.rng.IntN(40); {
	case n < 8:
		r.in.Act, r.in.Pause = actPause, c.drawPause()
	case n == 8:
		r.in.Act = actFail
	case n == 9 && c.Off&DeedPanic == 0:
		r.in.Act = actPanic
		if c.shouldDo(DeedExit, 2) {
			r.in.Act = actExit
		}
	case n == 10:
		r.in.Act = actRefuse
	case n == 11:
		r.inline = true
		r.again = false
	}
	if r.how != 0 && c.shouldDo(DeedHang, 2) {
		r.in.Act, r.inline = actHang, false
		if d := c.drawPause(); c.rng.IntN(2) == 0 {
			r.in.Lull.pause = func() { r.pause(d) }
		}
	}
	if !r.inline && r.in.Act != actRefuse {
		if c.shouldDo(DeedLend, 5) {
			r.lend = c.newLend(false)
		} else if c.shouldDo(DeedStream, 30) {
			r.lend = c.newLend(true)
		}
	}
	return r
}

// drawPause draws a time: microseconds as likely as milliseconds.
func (c *caller) drawPause() time.Duration {
	return time.Duration(c.rng.Int64N(int64(time.Microsecond) << c.rng.IntN(14)))
}

// recordBegin adds a call to the book.
func (r *request) recordBegin() {
	r.id = r.Origin.id()
	r.in.ID = r.id
	r.ctx, r.cancel = context.WithValue(context.Background(), attemptsKey{}, &r.attempts), func() {}
	switch {
	case r.how == DeedDeadline:
		r.ctx, r.cancel = r.node.HG().NA().WithTimeout(r.ctx, r.drawPause()+r.drawPause())
		r.deadline = true
	case r.how == DeedContext:
		r.ctx, r.cancel = r.node.HG().NA().WithTimeout(r.ctx, time.Hour)
	case r.in.Act == actHang && (r.how != DeedAbandon || r.rng.IntN(4) > 0):
		// A handler is not notified of the cancel of its call.
		r.ctx, r.cancel = r.node.HG().NA().WithTimeout(r.ctx, hangs/2)
		r.deadline = true
	}
	what := actNames[r.in.Act]
	if r.lend != nil {
		r.lend.setInput(r)
		what += "-lend"
		if r.lend.streams {
			what = actNames[r.in.Act] + "-stream"
		}
	} else {
		most := 16 << 10
		// beside the message; in a simulator lent, too: processes would keep the memory of hundreds
		// for a while
		if r.rng.IntN(4) == 0 {
			if most = 300 << 10; r.node.HG().NA().Scheduled() {
				most = 6 << 20
			}
		}
		r.in.Data = make([]byte, r.drawSize(most))
		fillPattern(r.in.Data, r.id, 0)
	}
	if r.times > 0 {
		what += "-all"
	}
	r.Book.addCall(r.id, what, r.maxRuns(r.again)*max(r.times, 1))
}

func bind[In any](r *request, m *qs.Method[In, askAnswer], in In) (func() (askAnswer, error), func() future) {
	return func() (askAnswer, error) { return m.Call(r.ctx, r.to, in) }, func() future { return m.Go(r.ctx, r.to, in) }
}

// callFuncs returns the functions that make the call: one that blocks until its end, and one that
// does not.
func (r *request) callFuncs() (call func() (askAnswer, error), begin func() future) {
	switch {
	case r.lend != nil && r.again:
		return bind(r, movesAgain, r.lend.in)
	case r.lend != nil:
		return bind(r, moves, r.lend.in)
	case r.inline:
		return bind(r, asksInline, r.in)
	case r.again:
		return bind(r, asksAgain, r.in)
	}
	return bind(r, asks, r.in)
}

// makeAndEnd makes a call, and applies the deed that was drawn for it.
func (r *request) makeAndEnd() error {
	r.recordBegin()
	defer r.cancel()
	call, begin := r.callFuncs()
	switch r.how {
	case DeedContext:
		cancel, d := r.cancel, r.drawPause()
		r.Go(func() { r.pause(d); cancel() })
		fallthrough
	case 0, DeedDeadline:
		if r.rng.IntN(2) == 0 {
			out, err := call()
			return r.judgeEnd(out, err)
		}
		return r.wait(begin())
	}
	f := begin()
	if !r.sprints && r.rng.IntN(2) == 0 {
		r.pause(r.drawPause())
	} else {
		r.pauseUntilBegun()
	}
	r.applyDrawn(f)
	return r.wait(f)
}

// pauseUntilBegun waits for the very microseconds in which an attempt begins.
func (r *request) pauseUntilBegun() {
	if r.nodeLife.attempts && !r.node.HG().NA().Scheduled() {
		for begun := time.Now(); r.attempts.Load() == 0 && time.Since(begun) < time.Millisecond; {
			runtime.Gosched()
		}
	}
	r.pause(time.Duration(r.rng.IntN(int(40 * time.Microsecond))))
}

// pause waits for d, without the help of the system if that is short.
func (r *request) pause(d time.Duration) {
	if d < 100*time.Microsecond && !r.node.HG().NA().Scheduled() {
		for begun := time.Now(); time.Since(begun) < d; {
		}
		return
	}
	r.Sleep(d)
}

// applyDrawn applies the deed that was drawn for a call, and adds to the book how it must end.
func (r *request) applyDrawn(f future) {
	now := time.Now()
	early := func() bool { // its own deadline is far away
		end, ok := r.ctx.Deadline()
		left, err := r.node.HG().NA().Until(end)
		return !ok || err == nil && left > hangs/8
	}
	switch r.how {
	case DeedWithdraw:
		ctx, cancel := r.node.HG().NA().WithTimeout(context.Background(), r.drawPause()*8)
		result := f.Withdraw(ctx)
		cancel()
		r.Book.addWithdraw(r.id, result)
		if result == hg.Withdrawn {
			if _, err := f.Wait(context.Background()); err == nil || qs.FateOf(err) != qs.NotRun {
				r.Book.addWrong("call %v was withdrawn, and ended otherwise: %v", r.id, err)
			}
			return
		}
		if r.in.Act == actHang {
			f.Abandon()
		}
	case DeedCancel:
		f.Cancel()
	case DeedAbandon:
		f.Abandon()
	}
	if r.in.Act != actHang || r.stalls || !early() {
		return
	}
	awake := r.watch(f, now)
	_, err := f.Wait(context.Background())
	if awake && r.ctx.Err() != nil && errors.Is(err, context.DeadlineExceeded) {
		r.Book.addWrong("call %v was canceled (%#x) %v before its deadline, and went on until then (%s)", r.id, uint32(r.how), hangs/2, r.desc)
	}
	if errors.Is(err, qs.ErrCanceled) {
		r.mu.Lock()
		r.cancels = append(r.cancels, time.Since(now))
		r.mu.Unlock()
	}
}

// watch waits for the end of f, and reports whether this process has been running since last: one
// that was stopped until the deadline of a call ends it then.
func (r *request) watch(f future, last time.Time) (awake bool) {
	if r.node.HG().NA().Scheduled() {
		return true // virtual time: no process is stopped between two lines
	}
	const step = hangs / 64
	tick := time.NewTicker(step)
	defer tick.Stop()
	for {
		select {
		case <-f.Done():
			return time.Since(last) < hangs/16
		case <-tick.C:
			if time.Since(last) >= hangs/16 {
				return false
			}
			last = time.Now()
		}
	}
}

func (r *request) wait(f future) error {
	out, err := f.Wait(context.Background())
	return r.judgeEnd(out, err)
}

// judgeEnd checks the end of a call, and adds it to the book.
func (r *request) judgeEnd(out askAnswer, err error) error {
	ended := r.ctx.Err()
	attempts := int(r.attempts.Load())
	if !r.nodeLife.attempts {
		attempts = 1
	}
	if r.how&(DeedCancel|DeedAbandon|DeedWithdraw|DeedContext|DeedFirst) != 0 {
		r.Book.addTakenEnd(r.id, attempts, err)
	} else {
		r.Book.addEnd(r.id, attempts, err)
	}
	if r.lend != nil {
		r.lend.checkEnd(r, err)
	}
	if text := checkError(err); text != "" {
		r.Book.addWrong("call %v: %s: %v", r.id, text, err)
	}
	remote, isRemote := hg.RemoteOf(err)
	switch {
	case isRemote && ended != nil && r.in.Act == actHang && remote.Code != qs.ErrUnavailable && !remote.Refused && !errors.Is(err, ended) && !r.cut.Load():
		r.Book.addWrong("call %v: its context has ended, and the error does not match that: %v", r.id, err)
	case err == nil && (out.ID != r.id || r.lend == nil && len(out.Data) != len(r.in.Data) || !isPattern(out.Data, r.id, 0)):
		r.Book.addWrong("call %v: a wrong answer, of call %v", r.id, out.ID)
	case err == nil && (r.in.Act == actFail || r.in.Act == actPanic || r.in.Act == actExit || r.in.Act == actRefuse):
		r.Book.addWrong("call %v: it succeeded, and was to %s", r.id, actNames[r.in.Act])
	case err != nil && r.Spared && r.to == r.peers[0] && r.how == 0 && (r.in.Act == actEcho || r.in.Act == actPause) && !r.cut.Load() &&
		!r.stalls && (r.lend == nil || !r.lend.streams):
		r.Book.addWrong("call %v to the spared target: %v", r.id, err)
	}
	return err
}

// sendOneWay makes a one-way call.
func (c *caller) sendOneWay() error {
	r := c.newRequest()
	r.id = r.Origin.id()
	r.in.ID = r.id
	r.Book.addCall(r.id, "note", oneWay)
	err := notes.Send(context.WithValue(context.Background(), attemptsKey{}, &r.attempts), r.to, r.in)
	r.Book.addEnd(r.id, max(1, int(r.attempts.Load())), err)
	if text := checkError(err); text != "" {
		r.Book.addWrong("note %v: %s: %v", r.id, text, err)
	}
	return err
}

// callHedged makes a call, and another one when that takes too long; the first that ends has the
// others taken back.
func (c *caller) callHedged() error {
	hows := []Deeds{DeedCancel, DeedAbandon, DeedWithdraw}
	var rs [2]*request
	for i := range rs {
		rs[i] = c.newRequest()
		rs[i].how = hows[c.rng.IntN(len(hows))]
		if c.rng.IntN(2) == 0 {
			rs[i].in.Act, rs[i].in.Pause = actPause, c.drawPause()
		}
	}
	a, b := rs[0], rs[1]
	a.recordBegin()
	_, begin := a.callFuncs()
	f := begin()
	ctx, cancel := c.node.HG().NA().WithTimeout(context.Background(), c.drawPause())
	_, _ = f.Wait(ctx)
	cancel()
	select {
	case <-f.Done():
		return a.wait(f)
	default:
	}
	b.recordBegin()
	_, begin = b.callFuncs()
	g := begin()
	ctx, cancel = c.node.HG().NA().WithTimeout(context.Background(), c.drawPause())
	_, _ = g.Wait(ctx)
	cancel()
	select {
	case <-g.Done():
		a.applyDrawn(f)
	default:
		b.applyDrawn(g)
	}
	err := a.wait(f)
	return errors.Join(err, b.wait(g))
}
