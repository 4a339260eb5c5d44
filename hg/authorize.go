package hg

import (
	"context"
	"runtime/debug"

	"github.com/quicksilver-rpc/quicksilver/na"
	"github.com/quicksilver-rpc/quicksilver/na/codes"
)

// An Authorizer decides whether a request may run. A nil error allows it. An error, a panic, or a
// call of runtime.Goexit denies it: the handler does not run, input larger than one message is not
// fetched, and the origin receives NotRun with the text of the error. If the error has a code from
// 64 to 255, as in Errorf(ErrDenied, ...), the origin receives that code. Otherwise the origin's
// error matches ErrPermission and os.ErrPermission. A denied one-way request is dropped.
// Stats.Denied counts all denied requests. At most one denial per second is logged, with the
// caller's verified name.
//
// The authorizer is called once per request, including requests of this package's own RPCs, but not
// for na.Context.Probe. It may be called from several goroutines concurrently. It may block; which
// goroutine it then blocks depends on Config.Dispatch:
//
//   - If Dispatch is set, the authorizer is called in Run, after the request has been admitted
//     (Config.MaxActive). This includes Inline RPCs unless Config.AuthorizeQuick is set. While it
//     blocks, it occupies that goroutine and the request counts as active, but nothing else waits.
//     The exception is a request of PingRPC or HealthRPC: it keeps the single envelope that each
//     session reserves for such requests, so other probes of the session that are sent as requests
//     wait.
//   - If Dispatch is nil, the authorizer is called in Trigger, before the request waits for
//     admission. While it blocks, so does that call of Trigger. Programs whose authorizer can block
//     should call Trigger from several goroutines.
//
// rpc is the entry whose handler will run, even if another entry is registered during the call. The
// authorizer must not modify it. ctx is the handler's context; see [Request.Context]. It is also
// canceled when the origin withdraws the request.
type Authorizer func(ctx context.Context, from Caller, rpc *RPC) error

// A Caller is the sender of a request. Trust only the fields that Identity reports as verified; the
// origin chooses the others.
type Caller struct {
	Addr na.Addr // bound to the session on which the request arrived
	na.Identity
}

// String returns the Label of Addr, for example "worker (10.0.0.3:41234)".
func (c Caller) String() string { return c.Addr.Label() }

// hasAuthorizer reports whether Config.Authorize is called for requests. If so, it is called for
// those of every RPC, including this package's own.
func (c *Class) hasAuthorizer() bool { return c.cfg.Authorize != nil }

// tryProceed reports whether s can continue with its handler or with its refusal by beginHandler.
// It calls the authorizer if necessary. If tryProceed returns false, the request has either been
// refused, or continues once its input has been fetched.
func (s *service) tryProceed() bool {
	switch {
	case s.allowed, !s.ctx.class.hasAuthorizer():
		return true
	// Once true, none of these conditions becomes false again.
	case s.ctx.nctx.Draining() && !s.rpc.own.ServeDraining || s.isLate() || !s.env.Watch((*waitsForAuthorizer)(s)):
		return true
	case !s.askAuthorizer():
		return false
	case !s.inputPending:
		if s.metaLen > 0 { // only the metadata did not fit in the message
			s.grantRoom()
		}
		return true
	}
	s.inputPending = false
	if err := s.fetchInput(); err != nil {
		s.rejectRequest(err)
	}
	return false
}

// askAuthorizer calls the authorizer and reports whether it allowed the request. If not,
// askAuthorizer has already refused the request.
func (s *service) askAuthorizer() (ok bool) {
	r := s.request() // safe without s.mu: the request is held until its handler begins
	from := r.Caller()
	why := na.WithText(ErrPermission, "the authorizer called runtime.Goexit")
	defer func() { // the authorizer may panic or call runtime.Goexit
		if p := recover(); p != nil {
			why = na.WithText(ErrPermission, "the authorizer panicked; see the target's log")
			s.ctx.class.logger().Error("authorizer panicked", "rpc", s.rpcName(), "peer", s.addr.Label(), "panic", p,
				"stack", string(debug.Stack()))
		}
		if s.allowed = ok; !ok {
			s.recordDenial(from, why)
			s.rejectRequest(why)
		}
	}()
	if err := s.ctx.class.cfg.Authorize(r.Context(), from, s.rpc); err != nil {
		code := failureOf(err).code
		if code < codes.ErrNotFound {
			code = ErrPermission
		}
		why = na.WithText(code, err.Error())
		return false
	}
	return true
}

// recordDenial counts a denied request. At most once per second it also logs one, with the verified
// name of the caller.
func (s *service) recordDenial(from Caller, why error) {
	c := s.ctx
	if skipped, ok := c.denials.Allow(c.nctx.Now()); ok {
		c.class.logger().Warn("request denied", "rpc", s.rpcName(), "caller", from.Identity.Name, "peer", s.addr.Label(),
			"reason", why.Error(), "more", skipped)
	}
	c.denied.Add(1) // concurrent denials may be counted after they have been logged
}
