package load

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/quicksilver-rpc/quicksilver/hg"
)

// A worker is an event loop: a context with a connection to each node, driven by one goroutine.
type worker struct {
	r       *run
	hctx    *hg.Context
	lanes   []*lane
	started time.Duration // by the clock of hctx
	stepFn  func()        // step

	// Of the goroutine that drives.
	ctx         context.Context
	stopped     bool          // no more calls are made
	finished    bool          // and none is in flight
	stale       bool          // a call has ended after step: wait is not true any more
	wait        time.Duration // until there is something to do; negative: until something happens
	unreachable bool          // the last call that ended could not be sent
	answered    time.Duration // when a node has answered last, since the beginning

	mu       sync.Mutex // guards the fields below, for Snapshot
	inFlight int
	rec      *recorder
}

// A lane is the calls of one worker to one node.
type lane struct {
	w      *worker
	node   int           // index in Config.Nodes
	number int           // of this lane among all
	sent   int64         // calls; the next one is number + sent×lanes of the run
	rest   time.Duration // before which a closed loop makes no call
	calls  []*call
	free   []*call // idle ones of these
	full   bool    // none was idle when the last call of an open loop could have been made
}

// A call is a handle that is forwarded again and again.
type call struct {
	lane      *lane
	h         *hg.Handle
	endedFn   hg.ForwardFunc // ended
	due, sent time.Duration  // since the beginning
	bytes     int            // of the input
	inFlight  bool
}

// newWorker returns a worker that has connected to each node. Also beside an error it is to be closed, if it is not nil.
func newWorker(ctx context.Context, r *run, index int, id hg.ID) (*worker, error) {
	hctx, err := r.cfg.Class.NewContext()
	if err != nil {
		return nil, err
	}
	w := &worker{r: r, hctx: hctx, rec: newRecorder(r.cfg)}
	w.stepFn = w.step
	for node, text := range r.cfg.Nodes {
		addr, err := hctx.LookupWait(ctx, text)
		if err == nil {
			err = w.connect(ctx, addr)
		}
		if err != nil {
			return w, err
		}
		l := &lane{w: w, node: node, number: index*len(r.cfg.Nodes) + node}
		w.lanes = append(w.lanes, l)
		share := r.cfg.Concurrency / r.lanes
		if l.number < r.cfg.Concurrency%r.lanes {
			share++
		}
		for range share {
			if err := l.addCall(addr, id); err != nil {
				return w, err
			}
		}
	}
	return w, nil
}

// connect makes the connection, so that it is in no latency. A refused ping is an answer, too.
func (w *worker) connect(ctx context.Context, addr hg.Addr) error {
	h, err := w.hctx.Create(addr, hg.HashName(hg.PingRPC))
	if err != nil {
		return err
	}
	defer h.Close()
	h.SetTimeout(w.r.cfg.Timeout)
	_, err = h.CallRaw(ctx, nil)
	if _, answered := hg.RemoteOf(err); answered || err == nil {
		return nil
	}
	return &ConnectError{addr, err}
}

func (l *lane) addCall(addr hg.Addr, id hg.ID) error {
	h, err := l.w.hctx.Create(addr, id)
	if err != nil {
		return err
	}
	c := &call{lane: l, h: h}
	c.endedFn = c.ended
	l.calls, l.free = append(l.calls, c), append(l.free, c)
	h.SetTimeout(l.w.r.cfg.Timeout)
	return h.SetMeta(l.w.r.cfg.Meta)
}

// close gives everything back. It waits for no node.
func (w *worker) close() {
	for _, l := range w.lanes {
		for _, c := range l.calls {
			_ = c.h.Close()
		}
	}
	w.hctx.Close()
	for {
		if err := w.hctx.Progress(0); err != nil && !isTimeout(err) {
			return
		}
		w.hctx.Trigger(0)
	}
}

// begin sets the beginning of the run.
func (w *worker) begin() { w.started = w.hctx.Now() }

// now is the time since the beginning.
func (w *worker) now() time.Duration { return w.hctx.Now() - w.started }

// run makes calls until the run is over and all have ended. What calls send leaves together, since step runs in Trigger.
func (w *worker) run(ctx context.Context) error {
	w.ctx = ctx
	defer context.AfterFunc(ctx, w.hctx.Wake)()
	for {
		if err := w.hctx.Post(w.stepFn); err != nil {
			return err
		}
		w.mu.Lock()
		w.hctx.Trigger(0)
		w.mu.Unlock()
		if w.finished {
			return nil
		}
		if w.stale { // its end was queued behind step
			w.wait = 0
		}
		if err := w.hctx.Progress(w.wait); err != nil && !isTimeout(err) {
			return err
		}
	}
}

// step makes the calls that are to be made now, and says how long there is nothing more to do.
func (w *worker) step() {
	now := w.now()
	w.stale = false
	w.publish()
	if w.unreachable && w.r.cfg.GiveUp > 0 && now-time.Duration(w.r.answered.Load()) > w.r.cfg.GiveUp {
		w.r.cancel(ErrNoAnswer)
	}
	if w.ctx.Err() != nil {
		w.stop(now)
	}
	w.wait = -1
	if !w.stopped {
		over := true
		for _, l := range w.lanes {
			if next, more := l.launch(now); more {
				over = false
				w.wakeAt(next, now)
			}
		}
		w.stopped = over
	}
	w.finished = w.stopped && w.inFlight == 0
}

