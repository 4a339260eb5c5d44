package hghook

import (
	"context"

	"github.com/quicksilver-rpc/quicksilver/hg/inspect"
	"github.com/quicksilver-rpc/quicksilver/internal/loop"
	"github.com/quicksilver-rpc/quicksilver/na"
)

// EndedBy converts err, the error of a call made with ctx. If ctx is done, the result matches
// ctx.Err and context.Cause(ctx) and no other code. Its text includes the original error,
// hg.RemoteOf finds that error, and the fate is preserved.
var EndedBy func(ctx context.Context, err error) error

// RefuseByLibrary is like hg.Refuse, for an error of package qs rather than of a handler. The
// origin's error matches its code even if that is below 64.
var RefuseByLibrary func(err error) error

// ErrorText returns the text of err, a *hg.Error, with after in place of the time that it states.
var ErrorText func(err any, after string) string

// RequestKey is the context key of the hg.Request in the context.Context of a handler or
// authorizer.
type RequestKey struct{}

// ShutdownTimeoutKey is the context key of the time.Duration in the context of a Shutdown whose
// deadline is that of Config.ShutdownTimeout of package qs.
type ShutdownTimeoutKey struct{}

// Hooks for a *hg.Handle.
var (
	// Forbid makes calls on an idle handle fail with ErrCanceled and NotRun until Reset. If a call
	// is in flight, Forbid does nothing and returns false. It is used to cancel a call that another
	// goroutine is about to start, because Cancel, Abandon and Withdraw have no effect on an idle
	// handle.
	Forbid func(h any) bool

	// HasForwarded reports whether a call on h has started since Create or Reset. No call has
	// started if, for example, the encoder panicked.
	HasForwarded func(h any) bool

	// IsOutstanding reports whether h has a call in flight that was not canceled by this side and
	// whose response has not fully arrived. After hg.TooLate it distinguishes a handler that may be
	// running from a call that is about to complete.
	IsOutstanding func(h any) bool

	// CallTo targets an idle handle at the RPC id at to, makes the call and decodes the output, as
	// Reset and Call do. It then releases the memory of the output. The caller must have exclusive
	// use of the handle.
	CallTo func(h any, ctx context.Context, to na.Addr, id uint64, in, out any) error

	// FreeOutput releases the memory of the last call's output, up to Config.MaxOutput bytes, which
	// an idle handle otherwise keeps until its next Forward. The caller must have exclusive use of
	// the idle handle and must no longer use the output.
	FreeOutput func(h any)

	// OnCall makes subsequent uses of Call on h call f after the call has started and before
	// waiting for it. A nil f removes the hook.
	OnCall func(h any, f func())

	// OnEnd makes subsequent uses of Call on h return nil as soon as the call has started, without
	// waiting for it. f is called, with locks held, when the call has completed, and must make
	// another goroutine call EndCall. A nil f removes the hook.
	OnEnd func(h any, f func())

	// EndCall returns the result of a call for which Call did not wait because of OnEnd.
	EndCall func(h any, ctx context.Context) error

	// Outlived ends a call for which Call did not wait because of OnEnd, when the call's context is
	// done.
	Outlived func(h any)

	// TakeStreams removes the streams of the last call, a []*hg.Stream, from an idle handle and
	// returns them. They remain usable until they are closed.
	TakeStreams func(h any) (streams any)

	// ReportCall makes hg.Context.Calls call r for h's next call until that call completes. r may
	// be nil.
	ReportCall func(h any, r Reporter)
)

// Hooks for a *hg.Request, r.
var (
	// DecodePlain decodes the input into v with decode instead of the RPC's codec, without taking a
	// lock, if the request has neither metadata nor streams. Otherwise it does nothing and plain is
	// false. It must be called on the handler's goroutine, before the handler has responded or
	// passed the request to another goroutine.
	DecodePlain func(r any, decode func(b []byte, v any) error, v any) (plain bool, err error)

	// AnswerOnReturn encodes out as Request.Respond does. The response is sent when the handler
	// returns nil and discarded if it returns an error. It must be called on the goroutine of such
	// a handler, as the handler's last action.
	AnswerOnReturn func(r, out any) error

	// ReportRequest makes hg.Context.Calls call by for the request until the request completes.
	ReportRequest func(r any, by Reporter)

	// RequestOf returns the inspect.Call.ID and the RPC name of the request whose context is ctx or
	// an ancestor of ctx. It returns 0 and "" if there is none.
	RequestOf func(ctx context.Context) (id uint64, rpc string)
)

