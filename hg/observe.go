package hg

import (
	"errors"
	"sync"

	"github.com/quicksilver-rpc/quicksilver/hg/inspect"
	"github.com/quicksilver-rpc/quicksilver/na"
)

// observe implements hghook.Observe.
func (c *Context) observe(e inspect.Event) {
	if c.class.cfg.Observe != nil || c.watch.on.Load() {
		newPendingEvent(c, e).deliver()
	}
}

// A pendingEvent holds an Event that has not yet been delivered to Config.Observe. pendingEvents
// are pooled.
type pendingEvent struct {
	inspect.Event
	c    *Context
	task na.Task
}

var eventPool sync.Pool

func newPendingEvent(c *Context, e inspect.Event) *pendingEvent {
	s, _ := eventPool.Get().(*pendingEvent)
	if s == nil {
		s = &pendingEvent{}
		s.task.Init(func(any) int { s.deliver(); return 1 }, nil)
	}
	s.c, s.Event = c, e
	return s
}

func (s *pendingEvent) release() {
	s.Event, s.c = inspect.Event{}, nil
	eventPool.Put(s)
}

// endEventLocked returns the event for a call that has completed with err. It returns nil if
// neither Config.Observe nor a tool receives events. It must be called before the handle becomes
// idle. The caller must hold k.h.mu.
func (k *call) endEventLocked(err error) *pendingEvent {
	h := k.h
	if h.ctx.class.cfg.Observe == nil && !h.ctx.watch.on.Load() {
		return nil
	}
	s := newPendingEvent(h.ctx, inspect.Event{
		Kind: inspect.EventOrigin, RPC: h.Name(), Peer: h.addr, Fate: FateOf(err), Took: h.ctx.elapsedSince(k.begun),
		Sent: int64(k.in.size()), Received: int64(len(k.output)), Trace: h.meta.traceID(),
	})
	if remote, ok := errors.AsType[*RemoteError](err); ok {
		s.Code, s.Text, s.Remote = remote.Code, remote.Text, true
	} else if err != nil {
		s.Code, s.Text = na.CodeOf(err), unwrapNA(err).Error()
	}
	if err == nil && h.rpc.OneWay {
		s.Fate = MaybeRan
	}
	return s
}

// deliver calls Config.Observe, counts the event if a tool is watching, and returns s to its pool.
// It does nothing if s is nil.
func (s *pendingEvent) deliver() {
	if s == nil {
		return
	}
	defer s.release()
	if c := s.c; c.watch.on.Load() {
		c.watch.countEvent(c.Now(), &s.Event)
	}
	if observe := s.c.class.cfg.Observe; observe != nil {
		observe(&s.Event)
	}
}

// observeArrivalLocked initializes the event of a request and, if needed, records its arrival time.
// The caller must hold s.mu.
func (s *service) observeArrivalLocked() {
	observed := s.ctx.class.cfg.Observe != nil || s.ctx.watch.on.Load()
	if observed {
		s.event = inspect.Event{Kind: inspect.EventTarget, Peer: s.addr, Code: ErrCanceled, Fate: NotRun}
	} else {
		// EventOrigin marks a request that has no event, even if a watch begins later.
		s.event.Kind = inspect.EventOrigin
	}
	if observed || s.ctx.seen.since.Load() != 0 {
		s.arrivedAt = s.ctx.Now()
	}
}

// observeBeginLocked records in the request's event that the handler has begun. The caller must
// hold s.mu.
func (s *service) observeBeginLocked() {
	if s.event.Kind == inspect.EventTarget {
		s.event.Queued, s.event.Received, s.event.Fate = s.ctx.elapsedSince(s.arrivedAt), int64(len(s.input)), Ran
		s.event.Trace = Metadata{s.meta}.traceID()
		if s.event.Code = na.OK; !s.oneWay {
			s.event.Code = na.ErrNoResponse // until it is answered
		}
	}
}

// observeAnswerLocked records in the request's event the response, or the reason why no response
// was sent. The caller must hold s.mu.
func (s *service) observeAnswerLocked(code Code, fate Fate, size int64, text string) {
	s.event.Code, s.event.Fate, s.event.Sent, s.event.Text = code, fate, size, text
}

// postObservedLocked queues the event of a completed request for delivery in Trigger. The caller
// must hold s.mu.
func (s *service) postObservedLocked() {
	c := s.ctx
	if s.event.Kind != inspect.EventTarget { // not observed when it arrived
		return
	}
	o := newPendingEvent(c, s.event)
	o.RPC, o.Took = s.rpcName(), c.elapsedSince(s.arrivedAt)
	if c.post(&o.task) != nil {
		o.release()
	}
}
