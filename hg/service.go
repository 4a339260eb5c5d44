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

// A service is the record behind a Request. It serves one request at a time. Each request has its
// own generation, so that a Request that has ended does not refer to a later one.
//
// A request arrives, its input is fetched if necessary, and it may be passed to Config.Dispatch.
// Then its handler runs and the request is answered. If the response is canceled before it is sent,
// the request may be answered again. If the handler has called Detach, the request may be answered
// after the handler has returned. The request ends, and the record becomes spare, when no
// references are left.
//
// The handler holds a reference to the record. So do a response in flight, until its callback has
// run, and a lent body. mu guards the fields that change after the handler has begun.
type service struct {
	openEntry
	ctx *Context

	// message is the message of the request. na uses it to find the record until the message is
	// freed, once the request has been answered.
	message       na.Envelope
	abandoned     atomic.Bool // reports whether the origin has abandoned the call
	abandonQueued atomic.Bool // reports whether abandonTask is queued
	abandonTask   na.Task     // runs onAbandoned

	mu    sync.Mutex
	phase fsmcheck.State // written only by setPhaseLocked
	gen   uint64
	holds int

	id        ID
	rpc       *RPC // nil if the ID is not registered
	addr      na.Addr
	data      any
	env       *na.Envelope // &message; nil once it is freed
	tag       na.Tag
	oneWay    bool
	version   uint8 // header version of the request and of the response
	input     []byte
	fetched   []byte // memory of input, if it was pulled
	inputCopy []byte // copy of input passed to the handler; see Request.InputRaw
	meta      []byte // metadata of the request
	codec     uint8  // codec ID of input
	// maxInline is the length in bytes of the longest response that the origin accepts inline, if
	// that exceeds the limit of other messages.
	maxInline    int
	inputPending bool   // reports whether the input is still at the origin, to be fetched after authorization
	body         na.Key // key of the lent metadata and input
	metaAheadLen int64  // bytes of metadata before the input in body, not yet fetched
	metaLen      int64  // bytes of metadata before the input in body, already fetched
	allowed      bool   // reports whether the authorizer has allowed the request
	dispatch     na.Task
	handlerBegan bool // reports whether the handler has begun
	hasReturned  bool // reports whether the handler has returned
	// detached reports that Detach was called. The request may be answered after the handler has
	// returned.
	detached   bool
	detachedAt time.Duration // time of Detach
	admitted   bool          // counted as active in Context.admission
	streaming  bool          // counted in Context.admission as a request with streams
	cutOff     bool          // counted by Shutdown as active
	peerLoad   *atomic.Int64

	deadline   time.Duration // time by Context.Now; 0 if there is none
	ownTimeout bool          // deadline was set by RPC.Timeout
	// waitDeadline is the time, by Context.Now, at which a wait to be admitted or run is given up.
	// It is valid if there is a deadline.
	waitDeadline time.Duration
	pull         *pull           // fetches the input
	timer        *deadlineTimer  // fires at the deadline; nil until something waits for it
	handlerCtx   *handlerContext // state of Request.Context; nil until that is first called
	isStream     bool            // reports whether the request counts against the limits for requests with streams
	named        streamNames     // description of the request's streams
	streams      []*Stream       // the request's streams, once the handler has begun

	failed     bool     // reports whether the response is an error
	errorTries int      // number of error responses that could not be sent
	outputMeta Metadata // metadata of the output
	draft      draft    // header, metadata, and output
	// hasDraft reports that draft is complete and will be sent when the handler returns. Only the
	// handler's goroutine accesses it.
	hasDraft bool
	msg      []byte // message that carries the key of a lent output
	send     *na.Op
	sent     na.Result
	cb       RespondFunc
	begun    time.Duration // time of the response; valid if cb is set
	done     na.Task
	loan     *loan

	event     inspect.Event   // event of the request for Config.Observe
	reporter  hghook.Reporter // adds details of the request to Context.Calls; may be nil
	arrivedAt time.Duration   // arrival time if it is recorded, otherwise 0
	batch     uint32          // batch of the loop in which the request was passed to Config.Dispatch

	waits      bool     // in the wait queue of Context.admission; guarded by admission.mu
	counted    bool     // counted in methodLimit.waiting; guarded by admission.mu
	next, prev *service // links of the wait queue; next also links Context.services
}

