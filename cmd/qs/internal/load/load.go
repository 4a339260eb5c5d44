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

// A Config configures the calls, their rate and the length of the run. Class, Nodes, Method, Inputs, Concurrency, Connections and Timeout must be
// set, and Duration, Count or both.
type Config struct {
	Class       *hg.Class     // makes the calls. It must allow Connections contexts; Run closes those that it has made
	Nodes       []string      // their addresses; calls go to them in turn
	Method      string        // as the nodes know it
	OneWay      bool          // the method is one-way: a call ends when it has been sent
	Inputs      [][]byte      // encoded; calls take them in turn
	Meta        hg.Metadata   // of each call
	Concurrency int           // calls in flight at most, over all lanes; at least one for each lane
	Connections int           // to each node, each with a goroutine of its own
	Rate        float64       // calls per second of an open loop; 0: closed loop
	Warmup      time.Duration // of calls at the beginning that are made and not reported
	Duration    time.Duration // of the run, after Warmup; 0: until Count
	Count       int64         // calls to make after Warmup; 0: until Duration
	Timeout     time.Duration // of each call from its send; it travels with the call
	GiveUp      time.Duration // without an answer of any node, and connections failing, after which the run ends; 0: never

	// Progress, if not nil, is called twice a second while the run goes on, from one goroutine.
	Progress func(Snapshot)
}

// The errors of Run, in addition to those of connecting.
var (
	// ErrNoAnswer ends a run whose nodes cannot be reached any more.
	ErrNoAnswer = errors.New("the run ended early: all nodes are unreachable")
	// ErrRefused ends a run when the first answers show that no call of it can succeed: an unknown method, another codec, no permission.
	ErrRefused = errors.New("the run ended early: the method refused the call")
)

// A ConnectError is the error of a node that could not be called before the run.
type ConnectError struct {
	Node hg.Addr
	Err  error
}

// Error implements error.
func (e *ConnectError) Error() string { return fmt.Sprintf("connect to %v: %v", e.Node, e.Err) }

// Unwrap returns the cause.
func (e *ConnectError) Unwrap() error { return e.Err }

// restAfter is how long a lane of a closed loop makes no call after one that could not be sent.
const restAfter = 100 * time.Millisecond

// A run is the state that its workers share.
type run struct {
	cfg    Config
	lanes  int // of all workers
	cancel context.CancelCauseFunc

	first     int64        // number of the first call of an open loop that is due after the warm-up
	left      atomic.Int64 // calls of a closed loop with Count that are still to be made
	succeeded atomic.Bool  // a call has
	answered  atomic.Int64 // when a node has last answered: time since the beginning
}

// Run connects to each node, makes the calls, and waits until they have ended. When ctx ends no more calls are made and those in flight
// are canceled. The Result is that of all calls made until then, also beside an error.
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

// registerMethod registers the method with the class, in place of one that is built in there.
func (r *run) registerMethod() (hg.ID, error) {
	class := r.cfg.Class
	if _, ok := class.Registered(r.cfg.Method); ok {
		if err := class.Deregister(hg.HashName(r.cfg.Method)); err != nil {
			return 0, err
		}
	}
	return class.RegisterRPC(hg.RPC{Name: r.cfg.Method, OneWay: r.cfg.OneWay})
}

// driveWorkers runs the workers: the first one on this goroutine, the others on goroutines of their own.
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

// reportProgress calls Config.Progress until over is closed.
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

// A Snapshot is how far a run is.
type Snapshot struct {
	Elapsed       time.Duration // since the end of the warm-up; negative before
	Calls, Failed int64         // that have ended, without those of the warm-up
	InFlight      int
	P50, P99      time.Duration // so far
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

// isOver reports whether the time of the run is over at t, since the beginning.
func (r *run) isOver(t time.Duration) bool {
	return r.cfg.Duration > 0 && t >= r.cfg.Warmup+r.cfg.Duration
}

// acquireCall reports whether a closed loop may make one more call at t.
func (r *run) acquireCall(t time.Duration) bool {
	return !r.isOver(t) && (r.cfg.Count == 0 || t < r.cfg.Warmup || r.left.Add(-1) >= 0)
}

// dueTime returns when call number i of an open loop is to be sent, since the beginning.
func (r *run) dueTime(i int64) time.Duration {
	return time.Duration(float64(i) / r.cfg.Rate * float64(time.Second))
}

// countDueBefore returns how many calls of an open loop are due before t, since the beginning.
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

// hasCall reports whether an open loop has a call number i.
func (r *run) hasCall(i int64) bool {
	return !r.isOver(r.dueTime(i)) && (r.cfg.Count == 0 || i < r.first+r.cfg.Count)
}

// handleRefusal ends the run if err, with which a node refused a call, shows that none can succeed.
func (r *run) handleRefusal(err error, code hg.Code) {
	switch code {
	case hg.ErrNoMethod, hg.ErrPermission, na.ErrProtocol:
		if !r.succeeded.Load() {
			r.cancel(fmt.Errorf("%w: %w", ErrRefused, err))
		}
	}
}

// isTimeout reports whether err is the end of the timeout of Progress.
func isTimeout(err error) bool { return errors.Is(err, os.ErrDeadlineExceeded) }
