package qs

import (
	"fmt"
	"time"

	"github.com/quicksilver-rpc/quicksilver/hg/codec"
)

// An Option configures a method. It is an argument of Define, DefineStream, DefineUpload,
// DefineDuplex and DefineOneWay. A later option replaces an earlier one of the same kind, except
// for Interceptors, which accumulate.
type Option interface{ apply(*options) }

// options holds the configuration of a method.
type options struct {
	codec              codec.Codec
	idempotent, inline bool
	// A maxQueue of 0 means the value of maxConcurrent, and a negative one means no queue, as in
	// hg.RPC.
	maxConcurrent, maxQueue int
	timeout                 time.Duration
	interceptors            []Interceptor
}

// An optionFunc implements Option.
type optionFunc func(*options)

func (f optionFunc) apply(o *options) { f(o) }

// Idempotent declares that it is safe to run the method twice. Retry then also repeats calls that
// may have run, and Hedge makes two attempts. The option takes effect at the caller.
func Idempotent() Option { return optionFunc(func(o *options) { o.idempotent = true }) }

// Inline runs the handlers of the method in the goroutine that drives the node. They must be quick
// and must not block, because all other work of the node waits for them.
//
//   - In each context they run sequentially, with one exception. While such a handler runs, another
//     goroutine that waits in the library, or the handler itself if it does so, drives the node and
//     may run inline handlers.
//   - At a node with Config.Authorize, which may block, they run on workers like other handlers.
//   - DefineStream panics if given this option, because send blocks.
//
// The option takes effect at the server.
func Inline() Option { return optionFunc(func(o *options) { o.inline = true }) }

// MaxConcurrent limits the number of requests of the method that a node handles at a time. If n is
// 0, only Config.MaxConcurrent applies, which limits the handlers of all methods together. Up to n
// further requests wait, or as many as MaxQueue allows. Any request beyond that is refused
// immediately with ErrExhausted and NotRun, so that its caller may try another server. See MaxQueue
// for the number of requests of one client process that can wait.
//
// The option takes effect at the server. MaxConcurrent panics if n is negative.
func MaxConcurrent(n int) Option {
	if n < 0 {
		panic(fmt.Sprintf("qs: MaxConcurrent is %d, want a positive number, or 0 for no limit",
			n))
	}
	return optionFunc(func(o *options) { o.maxConcurrent = n })
}

// MaxQueue limits the number of requests of the method that wait at a node because of
// MaxConcurrent. If n is 0, no request waits. The default is the value of MaxConcurrent. Without
// MaxConcurrent, MaxQueue has no effect. It panics if n is negative.
//
// A waiting request occupies one of the envelopes (buffers for requests) that the node reserves for
// the caller's process. There are 32 of them unless the node's Config.HG.NA.Envelopes is set. At
// most 32 requests of one client process, of all methods together, can therefore wait at the node,
// and its further requests wait at the client. If those reach their deadline, they fail with
// ErrTimeout and NotRun rather than ErrExhausted.
//
//   - With a MaxQueue below 32, requests of even a single client process may be refused.
//   - With a MaxQueue of 32 or more, requests are refused only if several client processes together
//     fill the queue.
//   - While 32 requests of a client process are queued, it can call no other method of the node.
func MaxQueue(n int) Option {
	if n < 0 {
		panic(fmt.Sprintf("qs: MaxQueue is %d, want 0 or more", n))
	}
	return optionFunc(func(o *options) {
		if o.maxQueue = n; n == 0 {
			o.maxQueue = -1
		}
	})
}

// Timeout limits the time that the server spends on each request of the method, starting at its
// arrival. It applies even if the caller has no deadline or a later one. If d is 0, only the
// caller's deadline applies.
//
//   - When the time has expired, the handler's ctx is canceled with DeadlineExceeded, as at the
//     caller's deadline. A request whose handler has not begun is refused (NotRun).
//   - The node waits for the handler, and sends its output if it still succeeds. If it fails because
//     its ctx is done, the caller's error matches ErrTimeout and has the fate Ran.
//   - Calls that the handler makes with its ctx inherit the limit.
//   - For a stream, the limit applies to the whole request.
//
// The option takes effect at the server. Timeout panics if d is negative.
func Timeout(d time.Duration) Option {
	if d < 0 {
		panic(fmt.Sprintf("qs: Timeout is %v, want a positive duration, or 0 for no timeout", d))
	}
	return optionFunc(func(o *options) { o.timeout = d })
}

// WithCodec sets the codec for the input and output, and for each item of a stream. Both sides must
// use the same codec. The default, which also applies if c is nil, is the node's Config.HG.Codec
// or, if that is nil, codec.Msgpack.
func WithCodec(c codec.Codec) Option { return optionFunc(func(o *options) { o.codec = c }) }

// apply implements Option.
func (i Interceptor) apply(o *options) { o.interceptors = append(o.interceptors, i) }

// optionsOf returns the options set by opts. It panics if one of opts is nil.
func optionsOf(name string, opts []Option) (o options) {
	for _, opt := range opts {
		if opt == nil {
			panic(fmt.Sprintf("qs: method %s has a nil Option", name))
		}
		opt.apply(&o)
	}
	for _, i := range o.interceptors {
		if i == nil {
			panic(fmt.Sprintf("qs: method %s has a nil Interceptor", name))
		}
	}
	return o
}