// Phases of a service. The goroutine that moves a service to serviceArrived owns the request until
// that goroutine moves the service to another phase. Any goroutine may respond to a request that is
// running or rejected.
const (
	serviceSpare    fsmcheck.State = iota // no request
	serviceArrived                        // a goroutine is working on the request
	serviceFetching                       // the input is being fetched
	// in the wait queue, or admitted from it and queued for Trigger
	serviceWaiting
	serviceGiven    // passed to Config.Dispatch; Run has not been called
	serviceRunning  // the handler has begun; not answered
	serviceRejected // the handler will not run; not answered
	serviceSending  // the response has not been sent
	// The response will not be sent. After its callback another one may be given.
	serviceRecalled
	serviceLending  // the response has been sent; the origin has not returned the output
	serviceAnswered // the response has been sent, or no response can be sent anymore
)

var servicePhases = fsmcheck.New("service",
	[]string{"spare", "arrived", "fetching", "waiting", "given", "running", "rejected", "sending", "recalled", "lending", "answered"},
	[][]fsmcheck.State{
		serviceSpare:    {serviceArrived},
		serviceArrived:  {serviceFetching, serviceWaiting, serviceGiven, serviceRunning, serviceRejected, serviceAnswered},
		serviceFetching: {serviceArrived},
		serviceWaiting:  {serviceArrived},
		serviceGiven:    {serviceArrived},
		// serviceSpare is for one-way requests and a closed context.
		serviceRunning:  {serviceSending, serviceLending, serviceAnswered, serviceSpare},
		serviceRejected: {serviceSending, serviceAnswered, serviceSpare},
		serviceSending:  {serviceRecalled, serviceLending, serviceAnswered},
		serviceRecalled: {serviceRunning, serviceRejected},
		serviceLending:  {serviceAnswered},
		serviceAnswered: {serviceSpare},
	})

// setPhaseLocked sets the service's phase. In tests it also checks that the transition is allowed.
// The caller must hold s.mu.
func (s *service) setPhaseLocked(next fsmcheck.State) {
	servicePhases.Move(s.phase, next)
	s.phase = next
}

// takeService returns the message of a spare record, into which na receives a request. The caller
// must hold the endpoint's lock.
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

// putService makes the record of e spare. Package na calls it when it no longer needs e.
func (c *Context) putService(e *na.Envelope) { c.keepSpare(e.Record.(*service)) }

// keepSpare keeps s, which serves no request, for reuse. If there are already maxSpare spare
// records, it lets s be freed.
func (c *Context) keepSpare(s *service) {
	if c.services.push(s) {
		return
	}
	c.mu.Lock()
	c.removeOpenLocked(&s.openEntry)
	c.mu.Unlock()
}

// maxSpare limits the number of spare records of a context.
const maxSpare = 1024

// spareServices is a stack of spare records, linked by service.next. push is lock-free and safe for
// concurrent use. The caller of pop must hold the endpoint's lock. Since only one goroutine pops at
// a time, the first record cannot be popped and pushed again between the load and the
// compare-and-swap (the ABA problem).
type spareServices struct {
	first atomic.Pointer[service]
	n     atomic.Int32
}

// push adds s to the stack and returns true. If the stack already holds maxSpare records, push
// returns false.
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

// newService prepares the record of env to serve the request in env, and returns the record with a
// reference for the handler.
func (c *Context) newService(env *na.Envelope) *service {
	s := env.Record.(*service)
	c.handles.Add(1)
	s.mu.Lock() // goroutines that found s while it served another request may still access it
	defer s.mu.Unlock()
	s.setPhaseLocked(serviceArrived)
	s.env, s.tag, s.addr, s.peerLoad, s.holds = env, env.Tag, env.From, env.Load, 1
	s.observeArrivalLocked()
	return s
}

// releaseHold releases a reference to s. If no reference is left, it ends the request.
func (s *service) releaseHold() {
	s.mu.Lock()
	s.holds--
	s.unlock()
}

// unlock releases s.mu, which the caller must hold. If no references to the request are left,
// unlock first responds on behalf of the program if the program has not responded. It then ends the
// request and makes the record spare, unless that response is still in flight.
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
	if len(s.streams) > 0 { // streams of a request that could not be answered
		s.endStreamsLocked()
	}
	alarm, handling := s.timer, s.handlerCtx
	s.postObservedLocked()
	s.reset()
	if alarm != nil {
		alarm.op.Cancel() // canceled with the lock held, because later the record may serve another request
	}
	s.mu.Unlock()
	if handling != nil {
		handling.endWithRequest()
	}
	c.handles.Add(-1)
	c.keepSpare(s)
}

