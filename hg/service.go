package hg

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/quicksilver-rpc/quicksilver/internal/fsmcheck"
	"github.com/quicksilver-rpc/quicksilver/internal/slab"
	"github.com/quicksilver-rpc/quicksilver/na"
)

// A service is the record behind an Incoming. It serves one request after another, each with a generation of its own.
//
//	arrived ─► (input is fetched) ─► queued ─► (given to Config.Dispatch) ─► handler runs ─ Respond ─► answered ─► nothing holds it: the next generation
//	                                                 │ Cancel of the response: may be answered again
//	                                                 └ Detach: may be answered when the handler has returned
//
// The handler holds it, and so do a response that is on its way, with its callback, and a body that is lent. mu guards what
// changes after the handler began.
type service struct {
	open
	ctx *Context

	key    callKey  // Context.mu guards it
	beside *service // in Context.calls; likewise

	mu      sync.Mutex
	gen     uint64
	serving bool
	holds   int
	track   fsmcheck.Track

	id        ID
	rpc       *RPC // nil if the id is not known here
	addr      na.Addr
	data      any
	env       *na.Envelope // nil once the message is not needed any more
	tag       na.Tag
	oneWay    bool
	input     []byte
	fetched   []byte // the memory of it, if it was pulled
	shown     []byte // the copy of input that the handler was given, if misuse is looked for
	meta      []byte // that came with it
	codec     uint8  // of input
	most      int    // bytes that a response inline may have, if more than any other message
	more      bool   // it is at the origin, to be fetched once the authorizer has agreed,
	body      na.Key // with this
	ahead     int64  // bytes of metadata in front of it, at the origin,
	skip      int64  // or here already
	allowed   bool   // the authorizer has agreed
	dispatch  na.Task
	resume    func(int) int       // proceed, bound once
	runs      atomic.Pointer[RPC] // what the handler that began is of
	returned  bool                // it has
	detached  bool                // and its request may be answered all the same
	abandoned bool                // the origin has abandoned the call
	since     time.Duration       // it was detached
	admitted  bool                // it has room in Context.load
	peerLoad  *atomic.Int64

	deadline time.Duration // by Context.Now; 0 when there is none
	pull     *pull         // fetches the input
	alarm    *alarm        // rings at the deadline; nil until somebody would hear it
	handling *handling     // behind Incoming.Context; nil until that is asked for

	answer int    // how far the response is
	retry  bool   // it was canceled before it left, or could not leave: once its callback runs another may be given
	failed bool   // it is an error response
	tries  int    // how many of these could not be sent
	said   Meta   // to go with the output
	out    draft  // header, metadata and output
	msg    []byte // that says where the output is
	send   *na.Op
	sent   na.Result
	cb     RespondFunc
	begun  time.Duration // when the response was given, if cb is set
	done   na.Task
	loan   *loan

	event Event         // what is observed of the request
	came  time.Duration // when it did, if somebody wants to know; else 0
	given bool          // to Config.Dispatch, and waits for Run
	batch uint32        // in which it was given

	waits      bool     // for room; Context.load.mu guards it
	counted    bool     // in bound.waiting; likewise
	next, prev *service // then; next also in the list of spare records
}

// How far a response is. Only the goroutine that finds unanswered may answer.
const (
	unanswered = iota
	sending    // it is on its way
	answered   // it has left, or cannot any more
)

// maxSpare bounds the spare records of a context.
const maxSpare = 1024

