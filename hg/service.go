package hg

import (
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/quicksilver-rpc/quicksilver/hg/codec"
	"github.com/quicksilver-rpc/quicksilver/hg/inspect"
	"github.com/quicksilver-rpc/quicksilver/internal/frame"
	"github.com/quicksilver-rpc/quicksilver/internal/fsmcheck"
	"github.com/quicksilver-rpc/quicksilver/internal/hghook"
	"github.com/quicksilver-rpc/quicksilver/internal/slab"
	"github.com/quicksilver-rpc/quicksilver/na"
)

// A service is the record behind a Request. It serves one request after another, each with a generation of its own.
//
//	arrived ─► (input is fetched) ─► queued ─► (given to Config.Dispatch) ─► handler runs ─ Respond ─► answered ─► nothing holds it: the next generation
//	                                                 │ Cancel of the response: may be answered again
//	                                                 └ Detach: may be answered when the handler has returned
//
// The handler holds it, and so do a response that is on its way, with its callback, and a body that is lent. mu guards what
// changes after the handler began.
type service struct {
	openEntry
	ctx *Context

	message       na.Envelope // that the request came in: na finds the record by it until it is freed, when the request has been answered
	abandoned     atomic.Bool // the origin has abandoned the call
	abandonQueued atomic.Bool // leave is queued
	abandonTask   na.Task     // goes on with a request that is gone

	mu    sync.Mutex
	phase fsmcheck.State // written by to
	gen   uint64
	holds int

	id           ID
	rpc          *RPC // nil if the id is not known here
	addr         na.Addr
	data         any
	env          *na.Envelope // &message; nil once it is freed
	tag          na.Tag
	oneWay       bool
	version      uint8 // of the header of the request, and of the response
	input        []byte
	fetched      []byte // the memory of it, if it was pulled
	inputCopy    []byte // the copy of input that the handler was given, if misuse is looked for
	meta         []byte // that came with it
	codec        uint8  // of input
	maxInline    int    // bytes that a response inline may have, if more than any other message
	inputPending bool   // it is at the origin, to be fetched once the authorizer has agreed,
	body         na.Key // with this
	metaAheadLen int64  // bytes of metadata in front of it, at the origin,
	metaLen      int64  // or here already
	allowed      bool   // the authorizer has agreed
	dispatch     na.Task
	handlerBegan bool          // the handler has,
	hasReturned  bool          // and has returned
	detached     bool          // and its request may be answered all the same
	detachedAt   time.Duration // it was detached
	admitted     bool          // it has room in Context.admission,
	streaming    bool          // and this, as a request with streams
	cutOff       bool          // Shutdown has counted it, at work
	peerLoad     *atomic.Int64

	deadline     time.Duration   // by Context.Now; 0 when there is none
	ownTimeout   bool            // deadline is that of RPC.Timeout
	waitDeadline time.Duration   // likewise: the request waits no longer for room or for Run; valid if there is a deadline
	pull         *pull           // fetches the input
	timer        *deadlineTimer  // rings at the deadline; nil until somebody would hear it
	handlerCtx   *handlerContext // behind Request.Context; nil until that is asked for
	isStream     bool            // it has streams, and is counted with the requests that may last for ever
	named        streamNames     // its streams, as the request says,
	streams      []*Stream       // and from when the handler begins

	failed     bool     // the response is an error
	errorTries int      // how many of these could not be sent
	outputMeta Metadata // to go with the output
	draft      draft    // header, metadata and output
	msg        []byte   // that says where the output is
	send       *na.Op
	sent       na.Result
	cb         RespondFunc
	begun      time.Duration // when the response was given, if cb is set
	done       na.Task
	loan       *loan

	event     inspect.Event   // what is observed of the request
	reporter  hghook.Reporter // tells Calls more of the request; nil for nobody
	arrivedAt time.Duration   // when it did, if somebody wants to know; else 0
	batch     uint32          // in which it was given to Config.Dispatch

	waits      bool     // in Context.load, whose mu guards it
	counted    bool     // in bound.waiting; likewise
	next, prev *service // then; next also in Context.services
}

