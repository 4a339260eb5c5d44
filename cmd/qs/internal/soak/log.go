package soak

import (
	"context"
	"io"
	"log/slog"
)

// panicHandler is the slog.Handler of the processes of a soak. Their handlers panic on purpose and their peers are killed, which
// fills a log; a panic of the library itself is a defect, and the only record that is kept: its stack is all that tells
// where.
type panicHandler struct{ slog.Handler }

func newPanicHandler(w io.Writer) panicHandler {
	return panicHandler{slog.NewTextHandler(w, &slog.HandlerOptions{Level: slog.LevelError})}
}

// isLibraryPanic reports whether r is about a panic of the library. The log of a handler's panic names the method.
func isLibraryPanic(r slog.Record) bool {
	has := map[string]bool{}
	r.Attrs(func(a slog.Attr) bool { has[a.Key] = true; return true })
	return has["panic"] && !has["rpc"]
}

// Handle implements slog.Handler.
func (h panicHandler) Handle(ctx context.Context, r slog.Record) error {
	if !isLibraryPanic(r) {
		return nil
	}
	return h.Handler.Handle(ctx, r)
}

// WithAttrs implements slog.Handler.
func (h panicHandler) WithAttrs(attrs []slog.Attr) slog.Handler {
	return panicHandler{h.Handler.WithAttrs(attrs)}
}

// WithGroup implements slog.Handler.
func (h panicHandler) WithGroup(name string) slog.Handler {
	return panicHandler{h.Handler.WithGroup(name)}
}