// newService returns the record of a request, held for its handler.
func (c *Context) newService(env *na.Envelope) *service {
	key := callKey{env.From.Session(), env.Tag}
	c.mu.Lock()
	s := c.services
	if s != nil {
		c.services = s.next
		c.spare--
		c.enlistService(s, key)
	}
	c.mu.Unlock()
	if s == nil {
		s = &service{ctx: c}
		s.open.of = s
		s.dispatch.Init(s.run, nil)
		s.resume = s.proceed
		s.done.Init(s.finish, nil)
		s.send = c.nctx.NewStep(s.onSent)
		c.mu.Lock()
		c.enlistService(s, key)
		c.mu.Unlock()
	}
	s.mu.Lock() // who has found s while it served another request looks at it
	defer s.mu.Unlock()
	s.found(evArrived)
	s.env, s.tag, s.addr, s.peerLoad, s.holds = env, env.Tag, env.From, env.Load, 1
	s.serving = true
	s.arrives()
	s.note(evArrived)
	return s
}

// enlistService lets s be found. Locked.
func (c *Context) enlistService(s *service, key callKey) {
	c.enlist(&s.open)
	s.key = key
	c.calls.add(s)
}

// release gives a hold back.
func (s *service) release() {
	s.mu.Lock()
	s.holds--
	s.unlock()
}

// unlock unlocks s. A request that nothing holds any more ends: the library answers what nobody else will, and once that has
// left the record is free for another.
func (s *service) unlock() {
	if !s.serving || s.holds > 0 || !s.over() {
		s.mu.Unlock()
		return
	}
	s.found(evLastReference)
	s.freeInput()
	c := s.ctx
	if s.more {
		c.nctx.GiveBack(s.addr, s.body)
	}
	c.leave(s)
	alarm, handling := s.alarm, s.handling
	s.observed()
	s.reset()
	s.note(evLastReference)
	if alarm != nil {
		alarm.op.Cancel() // locked: another request may have it soon
	}
	s.mu.Unlock()
	if handling != nil {
		handling.over()
	}
	c.mu.Lock()
	c.delist(&s.open)
	c.calls.remove(s)
	if c.spare < maxSpare {
		s.next, c.services = c.services, s
		c.spare++
	}
	c.mu.Unlock()
}

// over reports whether nothing is to come any more of a request that nothing holds. Locked.
func (s *service) over() bool {
	nctx := s.ctx.nctx
	switch {
	case s.answer != unanswered, s.oneWay, nctx.Closing():
		return true
	case s.detached && s.sent.Err == nil && nctx.Connected(s.addr):
		return false // the program answers
	}
	s.noted(evSilent)
	f := failure{code: ErrNoResponse, fate: na.NotRun, text: ErrNoResponse.Error()}
	if s.runs.Load() != nil {
		f.fate = na.Ran
	}
	if err := s.sent.Err; err != nil && na.CodeOf(err) != ErrCanceled {
		f.code, f.text = failureOf(err).code, "the response could not be sent: "+err.Error()
	}
	s.answerFor(f)
	return s.holds == 0
}

// answerFor answers a request that the program does not answer. Locked.
func (s *service) answerFor(f failure) {
	s.found(evRespond)
	s.out = s.draft(f.code)
	s.out.b = appendFailure(s.out.b, f.text[:min(len(f.text), s.textRoom(s.out.b))], nil)
	err := s.transmit(response{code: f.code, fate: f.fate, codec: rawID}, nil)
	s.note(evRespond)
	if err != nil { // the peer is gone
		s.giveUp()
	}
}

// giveUp ends a request that nobody can answer any more. Locked.
func (s *service) giveUp() {
	s.found(evGivenUp)
	s.answer = answered
	why := ErrPeerLost
	if s.ctx.nctx.Closing() {
		why = ErrClosed
	}
	s.says(why, s.event.Fate, 0)
	s.note(evGivenUp)
}

