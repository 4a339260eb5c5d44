package load

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/quicksilver-rpc/quicksilver/hg"
	"github.com/quicksilver-rpc/quicksilver/na"
)

// A Config configures the calls of a run, their rate and the duration of the run. The fields Class, Nodes, Method,
// Inputs, Concurrency, Connections and Timeout are required, as is at least one of Duration and Count.
type Config struct {
	Class       *hg.Class     // class that makes the calls, which must allow Connections more contexts; Run closes the contexts that it creates
	Nodes       []string      // addresses of the nodes, among which calls are distributed in turn
	Method      string        // name of the method
	OneWay      bool          // the method is one-way, so that a call completes when it has been sent
	Inputs      [][]byte      // encoded inputs, which are used in turn
	Meta        hg.Metadata   // metadata sent with each call
	Concurrency int           // maximum number of calls in flight over all lanes; at least one for each connection to a node
	Connections int           // number of connections to each node, each of which is driven by its own goroutine
	Rate        float64       // rate of calls per second in an open loop; 0 selects a closed loop
	Warmup      time.Duration // duration of the initial calls that are not reported
	Duration    time.Duration // duration of the run after Warmup; 0: the run ends after Count calls
	Count       int64         // number of calls after Warmup; 0: the run ends after Duration
	Timeout     time.Duration // timeout of each call, starting when the call is sent; the node also receives it
	GiveUp      time.Duration // time without an answer from any node after which the run ends if connections fail; 0: no limit

	// Progress, if not nil, is called twice a second during the run, always from the same goroutine.
	Progress func(Snapshot)
}

// Errors returned by Run, in addition to connection errors.
var (
	// ErrNoAnswer is returned when no node has answered for Config.GiveUp.
	ErrNoAnswer = errors.New("the run ended early: all nodes are unreachable")
	// ErrRefused is returned when the first answers show that no call can succeed, because the method is unknown, the
	// codec differs or permission is denied.
	ErrRefused = errors.New("the run ended early: the method refused the call")
)

// A ConnectError is returned when a node cannot be reached before the run starts.
type ConnectError struct {
	Node hg.Addr
	Err  error
}

// Error implements error.
func (e *ConnectError) Error() string { return fmt.Sprintf("connect to %v: %v", e.Node, e.Err) }

// Unwrap returns the reason why the node cannot be reached.
func (e *ConnectError) Unwrap() error { return e.Err }

// restAfter is how long a lane in a closed loop pauses after a call that could not be sent.
const restAfter = 100 * time.Millisecond

// A run holds the state shared by its workers.
type run struct {
	cfg    Config
	lanes  int // total number of lanes of all workers
	cancel context.CancelCauseFunc

	first     int64        // number of the first open-loop call that is due after the warm-up
	left      atomic.Int64 // number of calls that remain to be made in a closed loop with Count
	succeeded atomic.Bool  // at least one call has succeeded
	answered  atomic.Int64 // time of the last answer from any node, relative to the start
}

// Run connects to each node, makes the calls, and waits for them to complete. If ctx is done, it makes no further calls
// and cancels those in flight. The Result covers all calls made so far, even if an error is returned.
func Run(ctx context.Context, cfg Config) (Result, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	r := &run{cfg: cfg, lanes: cfg.Connections * len(cfg.Nodes), cancel: cancel}
	if cfg.Concurrency < r.lanes {
		return Result{}, fmt.Errorf("too few calls in flight: %d for %d connections", cfg.Concurrency, r.lanes)
	}
	r.left.Store(cfg.Count)
	r.first = r.countDueBefore(cfg.Warmup)
	id, err := r.registerMethod()
	if err != nil {
		return Result{}, err
	}
	var workers []*worker
	defer func() {
		for _, w := range workers {
			w.close()
		}
	}()
	for i := range cfg.Connections {
		w, err := newWorker(ctx, r, i, id)
		if w != nil {
			workers = append(workers, w)
		}
		if err != nil {
			return Result{}, err
		}
	}
	err = r.driveWorkers(ctx, workers)
	res := r.newResult(workers)
	switch cause := context.Cause(ctx); {
	case err != nil:
	case errors.Is(cause, ErrNoAnswer), errors.Is(cause, ErrRefused):
		err = cause
	case cause != nil:
		res.Interrupted = true
	}
	return res, err
}

