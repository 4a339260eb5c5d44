package hg

import (
	"errors"
	"fmt"
	"log/slog"

	"github.com/quicksilver-rpc/quicksilver/hg/codec"
	"github.com/quicksilver-rpc/quicksilver/hg/inspect"
	"github.com/quicksilver-rpc/quicksilver/na"
)

// Config holds what a class can be told. The zero value works.
type Config struct {
	// NA is the configuration of the network abstraction below.
	NA na.Config
	// Codec encodes arguments and results. Nil means codec.Msgpack. Both sides need the same.
	Codec codec.Codec
	// MaxInput bounds the encoded input of a call in bytes, at the origin and at the target. Zero means 64 MiB.
	MaxInput int64
	// MaxOutput bounds the encoded output likewise. Zero means 64 MiB.
	MaxOutput int64
	// MaxLent bounds the bytes of input and output larger than one message that a context lends to its peers at a time.
	// Zero means 1 GiB. Beyond it Forward and Respond fail with ErrAgain. The answers to one session get no more than three quarters of
	// what all else leaves, but for the first, so that an origin which does not fetch them does not keep others out.
	MaxLent int64
	// MaxPulled bounds the bytes of such input and output that a context is fetching from its peers at a time. Zero means
	// 1 GiB. Beyond it a request is answered, or a call ends, with ErrAgain. The requests of one session get no more than three quarters of
	// what all else leaves, but for the first, so that an origin which lends and is silent then does not keep others out. Answers of
	// up to 64 KiB that come inline take up to a quarter of MaxPulled beside.
	MaxPulled int64
	// MaxActive bounds the requests of a context whose handlers have begun and that have not ended. Zero means
	// 1024. One more waits, in its envelope, until another ends: a handler that waits for a call which in turn needs a
	// handler here may wait for ever if the bound is small. Requests with streams of items, and probes (PingRPC, HealthRPC), do not count
	// and do not wait; those with a Reader or a Writer of package qs do.
	//
	// One that has a deadline waits until an eighth of its time is left, but
	// at least 1 ms and at most 250 ms: then it is refused with ErrTimeout, and its origin hears of the bound. So is one that
	// Dispatch was given, and that nobody has run.
	MaxActive int
	// MaxActivePerPeer bounds those of one session. Zero means 128.
	MaxActivePerPeer int
	// MaxStreams bounds the requests of a context that have streams, but for those of a Reader or a Writer of package qs, and have not ended. Zero means 4096. One more is refused at once, with
	// ErrExhausted: streams may last for ever.
	MaxStreams int
	// MaxStreamsPerPeer bounds those of one session. Zero means 2048.
	MaxStreamsPerPeer int
	// Authorize, if set, is asked before any handler of this class runs, in Request.Run if Dispatch is set, else in Trigger. It may
	// block; [Authorizer] says what that costs.
	Authorize Authorizer
	// AuthorizeQuick promises that Authorize does not block and takes microseconds: with Dispatch it is then asked about Inline RPCs in
	// Trigger, before the request has a place, and their handlers run there. Without it Inline RPCs of a class that has an authorizer are
	// dispatched. An Authorize that blocks all the same holds up everything that Trigger is to run.
	AuthorizeQuick bool
	// Logger gets what no error can carry: panics, errors of handlers after their answers, and detached requests that are not
	// answered; and what the layers below have to say, unless NA.Logger is set. Nil means slog.Default().
	Logger *slog.Logger
	// Observe, if set, is called at the end of each call, request and transfer: in Trigger, Request.Run, or the Call that has
	// waited, from several goroutines at once if they are. It must not block, and e is not kept: it is used again when Observe returns.
	Observe func(e *inspect.Event)
	// Reflect tells peers about the RPCs that are registered: [inspect.RPCsRPC] answers, and the error for an unknown RPC names others.
	Reflect bool
	// Dispatch, if set, is called in Trigger instead of the handlers that are not RPC.Inline, and does not block. It leads to
	// one r.Run on any goroutine. A request whose input is fetched after the authorizer has agreed is dispatched twice, each
	// time with an r of its own: for the authorizer, and when the input is there. Until Run a request has no input and cannot be
	// answered or detached; it counts as active, and the origin may take it back. One that is never run ends at its deadline
	// (ErrTimeout), when the class shuts down (ErrClosed), both with NotRun, or with its session.
	Dispatch func(r Request)
	// Trace looks for misuse: handles remember where they were made, for ShutdownError.Open, and Request.InputRaw returns copies
	// that are overwritten once the program must not use them any more.
	Trace bool

	opened         func(class any) // called by Open, if not nil: see onOpen
	streamDispatch func(r Request) // in the place of Dispatch for requests with streams; nil: Dispatch
}

// onOpen is hghook.OnOpen.
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
