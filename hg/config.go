package hg

import (
	"errors"
	"fmt"
	"log/slog"

	"github.com/quicksilver-rpc/quicksilver/hg/codec"
	"github.com/quicksilver-rpc/quicksilver/hg/inspect"
	"github.com/quicksilver-rpc/quicksilver/na"
)

// Config is the configuration of a class. The zero value works.
type Config struct {
	// NA is the configuration of the network abstraction below.
	NA na.Config
	// Codec encodes input and output. Nil means codec.Msgpack. Origin and target must use the same.
	Codec codec.Codec
	// MaxInput limits the encoded input of a call in bytes, at the origin and at the target. Zero
	// means 64 MiB.
	MaxInput int64
	// MaxOutput limits the encoded output of a call in bytes, at the origin and at the target. Zero
	// means 64 MiB.
	MaxOutput int64
	// MaxLent limits how many bytes of input and output larger than one message a context lends to
	// its peers at a time. Zero means 1 GiB. Beyond it Forward and Respond fail with ErrAgain. The
	// answers to one session get at most three quarters of the part that the others do not use,
	// except for its first answer, so that one origin that does not fetch its answers cannot take
	// the whole limit.
	MaxLent int64
	// MaxPulled limits how many bytes of such input and output a context fetches from its peers at
	// a time. Zero means 1 GiB. Beyond it a request is answered, or a call ends, with ErrAgain. The
	// requests of one session get at most three quarters of the part that the others do not use,
	// except for its first request, so that one origin that lends input and then stops cannot take
	// the whole limit. Answers of up to 64 KiB that arrive inline may use up to a quarter of
	// MaxPulled in addition.
	MaxPulled int64
	// MaxActive limits the requests of a context whose handlers have begun and that have not ended.
	// Zero means 1024. Further requests wait, each in its envelope, until another ends. With a
	// small limit, handlers that wait for calls which in turn need a handler here may wait forever.
	// Requests with streams of items, and probes (PingRPC, HealthRPC), neither count nor wait;
	// those with a Reader or a Writer of package qs do both.
	//
	// A waiting request that has a deadline is refused when an eighth of its time is left, but at
	// least 1 ms and at most 250 ms: with ErrTimeout, and a text that names the limit. The same
	// holds for a request that Dispatch was given and that was not run.
	MaxActive int
	// MaxActivePerPeer limits the requests of one session that are active as above. Zero means 128.
	MaxActivePerPeer int
	// MaxStreams limits the requests of a context that have streams and have not ended, without
	// those of a Reader or a Writer of package qs. Zero means 4096. Further ones are refused at
	// once with ErrExhausted: streams may last forever.
	MaxStreams int
	// MaxStreamsPerPeer limits the requests of one session that have streams as above. Zero means
	// 2048.
	MaxStreamsPerPeer int
	// Authorize, if set, is called before any handler of this class runs, in Request.Run if
	// Dispatch is set, else in Trigger. It may block; see [Authorizer] for the cost.
	Authorize Authorizer
	// AuthorizeQuick declares that Authorize does not block and takes microseconds. With Dispatch
	// it is then called for Inline RPCs in Trigger, before the request is admitted, and their
	// handlers run there. Without it Inline RPCs of a class that has an authorizer are dispatched.
	// If Authorize blocks nevertheless, everything that Trigger has to run waits.
	AuthorizeQuick bool
	// Logger receives the failures that are not returned as errors: panics, errors of handlers
	// after their answers, detached requests that are not answered; and the logs of the layers
	// below, unless NA.Logger is set. Nil means slog.Default().
	Logger *slog.Logger
	// Observe, if set, is called at the end of each call, request and transfer: in Trigger, in
	// Request.Run, or in the Call that has waited, so from several goroutines at once if there are
	// several. It must not block, and must not keep e, which is reused when Observe returns.
	Observe func(e *inspect.Event)
	// Reflect lets peers list the registered RPCs: [inspect.RPCsRPC] is served, and the error for
	// an unknown RPC names others.
	Reflect bool
	// Dispatch, if set, is called in Trigger instead of the handlers that are not RPC.Inline. It
	// must not block, and has to lead to one call of r.Run, on any goroutine. A request whose input
	// is fetched after it was authorized is dispatched twice, each time with a new r: to authorize
	// it, and when its input has arrived. Until Run a request has no input and cannot be answered
	// or detached; it counts as active, and the origin may withdraw it. A request that is never run
	// ends at its deadline (ErrTimeout), when the class shuts down (ErrClosed), both with NotRun,
	// or with its session.
	Dispatch func(r Request)
	// Trace helps to find misuse. Handles record where they were made, for ShutdownError.Open, and
	// Request.InputRaw returns copies that are overwritten once the program must no longer use
	// them.
	Trace bool

	opened         func(class any) // called by Open if not nil; see onOpen
	streamDispatch func(r Request) // used instead of Dispatch for requests with streams; nil: Dispatch
}

// onOpen implements hghook.OnOpen: Open calls f, after the functions of earlier calls.
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
			errs = append(errs, fmt.Errorf("hg: config: %s is %d, want a number of bytes, or 0 for %d: %w", f.name, *f.v, f.def, ErrInvalid))
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
			errs = append(errs, fmt.Errorf("hg: config: %s is %d, want a number of requests, or 0 for %d: %w", f.name, *f.v, f.def, ErrInvalid))
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
