package load

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/quicksilver-rpc/quicksilver/hg"
)

// A worker makes calls in an event loop on one goroutine. It has a context with a connection to each node.
type worker struct {
	run     *run
	hctx    *hg.Context
	lanes   []*lane
	started time.Duration // start time of the run, on the clock of hctx
	stepFn  func()        // method value of step

	// The following fields are used only by the goroutine that drives the worker.
	ctx         context.Context
	stopped     bool          // the worker makes no further calls
	finished    bool          // stopped is true and no calls are in flight
	hasNewEnds  bool          // a call has completed since step ran, so that wait is out of date
	wait        time.Duration // time until the next call is due; negative: no call is due before an event occurs
	unreachable bool          // the most recently completed call could not be sent
	lastAnswer  time.Duration // time of the most recent answer from any node, relative to the start

	mu       sync.Mutex // guards the fields below, which Snapshot also reads
	inFlight int
	rec      *recorder
}

// A lane is the set of calls that one worker makes to one node.
type lane struct {
	worker        *worker
	node          int           // index in Config.Nodes
	number        int           // index of this lane among all lanes
	sent          int64         // number of calls sent; the number of the next call is number + sent × the run's number of lanes
	notBefore     time.Duration // earliest time of the next call in a closed loop
	calls         []*call
	free          []*call // idle calls
	hasNoIdleCall bool    // all calls of the lane were in flight when the last open-loop call was due
}

// A call is a handle that is used for one call after another.
type call struct {
	lane      *lane
	handle    *hg.Handle
	onEnd     hg.ForwardFunc // method value of handleEnd
	due, sent time.Duration  // relative to the start
	bytes     int            // size of the input in bytes
	inFlight  bool
}

