package hg

import (
	"time"

	"github.com/quicksilver-rpc/quicksilver/hg/inspect"
	"github.com/quicksilver-rpc/quicksilver/internal/loop"
	"github.com/quicksilver-rpc/quicksilver/na"
)

// With Config.Dispatch Trigger only finds room for a request; the rest is done by Run, on any goroutine.
//
//	Trigger: room ─► dispatched ─ Config.Dispatch ─► Run: the authorizer agrees ─► the input is here ─► the handler runs
//	                  ▲    │                              └─ it is to be fetched ─┐
//	                  │    └─ its deadline, its origin's change of mind, the end of its session or a shutdown comes first: it is refused
//	                  └────────────────────────── it is here ◄────────────────────┘

// slowInlineHandler is how long a handler may keep Trigger before that is logged.
const slowInlineHandler = 10 * time.Millisecond

// Run runs the authorizer and the handler of a request that Config.Dispatch was given, on this goroutine, and returns when they
// have. The rules are those of Trigger: a panic, the end of the goroutine, an error and silence are answered. The error matches
// ErrInvalid, and nothing has run, when r was not given to Config.Dispatch, has been run, or has ended: by its deadline, because
// its origin has taken it back, with the session of its origin, or because the class shuts down.
func (r Request) Run() error {
	if r.s != nil {
		if c := r.s.ctx; c.nctx.Upper().Hold() { // c is not drained before this has returned
			defer c.nctx.Upper().Unhold()
			if c.userFrame(loop.UserCode{Run: runGiven, Data: r.s, N: int(r.gen)}) > 0 {
				return nil
			}
		}
	}
	return misuseError("run", r.Name(), r.Peer(), ErrInvalid, "the request waits for no Run")
}

// runGiven runs the request of generation k.N of the service k.Data, and returns 1, if it waits for Run.
func runGiven(k loop.UserCode) int {
	s := k.Data.(*service)
	s.mu.Lock()
	if int(s.gen) != k.N || !s.claimRunLocked() {
		s.mu.Unlock()
		return 0
	}
	defer s.ctx.loop.Home(s.batch)
	if !s.ctx.class.needsAuthorizer(s.rpc) {
		s.beginHandler()
		return 1
	}
	s.mu.Unlock()
	s.proceed()
	return 1
}

// proceed goes on with a request that was taken or is not to be dispatched.
func (s *service) proceed() {
	if s.tryProceed() {
		s.mu.Lock()
		s.beginHandler()
	}
}

// handToDispatch hands a request to Config.Dispatch. It reports false if it is to be refused at once.
func (s *service) handToDispatch() bool {
	c := s.ctx
	c.watchFaults()
	s.mu.Lock()
	s.armTimerLocked(s.waitDeadline)
	if s.isLate() || c.nctx.Draining() && !s.rpc.own.ServeDraining || !s.env.Watch((*waitsForRun)(s)) { // looked at here: the alarm either finds it given, or has rung before
		s.mu.Unlock()
		return false
	}
	s.setPhaseLocked(serviceGiven)
	s.batch = c.loop.Away()
	r, always, dispatch := s.request(), s.rpc.own.ServeDraining, c.class.cfg.Dispatch
	if s.isStream && c.class.cfg.streamDispatch != nil {
		dispatch = c.class.cfg.streamDispatch
	}
	s.mu.Unlock()
	if c.nctx.Draining() && !always { // looked at here: a shutdown either finds it, or is seen
		s.refuseUnclaimed(errDraining)
		return true
	}
	dispatch(r)
	return true
}

// claimRunLocked ends the wait for Run. If it returns true the caller must continue the request.
func (s *service) claimRunLocked() bool {
	taken := s.phase == serviceGiven
	if taken {
		s.setPhaseLocked(serviceArrived)
	}
	return taken
}

// endWaitLocked ends the wait for room, or for Run. If it returns true the caller must continue the request.
func (s *service) endWaitLocked() bool {
	if s.phase == serviceWaiting && s.ctx.admission.removeWaiting(s) {
		s.setPhaseLocked(serviceArrived)
		return true
	}
	return s.claimRunLocked()
}

// refuseUnclaimed refuses a request that nobody has run, unless it is served while the class drains.
func (s *service) refuseUnclaimed(why error) {
	s.mu.Lock()
	taken := s.phase == serviceGiven && !s.rpc.own.ServeDraining && s.claimRunLocked()
	s.mu.Unlock()
	if taken {
		s.rejectRequest(why)
	}
}

// refuseWaiting refuses the requests of c that wait for room or for Run: a shutdown has begun.
func (c *Context) refuseWaiting() {
	c.dispatchWaiting()
	for _, o := range c.allOpen() {
		if s, ok := o.(*service); ok {
			s.refuseUnclaimed(errDraining)
		}
	}
}

// beginInline is begin in Trigger of a class that dispatches. A handler that keeps it is logged, once for each RPC, unless it is one
// of the library's own, which nobody can change: then the machine is busy.
func (s *service) beginInline() {
	c, rpc, begun := s.ctx, s.rpc, s.ctx.Now()
	s.mu.Lock()
	s.beginHandler()
	took := c.Now() - begun
	if took <= slowInlineHandler || inspect.IsBuiltIn(rpc.Name) {
		return
	}
	if _, said := c.class.slow.LoadOrStore(rpc, true); !said {
		c.class.logger().Warn("inline handler keeps Trigger", "rpc", rpc.Name, "took", took)
	}
}

// notRun is what methods return that need a request to have been run.
func (s *service) notRun(op string) error {
	return misuseError(op, s.rpcName(), s.addr, na.ErrInvalid, "the request has not been run")
}
