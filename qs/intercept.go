package qs

import (
	"context"
	"log/slog"
	"time"

	"github.com/quicksilver-rpc/quicksilver/hg"
)

// A Call is what interceptors see of a call, and what a handler gets by CallFrom. Before the request leaves, a client's may
// change Peer and Meta.
type Call struct {
	Method           string
	Idempotent       bool        // by the method's Idempotent
	Peer             Peer        // where it goes; at the target, where it comes from
	Metadata         hg.Metadata // beside the input: what WithMetadata has put into the ctx of Call; an interceptor sets it here
	In, Out          any         // pointers to the input and the output; at the target In is decoded before the first interceptor runs
	ResponseMetadata hg.Metadata // beside the output: a handler sets it, a client has it after next
	Attempt          int         // from 1, of Retry
	BytesMoved       int64       // bytes that have been moved from and to what the input lends, in this attempt: after next

	in       hg.Request // at the target
	ctl      *control
	stall    time.Duration // of Retry: give an attempt up that moves nothing for so long
	withdraw time.Duration // and ask first for the request, for so long
	lends    bool          // the method has Sources or Sinks, or answers a stream
}

// Caller returns at the target who sent the request, as CallerFrom does in a handler: its address, and by TLS its verified certificate and Name. It is asked
// before the handler, or the interceptor, returns. At the client it is zero.
func (c *Call) Caller() Caller { return c.in.Caller() }

// An Interceptor runs around calls or handlers: those of a node, in Config.ClientInterceptors and Config.ServerInterceptors, or the calls
// of one method, as an Option of it: inside those of the node that calls, and without effect at the target. A function literal needs the
// conversion Interceptor(f) to be an Option. It does what it likes, and calls next, with ctx or one made of it, which does
// the rest: the call ends when ctx does, whatever next was given. A client's may call next again, for another attempt, or several times
// at once: each next has a Call of its own, made of c, whose Attempt, ResponseMetadata and BytesMoved are in c when it has returned. With a Reader or a
// Sink, and of a stream, it calls next one after the other: one while another is under way is refused (ErrInvalid), and so is one after
// bytes of a Reader, a Writer or a stream were moved. A server's calls next once at the most: then it is refused
// (ErrInvalid). FateOf an error of next, and of the call, covers each attempt in it, whatever
// error an interceptor returns instead. When an interceptor has returned, next begins nothing any more; what it left under way is
// abandoned (the handler's ctx ends), and waited for.
// A server's next returns when the Sinks are flushed, and the items of a stream are with the caller's process, with the error of that. The
// end of the context that it was given ends that wait, and what the handler waits for in send, a Source or a Sink.
// If a server's returns an error, panics or ends its goroutine before the handler has begun, the caller is told NotRun.
type Interceptor func(ctx context.Context, c *Call, next func(context.Context) error) error

// chain runs is around last.
func chain(ctx context.Context, is []Interceptor, c *Call, last func(context.Context) error) error {
	if len(is) == 0 {
		return last(ctx)
	}
	return is[0](ctx, c, func(ctx context.Context) error { return chain(ctx, is[1:], c, last) })
}

// LogCalls returns an interceptor, for either side, that logs each call when it has ended: at slog.LevelDebug, or at
// slog.LevelWarn with the error, and at a client the fate. A nil l is slog.Default().
func LogCalls(l *slog.Logger) Interceptor {
	return func(ctx context.Context, c *Call, next func(context.Context) error) error {
		n := c.Peer.p.n
		begun := n.now()
		err := next(ctx)
		log := l
		if log == nil {
			log = slog.Default()
		}
		level := slog.LevelDebug
		if err != nil {
			level = slog.LevelWarn
		}
		if !log.Enabled(ctx, level) {
			return err
		}
		attrs := []slog.Attr{slog.String("method", c.Method), slog.String("peer", c.Peer.String()), slog.Duration("took", n.now()-begun)}
		if c.Attempt > 1 {
			attrs = append(attrs, slog.Int("attempt", c.Attempt))
		}
		if err != nil {
			attrs = append(attrs, slog.String("error", err.Error()))
			if c.in == (hg.Request{}) { // at the target there is no question
				attrs = append(attrs, slog.String("fate", FateOf(err).String()))
			}
		}
		log.LogAttrs(ctx, level, "call", attrs...)
		return err
	}
}

type (
	callKey struct{}
	metaKey struct{}
)

// CallFrom returns the request that the ctx of a handler, or one made of it, belongs to; nil for any other, as that of Config.Authorize,
// which is given its Call. It is asked for before the handler returns, by one goroutine at a time. Most handlers want CallerFrom and
// Metadata only; this has also the Peer, for calls back, and ResponseMetadata.
func CallFrom(ctx context.Context) *Call {
	c, _ := ctx.Value(callKey{}).(*Call)
	return c
}

// WithMetadata returns a context whose calls carry a value under name, which is 1 to 63 of a-z, 0-9, '.' and '-'. Names that
// begin with "qs-" are the library's; of these a program may give hg.KeyMeta only. A handler reads it by Metadata; it is not passed on by the target. A call has at most
// 16 names and, with 3 bytes for each, 8 KiB of them and their values: one with more, or with a bad name, does not run and fails with
// hg.ErrOverflow or ErrInvalid.
func WithMetadata(ctx context.Context, name, value string) context.Context {
	was, _ := ctx.Value(metaKey{}).(carried)
	if was.err != nil {
		return ctx
	}
	m, err := was.m.With(name, value)
	return context.WithValue(ctx, metaKey{}, carried{m, err})
}

// Metadata returns in a handler the value that the caller has given by WithMetadata under name; false if there is none, and for a
// ctx that is not a handler's. An interceptor of the server may have changed it. It is asked before the handler returns. Names that begin
// with "qs-" are the library's, and not there.
func Metadata(ctx context.Context, name string) (value string, ok bool) {
	c := CallFrom(ctx)
	if c == nil {
		return "", false
	}
	return c.Metadata.Get(name)
}

// CallerFrom returns in a handler who has called: its address, and by TLS its verified certificate and Name. It is the zero Caller for a
// ctx that is not a handler's, and is asked before the handler returns.
func CallerFrom(ctx context.Context) Caller {
	c := CallFrom(ctx)
	if c == nil {
		return Caller{}
	}
	return c.Caller()
}

type carried struct {
	m   hg.Metadata
	err error
}