// newWorker returns a worker that is connected to each node. The caller must close the worker unless it is nil, even if
// newWorker returns an error.
func newWorker(ctx context.Context, r *run, index int, id hg.ID) (*worker, error) {
	hctx, err := r.cfg.Class.NewContext()
	if err != nil {
		return nil, err
	}
	w := &worker{run: r, hctx: hctx, rec: newRecorder(r.cfg)}
	w.stepFn = w.step
	for node, text := range r.cfg.Nodes {
		addr, err := hctx.LookupWait(ctx, text)
		if err == nil {
			err = w.connect(ctx, addr)
		}
		if err != nil {
			return w, err
		}
		l := &lane{worker: w, node: node, number: index*len(r.cfg.Nodes) + node}
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

// connect calls the node once to establish the connection, so that it does not contribute to any latency. It succeeds
// even if the node rejects the call.
func (w *worker) connect(ctx context.Context, addr hg.Addr) error {
	h, err := w.hctx.Create(addr, hg.HashName(hg.PingRPC))
	if err != nil {
		return err
	}
	defer h.Close()
	h.SetTimeout(w.run.cfg.Timeout)
	_, err = h.CallRaw(ctx, nil)
	if _, answered := hg.RemoteOf(err); answered || err == nil {
		return nil
	}
	return &ConnectError{addr, err}
}

func (l *lane) addCall(addr hg.Addr, id hg.ID) error {
	h, err := l.worker.hctx.Create(addr, id)
	if err != nil {
		return err
	}
	c := &call{lane: l, handle: h}
	c.onEnd = c.handleEnd
	l.calls, l.free = append(l.calls, c), append(l.free, c)
	h.SetTimeout(l.worker.run.cfg.Timeout)
	return h.SetMeta(l.worker.run.cfg.Meta)
}

// close closes the handles and the context. It does not wait for the nodes.
func (w *worker) close() {
	for _, l := range w.lanes {
		for _, c := range l.calls {
			_ = c.handle.Close()
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

// start records the current time as the start time of the run.
func (w *worker) start() { w.started = w.hctx.Now() }

// elapsed returns the time since the start of the run.
func (w *worker) elapsed() time.Duration { return w.hctx.Now() - w.started }

// drive makes calls until the run is over and all calls have completed. It runs step in Trigger, so that the messages
// of several calls are sent together.
func (w *worker) drive(ctx context.Context) error {
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
		if w.hasNewEnds { // a call completed after step, in the same Trigger
			w.wait = 0
		}
		if err := w.hctx.Progress(w.wait); err != nil && !isTimeout(err) {
			return err
		}
	}
}

// step makes the calls that are due. It sets wait to the time until the next call is due, and stopped and finished as
// appropriate.
func (w *worker) step() {
	now := w.elapsed()
	w.hasNewEnds = false
	w.publishAnswer()
	if w.unreachable && w.run.cfg.GiveUp > 0 && now-time.Duration(w.run.answered.Load()) > w.run.cfg.GiveUp {
		w.run.cancel(ErrNoAnswer)
	}
	if w.ctx.Err() != nil {
		w.stop(now)
	}
	w.wait = -1
	if !w.stopped {
		over := true
		for _, l := range w.lanes {
			if next, more := l.sendCalls(now); more {
				over = false
				w.limitWait(next, now)
			}
		}
		w.stopped = over
	}
	w.finished = w.stopped && w.inFlight == 0
}

// publishAnswer makes the time of the most recent answer available to all workers.
func (w *worker) publishAnswer() {
	if w.lastAnswer == 0 {
		return
	}
	if w.rec.latency.TotalCount() > 0 && !w.run.succeeded.Load() {
		w.run.succeeded.Store(true)
	}
	if int64(w.lastAnswer) > w.run.answered.Load() {
		w.run.answered.Store(int64(w.lastAnswer))
	}
}

// wakeEarly is how long before its next call is due a worker stops sleeping, because the operating system wakes a
// sleeping thread 50 µs or more too late.
const wakeEarly = 150 * time.Microsecond

// limitWait reduces wait, if necessary, so that the worker stops sleeping wakeEarly before t. It has no effect if t is
// negative.
func (w *worker) limitWait(t, now time.Duration) {
	if wait := max(t-now-wakeEarly, 0); t >= 0 && (w.wait < 0 || wait < w.wait) {
		w.wait = wait
	}
}

// stop makes the worker send no further calls, and cancels those in flight. The time now is the end of the run.
func (w *worker) stop(now time.Duration) {
	if !w.stopped {
		w.stopped = true
		w.rec.cut(now)
	}
	for _, l := range w.lanes {
		l.hasNoIdleCall = l.hasNoIdleCall || len(l.free) == 0
		for _, c := range l.calls {
			if c.inFlight {
				c.handle.Abandon()
			}
		}
	}
}

// sendCalls sends the calls that the lane may make at the time now: in an open loop (a run with a Rate) those that are
// due, and in a closed loop one for each handle that is free. If the lane has no more calls, more is false. Otherwise
// next is the time of the next call, or negative if the lane must wait for a call to complete.
func (l *lane) sendCalls(now time.Duration) (next time.Duration, more bool) {
	if l.worker.run.cfg.Rate > 0 {
		return l.sendDue(now)
	}
	for len(l.free) > 0 {
		if now < l.notBefore {
			return l.notBefore, true
		}
		if now = l.worker.elapsed(); !l.worker.run.acquireCall(now) {
			return 0, false
		}
		l.send(now)
	}
	return -1, true
}

// sendDue is sendCalls for an open loop. Even after the end of the run, it sends the calls that were due before the end.
func (l *lane) sendDue(now time.Duration) (next time.Duration, more bool) {
	for {
		i := l.nextNumber()
		if !l.worker.run.hasCall(i) {
			return 0, false
		}
		due := l.worker.run.dueTime(i)
		switch {
		case due > now:
			return due, true
		case len(l.free) == 0:
			l.hasNoIdleCall = l.worker.run.isOver(now)
			return -1, !l.hasNoIdleCall
		}
		l.send(due)
	}
}

// nextNumber returns the number of the lane's next call, among all calls of the run.
func (l *lane) nextNumber() int64 { return int64(l.number) + l.sent*int64(l.worker.run.lanes) }

// countUnsent returns the number of open-loop calls that were due after the warm-up and before end, but were not sent
// because all calls of the lane were in flight.
func (l *lane) countUnsent(end time.Duration) int64 {
	r, step := l.worker.run, int64(l.worker.run.lanes)
	limit := r.countDueBefore(end)
	if r.cfg.Count > 0 {
		limit = min(limit, r.first+r.cfg.Count)
	}
	next := l.nextNumber()
	if next < r.first {
		next += (r.first - next + step - 1) / step * step
	}
	return max((limit-next+step-1)/step, 0)
}

// send sends a call, using an idle handle. The latency of the call is measured from the time due.
func (l *lane) send(due time.Duration) {
	c := l.free[len(l.free)-1]
	l.free = l.free[:len(l.free)-1]
	in := l.worker.run.cfg.Inputs[l.nextNumber()%int64(len(l.worker.run.cfg.Inputs))]
	l.sent++
	c.due, c.sent, c.bytes, c.inFlight = due, due, len(in), true
	if l.worker.run.cfg.Rate > 0 {
		c.sent = l.worker.elapsed()
	}
	l.worker.inFlight++
	if err := c.handle.ForwardRaw(in, c.onEnd); err != nil {
		c.handleEnd(c.handle, err)
	}
}

// handleEnd records that the call has completed.
func (c *call) handleEnd(h *hg.Handle, err error) {
	w, now := c.lane.worker, c.lane.worker.elapsed()
	w.inFlight--
	w.hasNewEnds, c.inFlight = true, false
	c.lane.free = append(c.lane.free, c)
	if err != nil {
		c.recordFailure(err, now)
		return
	}
	w.lastAnswer, w.unreachable = now, false
	received := 0
	if !w.run.cfg.OneWay {
		if out, err := h.OutputRaw(); err == nil {
			received = len(out)
		}
	}
	w.rec.record(c, now, received)
}

// recordFailure records that the call failed with err at the time now.
func (c *call) recordFailure(err error, now time.Duration) {
	w := c.lane.worker
	remote, answered := hg.RemoteOf(err)
	switch {
	case answered:
		w.lastAnswer, w.unreachable = now, false
		if remote.Refused {
			w.run.handleRefusal(err, remote.Code)
		}
	case w.ctx.Err() != nil && errors.Is(err, hg.ErrCanceled):
		w.rec.canceled++
		return
	case hg.FateOf(err) == hg.NotRun:
		w.unreachable = true
		c.lane.notBefore = now + restAfter
	}
	w.rec.recordFailure(c, now, err)
}
