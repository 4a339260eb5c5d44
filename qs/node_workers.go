package qs

import (
	"sync"
	"time"

	"github.com/quicksilver-rpc/quicksilver/hg"
	"github.com/quicksilver-rpc/quicksilver/internal/executor"
)

// workers manages the goroutines that run handlers: up to Config.MaxConcurrent, plus one for each
// request with streams. The goroutine that drives a context runs some handlers itself, namely those
// of Inline methods and those that executor.Inline leaves to it. In the simulator, each request has
// a coroutine.
type workers struct {
	all      sync.WaitGroup
	handlers *executor.Executor[hg.Request]
	inline   []*executor.Inline[hg.Request] // one per context

	// health runs requests of hg.PingRPC and hg.HealthRPC if there is an authorizer, so that they
	// do not wait for handlers.
	health           *executor.Executor[hg.Request]
	authorizesHealth bool // the node has an authorizer
}

// maxHealthWorkers is the maximum number of goroutines of workers.health.
const maxHealthWorkers = 16

var pingID, healthID = hg.HashName(hg.PingRPC), hg.HashName(hg.HealthRPC)

// init sets up the workers of n.
func (w *workers) init(n *Node) {
	opts := executor.Options[hg.Request]{
		Go:         w.all.Go,
		Run:        runRequest,
		IsOver:     func(r hg.Request) bool { return r.Name() == "" },
		MaxRunning: n.cfg.MaxConcurrent,
	}
	w.handlers = executor.New(opts)
	opts.MaxRunning = maxHealthWorkers
	w.health = executor.New(opts)
	w.authorizesHealth = n.cfg.Authorize != nil || n.cfg.HG.Authorize != nil
	w.inline = make([]*executor.Inline[hg.Request], n.cfg.Contexts)
}

// runRequest runs the handler of r, unless its call has already completed.
func runRequest(r hg.Request) { _ = r.Run() }

// addPoller allows the goroutine that drives hctx to run handlers itself.
func (w *workers) addPoller(hctx *hg.Context) {
	w.inline[hctx.ID()] = executor.NewInline(w.handlers, (*poller)(hctx))
}

// dispatch implements hg.Config.Dispatch.
func (w *workers) dispatch(r hg.Request) {
	nctx := r.HG().NA()
	switch {
	case nctx.Scheduled():
		nctx.Spawn(func() { runRequest(r) })
	case w.authorizesHealth && (r.ID() == pingID || r.ID() == healthID):
		w.health.Give(r)
	default:
		if i, driven := nctx.Upper().Loop().Runner().(*executor.Inline[hg.Request]); driven {
			i.Give(r)
		} else {
			w.handlers.Give(r)
		}
	}
}

// dispatchStreams runs a request with streams, which may last as long as the node. It runs either
// in the goroutine that received it or in its own goroutine.
func (w *workers) dispatchStreams(r hg.Request) {
	nctx := r.HG().NA()
	if nctx.Scheduled() {
		nctx.Spawn(func() { runRequest(r) })
		return
	}
	if i, driven := nctx.Upper().Loop().Runner().(*executor.Inline[hg.Request]); driven {
		i.GiveLasting(r)
	} else {
		w.handlers.GiveLasting(r)
	}
}

// notifyBlocking makes another goroutine drive the context of r, a request with streams. It must be
// called before the handler of r blocks. It must also be called if data that the handler has queued
// can be sent only by the goroutine that drives the context.
func (w *workers) notifyBlocking(r hg.Request) {
	if id := r.HG().ID(); id < len(w.inline) { // otherwise the program created the context, and Serve does not drive it
		w.inline[id].Blocks(r)
	}
}

// end stops the goroutines. It does not wait for them.
func (w *workers) end() {
	w.handlers.End()
	w.health.End()
}

// wait blocks until the goroutines have exited. end must have been called.
func (w *workers) wait() { w.all.Wait() }

// A poller adapts an hg.Context to the executor.Poller interface.
type poller hg.Context

// OneJobWaits implements executor.Poller.
func (p *poller) OneJobWaits() bool {
	c := (*hg.Context)(p).NA().Upper()
	return c.Arrived() && c.Queued() == 1
}

// Flush implements executor.Poller.
func (p *poller) Flush() { (*hg.Context)(p).NA().Upper().Flush() }

// Now implements executor.Poller.
func (p *poller) Now() time.Duration { return (*hg.Context)(p).Now() }
