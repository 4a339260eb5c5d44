package qs

import (
	"context"
	"log/slog"
	"time"

	"github.com/quicksilver-rpc/quicksilver/hg"
)

// An Interceptor wraps calls or handlers. Config.ClientInterceptors and Config.ServerInterceptors
// apply to a whole node, with the first one outermost. As an Option of a method, an Interceptor
// wraps the calls of that method, inside the interceptors of the calling node, and has no effect at
// the server. (A function literal must be converted with Interceptor(f) to be an Option.) An
// Interceptor runs once per call, concurrently with those of other calls. It continues the call by
// calling next with ctx or a derived context.
//
// A client interceptor
//
//   - may change c.Peer and c.Metadata before the request is sent,
//   - may call next several times, even concurrently, to make further attempts. Each call of next
//     uses its own copy of c. By the time next returns, it has copied Attempt, ResponseMetadata and
//     BytesMoved to c.
//   - must call next sequentially for a call with a Reader or a Sink, and for a stream. A concurrent
//     next fails with ErrInvalid, as does one after bytes of a Reader, Writer or stream were
//     transferred.
//   - cannot extend a call. The call fails when its own ctx is done, even if next received a
//     context that is not done.
//
// A server interceptor
//
//   - may call next once. A second call fails with ErrInvalid.
//   - receives the error of the handler from next, which returns when the Sinks have been flushed and
//     the items of a stream have reached the caller's process,
//   - may cancel the context that it passes to next. This interrupts that wait, and wakes a handler
//     that is blocked in send or on a Source or a Sink.
//   - refuses a request by returning without calling next. The caller's error then has the fate
//     NotRun. The same applies if the interceptor panics or calls runtime.Goexit before calling next.
//
// After an interceptor has returned, next fails. Attempts that are still in flight at that time are
// abandoned before the call continues. FateOf applied to an error of next, or of the call, covers
// all attempts made within it, even if an interceptor returns another error.
type Interceptor func(ctx context.Context, c *Call, next func(context.Context) error) error

// chainAround calls the interceptors in is, with the first one outermost. When the innermost
// interceptor calls next, chainAround calls last.
func chainAround(ctx context.Context, is []Interceptor, c *Call, last func(context.Context) error) error {
	if len(is) == 0 {
		return last(ctx)
	}
	return is[0](ctx, c, func(ctx context.Context) error { return chainAround(ctx, is[1:], c, last) })
}

// LogCalls returns an interceptor, for either side, that logs each call when it completes, with its
// error and, if a handler returned a code with it (64 to 255), the code's name. A client also logs
// the fate of a failed call. If l is nil, slog.Default() is used.
//
//   - slog.LevelDebug: success, and calls that the caller canceled, such as a subscription.
//   - slog.LevelInfo: errors that programs expect, which are program-defined codes (128 to 255),
//     ErrNotFound, ErrAlreadyExists, ErrBadInput, ErrDenied, ErrNotReady and ErrDraining.
//   - slog.LevelWarn: all other errors, such as those without a code, timeouts, lost peers,
//     ErrInternal, ErrUnavailable, ErrExhausted and ErrAborted. A client logs a panic of the handler
//     at this level. At the server, the library logs it.
func LogCalls(l *slog.Logger) Interceptor {
	return func(ctx context.Context, c *Call, next func(context.Context) error) error {
		now := func() time.Duration { return 0 }
		if c.Peer.p != nil { // next fails if the call has no Peer
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
			if code := CodeOf(err); code >= ErrNotFound {
				attrs = append(attrs, slog.String("code", code.Error()))
			}
			if c.in == (hg.Request{}) { // at the server, the request has arrived, so its fate is known
				attrs = append(attrs, slog.String("fate", FateOf(err).String()))
			}
		}
		log.LogAttrs(ctx, level, "call", attrs...)
		return err
	}
}

// logLevel returns the level at which LogCalls logs a call made with ctx that returned err.
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
	if ctx.Err() != nil && CodeOf(context.Cause(ctx)) == ErrCanceled { // no caller is waiting, whatever error the handler returned
		return slog.LevelDebug
	}
	return slog.LevelWarn
}
