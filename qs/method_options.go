package qs

import (
	"fmt"
	"time"

	"github.com/quicksilver-rpc/quicksilver/hg/codec"
)

// An Option says more about a method: an argument of Define, DefineStream, DefineUpload, DefineDuplex and DefineOneWay. A later option of one kind replaces an
// earlier one, but Interceptors, which are Options, too, add up.
type Option interface{ apply(*options) }

// options are what the Options of a method say.
type options struct {
	codec                   codec.Codec
	idempotent, inline      bool
	maxConcurrent, maxQueue int // as in hg.RPC: a maxQueue of 0 is as many as maxConcurrent, a negative one none
	timeout                 time.Duration
	interceptors            []Interceptor
}

type optionFunc func(*options)

func (f optionFunc) apply(o *options) { f(o) }

// Idempotent declares that running the method twice does no harm: Retry then also repeats a call
// that may have run, and Hedge makes two attempts of it. The caller's program uses this.
func Idempotent() Option { return optionFunc(func(o *options) { o.idempotent = true }) }

// Inline has the handlers of the method run on the goroutine that drives the node. They must not block, and be quick: everything else of
// the node waits for them. In each context they run one after the other, with one exception: while such a handler runs, a goroutine of the
// program that waits in the library, or the handler itself if it does, drives the node and runs what is inline, too. At a node with Config.Authorize, which may block, they run on workers as others do. DefineStream panics with
// it, since send blocks. The target's program decides.
func Inline() Option { return optionFunc(func(o *options) { o.inline = true }) }

// MaxConcurrent bounds the requests of the method that a node handles at once; 0 means that only Config.MaxConcurrent does, which bounds
// the handlers of all methods together, these among them. As many more wait, or so many as MaxQueue says. The caller of one more gets
// ErrExhausted at once, and NotRun: it may go elsewhere. Callers of one process wait for an envelope first: Config.HG.NA.Envelopes. The
// target's program decides. A negative n is a panic.
func MaxConcurrent(n int) Option {
	if n < 0 {
		panic(fmt.Sprintf("qs: MaxConcurrent is %d, want a number of requests, or 0 for no bound of the method's own", n))
	}
	return optionFunc(func(o *options) { o.maxConcurrent = n })
}

// MaxQueue bounds the requests of the method that wait at a node until MaxConcurrent lets them be handled; 0 means none. Without it as
// many wait as MaxConcurrent says. Without MaxConcurrent it does nothing. A negative n is a panic.
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

// Timeout bounds the requests of the method at a node that serves it, from their arrival on, also where the caller has set no deadline or a
// later one; 0 means that only the caller does. When d has passed the handler's ctx ends with DeadlineExceeded, as at the deadline of the
// caller, and a request that has not begun is refused (NotRun). The node waits for the handler; what it answers all the same arrives. If it
// fails because of its ctx the caller gets ErrTimeout, and Ran. Calls that the handler makes with its ctx inherit the limit. Of a stream it
// bounds the whole. The target's program decides. A negative d is a panic.
func Timeout(d time.Duration) Option {
	if d < 0 {
		panic(fmt.Sprintf("qs: Timeout is %v, want a time, or 0 for none of the method's own", d))
	}
	return optionFunc(func(o *options) { o.timeout = d })
}

// WithCodec has c encode input and output, and each item of a stream by itself; both sides need the same. Without it, and with nil, it is
// Config.HG.Codec of the node, which is codec.Msgpack if not set.
func WithCodec(c codec.Codec) Option { return optionFunc(func(o *options) { o.codec = c }) }

// apply implements Option.
func (i Interceptor) apply(o *options) { o.interceptors = append(o.interceptors, i) }

// optionsOf returns what opts say about a method.
func optionsOf(name string, opts []Option) (o options) {
	for _, opt := range opts {
		if opt == nil {
			panic(fmt.Sprintf("qs: method %s has an Option that is nil", name))
		}
		opt.apply(&o)
	}
	for _, i := range o.interceptors {
		if i == nil {
			panic(fmt.Sprintf("qs: method %s has an Interceptor that is nil", name))
		}
	}
	return o
}
