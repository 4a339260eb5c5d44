package hg

import (
	"context"

	"github.com/quicksilver-rpc/quicksilver/hg/inspect"
	"github.com/quicksilver-rpc/quicksilver/internal/hghook"
	"github.com/quicksilver-rpc/quicksilver/internal/loop"
	"github.com/quicksilver-rpc/quicksilver/na"
)

// init sets the hooks through which other packages of this module call unexported methods.
func init() {
	hghook.EndedBy = endedBy
	hghook.RefuseByLibrary = refuseByLibrary
	hghook.ErrorText = func(err any, after string) string { return err.(*Error).text(after) }

	hghook.Forbid = func(h any) bool { return h.(*Handle).forbidForward() }
	hghook.HasForwarded = func(h any) bool { return h.(*Handle).hasForwarded() }
	hghook.IsOutstanding = func(h any) bool { return h.(*Handle).isOutstanding() }
	hghook.CallTo = func(h any, ctx context.Context, to na.Addr, id uint64, in, out any) error {
		return h.(*Handle).callTo(ctx, to, ID(id), in, out)
	}
	hghook.FreeOutput = func(h any) { h.(*Handle).freeOutput() }

	hghook.OnCall = func(h any, f func()) { h.(*Handle).setOnCall(f) }
	hghook.OnEnd = func(h any, f func()) { h.(*Handle).setOnEnd(f) }
	hghook.EndCall = func(h any, ctx context.Context) error { return h.(*Handle).endCall(ctx) }
	hghook.Outlived = func(h any) { h.(*Handle).abandonAtContextEnd() }
	hghook.TakeStreams = func(h any) any { return h.(*Handle).takeStreams() }
	hghook.ReportCall = func(h any, r hghook.Reporter) { h.(*Handle).reportBy(r) }
	hghook.DecodePlain = func(r any, decode func(b []byte, v any) error, v any) (plain bool, err error) {
		return r.(*Request).decodePlain(decode, v)
	}
	hghook.AnswerOnReturn = func(r, out any) error { return r.(*Request).answerOnReturn(out) }
	hghook.ReportRequest = func(r any, by hghook.Reporter) { r.(*Request).reportBy(by) }
	hghook.RequestOf = requestOf

	hghook.OnIdle = func(c any, f func()) { c.(*Context).loop.OnIdle(f) }
	hghook.StandIn = func(ctx context.Context, c any) error { return c.(*Context).loop.StandIn(ctx) }
	hghook.NewWaiter = func(c any) *loop.Waiter { return c.(*Context).loop.NewWaiter() }
	hghook.Track = func(c any, t hghook.Tracked) { c.(*Context).seen.track(t) }
	hghook.Untrack = func(c any, t hghook.Tracked) { c.(*Context).seen.untrack(t) }
	hghook.Observe = func(c any, e inspect.Event) { c.(*Context).observe(e) }
	hghook.IdleHandles = func(c any, f func(handle inspect.Call)) { c.(*Context).idleHandles(f) }

	hghook.IsReady = func(class any) bool { return class.(*Class).isReady() }
	hghook.DispatchStreams = func(cfg any, f func(r any)) { cfg.(*Config).streamDispatch = func(r Request) { f(&r) } }
	hghook.OnOpen = func(cfg any, f func(class any)) { cfg.(*Config).onOpen(f) }
	hghook.RegisterRPC = func(class, rpc any, own hghook.RPCOptions) error {
		r := rpc.(RPC)
		r.own = own
		_, err := class.(*Class).RegisterRPC(r)
		return err
	}
}