// publish tells the other workers of answers.
func (w *worker) publish() {
	if w.answered == 0 {
		return
	}
	if w.rec.latency.TotalCount() > 0 && !w.r.succeeded.Load() {
		w.r.succeeded.Store(true)
	}
	if int64(w.answered) > w.r.answered.Load() {
		w.r.answered.Store(int64(w.answered))
	}
}

// wakeEarly is how long before it has something to do a worker stops sleeping: the system wakes a sleeper late, by 50 µs and more.
const wakeEarly = 150 * time.Microsecond

// wakeAt has the loop go on at t at the latest, if t is not negative.
func (w *worker) wakeAt(t, now time.Duration) {
	if wait := max(t-now-wakeEarly, 0); t >= 0 && (w.wait < 0 || wait < w.wait) {
		w.wait = wait
	}
}

// stop makes no more calls and cancels those in flight.
func (w *worker) stop(now time.Duration) {
	if !w.stopped {
		w.stopped = true
		w.rec.cut(now)
	}
	for _, l := range w.lanes {
		l.full = l.full || len(l.free) == 0
		for _, c := range l.calls {
			if c.inFlight {
				c.h.Abandon()
			}
		}
	}
}

// launch makes the calls of a lane that are to be made at now. more is false when the lane has no calls any more; next is when it has
// the next one, negative when it waits for the end of a call.
func (l *lane) launch(now time.Duration) (next time.Duration, more bool) {
	if l.w.r.cfg.Rate > 0 {
		return l.launchDue(now)
	}
	for len(l.free) > 0 {
		if now < l.rest {
			return l.rest, true
		}
		if now = l.w.now(); !l.w.r.take(now) {
			return 0, false
		}
		l.send(now)
	}
	return -1, true
}

// launchDue is launch of an open loop. A worker that wakes behind the end of the run still makes the calls that were due before.
func (l *lane) launchDue(now time.Duration) (next time.Duration, more bool) {
	for {
		i := l.next()
		if !l.w.r.scheduled(i) {
			return 0, false
		}
		due := l.w.r.due(i)
		switch {
		case due > now:
			return due, true
		case len(l.free) == 0:
			l.full = l.w.r.over(now)
			return -1, !l.full
		}
		l.send(due)
	}
}

// next is the number of the lane's next call among all of the run.
func (l *lane) next() int64 { return int64(l.number) + l.sent*int64(l.w.r.lanes) }

// unsent is how many calls of an open loop were due from the end of the warm-up to end, and have not been sent since none was idle.
func (l *lane) unsent(end time.Duration) int64 {
	r, step := l.w.r, int64(l.w.r.lanes)
	limit := r.dueBefore(end)
	if r.cfg.Count > 0 {
		limit = min(limit, r.first+r.cfg.Count)
	}
	next := l.next()
	if next < r.first {
		next += (r.first - next + step - 1) / step * step
	}
	return max((limit-next+step-1)/step, 0)
}

// send makes a call whose latency begins at due.
func (l *lane) send(due time.Duration) {
	c := l.free[len(l.free)-1]
	l.free = l.free[:len(l.free)-1]
	in := l.w.r.cfg.Inputs[l.next()%int64(len(l.w.r.cfg.Inputs))]
	l.sent++
	c.due, c.sent, c.bytes, c.inFlight = due, due, len(in), true
	if l.w.r.cfg.Rate > 0 {
		c.sent = l.w.now()
	}
	l.w.inFlight++
	if err := c.h.ForwardRaw(in, c.endedFn); err != nil {
		c.ended(c.h, err)
	}
}

// ended takes in the end of a call.
func (c *call) ended(h *hg.Handle, err error) {
	w, now := c.lane.w, c.lane.w.now()
	w.inFlight--
	w.stale, c.inFlight = true, false
	c.lane.free = append(c.lane.free, c)
	if err != nil {
		c.failed(err, now)
		return
	}
	w.answered, w.unreachable = now, false
	received := 0
	if !w.r.cfg.OneWay {
		if out, err := h.OutputRaw(); err == nil {
			received = len(out)
		}
	}
	w.rec.record(c, now, received)
}

// failed takes in the end of a call that has failed at now.
func (c *call) failed(err error, now time.Duration) {
	w := c.lane.w
	remote, answered := hg.RemoteOf(err)
	switch {
	case answered:
		w.answered, w.unreachable = now, false
		if remote.Refused {
			w.r.refused(err, remote.Code)
		}
	case w.ctx.Err() != nil && errors.Is(err, hg.ErrCanceled):
		w.rec.canceled++
		return
	case hg.FateOf(err) == hg.NotRun:
		w.unreachable = true
		c.lane.rest = now + restAfter
	}
	w.rec.recordFailure(c, now, err)
}
