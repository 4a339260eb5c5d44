package hg

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/quicksilver-rpc/quicksilver/hg/inspect"
	"github.com/quicksilver-rpc/quicksilver/internal/hghook"
)

// Calls returns the calls, requests, and transfers of c that are in flight, oldest first. It is
// safe for concurrent use. Requests that are waiting for Trigger are not included, but Stats.Queued
// counts them. Unless Config.Observe is set, the age of a request that arrived before the first
// call of Calls is measured from that call. Once Calls has been called, the arrival time of each
// request is recorded. There is no other overhead for calls.
func (c *Context) Calls() (all []inspect.Call) {
	c.seen.watch(c)
	for _, o := range c.allOpen() {
		i, by, ok := o.callInfo()
		if !ok {
			continue
		}
		if by != nil { // no lock is held, since this is code of another package
			by.Report(&i)
		}
		all = append(all, i)
	}
	all = append(all, c.seen.openTransfers()...)
	slices.SortStableFunc(all, func(a, b inspect.Call) int { return cmp.Compare(b.Age, a.Age) })
	return all
}

// A tracker holds the state that Context.Calls needs.
type tracker struct {
	since atomic.Int64 // value of Now at the first Calls, plus 1; 0 before that

	mu      sync.Mutex // guards the fields below
	tracked map[hghook.Tracked]uint64
	last    uint64 // most recently assigned number
}

// track implements hghook.Track.
func (w *tracker) track(t hghook.Tracked) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.tracked == nil {
		w.tracked = map[hghook.Tracked]uint64{}
	}
	w.last++
	w.tracked[t] = w.last
}

// untrack implements hghook.Untrack.
func (w *tracker) untrack(t hghook.Tracked) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.tracked, t)
}

func (w *tracker) watch(c *Context) {
	if w.since.Load() == 0 {
		w.since.CompareAndSwap(0, int64(c.Now())+1)
	}
}

func (w *tracker) openTransfers() (all []inspect.Call) {
	w.mu.Lock()
	list := maps.Clone(w.tracked)
	w.mu.Unlock()
	for t, id := range list {
		i := t.Inspect()
		i.ID = id
		all = append(all, i)
	}
	return all
}

// idleHandles implements hghook.IdleHandles.
func (c *Context) idleHandles(f func(handle inspect.Call)) {
	for _, o := range c.allOpen() {
		h, ok := o.(*Handle)
		if !ok {
			continue
		}
		h.mu.Lock()
		idle, of := h.call.phase == callIdle, inspect.Call{Kind: inspect.EventOrigin, RPC: h.Name(), Peer: h.addr}
		h.mu.Unlock()
		if idle {
			f(of)
		}
	}
}

// callInfo returns a description of the call in flight. ok is false if the handle is idle.
func (h *Handle) callInfo() (i inspect.Call, by hghook.Reporter, ok bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	k := h.call
	if k.phase == callIdle {
		return i, nil, false
	}
	return inspect.Call{
		Kind: inspect.EventOrigin, RPC: h.Name(), Peer: h.addr, State: callPhases.State(k.phase), Age: h.ctx.elapsedSince(k.begun),
		ID: uint64(k.tag()), Trace: h.meta.traceID(),
	}, h.reporter, true
}

// callInfo returns a description of the request that s is serving. ok is false if s serves no
// request, or if a goroutine is about to move the request to its next phase.
func (s *service) callInfo() (i inspect.Call, by hghook.Reporter, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.phase <= serviceArrived {
		return i, nil, false
	}
	i = inspect.Call{
		Kind: inspect.EventTarget, RPC: s.rpcName(), Peer: s.addr, State: servicePhases.State(s.phase), ID: uint64(s.tag), Trace: Metadata{s.meta}.traceID(),
	}
	if came := s.arrivedAt; came != 0 {
		i.Age = s.ctx.elapsedSince(came)
	} else {
		i.Age = s.ctx.elapsedSince(time.Duration(s.ctx.seen.since.Load() - 1))
	}
	return i, s.reporter, true
}

// reportBy implements hghook.ReportCall.
func (h *Handle) reportBy(r hghook.Reporter) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.reporter = r
}

// reportBy implements hghook.ReportRequest.
func (r *Request) reportBy(by hghook.Reporter) {
	if s, ok := r.lockService(); ok {
		s.reporter = by
		s.mu.Unlock()
	}
}

// requestOf implements hghook.RequestOf.
func requestOf(ctx context.Context) (id uint64, rpc string) {
	r, ok := ctx.Value(hghook.RequestKey{}).(Request)
	if !ok {
		return 0, ""
	}
	s, ok := r.lockService()
	if !ok {
		return 0, ""
	}
	defer s.mu.Unlock()
	return uint64(s.tag), s.rpcName()
}