// isOverLocked reports whether the request, to which no references are left, has ended. If the
// program has not responded and cannot do so later, isOverLocked responds to the request. The
// caller must hold s.mu.
func (s *service) isOverLocked() bool {
	nctx := s.ctx.nctx
	switch {
	case s.phase == serviceAnswered, s.oneWay, nctx.Closing():
		return true
	case s.detached && s.sent.Err == nil && nctx.Connected(s.addr):
		return false // the program will respond later
	}
	f := errorBody{code: na.ErrNoResponse, fate: na.Ran, text: na.ErrNoResponse.Error()}
	if s.phase == serviceRejected {
		f.fate, f.byLibrary = na.NotRun, s.named.count > 0
	}
	if err := s.sent.Err; err != nil && na.CodeOf(err) != ErrCanceled {
		f.code, f.text = failureOf(err).code, "send response: "+err.Error()
		if over, ok := err.(*outputLimitError); ok {
			f.text, f.byLibrary = over.text("the target's"), true
		}
	}
	s.answerForLocked(f)
	return s.holds == 0
}

// answerForLocked responds with the error f on behalf of the program, which has not responded. The
// caller must hold s.mu.
func (s *service) answerForLocked(f errorBody) {
	s.draft = s.newDraftLocked(f.code)
	s.draft.b = appendFailure(s.draft.b, frame.CutText(f.text, s.textRoomLocked(s.draft.b)), nil)
	resp := response{code: f.code, fate: f.fate, codec: codec.EncodedID, text: f.text}
	if f.byLibrary {
		resp.flags = flagByLibrary
	}
	if s.transmitLocked(resp, nil) != nil { // the peer is lost
		s.giveUpLocked()
	}
}

// giveUpLocked ends a request that can no longer be answered. The caller must hold s.mu.
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

// reset prepares s for another request. It keeps fields that newService sets or that are not read
// before they are set, because the record is large and reset runs for every request.
func (s *service) reset() {
	s.setPhaseLocked(serviceSpare)
	s.gen++
	s.abandoned.Store(false) // the message is freed, so it can no longer be marked
	s.draft.releaseLarge()
	s.oneWay, s.inputPending, s.allowed, s.failed = false, false, false, false
	s.handlerBegan, s.hasReturned, s.detached, s.cutOff, s.hasDraft = false, false, false, false, false
	s.deadline, s.metaAheadLen, s.metaLen, s.errorTries, s.timer, s.handlerCtx, s.cb = 0, 0, 0, 0, nil, nil, nil
	s.outputMeta, s.next, s.prev, s.rpc, s.data = Metadata{}, nil, nil, nil, nil
	s.reporter, s.named, s.isStream = nil, streamNames{}, false
	if s.sent.Err != nil {
		s.sent = na.Result{}
	}
}

// freeInput frees the memory of the request's input and metadata. If the handler was given a copy
// of the input, the copy is overwritten.
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

// rpcName returns the name of the RPC, or its ID if it is not registered.
func (s *service) rpcName() string { return nameOf(s.id, s.rpc) }

// onPeersLost checks whether the session with the origin has been lost. If so, it cancels the
// handler's context with why, and ends a detached request and the wait to be admitted or run.
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

// endWithContext releases s.mu and passes the handler's context, if there is one, to end. It then
// acquires s.mu again and calls unlock. The caller must hold s.mu, which endWithContext releases.
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

// cancelForShutdown counts in left a response that has not been sent, an active handler, or a
// detached request that has not been answered. It then cancels the handler's context.
func (s *service) cancelForShutdown(left *ShutdownError) {
	s.mu.Lock()
	defer s.endWithContext(func(g *handlerContext) { g.cancel(s.ctx.closeReason()) })
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

// isUnansweredDetachedLocked reports whether the handler detached the request and returned, and the
// program has not responded since. The caller must hold s.mu.
func (s *service) isUnansweredDetachedLocked() bool {
	return s.detached && s.hasReturned && s.phase == serviceRunning
}

// overdueAfter is how long a detached request may remain unanswered before it is logged, and the
// interval at which the log is repeated.
const overdueAfter = time.Minute

// scheduleOverdueLog schedules the next check for overdue detached requests, unless one is already
// scheduled.
func (c *Context) scheduleOverdueLog() { c.overdueLogAt.CompareAndSwap(0, int64(c.Now()+overdueAfter)) }

// logOverdue logs overdue detached requests. It does nothing before the time set by
// scheduleOverdueLog.
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

// logIfOverdue logs s if it is an overdue detached request, and reports whether it must be checked
// again.
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

// answerDetached responds to a detached request that the program has not answered. It is called
// when the class shuts down.
func (s *service) answerDetached() {
	s.mu.Lock()
	if s.isUnansweredDetachedLocked() {
		s.answerForLocked(errorBody{code: na.ErrNoResponse, fate: na.Ran, text: "the target has shut down before a response"})
	}
	s.unlock()
}

// countOpen counts the handler in left if it is still active at the end of a shutdown.
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