// reset makes s ready for another request. What newService sets, and what nobody reads before it was set, stays: the
// record is large, and this is done for each request.
func (s *service) reset() {
	s.gen++
	s.serving = false
	if s.loan != nil {
		s.out = draft{}
	}
	s.out.trim()
	s.oneWay, s.more, s.allowed, s.retry, s.failed, s.waits = false, false, false, false, false, false
	s.returned, s.detached, s.abandoned = false, false, false
	s.answer, s.tries = unanswered, 0
	s.runs.Store(nil)
	s.deadline, s.ahead, s.skip, s.pull, s.alarm, s.handling, s.loan, s.cb = 0, 0, 0, nil, nil, nil, nil, nil
	s.said, s.next, s.prev, s.rpc, s.data = Meta{}, nil, nil, nil, nil
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
	for i := range s.shown {
		s.shown[i] = 0xdb
	}
	slab.Put(s.fetched)
	s.input, s.shown, s.meta, s.fetched = nil, nil, nil, nil
}

// name returns the name of the RPC.
func (s *service) name() string { return nameOf(s.id, s.rpc) }

// lost ends the context of a handler whose origin nobody can answer any more, and why, and a request that is detached or waits
// for Run.
func (s *service) lost(why error) {
	s.mu.Lock()
	if nctx := s.ctx.nctx; !s.serving || !nctx.Closing() && nctx.Connected(s.addr) {
		s.mu.Unlock()
		return
	}
	given := s.take()
	if !given && s.detached && s.answer == unanswered {
		s.giveUp()
	}
	s.ends(func(g *handling) { g.cancel(why) })
	if given {
		s.reject(why)
	}
}

// ends ends a request whose handler has a context that ends before. Locked, and unlocks.
func (s *service) ends(end func(*handling)) {
	if g := s.handling; g != nil {
		s.holds++
		s.mu.Unlock()
		end(g)
		s.mu.Lock()
		s.holds--
	}
	s.unlock()
}

// cut counts a response that has not left, and a detached request that nobody has answered, and ends the handler's context.
func (s *service) cut(left *ShutdownError) {
	s.mu.Lock()
	defer s.ends(func(g *handling) { g.cancel(errClosed) })
	switch {
	case s.answer != unanswered && s.send.Busy():
		left.Responses++
	case s.forgotten():
		left.Handlers++
		left.name("handler of " + s.name() + " has not answered")
	}
}

// forgotten reports whether a request waits for the program to answer it. Locked.
func (s *service) forgotten() bool { return s.detached && s.returned && s.answer == unanswered }

// overdueAfter is how long a detached request goes unanswered before that is logged, and again.
const overdueAfter = time.Minute

// lookAfter has detached requests that nobody has answered logged from time to time.
func (c *Context) lookAfter() { c.lookAt.CompareAndSwap(0, int64(c.Now()+overdueAfter)) }

// overdue logs them, if it is time.
func (c *Context) overdue() {
	at := c.lookAt.Load()
	if at == 0 {
		return
	}
	now := c.Now()
	if int64(now) < at || !c.lookAt.CompareAndSwap(at, 0) {
		return
	}
	for _, o := range c.all() {
		if s, ok := o.(*service); ok && s.overdue(now) {
			c.lookAfter()
		}
	}
}

// overdue logs a detached request that is old, and reports whether it may have to be logged later.
func (s *service) overdue(now time.Duration) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.forgotten() {
		return false
	}
	if age := now - s.since; age >= overdueAfter {
		s.ctx.class.log().Warn("detached request not answered", "rpc", s.name(), "peer", s.addr.String(), "for", age)
	}
	return true
}

// part answers a detached request that its program has not answered when the class shuts down.
func (s *service) part() {
	s.mu.Lock()
	if s.forgotten() {
		s.answerFor(failure{code: ErrNoResponse, fate: na.Ran, text: "the target has shut down, and nobody had answered"})
	}
	s.unlock()
}

// look counts a handler that is at work in the end.
func (s *service) look(left *ShutdownError) {
	s.mu.Lock()
	defer s.mu.Unlock()
	rpc := s.runs.Load()
	switch {
	case rpc == nil, s.returned:
	case s.answer == unanswered && !s.oneWay:
		left.Handlers++
		left.name("handler of " + rpc.Name + " has not answered")
	default:
		left.Handlers++
		left.name("handler of " + rpc.Name + " has not returned")
	}
}