// The phases of a service. The goroutine that moves it to arrived owns the request until it moves it on. A request that is running or
// rejected may be answered by any goroutine.
const (
	serviceSpare    fsmcheck.State = iota // of no request
	serviceArrived                        // somebody works on it
	serviceFetching                       // the input is being fetched
	serviceWaiting                        // for room, or for Trigger when there is
	serviceGiven                          // to Config.Dispatch; Run has not come
	serviceRunning                        // the handler has begun, and nobody has answered
	serviceRejected                       // the handler will not run, and nobody has answered
	serviceSending                        // the response has not left
	serviceRecalled                       // nor will it: once its callback runs another may be given
	serviceLending                        // it has left; the origin has not given the output back
	serviceAnswered                       // it has left, or nobody can answer any more
)

var servicePhases = fsmcheck.New("service",
	[]string{"spare", "arrived", "fetching", "waiting", "given", "running", "rejected", "sending", "recalled", "lending", "answered"},
	[][]fsmcheck.State{
		serviceSpare:    {serviceArrived},
		serviceArrived:  {serviceFetching, serviceWaiting, serviceGiven, serviceRunning, serviceRejected, serviceAnswered},
		serviceFetching: {serviceArrived},
		serviceWaiting:  {serviceArrived},
		serviceGiven:    {serviceArrived},
		serviceRunning:  {serviceSending, serviceLending, serviceAnswered, serviceSpare}, // one-way, or closed
		serviceRejected: {serviceSending, serviceAnswered, serviceSpare},
		serviceSending:  {serviceRecalled, serviceLending, serviceAnswered},
		serviceRecalled: {serviceRunning, serviceRejected},
		serviceLending:  {serviceAnswered},
		serviceAnswered: {serviceSpare},
	})

// setPhaseLocked writes the phase. Locked.
func (s *service) setPhaseLocked(next fsmcheck.State) {
	servicePhases.Move(s.phase, next)
	s.phase = next
}

// takeService returns the message of a record that serves no request: na has one come in it. It is called with the lock of the endpoint held.
func (c *Context) takeService() *na.Envelope {
	s := c.services.pop()
	if s == nil {
		s = &service{ctx: c}
		s.openEntry.of = s
		c.mu.Lock()
		c.addOpenLocked(&s.openEntry)
		c.mu.Unlock()
		s.message.Record = s
		s.dispatch.Init(s.proceedAgain, nil)
		s.done.Init(s.onResponseLeft, nil)
		s.abandonTask.Init(s.onAbandoned, nil)
		s.send = c.nctx.NewStep(s.onSent)
	}
	return &s.message
}

// putService takes back the record of a message that is not needed any more.
func (c *Context) putService(e *na.Envelope) { c.keepSpare(e.Record.(*service)) }

// keepSpare keeps a record that serves no request for the next one, unless there are enough.
func (c *Context) keepSpare(s *service) {
	if c.services.push(s) {
		return
	}
	c.mu.Lock()
	c.removeOpenLocked(&s.openEntry)
	c.mu.Unlock()
}

// maxSpare bounds the spare records of a context.
const maxSpare = 1024

// spareServices is a stack of records that serve no request, by service.next. Any goroutine pushes, without a lock; who pops holds the lock of the
// endpoint, so nobody else takes the first one away, and pushes it again, between the look at it and its removal.
type spareServices struct {
	first atomic.Pointer[service]
	n     atomic.Int32
}

// push reports whether it has kept s.
func (q *spareServices) push(s *service) bool {
	if q.n.Add(1) > maxSpare {
		q.n.Add(-1)
		return false
	}
	for {
		s.next = q.first.Load()
		if q.first.CompareAndSwap(s.next, s) {
			return true
		}
	}
}

func (q *spareServices) pop() *service {
	for {
		s := q.first.Load()
		if s == nil {
			return nil
		}
		if q.first.CompareAndSwap(s, s.next) {
			s.next = nil
			q.n.Add(-1)
			return s
		}
	}
}

// newService begins the life of the record of a request, held for its handler.
func (c *Context) newService(env *na.Envelope) *service {
	s := env.Record.(*service)
	c.handles.Add(1)
	s.mu.Lock() // who has found s while it served another request looks at it
	defer s.mu.Unlock()
	s.setPhaseLocked(serviceArrived)
	s.env, s.tag, s.addr, s.peerLoad, s.holds = env, env.Tag, env.From, env.Load, 1
	s.observeArrivalLocked()
	return s
}

