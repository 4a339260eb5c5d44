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
	// As in hg.RPC: a maxQueue of 0 means maxConcurrent, a negative one means none.
	maxConcurrent, maxQueue int
	timeout                 time.Duration
	interceptors            []Interceptor
}

// An optionFunc implements Option.
type optionFunc func(*options)

func (f optionFunc) apply(o *options) { f(o) }

// Idempotent declares that the method may safely run twice: Retry then also repeats a call that may
// have run, and Hedge makes two attempts. The option has its effect at the caller.
func Idempotent() Option { return optionFunc(func(o *options) { o.idempotent = true }) }

// Inline runs the handlers of the method on the goroutine that drives the node. They must be quick
// and must not block, since all other work of the node waits for them.
//
//   - In each context they run sequentially, with one exception: while such a handler runs, a
//     goroutine of the program that waits in the library, or the handler itself if it does, drives
//     the node and may run inline handlers.
//   - At a node with Config.Authorize, which may block, they run on workers like other handlers.
//   - DefineStream panics with it, since send blocks.
//
// The option has its effect at the server.
func Inline() Option { return optionFunc(func(o *options) { o.inline = true }) }

// MaxConcurrent limits the requests of the method that a node handles at a time. 0 means that only
// Config.MaxConcurrent applies, which limits the handlers of all methods together. Up to n further
// requests wait, or as many as MaxQueue allows. A request beyond that is refused at once with
// ErrExhausted and NotRun, so that its caller may try another server; see MaxQueue for the number
// of requests of one client process that can wait.
//
// The option has its effect at the server. A negative n panics.
func MaxConcurrent(n int) Option {
	if n < 0 {
		panic(fmt.Sprintf("qs: MaxConcurrent is %d, want a positive number, or 0 for no limit",
			n))
	}
	return optionFunc(func(o *options) { o.maxConcurrent = n })
}

// MaxQueue limits the requests of the method that wait at a node because of MaxConcurrent; 0 means
// that none waits. The default is the number of MaxConcurrent. Without MaxConcurrent it has no
// effect. A negative n panics.
//
// A waiting request uses one of the envelopes that the node has for the caller's process: 32,
// unless Config.HG.NA.Envelopes of the node is set. So at most 32 requests of one client process
// wait at the node, of all methods together, and its further requests wait at the client. Those end
// with ErrTimeout and NotRun at their deadline, not with ErrExhausted.
//
//   - A MaxQueue of fewer than 32 refuses a single client process, too.
//   - A MaxQueue of 32 or more refuses only when several client processes fill the queue together.
//   - A client process with 32 requests in queues calls no other method of the node meanwhile.
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

// Timeout limits the time of each request of the method at the server, from its arrival. It applies
// also if the caller has no deadline, or a later one; 0 means that only the caller's deadline
// applies.
//
//   - When d has passed, the handler's ctx is canceled with DeadlineExceeded, as at the caller's
//     deadline. A request that has not begun is refused (NotRun).
//   - The node waits for the handler, and sends its output if it still succeeds. If it fails because
//     of its ctx, the caller gets ErrTimeout and Ran.
//   - Calls that the handler makes with its ctx inherit the limit.
//   - For a stream it limits the whole request.
//
// The option has its effect at the server. A negative d panics.
func Timeout(d time.Duration) Option {
	if d < 0 {
		panic(fmt.Sprintf("qs: Timeout is %v, want a positive duration, or 0 for no timeout", d))
	}
	return optionFunc(func(o *options) { o.timeout = d })
}

// WithCodec sets the codec of input and output, and of each item of a stream. Both sides need the
// same codec. The default, also if c is nil, is Config.HG.Codec of the node, or else codec.Msgpack.
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