// registerMethod registers the method with the class. It replaces a built-in method with the same name.
func (r *run) registerMethod() (hg.ID, error) {
	class := r.cfg.Class
	if _, ok := class.Registered(r.cfg.Method); ok {
		if err := class.Deregister(hg.HashName(r.cfg.Method)); err != nil {
			return 0, err
		}
	}
	return class.RegisterRPC(hg.RPC{Name: r.cfg.Method, OneWay: r.cfg.OneWay})
}

// driveWorkers runs the workers until all are done. The first worker runs on the calling goroutine, and each of the
// others on its own goroutine.
func (r *run) driveWorkers(ctx context.Context, workers []*worker) error {
	errs := make([]error, len(workers))
	var all sync.WaitGroup
	for _, w := range workers {
		w.start()
	}
	if r.cfg.Progress != nil {
		over := make(chan struct{})
		var watch sync.WaitGroup
		watch.Go(func() { r.reportProgress(workers, over) })
		defer watch.Wait()
		defer close(over)
	}
	for i, w := range workers[1:] {
		all.Go(func() { errs[i+1] = w.drive(ctx) })
	}
	errs[0] = workers[0].drive(ctx)
	all.Wait()
	return errors.Join(errs...)
}

// reportProgress calls Config.Progress twice a second until over is closed.
func (r *run) reportProgress(workers []*worker, over <-chan struct{}) {
	tick := time.NewTicker(500 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			r.cfg.Progress(r.snapshot(workers))
		case <-over:
			return
		}
	}
}

// A Snapshot describes the progress of a run.
type Snapshot struct {
	Elapsed       time.Duration // time since the end of the warm-up; negative during the warm-up
	Calls, Failed int64         // number of completed calls, and number of those that failed, without warm-up calls
	InFlight      int
	P50, P99      time.Duration // percentiles of the latencies so far
}

func (r *run) snapshot(workers []*worker) Snapshot {
	var s Snapshot
	total := newHistogram(digits)
	for _, w := range workers {
		w.mu.Lock()
		s.Elapsed = w.elapsed() - r.cfg.Warmup
		s.InFlight += w.inFlight
		s.Failed += w.rec.failed.TotalCount()
		total.Merge(w.rec.latency)
		w.mu.Unlock()
	}
	s.Calls = total.TotalCount() + s.Failed
	s.P50, s.P99 = time.Duration(total.ValueAtPercentile(50)), time.Duration(total.ValueAtPercentile(99))
	return s
}

// isOver reports whether Duration has expired at the time t, relative to the start.
func (r *run) isOver(t time.Duration) bool {
	return r.cfg.Duration > 0 && t >= r.cfg.Warmup+r.cfg.Duration
}

// acquireCall reports whether another call may be made in a closed loop at the time t, relative to the start. If so, it
// counts the call toward Count.
func (r *run) acquireCall(t time.Duration) bool {
	return !r.isOver(t) && (r.cfg.Count == 0 || t < r.cfg.Warmup || r.left.Add(-1) >= 0)
}

// dueTime returns the time at which call number i of an open loop is due, relative to the start.
func (r *run) dueTime(i int64) time.Duration {
	return time.Duration(float64(i) / r.cfg.Rate * float64(time.Second))
}

// countDueBefore returns the number of open-loop calls that are due before the time t, relative to the start.
func (r *run) countDueBefore(t time.Duration) int64 {
	if r.cfg.Rate == 0 || t <= 0 {
		return 0
	}
	n := int64(t.Seconds() * r.cfg.Rate)
	for n > 0 && r.dueTime(n-1) >= t {
		n--
	}
	for r.dueTime(n) < t {
		n++
	}
	return n
}

// hasCall reports whether call number i is part of the open loop. Calls after Duration or Count are not.
func (r *run) hasCall(i int64) bool {
	return !r.isOver(r.dueTime(i)) && (r.cfg.Count == 0 || i < r.first+r.cfg.Count)
}

// handleRefusal ends the run if a node rejected a call with a code which shows that no call can succeed, and no call
// has succeeded so far.
func (r *run) handleRefusal(err error, code hg.Code) {
	switch code {
	case hg.ErrNoMethod, hg.ErrPermission, na.ErrProtocol:
		if !r.succeeded.Load() {
			r.cancel(fmt.Errorf("%w: %w", ErrRefused, err))
		}
	}
}

// isTimeout reports whether err was returned by Progress because its timeout expired.
func isTimeout(err error) bool { return errors.Is(err, os.ErrDeadlineExceeded) }