// releaseHold gives a hold back.
func (s *service) releaseHold() {
	s.mu.Lock()
	s.holds--
	s.unlock()
}

// unlock unlocks s. A request that nothing holds any more ends: the library answers what nobody else will, and once that has
// left the record is free for another.
func (s *service) unlock() {
	if s.phase == serviceSpare || s.holds > 0 || !s.isOverLocked() {
		s.mu.Unlock()
		return
	}
	s.freeInput()
	c := s.ctx
	if s.inputPending {
		c.nctx.Upper().GiveBack(s.addr, s.body)
	}
	c.releaseAdmission(s)
	if len(s.streams) > 0 { // of a request that nobody could answer
		s.endStreamsLocked()
	}
	alarm, handling := s.timer, s.handlerCtx
	s.postObservedLocked()
	s.reset()
	if alarm != nil {
		alarm.op.Cancel() // locked: another request may have it soon
	}
	s.mu.Unlock()
	if handling != nil {
		handling.endWithRequest()
	}
	c.handles.Add(-1)
	c.keepSpare(s)
}

// isOverLocked reports whether nothing is to come any more of a request that nothing holds. Locked.
func (s *service) isOverLocked() bool {
	nctx := s.ctx.nctx
	switch {
	case s.phase == serviceAnswered, s.oneWay, nctx.Closing():
		return true
	case s.detached && s.sent.Err == nil && nctx.Connected(s.addr):
		return false // the program answers
	}
	f := errorBody{code: na.ErrNoResponse, fate: na.Ran, text: na.ErrNoResponse.Error()}
	if s.phase == serviceRejected {
		f.fate, f.early = na.NotRun, s.named.count > 0
	}
	if err := s.sent.Err; err != nil && na.CodeOf(err) != ErrCanceled {
		f.code, f.text = failureOf(err).code, "the response could not be sent: "+err.Error()
	}
	s.answerForLocked(f)
	return s.holds == 0
}

// answerForLocked answers a request that the program does not answer. Locked.
func (s *service) answerForLocked(f errorBody) {
	s.draft = s.newDraftLocked(f.code)
	s.draft.b = appendFailure(s.draft.b, frame.CutText(f.text, s.textRoomLocked(s.draft.b)), nil)
	resp := response{code: f.code, fate: f.fate, codec: codec.EncodedID, text: f.text}
	if f.early {
		resp.flags = flagEarly
	}
	if s.transmitLocked(resp, nil) != nil { // the peer is gone
		s.giveUpLocked()
	}
}

// giveUpLocked ends a request that nobody can answer any more. Locked.
func (s *service) giveUpLocked() {
	s.settleAnswerLocked()
	if s.hasReturned && len(s.streams) > 0 {
		s.endStreamsLocked()
	}
	why := ErrPeerLost
	if s.ctx.nctx.Closing() {
		why = ErrClosed
	}
	s.observeAnswerLocked(why, s.event.Fate, 0, "")
}

// reset makes s ready for another request. What newService sets, and what nobody reads before it was set, stays: the
// record is large, and this is done for each request.
func (s *service) reset() {
	s.setPhaseLocked(serviceSpare)
	s.gen++
	s.abandoned.Store(false) // the message is freed: nobody marks it any more
	s.draft.releaseLarge()
	s.oneWay, s.inputPending, s.allowed, s.failed = false, false, false, false
	s.handlerBegan, s.hasReturned, s.detached, s.cutOff = false, false, false, false
	s.deadline, s.metaAheadLen, s.metaLen, s.errorTries, s.timer, s.handlerCtx, s.cb = 0, 0, 0, 0, nil, nil, nil
	s.outputMeta, s.next, s.prev, s.rpc, s.data = Metadata{}, nil, nil, nil, nil
	s.reporter, s.named, s.isStream = nil, streamNames{}, false
	if s.sent.Err != nil {
		s.sent = na.Result{}
	}
}

// freeInput ends the use of the request's bytes. A copy that the handler was given is spoiled.
func (s *service) freeInput() {
	if s.env != nil {
		s.env.Free()
		s.env = nil
	}
	for i := range s.inputCopy {
		s.inputCopy[i] = 0xdb
	}
	slab.Put(s.fetched)
	s.input, s.inputCopy, s.meta, s.fetched = nil, nil, nil, nil
}

