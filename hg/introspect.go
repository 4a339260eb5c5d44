package hg

import (
	"cmp"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/quicksilver-rpc/quicksilver/hg/inspect"
	"github.com/quicksilver-rpc/quicksilver/internal/hghook"
)

// Calls returns the calls, requests and transfers of c that are under way, the oldest first. It may be called from any goroutine. A
// request that waits for Trigger is not among them (Stats.Queued counts it), and one that had come before the first Calls is as old as
// that, unless Config.Observe is set. Nothing is noted of calls for it but the time when a request comes, from the first Calls on.
func (c *Context) Calls() (all []inspect.Call) {
	c.seen.watch(c)
	for _, o := range c.all() {
		if i, ok := o.info(); ok {
			all = append(all, i)
		}
	}
	all = append(all, c.seen.transfers()...)
	slices.SortStableFunc(all, func(a, b inspect.Call) int { return cmp.Compare(b.Age, a.Age) })
	return all
}

// seen is what a context keeps for Calls.
type seen struct {
	since atomic.Int64 // 1 more than Now at the first Calls; 0 before

	mu      sync.Mutex // guards tracked
	tracked map[hghook.Tracked]struct{}
}

// track is hghook.Track.
func (w *seen) track(t hghook.Tracked) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.tracked == nil {
		w.tracked = map[hghook.Tracked]struct{}{}
	}
	w.tracked[t] = struct{}{}
}

// untrack is hghook.Untrack.
func (w *seen) untrack(t hghook.Tracked) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.tracked, t)
}

func (w *seen) watch(c *Context) {
	if w.since.Load() == 0 {
		w.since.CompareAndSwap(0, int64(c.Now())+1)
	}
}

func (w *seen) transfers() (all []inspect.Call) {
	w.mu.Lock()
	list := make([]hghook.Tracked, 0, len(w.tracked))
	for t := range w.tracked {
		list = append(list, t)
	}
	w.mu.Unlock()
	for _, t := range list {
		all = append(all, t.Inspect())
	}
	return all
}

// info tells of the call that is under way, if one is.
func (h *Handle) info() (i inspect.Call, ok bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	k := h.call
	if k.phase == callIdle {
		return i, false
	}
	return inspect.Call{Kind: inspect.EventOrigin, RPC: h.Name(), Peer: h.addr, State: callPhases.State(k.phase), Age: h.ctx.since(k.begun)}, true
}

// info describes a request for Calls. ok is false while the record is free, or a goroutine is working on it.
func (s *service) info() (i inspect.Call, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.phase <= serviceArrived {
		return i, false
	}
	i = inspect.Call{Kind: inspect.EventTarget, RPC: s.name(), Peer: s.addr, State: servicePhases.State(s.phase)}
	if came := s.came; came != 0 {
		i.Age = s.ctx.since(came)
	} else {
		i.Age = s.ctx.since(time.Duration(s.ctx.seen.since.Load() - 1))
	}
	return i, true
}
