package qs

import (
	"context"
	"log/slog"
	"time"

	"github.com/quicksilver-rpc/quicksilver/hg"
)

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
		level := slog.LevelDebug
		if err != nil {
			level = slog.LevelWarn
		}
		if !log.Enabled(ctx, level) {
			return err
		}
		attrs := []slog.Attr{slog.String("method", c.Method), slog.String("peer", c.Peer.String()), slog.Duration("took", now()-begun)}
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