// Hooks for a *hg.Context, c.
var (
	// OnIdle makes c call f when no goroutine has driven it for 1 to 2 ms, when a callback has been
	// running for that long, and when many goroutines are waiting. f must make another goroutine
	// call StandIn, unless one already has. After StandIn returns, OnIdle must be called again. A
	// nil f removes the hook.
	OnIdle func(c any, f func())

	// StandIn drives c while no other goroutine does, or while many are waiting, until ctx is done.
	StandIn func(ctx context.Context, c any) error

	// NewWaiter returns a Waiter that drives c while it waits.
	NewWaiter func(c any) *loop.Waiter

	// Track adds t to the list returned by hg.Context.Calls.
	Track func(c any, t Tracked)

	// Untrack removes t from that list.
	Untrack func(c any, t Tracked)

	// Observe calls Config.Observe, if set, with e on the calling goroutine. It does not allocate.
	Observe func(c any, e inspect.Event)

	// IdleHandles calls f for each of c's handles that is not closed and has no call in flight.
	// Only the RPC and Peer of the inspect.Call are set. IdleHandles briefly takes the lock of each
	// handle, and calls f with no locks held.
	IdleHandles func(c any, f func(handle inspect.Call))
)

// A Reporter adds information that package hg does not have about a call or request in flight. It
// sets the Moved, Size and Flow fields of c. Report may be called by any goroutine, even after the
// call has completed, and must not block.
type Reporter interface {
	Report(c *inspect.Call)
}

// A Tracked is an operation, other than a call or a request, that hg.Context.Calls lists. Inspect
// may be called by any goroutine.
type Tracked interface {
	Inspect() inspect.Call
}

// Hooks for a *hg.Class.
var (
	// IsReady reports whether hg.HealthRPC reports the class as ready: it has a context, none of
	// its contexts is draining, and SetReady(false) is not in effect.
	IsReady func(class any) bool

	// OnOpen makes hg.Open call f with the new class before Open returns. cfg is the *hg.Config
	// passed to Open, or the one that it was copied from. Functions are called in the order in
	// which they were added.
	OnOpen func(cfg any, f func(class any))

	// DispatchStreams makes f be called in place of Config.Dispatch for requests with streams,
	// except for RPCs with CountAsCall. f's argument is a *hg.Request, which f may retain. cfg is
	// as for OnOpen.
	DispatchStreams func(cfg any, f func(r any))

	// RegisterRPC registers rpc, an hg.RPC, like hg.Class.RegisterRPC, with additional options.
	RegisterRPC func(class, rpc any, own RPCOptions) error
)

// RPCOptions holds options for RPCs internal to this module. The origin and the target must set the
// same options.
type RPCOptions struct {
	// ServeDraining allows the RPC to be called and served even while the class is draining.
	ServeDraining bool

	// Expedited marks an RPC that probes the process. Its requests do not wait for ordinary
	// requests.
	//
	//   - At the origin they bypass requests that wait for an envelope, have one envelope reserved at the
	//     target, do not count toward na.Config.SendQueue, and are not refused because of
	//     na.Config.OnNoCredit.
	//   - At the target they start immediately and do not count toward Config.MaxActive and
	//     MaxActivePerPeer. Input that does not fit in the request message counts toward limits that are
	//     separate from Config.MaxLent and MaxPulled but of the same size, and up to 64 KiB of it is never
	//     refused.
	//
	// Expedited requires Inline, and a handler that neither blocks nor waits for other requests:
	// until it returns, the session has no envelope for the next expedited request. The number of
	// requests that the handler detaches is not limited.
	Expedited bool

	// CountAsCall marks an RPC whose streams carry finite data, like the input of other requests.
	// At the target, such a request counts toward Config.MaxActive and MaxActivePerPeer, may be
	// queued because of them, and is passed to Config.Dispatch. Without CountAsCall, a request with
	// streams counts toward Config.MaxStreams, is never queued, and is passed to DispatchStreams.
	CountAsCall bool
}
