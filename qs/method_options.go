package qs

import (
	"fmt"
	"time"

	"github.com/quicksilver-rpc/quicksilver/hg/codec"
)

// An Option configures a method: it is an argument of Define, DefineStream, DefineUpload,
// DefineDuplex and DefineOneWay. A later option replaces an earlier one of the same kind.
// Interceptors, which are Options too, add up.
type Option interface{ apply(*options) }

// options holds the Options of a method.
type options struct {
	codec              codec.Codec
	idempotent, inline bool
	// As in hg.RPC: a maxQueue of 0 is as many as maxConcurrent, a negative one none.
	maxConcurrent, maxQueue int
	timeout                 time.Duration
	interceptors            []Interceptor
}

// An optionFunc implements Option.
type optionFunc func(*options)

func (f optionFunc) apply(o *options) { f(o) }

// Idempotent declares that running the method twice does no harm: Retry then also repeats a call
// that may have run, and Hedge makes two attempts of it. The caller's program uses this.
func Idempotent() Option { return optionFunc(func(o *options) { o.idempotent = true }) }

// Inline runs the handlers of the method on the goroutine that drives the node. They must be quick
// and must not block: everything else of the node waits for them.
//
//   - In each context they run one after the other, with one exception: while such a handler runs,
//     a goroutine of the program that waits in the library, or the handler itself if it does,
//     drives the node, and runs inline handlers too.
//   - At a node with Config.Authorize, which may block, they run on workers as others do.
//   - DefineStream panics with it, since send blocks.
//
// The option has its effect at the server.
func Inline() Option { return optionFunc(func(o *options) { o.inline = true }) }

// MaxConcurrent limits the requests of the method that a node handles at a time. 0 means no limit
// but Config.MaxConcurrent, which limits the handlers of all methods together. The same number of
// requests waits in addition, or the number of MaxQueue. A request beyond that is refused at once
// with ErrExhausted and NotRun, so that its caller may go elsewhere: see MaxQueue for how many
// requests of one client process can wait.
//
// The option has its effect at the server. A negative n panics.
func MaxConcurrent(n int) Option {
	if n < 0 {
		panic(fmt.Sprintf("qs: MaxConcurrent is %d, want a number of requests, or 0 for no limit of the method",
			n))
	}
	return optionFunc(func(o *options) { o.maxConcurrent = n })
}

// MaxQueue limits the requests of the method that wait at a node for MaxConcurrent; 0 means that
// none waits. Without it as many wait as MaxConcurrent allows to run. Without MaxConcurrent it has
// no effect. A negative n panics.
//
// A request that waits keeps one of the envelopes that the node has for the process of its caller:
// 32, unless Config.HG.NA.Envelopes of the node says otherwise. So at most 32 requests of one client
// process wait at the node, of all methods together, and its further requests wait at the client.
// Those get ErrTimeout and NotRun at their deadline, not ErrExhausted.
//
//   - A MaxQueue of fewer than 32 refuses a single client process, too.
//   - A MaxQueue of 32 or more refuses only when several client processes fill the queue together.
//   - A client process with 32 requests in queues calls no other method of the node meanwhile.
func MaxQueue(n int) Option {
	if n < 0 {
		panic(fmt.Sprintf("qs: MaxQueue is %d, want a number of requests that may wait", n))
	}
	return optionFunc(func(o *options) {
		if o.maxQueue = n; n == 0 {
			o.maxQueue = -1
		}
	})
}

// Timeout limits the time of each request of the method at a node that serves it, from its arrival
// on. It applies also if the caller has set no deadline, or a later one; 0 means that only the
// caller's deadline applies.
//
//   - When d has passed, the handler's ctx is canceled with DeadlineExceeded, as at the caller's
//     deadline. A request that has not begun is refused (NotRun).
//   - The node waits for the handler, and an answer that it gives nevertheless arrives. If it fails
//     because of its ctx, the caller gets ErrTimeout and Ran.
//   - Calls that the handler makes with its ctx inherit the limit.
//   - For a stream it limits the whole request.
//
// The option has its effect at the server. A negative d panics.
func Timeout(d time.Duration) Option {
	if d < 0 {
		panic(fmt.Sprintf("qs: Timeout is %v, want a time, or 0 for no timeout of the method", d))
	}
	return optionFunc(func(o *options) { o.timeout = d })
}

// WithCodec sets the codec of input and output, and of each item of a stream. Both sides need the
// same one. Without it, and with nil, the codec is Config.HG.Codec of the node, or else
// codec.Msgpack.
func WithCodec(c codec.Codec) Option { return optionFunc(func(o *options) { o.codec = c }) }

// apply implements Option.
func (i Interceptor) apply(o *options) { o.interceptors = append(o.interceptors, i) }

// optionsOf applies opts, and panics if one is nil.
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
