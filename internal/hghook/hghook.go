package hghook

import (
	"context"

	"github.com/quicksilver-rpc/quicksilver/hg/inspect"
	"github.com/quicksilver-rpc/quicksilver/internal/loop"
)

// EndedBy returns err, with which a call ended that was given ctx. If ctx has ended, it matches ctx.Err and context.Cause(ctx), and
// no code beside: what came instead is in its text, and hg.RemoteOf finds it. The fate stays.
var EndedBy func(ctx context.Context, err error) error

// A RequestKey is the key under which the context of a handler, or of an authorizer, has its hg.Request.
type RequestKey struct{}

// Hooks of a *hg.Handle.
var (
	// Forbid has the calls of an idle handle fail with ErrCanceled and NotRun, until Reset. It reports false, and does nothing, while a
	// call is under way. It is for those who end a call that another goroutine is about to begin: Cancel, Abandon and Withdraw leave
	// an idle handle as it is.
	Forbid func(h any) bool

	// HasForwarded reports whether a call of h has begun since Create or Reset: that an encoder has panicked before, for example, or
	// another callback meanwhile.
	HasForwarded func(h any) bool

	// IsOutstanding reports whether h has a call under way that does not end by itself: nobody has ended it, and the answer has not arrived
	// as a whole. After hg.TooLate it tells a handler that may run from a call that is about to end.
	IsOutstanding func(h any) bool

	// FreeOutput gives the memory of the last call's output back, which an idle handle keeps else until its next Forward: up to
	// Config.MaxOutput bytes. The caller has the idle handle to itself, and asks for the output no more.
	FreeOutput func(h any)

	// OnCall has the next calls by Call call f when they have begun, before they wait. nil is nothing.
	OnCall func(h any, f func())

	// OnEnd has the next calls by Call not wait: Call returns nil when a call has begun, and f is called, with locks held, when it has ended.
	// f has another goroutine call EndCall then. nil is nothing.
	OnEnd func(h any, f func())

	// EndCall returns what Call would have returned that OnEnd did not let wait.
	EndCall func(h any, ctx context.Context) error

	// Outlived says that the context of such a call has ended, which ends the call.
	Outlived func(h any)

	// TakeStreams takes the streams of the last call, a []*hg.Stream, from an idle handle: they last until they are closed.
	TakeStreams func(h any) (streams any)

	// ReportCall has Calls ask r about the call that h makes next, until that has ended. nil is nobody.
	ReportCall func(h any, r Reporter)
)

// Hooks of the *hg.Request, which is r, of a handler.
var (
	// ReportRequest has Calls ask by about the request until that has ended.
	ReportRequest func(r any, by Reporter)

	// RequestOf returns the inspect.Call.ID and the RPC of the request that ctx is of, or was made of; 0 and "" for none.
	RequestOf func(ctx context.Context) (id uint64, rpc string)
)

// Hooks of a *hg.Context, which is c.
var (
	// Drive is hg.Context.Wait for what never comes, by a goroutine that does nothing else: it returns the cause of ctx, or ErrClosed.
	// around, if it is not nil, is called for each pass, and calls run, which runs the callbacks, or only the first. When what it does afterwards
	// takes long another goroutine that waits goes on, and nothing is held back while nobody does. In a simulator around is not called.
	Drive func(ctx context.Context, c any, around func(run func(one bool))) error

	// NewWaiter returns a Waiter of c. Its Wait is that of c.
	NewWaiter func(c any) *loop.Waiter

	// Track has Calls list t until Untrack.
	Track func(c any, t Tracked)

	// Untrack ends Track.
	Untrack func(c any, t Tracked)

	// Observe gives e to Config.Observe, on this goroutine, if that is set. It allocates nothing.
	Observe func(c any, e inspect.Event)

	// IdleHandles calls f for each handle of c that is not closed and has no call under way: of its Call the RPC and the Peer are set. It takes
	// the lock of each handle for a moment, and calls f with none.
	IdleHandles func(c any, f func(handle inspect.Call))
)

// A Reporter knows more of a call or a request that is under way than package hg: it fills in Moved, Size and Flow of c. Report may be
// called from any goroutine, and after the call has ended; it does not block.
type Reporter interface {
	Report(c *inspect.Call)
}

// A Tracked is something that hg.Context.Calls lists beside calls and requests. Inspect may be called from any goroutine.
type Tracked interface {
	Inspect() inspect.Call
}

// Hooks of a *hg.Class.
var (
	// IsReady reports whether hg.HealthRPC answers that the class is ready: it has a context, none of its contexts drains, and SetReady
	// has not said otherwise.
	IsReady func(class any) bool

	// OnOpen has hg.Open call f with the class, before that is returned. cfg is the *hg.Config that Open gets, or one that it is a copy of. f
	// runs after those that were given before.
	OnOpen func(cfg any, f func(class any))

	// DispatchStreams has f, instead of Config.Dispatch, be called with requests that have streams, but for RPCs with CountAsCall: a
	// *hg.Request, which f may keep. cfg is as in OnOpen.
	DispatchStreams func(cfg any, f func(r any))

	// RegisterRPC is the class's own with what only RPCs of this module are. rpc is a hg.RPC.
	RegisterRPC func(class, rpc any, own RPCOptions) error
)

// RPCOptions are what only RPCs of this module are. Origin and target set them alike, each for its own side.
type RPCOptions struct {
	// ServeDraining has the RPC served, and lets it be called, while the class drains, too.
	ServeDraining bool

	// Expedited says that requests of this RPC probe the process: whatever holds ordinary requests up does not hold these. At the origin they pass by requests that wait for an
	// envelope, have one envelope at the target to themselves, are not counted in na.Config.SendQueue, and are not refused by
	// na.Config.OnNoCredit. At the target they begin at once, without a place of Config.MaxActive and MaxActivePerPeer. Input that
	// does not fit their message is accounted for apart from Config.MaxLent and MaxPulled, with limits of the same sizes, and up to
	// 64 KiB of it is never refused. It needs Inline and a handler that neither blocks nor waits for other requests: until it has
	// returned, the session has no envelope for the next one. What it detaches nothing else bounds.
	Expedited bool

	// CountAsCall says that streams of requests of this RPC carry data that ends, as the input of other requests does: at the target such a
	// request takes a place of Config.MaxActive and MaxActivePerPeer, waits for it, and goes to Config.Dispatch. Without it a request
	// with streams is counted by Config.MaxStreams, is never queued, and goes to DispatchStreams.
	CountAsCall bool
}
