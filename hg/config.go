package hg

import (
	"errors"
	"fmt"
	"log/slog"

	"github.com/quicksilver-rpc/quicksilver/hg/codec"
	"github.com/quicksilver-rpc/quicksilver/hg/inspect"
	"github.com/quicksilver-rpc/quicksilver/na"
)

// Config configures a class. The zero value is a valid configuration.
type Config struct {
	// NA configures the underlying network abstraction.
	NA na.Config
	// Codec encodes input and output. If nil, codec.Msgpack is used. Origin and target must use the
	// same codec.
	Codec codec.Codec
	// MaxInput limits the encoded input of a call, in bytes, at both the origin and the target.
	// Zero means 64 MiB.
	MaxInput int64
	// MaxOutput limits the encoded output of a call, in bytes, at both the origin and the target.
	// Zero means 64 MiB.
	MaxOutput int64
	// MaxLent limits the number of bytes of input and output larger than one message that a context
	// may have lent to its peers at any time. Zero means 1 GiB. Forward and Respond fail with
	// ErrAgain if they would exceed the limit. Responses to one session may use at most three
	// quarters of the part that the other sessions leave, except for the first response of the
	// session. This prevents an origin that does not fetch its responses from exhausting the limit.
	MaxLent int64
	// MaxPulled limits the number of bytes of input and output larger than one message that a
	// context may be fetching from its peers at any time. Zero means 1 GiB. A request or a call
	// that would exceed the limit fails with ErrAgain. Requests of one session may use at most
	// three quarters of the part that the other sessions leave, except for the first request of the
	// session. This prevents an origin that lends input and then stalls from exhausting the limit.
	// Responses of up to 64 KiB that arrive inline may use another quarter of MaxPulled.
	MaxPulled int64
	// MaxActive limits the number of active requests of a context. A request is active from the
	// time its handler begins until the request completes. Zero means 1024. Further requests wait,
	// each in its envelope, until an active one completes. If the limit is small, handlers can
	// deadlock if they wait for calls that in turn need a handler in this context. Requests with
	// streams of items and probes (PingRPC and HealthRPC) are not counted and do not wait. Requests
	// with a Reader or a Writer of package qs are counted and wait.
	//
	// A waiting request that has a deadline is refused when an eighth of its time is left, but no
	// less than 1 ms and no more than 250 ms. It fails with ErrTimeout and a text that names the
	// limit. The same applies to a request that was passed to Dispatch but has not been run.
	MaxActive int
	// MaxActivePerPeer limits the number of active requests of one session; see MaxActive. Zero
	// means 128.
	MaxActivePerPeer int
	// MaxStreams limits the number of requests of a context that have streams and have not
	// completed. Requests with a Reader or a Writer of package qs are not counted. Zero means 4096.
	// Further requests are refused immediately with ErrExhausted, since streams may stay open
	// indefinitely.
	MaxStreams int
	// MaxStreamsPerPeer limits the number of such requests of one session; see MaxStreams. Zero
	// means 2048.
	MaxStreamsPerPeer int
	// Authorize, if not nil, is called before any handler of this class runs: in Request.Run if
	// Dispatch is set, and in Trigger otherwise. It may block; see [Authorizer] for the
	// consequences.
	Authorize Authorizer
	// AuthorizeQuick declares that Authorize never blocks and returns within microseconds. If
	// Dispatch is also set, Authorize is called in Trigger for Inline RPCs, before the request is
	// admitted, and their handlers run there. Without AuthorizeQuick, the Inline RPCs of a class
	// that has an authorizer are dispatched. If Authorize blocks despite the declaration, it delays
	// everything else that Trigger runs.
	AuthorizeQuick bool
	// Logger receives failures that are not returned as errors: panics, errors that handlers return
	// after they have responded, and detached requests that remain unanswered for a minute. It also
	// receives the logs of the lower layers, unless NA.Logger is set. If Logger is nil,
	// slog.Default() is used.
	Logger *slog.Logger
	// Observe, if not nil, is called when a call, request, or transfer completes. It is called in
	// Trigger, in Request.Run, or in a Call that waited for completion, possibly from several
	// goroutines concurrently. It must not block, and must not retain e, which is reused after
	// Observe returns.
	Observe func(e *inspect.Event)
	// Reflect allows peers to list the registered RPCs. If it is true, the class serves
	// [inspect.RPCsRPC], and the error for an unknown RPC suggests other names.
	Reflect bool
	// Dispatch, if not nil, is called in Trigger instead of handlers that are not RPC.Inline. It
	// must not block, and must arrange for exactly one call of r.Run, on any goroutine. A request
	// whose input is fetched after authorization is dispatched twice, each time with a new r: first
	// to authorize it, and again when its input has arrived. Until Run is called, a request has no
	// input and cannot be answered or detached. It counts as active, and the origin may withdraw
	// it. A request that is never run ends at its deadline (ErrTimeout) or when the class shuts
	// down (ErrDraining), in both cases with NotRun, or when its session ends.
	Dispatch func(r Request)
	// Trace helps detect misuse. Handles record where they were created, for ShutdownError.Open,
	// and Request.InputRaw returns copies that are overwritten once the program must no longer use
	// them.
	Trace bool

	opened         func(class any) // if not nil, called by Open; see onOpen
	streamDispatch func(r Request) // used instead of Dispatch for requests with streams, unless nil
}

// onOpen implements hghook.OnOpen. Open calls f after the functions registered earlier.
func (c *Config) onOpen(f func(class any)) {
	before := c.opened
	c.opened = func(class any) {
		if before != nil {
			before(class)
		}
		f(class)
	}
}

func (c Config) withDefaults() (Config, error) {
	if c.NA.Logger == nil {
		c.NA.Logger = c.Logger
	}
	var errs []error
	for _, f := range []struct {
		name string
		v    *int64
		def  int64
	}{{"MaxInput", &c.MaxInput, 64 << 20}, {"MaxOutput", &c.MaxOutput, 64 << 20}, {"MaxLent", &c.MaxLent, 1 << 30},
		{"MaxPulled", &c.MaxPulled, 1 << 30}} {
		if *f.v < 0 {
			errs = append(errs, fmt.Errorf("hg: config: %s is %d, want a positive number of bytes, or 0 for %d: %w", f.name, *f.v, f.def, ErrInvalid))
		}
		if *f.v == 0 {
			*f.v = f.def
		}
	}
	for _, f := range []struct {
		name string
		v    *int
		def  int
	}{{"MaxActive", &c.MaxActive, 1024}, {"MaxActivePerPeer", &c.MaxActivePerPeer, 128}, {"MaxStreams", &c.MaxStreams, 4096},
		{"MaxStreamsPerPeer", &c.MaxStreamsPerPeer, 2048}} {
		if *f.v < 0 {
			errs = append(errs, fmt.Errorf("hg: config: %s is %d, want a positive number, or 0 for %d: %w", f.name, *f.v, f.def, ErrInvalid))
		}
		if *f.v == 0 {
			*f.v = f.def
		}
	}
	if c.Codec == nil {
		c.Codec = codec.Msgpack
	}
	return c, errors.Join(errs...)
}