// rpcName returns the name of the RPC.
func (s *service) rpcName() string { return nameOf(s.id, s.rpc) }

// onPeersLost ends the context of a handler whose origin nobody can answer any more, and why, and a request that is detached, or waits
// for room or for Run.
func (s *service) onPeersLost(why error) {
	s.mu.Lock()
	if nctx := s.ctx.nctx; s.phase == serviceSpare || !nctx.Closing() && nctx.Connected(s.addr) {
		s.mu.Unlock()
		return
	}
	waited := s.endWaitLocked()
	if s.detached && s.phase == serviceRunning {
		s.giveUpLocked()
	}
	s.endWithContext(func(g *handlerContext) { g.cancel(why) })
	if waited {
		s.rejectRequest(why)
	}
}

// endWithContext ends a request whose handler has a context that ends before. Locked, and unlocks.
func (s *service) endWithContext(end func(*handlerContext)) {
	if g := s.handlerCtx; g != nil {
		s.holds++
		s.mu.Unlock()
		end(g)
		s.mu.Lock()
		s.holds--
	}
	s.unlock()
}

// cancelForShutdown counts a response that has not left, a handler that is at work, and a detached request that nobody has answered, and ends the
// handler's context.
func (s *service) cancelForShutdown(left *ShutdownError) {
	s.mu.Lock()
	defer s.endWithContext(func(g *handlerContext) { g.cancel(errClosed) })
	switch {
	case s.phase == serviceSending:
		left.Responses++
	case s.isUnansweredDetachedLocked():
		left.Handlers++
		left.addOpen("handler of " + s.rpcName() + " has not answered")
	case s.phase == serviceRunning && s.admitted:
		s.cutOff = true
		left.Handlers++
		left.addOpen(s.wasCutOff())
	}
}

func (s *service) wasCutOff() string { return "handler of " + s.rpcName() + " was cut off" }

// isUnansweredDetachedLocked reports whether a request waits for the program to answer it. Locked.
func (s *service) isUnansweredDetachedLocked() bool {
	return s.detached && s.hasReturned && s.phase == serviceRunning
}

// overdueAfter is how long a detached request goes unanswered before that is logged, and again.
const overdueAfter = time.Minute

// scheduleOverdueLog has detached requests that nobody has answered logged from time to time.
func (c *Context) scheduleOverdueLog() { c.overdueLogAt.CompareAndSwap(0, int64(c.Now()+overdueAfter)) }

// logOverdue logs them, if it is time.
func (c *Context) logOverdue() {
	at := c.overdueLogAt.Load()
	if at == 0 {
		return
	}
	now := c.Now()
	if int64(now) < at || !c.overdueLogAt.CompareAndSwap(at, 0) {
		return
	}
	for _, o := range c.allOpen() {
		if s, ok := o.(*service); ok && s.logIfOverdue(now) {
			c.scheduleOverdueLog()
		}
	}
}

// logIfOverdue logs a detached request that is old, and reports whether it may have to be logged later.
func (s *service) logIfOverdue(now time.Duration) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.isUnansweredDetachedLocked() {
		return false
	}
	if age := now - s.detachedAt; age >= overdueAfter {
		s.ctx.class.logger().Warn("detached request not answered", "rpc", s.rpcName(), "peer", s.addr.Label(), "for", age)
	}
	return true
}

// answerDetached answers a detached request that its program has not answered when the class shuts down.
func (s *service) answerDetached() {
	s.mu.Lock()
	if s.isUnansweredDetachedLocked() {
		s.answerForLocked(errorBody{code: na.ErrNoResponse, fate: na.Ran, text: "the target has shut down, and nobody had answered"})
	}
	s.unlock()
}

// countOpen counts a handler that is at work in the end.
func (s *service) countOpen(left *ShutdownError) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.handlerBegan || s.hasReturned {
		return
	}
	what := " has not returned"
	if s.phase == serviceRunning && !s.oneWay {
		what = " has not answered"
	}
	what = "handler of " + s.rpcName() + what
	if !s.cutOff {
		left.Handlers++
		left.addOpen(what)
	} else if i := slices.Index(left.Open, s.wasCutOff()); i >= 0 {
		left.Open[i] = what
	}
}
