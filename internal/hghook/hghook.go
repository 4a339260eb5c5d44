package hghook

import (
	"context"

	"github.com/quicksilver-rpc/quicksilver/hg/inspect"
	"github.com/quicksilver-rpc/quicksilver/internal/loop"
	"github.com/quicksilver-rpc/quicksilver/na"
)

// EndedBy converts err, the error of a call that was made with ctx. If ctx is done, the result matches ctx.Err and
// context.Cause(ctx) and no other code: the text contains the original error, and hg.RemoteOf finds it. The fate stays.
var EndedBy func(ctx context.Context, err error) error

// A RequestKey is the key of the hg.Request in the context.Context of a handler or an authorizer.
type RequestKey struct{}

// Hooks of a *hg.Handle.
var (
	// Forbid makes calls of an idle handle fail with ErrCanceled and NotRun, until Reset. While a call is in flight
	// it does nothing and returns false. It is for canceling a call that another goroutine is about to start: Cancel,
	// Abandon and Withdraw have no effect on an idle handle.
	Forbid func(h any) bool

	// HasForwarded reports whether a call of h has started since Create or Reset. It has not if, for example, the
	// encoder panicked or another callback ran first.
	HasForwarded func(h any) bool

	// IsOutstanding reports whether h has a call in flight that was not ended on this side and whose response has not
	// arrived completely. After hg.TooLate it distinguishes a handler that may run from a call that is about to end.
	IsOutstanding func(h any) bool

	// CallTo aims an idle handle at the RPC id at to, calls it and decodes the output, as Reset and Call do, and releases
	// the memory of the output. The caller has exclusive use of the handle.
	CallTo func(h any, ctx context.Context, to na.Addr, id uint64, in, out any) error

	// FreeOutput releases the memory of the output of the last call, up to Config.MaxOutput bytes, which an idle
	// handle otherwise keeps until its next Forward. The caller has exclusive use of the idle handle and does not use
	// the output any more.
	FreeOutput func(h any)

	// OnCall makes the next calls by Call call f when they have started, before they wait. A nil f removes it.
	OnCall func(h any, f func())

	// OnEnd makes the next calls by Call not wait: Call returns nil when the call has started, and f is called, with
	// locks held, when it has ended. f must make another goroutine call EndCall. A nil f removes it.
	OnEnd func(h any, f func())

	// EndCall returns the result of a call for which OnEnd made Call not wait.
	EndCall func(h any, ctx context.Context) error

	// Outlived ends such a call because its context is done.
	Outlived func(h any)

	// TakeStreams removes the streams of the last call, a []*hg.Stream, from an idle handle, and returns them. They
	// last until they are closed.
	TakeStreams func(h any) (streams any)

	// ReportCall makes hg.Context.Calls call r for the next call of h, until that has ended. r may be nil.
	ReportCall func(h any, r Reporter)
)

// Hooks of a *hg.Request, r.
var (
	// DecodePlain decodes the input into v with decode instead of the RPC's codec, and without a lock, if the request has
	// neither metadata nor streams; otherwise it does nothing, and plain is false. It is for the goroutine of a handler
	// that has neither answered nor given the request to another goroutine.
	DecodePlain func(r any, decode func(b []byte, v any) error, v any) (plain bool, err error)

	// AnswerOnReturn encodes out as Request.Respond does. The answer leaves when the handler has returned nil; after an
	// error it is dropped. It is for the goroutine of such a handler, and the last that the handler does.
	AnswerOnReturn func(r, out any) error

	// ReportRequest makes hg.Context.Calls call by for the request, until that has ended.
	ReportRequest func(r any, by Reporter)

	// RequestOf returns the inspect.Call.ID and the RPC of the request whose context ctx is or descends from; 0 and
	// "" if there is none.
	RequestOf func(ctx context.Context) (id uint64, rpc string)
)

// Hooks of a *hg.Context, c.
var (
	// OnIdle makes c call f when no goroutine has driven it for 1 to 2 ms, when a callback has run for so long, and
	// when many goroutines wait. f must make another goroutine call StandIn, unless one is in it; when that has
	// returned, OnIdle must be called again. A nil f removes it.
	OnIdle func(c any, f func())

	// StandIn drives c while no other goroutine does, or while many wait, until ctx is done.
	StandIn func(ctx context.Context, c any) error

	// NewWaiter returns a Waiter that drives c while it waits.
	NewWaiter func(c any) *loop.Waiter

	// Track adds t to the list that hg.Context.Calls returns.
	Track func(c any, t Tracked)

	// Untrack removes t from that list.
	Untrack func(c any, t Tracked)

	// Observe calls Config.Observe with e, on this goroutine, if it is set. It allocates nothing.
	Observe func(c any, e inspect.Event)

	// IdleHandles calls f for each handle of c that is not closed and has no call in flight. Of the inspect.Call, RPC
	// and Peer are set. It takes the lock of each handle for a moment, and calls f without locks.
	IdleHandles func(c any, f func(handle inspect.Call))
)

// A Reporter adds information about a call or request in flight that package hg does not have: it sets Moved, Size
// and Flow of c. Report may be called by any goroutine, also after the call has ended; it must not block.
type Reporter interface {
	Report(c *inspect.Call)
}

// A Tracked is an operation that hg.Context.Calls lists besides calls and requests. Inspect may be called by any
// goroutine.
type Tracked interface {
	Inspect() inspect.Call
}

// Hooks of a *hg.Class.
var (
	// IsReady reports whether hg.HealthRPC answers that the class is ready: it has a context, none of its contexts is
	// draining, and SetReady(false) is not in effect.
	IsReady func(class any) bool

	// OnOpen makes hg.Open call f with the new class before Open returns. cfg is the *hg.Config that Open gets, or
	// one that it is a copy of. Functions are called in the order in which they were added.
	OnOpen func(cfg any, f func(class any))

	// DispatchStreams makes f, instead of Config.Dispatch, be called for requests with streams, except those of RPCs
	// with CountAsCall. The argument of f is a *hg.Request, which f may keep. cfg is as in OnOpen.
	DispatchStreams func(cfg any, f func(r any))

	// RegisterRPC registers rpc, a hg.RPC, as hg.Class.RegisterRPC does, with further options.
	RegisterRPC func(class, rpc any, own RPCOptions) error
)

// RPCOptions are options that only RPCs of this module use. Origin and target must set the same ones.
type RPCOptions struct {
	// ServeDraining allows the RPC to be called and served also while the class is draining.
	ServeDraining bool

	// Expedited is for RPCs that probe the process: their requests do not wait for ordinary requests.
	//
	//   - At the origin they bypass requests that wait for an envelope, have one envelope at the target reserved for
	//     them, are not counted in na.Config.SendQueue, and are not refused because of na.Config.OnNoCredit.
	//   - At the target they start at once, without counting for Config.MaxActive and MaxActivePerPeer. Input that
	//     does not fit their message is counted separately from Config.MaxLent and MaxPulled, with limits of the same
	//     sizes, and up to 64 KiB of it is never refused.
	//
	// Expedited requires Inline and a handler that neither blocks nor waits for other requests: until it has
	// returned, the session has no envelope for the next expedited request. Requests that the handler detaches are
	// not limited.
	Expedited bool

	// CountAsCall is for RPCs whose streams carry finite data, like the input of other requests. At the target such a
	// request counts for Config.MaxActive and MaxActivePerPeer, may be queued for them, and is passed to
	// Config.Dispatch. Without CountAsCall a request with streams counts for Config.MaxStreams, is never queued, and
	// is passed to DispatchStreams.
	CountAsCall bool
}
