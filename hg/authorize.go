package hg

import (
	"context"
	"runtime/debug"

	"github.com/quicksilver-rpc/quicksilver/na"
	"github.com/quicksilver-rpc/quicksilver/na/codes"
)

// An Authorizer decides whether a request runs: nil allows it. Any error denies it, and so do a panic and an end of the
// goroutine: the handler does not run, input larger than a message is not fetched, and the origin gets NotRun with the text of the
// error, and with its code if that is one of 64 to 255, as of Errorf(Denied, ...): else the origin's error matches ErrPermission and
// os.ErrPermission. A one-way request is dropped and counted. Stats.Denied counts all, and the log has one a second, with the name that the caller has proven.
//
// It is asked once for each request, of the RPCs of this package too, but not of na.Context.Probe. It may block. Where it is asked depends on Config.Dispatch:
//
//   - With Dispatch it is asked in Run, when the request has room, of Inline RPCs too, unless Config.AuthorizeQuick is set: while it blocks
//     it keeps that goroutine and the place of the request, and nothing else waits. A request of PingRPC or HealthRPC keeps the envelope that those of
//     its session have, so other probes by requests wait meanwhile.
//   - Without Dispatch it is asked in Trigger, before the request waits for room (Config.MaxActive): while it blocks the Trigger that runs
//     it waits, so a program that lets it block calls Trigger from several goroutines.
//
// rpc is the very entry whose handler will run, whatever is registered meanwhile; it is not changed. ctx is that of the
// handler, see [Request.Context]; it ends, too, when the origin withdraws the request.
type Authorizer func(ctx context.Context, from Caller, rpc *RPC) error

// A Caller is the sender of a request. Trust only what Identity reports as verified: an origin chooses the rest.
type Caller struct {
	Addr na.Addr // bound to the session that the request came on
	na.Identity
}

// String returns the Label of Addr: "worker (10.0.0.3:41234)".
func (c Caller) String() string { return c.Addr.Label() }

// needsAuthorizer reports whether Config.Authorize is to be asked about requests of rpc.
func (c *Class) needsAuthorizer(rpc *RPC) bool { return c.cfg.Authorize != nil }

// tryProceed reports whether a request goes on now: the authorizer has agreed and the input is here, or it is to be refused for
// another reason.
func (s *service) tryProceed() bool {
	switch {
	case s.allowed, !s.ctx.class.needsAuthorizer(s.rpc):
		return true
	case s.ctx.nctx.Draining() && !s.rpc.own.ServeDraining || s.isLate() || !s.env.Watch((*waitsForAuthorizer)(s)): // and stays so
		return true
	case !s.askAuthorizer():
		return false
	case !s.inputPending:
		if s.metaLen > 0 { // metadata, and that was all
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

// askAuthorizer asks, and rejects the request unless the answer is a plain yes.
func (s *service) askAuthorizer() (ok bool) {
	r := s.request() // held: it has not begun
	from := r.Caller()
	why := na.WithText(ErrPermission, "the authorizer has not decided")
	defer func() { // it may panic, or end its goroutine
		if p := recover(); p != nil {
			s.ctx.class.logger().Error("authorizer panicked", "rpc", s.rpcName(), "peer", s.addr.Label(), "panic", p, "stack", string(debug.Stack()))
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

// recordDenial counts a request that the authorizer has denied, and logs it with what is known of the caller, at most once a second.
func (s *service) recordDenial(from Caller, why error) {
	c := s.ctx
	if skipped, ok := c.denials.Allow(c.nctx.Now()); ok {
		c.class.logger().Warn("a request was denied", "rpc", s.rpcName(), "caller", from.Identity.Name, "peer", s.addr.Label(), "reason", why.Error(), "more", skipped)
	}
	c.denied.Add(1) // counted before it is logged
}
