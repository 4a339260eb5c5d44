package hg

import (
	"context"
	"runtime/debug"

	"github.com/quicksilver-rpc/quicksilver/na"
	"github.com/quicksilver-rpc/quicksilver/na/codes"
)

// An Authorizer decides whether a request may run: nil allows it. An error, a panic and
// runtime.Goexit deny it: the handler does not run, input larger than a message is not fetched, and
// the origin gets NotRun with the text of the error. The code is that of the error if it is one of
// 64 to 255, as of Errorf(Denied, ...); otherwise the origin's error matches ErrPermission and
// os.ErrPermission. A denied one-way request is dropped. Stats.Denied counts all denied requests;
// at most one per second is logged, with the verified name of the caller.
//
// The authorizer is called once for each request, of the RPCs of this package too, but not for
// na.Context.Probe. It may be called from several goroutines at once. It may block; the goroutine
// that it blocks depends on Config.Dispatch:
//
//   - With Dispatch it is called in Run, after the request was admitted (Config.MaxActive), of
//     Inline RPCs too unless Config.AuthorizeQuick is set. While it blocks it occupies that
//     goroutine, and the request counts as active; nothing else waits. A request of PingRPC or
//     HealthRPC keeps the one envelope that such requests have in each session, so other probes of
//     the session that are sent as requests wait.
//   - Without Dispatch it is called in Trigger, before the request waits for admission. While it
//     blocks, the Trigger that runs it waits; call Trigger from several goroutines if it can
//     block.
//
// rpc is the entry whose handler will run, even if another one is registered during the call; do
// not modify it. ctx is that of the handler, see [Request.Context]; it also ends when the origin
// withdraws the request.
type Authorizer func(ctx context.Context, from Caller, rpc *RPC) error

// A Caller is the sender of a request. Trust only the fields that Identity reports as verified: the
// origin chooses the others.
type Caller struct {
	Addr na.Addr // bound to the session on which the request arrived
	na.Identity
}

// String returns the Label of Addr: "worker (10.0.0.3:41234)".
func (c Caller) String() string { return c.Addr.Label() }

// needsAuthorizer reports whether Config.Authorize has to allow requests of rpc.
func (c *Class) needsAuthorizer(rpc *RPC) bool { return c.cfg.Authorize != nil }

// tryProceed reports whether a request can go on now: it was authorized and its input is complete,
// or beginHandler will refuse it for another reason. If not, it was refused, or goes on when its
// input has been fetched.
func (s *service) tryProceed() bool {
	switch {
	case s.allowed, !s.ctx.class.needsAuthorizer(s.rpc):
		return true
	// none of these conditions is ever reverted
	case s.ctx.nctx.Draining() && !s.rpc.own.ServeDraining || s.isLate() || !s.env.Watch((*waitsForAuthorizer)(s)):
		return true
	case !s.askAuthorizer():
		return false
	case !s.inputPending:
		if s.metaLen > 0 { // only the metadata did not fit the message
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

// askAuthorizer calls the authorizer. It refuses the request, and returns false, unless the
// authorizer returns nil.
func (s *service) askAuthorizer() (ok bool) {
	r := s.request() // safe without s.mu: the request is held until its handler has begun
	from := r.Caller()
	why := na.WithText(ErrPermission, "no decision by the authorizer")
	defer func() { // the authorizer may panic, or call runtime.Goexit
		if p := recover(); p != nil {
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

// recordDenial counts a denied request, and logs it with the verified name of the caller, at most
// once a second.
func (s *service) recordDenial(from Caller, why error) {
	c := s.ctx
	if skipped, ok := c.denials.Allow(c.nctx.Now()); ok {
		c.class.logger().Warn("a request was denied", "rpc", s.rpcName(), "caller", from.Identity.Name, "peer", s.addr.Label(),
			"reason", why.Error(), "more", skipped)
	}
	c.denied.Add(1) // concurrent denials may be counted after they are logged
}
