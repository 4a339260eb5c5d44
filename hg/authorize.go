package hg

import (
	"context"
	"log/slog"
	"runtime/debug"

	"github.com/quicksilver-rpc/quicksilver/na"
)

// An Authorizer decides whether a request runs: nil allows it. Any error denies it, and so do a panic and an end of the
// goroutine: the handler does not run, input larger than a message is not fetched, and the origin gets ErrPermission, with
// the text of the error, and NotRun. A one-way request is dropped and counted.
//
// It is asked in Trigger, once for each request, before the request waits for room (Config.MaxActive). It may block:
// meanwhile only the Trigger that runs it waits, so a program that lets it block calls Trigger from several goroutines.
//
// rpc is the very entry whose handler will run, whatever is registered meanwhile; it is not changed. ctx is that of the
// handler, see [Handle.Ctx]; it ends, too, when the origin withdraws the request.
type Authorizer func(ctx context.Context, from Caller, rpc *RPC) error

// A Caller is who sent a request. Only what Identity says to be verified is: an origin chooses the rest.
type Caller struct {
	Addr na.Addr // bound to the session that the request came on
	na.Identity
}

// Caller returns who sent the request, to a handler that wants to know: until it responds, as the input. Afterwards, and at
// the origin, only Addr is set, and nothing is verified.
func (h *Handle) Caller() Caller {
	h.mu.Lock()
	defer h.mu.Unlock()
	from := Caller{Addr: h.addr}
	if h.service != nil && h.service.env != nil {
		from.Identity = h.service.env.Identity()
	}
	return from
}

// pass reports whether a request goes on now: the authorizer has agreed and the input is here, or it is to be refused for
// another reason.
func (h *Handle) pass() bool {
	s := h.service
	switch {
	case s.allowed:
		return true
	case h.ctx.nctx.Draining() || h.late() || !s.env.Watch(): // and stays so
		return true
	case !h.authorized():
		return false
	case !s.more:
		return true
	}
	s.more = false
	if err := h.fetchInput(s.body); err != nil {
		h.reject(err)
	}
	return false
}

// authorized asks, and rejects the request unless the answer is a plain yes.
func (h *Handle) authorized() (ok bool) {
	text := "the authorizer has not decided"
	defer func() { // it may panic, or end its goroutine
		if p := recover(); p != nil {
			slog.Error("authorizer panicked", "rpc", h.Name(), "peer", h.addr.String(), "panic", p, "stack", string(debug.Stack()))
		}
		if h.service.allowed = ok; !ok {
			h.reject(na.WithText(ErrPermission, text))
		}
	}()
	if err := h.ctx.class.cfg.Authorize(h.Ctx(), h.Caller(), h.rpc); err != nil {
		text = err.Error()
		return false
	}
	return true
}
