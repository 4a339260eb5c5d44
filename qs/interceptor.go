package qs

import (
	"context"
	"log/slog"
	"time"

	"github.com/quicksilver-rpc/quicksilver/hg"
)

// An Interceptor runs around calls or handlers: Config.ClientInterceptors and
// Config.ServerInterceptors have those of a node, the first outermost. As an Option of a method it
// runs around the calls of that method, inside those of the node that calls, and has no effect at
// the server. (A function literal needs the conversion Interceptor(f) to be an Option.) It runs
// concurrently, for each call on its own. It calls next with ctx, or a context made of it, which
// does the rest.
//
// A client's interceptor
//
//   - may change c.Peer and c.Metadata before the request leaves,
//   - may call next again for another attempt, or several times at once. Each next has a Call of
//     its own, made of c, and its Attempt, ResponseMetadata and BytesMoved are in c when it has
//     returned.
//   - calls next one after the other for a call with a Reader or a Sink, and for a stream: a next
//     while another runs is refused (ErrInvalid), and so is one after bytes of a Reader, a Writer
//     or a stream have moved.
//   - cannot keep a call alive: the call ends when its ctx does, whatever next was given.
//
// A server's interceptor
//
//   - may call next once: a second call of it fails (ErrInvalid),
//   - gets the error of the handler from next, which returns when the Sinks are flushed and the
//     items of a stream are with the caller's process,
//   - may end the context that it gives to next, which ends that wait, and what the handler waits
//     for in send, a Source or a Sink,
//   - refuses a request by returning before it calls next: the caller gets NotRun. That is so, too,
//     if it panics or ends its goroutine then.
//
// When an interceptor has returned, next begins nothing any more; what it left in flight is
// abandoned, and waited for. FateOf an error of next, and of the call, covers every attempt in it,
// whatever error an interceptor returns instead.
type Interceptor func(ctx context.Context, c *Call, next func(context.Context) error) error

// chainAround runs last inside the interceptors is.
func chainAround(ctx context.Context, is []Interceptor, c *Call, last func(context.Context) error) error {
	if len(is) == 0 {
		return last(ctx)
	}
	return is[0](ctx, c, func(ctx context.Context) error { return chainAround(ctx, is[1:], c, last) })
}

// LogCalls returns an interceptor, for either side, that logs each call when it has ended, with its
// error, and at a client the fate of one that failed. A nil l is slog.Default().
//
//   - slog.LevelDebug: it succeeded, or was canceled; a subscription that its caller has left, too.
//   - slog.LevelInfo: an answer that a program plans for: a code of its own (128 to 255),
//     ErrNotFound, ErrAlreadyExists, ErrBadInput, ErrDenied, ErrNotReady and ErrDraining.
//   - slog.LevelWarn: everything else: errors without a code, deadlines, lost peers, ErrInternal,
//     ErrUnavailable, ErrExhausted, ErrAborted. A panic of a handler is that at its client; at the
//     server the library logs it.
func LogCalls(l *slog.Logger) Interceptor {
	return func(ctx context.Context, c *Call, next func(context.Context) error) error {
		now := func() time.Duration { return 0 }
		if c.Peer.p != nil { // next refuses a call without a Peer
			now = c.Peer.p.n.now
		}
		begun := now()
		err := next(ctx)
		log := l
		if log == nil {
			log = slog.Default()
		}
		level := logLevel(ctx, err)
		if !log.Enabled(ctx, level) {
			return err
		}
		attrs := []slog.Attr{slog.String("method", c.Method), slog.String("peer", c.Peer.String()),
			slog.Duration("took", now()-begun)}
		if c.Attempt > 1 {
			attrs = append(attrs, slog.Int("attempt", c.Attempt))
		}
		if err != nil {
			attrs = append(attrs, slog.String("error", err.Error()))
			if c.in == (hg.Request{}) { // at the server the request has arrived, and its fate is known
				attrs = append(attrs, slog.String("fate", FateOf(err).String()))
			}
		}
		log.LogAttrs(ctx, level, "call", attrs...)
		return err
	}
}

// logLevel returns the level at which LogCalls logs a call that ended with err and was given ctx.
func logLevel(ctx context.Context, err error) slog.Level {
	if err == nil {
		return slog.LevelDebug
	}
	switch code := CodeOf(err); code {
	case ErrCanceled:
		return slog.LevelDebug
	case ErrNotFound, ErrAlreadyExists, ErrBadInput, ErrDenied, ErrNotReady, ErrDraining:
		return slog.LevelInfo
	default:
		if code >= 128 {
			return slog.LevelInfo
		}
	}
	if ctx.Err() != nil && CodeOf(context.Cause(ctx)) == ErrCanceled { // whatever the handler made of it: no caller waits
		return slog.LevelDebug
	}
	return slog.LevelWarn
}
