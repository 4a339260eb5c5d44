package hg

import (
	"time"

	"github.com/quicksilver-rpc/quicksilver/hg/inspect"
	"github.com/quicksilver-rpc/quicksilver/internal/loop"
	"github.com/quicksilver-rpc/quicksilver/na"
)

// If Config.Dispatch is set, Trigger only admits a request and passes it to Config.Dispatch. Run
// then calls the authorizer and the handler, on any goroutine. If the input has to be fetched after
// authorization, Run returns, and the request is passed to Config.Dispatch again when the input has
// arrived. If the deadline expires, the request is withdrawn, its session ends, or a shutdown
// begins before Run is called, the request is refused.

// slowInlineHandler is the duration beyond which an invocation of an inline handler is slow and is
// logged.
const slowInlineHandler = 10 * time.Millisecond

// Run runs the authorizer and the handler of a request that was passed to Config.Dispatch. It runs
// them on the calling goroutine and returns when they have returned. As in Trigger, a panic,
// runtime.Goexit, an error, or a missing response results in an error response. If r was not passed
// to Config.Dispatch, has already been run, or has ended, nothing is run and the error matches
// ErrInvalid. A request ends at its deadline, when its origin withdraws it, with its session, or
// when the class shuts down.
func (r Request) Run() error {
	if r.s != nil {
		if c := r.s.ctx; c.nctx.Upper().Hold() { // keeps c from being drained until Run returns
			defer c.nctx.Upper().Unhold()
			if c.userFrame(loop.UserCode{Run: runGiven, Data: r.s, N: int(r.gen)}) > 0 {
				return nil
			}
		}
	}
	return misuseError("run", r.Name(), r.Peer(), ErrInvalid, "the request is not waiting for Run")
}

// runGiven runs the request that is identified by the service k.Data and the generation k.N, and
// returns 1. If the request is not waiting for Run, runGiven returns 0.
func runGiven(k loop.UserCode) int {
	s := k.Data.(*service)
	s.mu.Lock()
	if int(s.gen) != k.N || !s.claimRunLocked() {
		s.mu.Unlock()
		return 0
	}
	defer s.ctx.loop.Home(s.batch)
	if !s.ctx.class.hasAuthorizer() {
		s.beginHandler()
		return 1
	}
	s.mu.Unlock()
	s.proceed()
	return 1
}

// proceed runs the authorizer and the handler of s, or refuses s. The calling goroutine must have
// claimed s by moving it to serviceArrived.
func (s *service) proceed() {
	if s.tryProceed() {
		s.mu.Lock()
		s.beginHandler()
	}
}

// handToDispatch passes s to Config.Dispatch. If a shutdown begins at the same time, it may refuse
// s instead. If handToDispatch returns false, it has done neither, and the caller must refuse s.
func (s *service) handToDispatch() bool {
	c := s.ctx
	c.watchFaults()
	s.mu.Lock()
	s.armTimerLocked(s.waitDeadline)
	draining := c.nctx.Draining() && !s.rpc.own.ServeDraining
	// Check after arming the timer: either the timer finds s waiting for Run, or it has already
	// fired.
	if s.isLate() || draining || !s.env.Watch((*waitsForRun)(s)) {
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
	// Check after setting the phase: either a shutdown finds the request waiting for Run, or it is
	// detected here.
	if c.nctx.Draining() && !always {
		s.refuseUnclaimed(errDraining)
		return true
	}
	dispatch(r)
	return true
}

// claimRunLocked ends the wait of s for Run and reports whether s was waiting. If so, the caller
// must continue the request. The caller must hold s.mu.
func (s *service) claimRunLocked() bool {
	taken := s.phase == serviceGiven
	if taken {
		s.setPhaseLocked(serviceArrived)
	}
	return taken
}

// endWaitLocked ends the wait of s to be admitted or run and reports whether s was waiting. If so,
// the caller must continue the request. The caller must hold s.mu.
func (s *service) endWaitLocked() bool {
	if s.phase == serviceWaiting && s.ctx.admission.removeWaiting(s) {
		s.setPhaseLocked(serviceArrived)
		return true
	}
	return s.claimRunLocked()
}

// refuseUnclaimed refuses s with the error why if s is waiting for Run. It does nothing if the RPC
// is served while the class is draining.
func (s *service) refuseUnclaimed(why error) {
	s.mu.Lock()
	taken := s.phase == serviceGiven && !s.rpc.own.ServeDraining && s.claimRunLocked()
	s.mu.Unlock()
	if taken {
		s.rejectRequest(why)
	}
}

// refuseWaiting refuses the requests of c that are waiting to be admitted or run, because a
// shutdown has begun.
func (c *Context) refuseWaiting() {
	c.dispatchWaiting()
	for _, o := range c.allOpen() {
		if s, ok := o.(*service); ok {
			s.refuseUnclaimed(errDraining)
		}
	}
}

// beginInline runs an inline handler in Trigger when Config.Dispatch is set. The first slow
// invocation of each RPC is logged. Built-in RPCs are not logged, because they are slow only when
// the machine is busy.
func (s *service) beginInline() {
	c, rpc, begun := s.ctx, s.rpc, s.ctx.Now()
	s.mu.Lock()
	s.beginHandler()
	took := c.Now() - begun
	if took <= slowInlineHandler || inspect.IsBuiltIn(rpc.Name) {
		return
	}
	if _, said := c.class.slow.LoadOrStore(rpc, true); !said {
		c.class.logger().Warn("slow inline handler", "rpc", rpc.Name, "took", took)
	}
}

// notRun returns the error with which the operation op fails if the handler has not begun.
func (s *service) notRun(op string) error {
	return misuseError(op, s.rpcName(), s.addr, na.ErrInvalid, "the request has not been run")
}
