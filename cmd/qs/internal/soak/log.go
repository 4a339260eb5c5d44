package soak

import (
	"context"
	"io"
	"log/slog"

	"github.com/quicksilver-rpc/quicksilver/internal/test/ledger"
)

// panicHandler is the slog.Handler of a soak's nodes. It discards all records except those of panics in the library,
// because the handlers' intentional panics and the loss of killed peers would fill the log. It prints a record of a
// panic in the library, including the stack, and enters the panic into the book as a violation, regardless of the
// outcome of the calls.
type panicHandler struct {
	slog.Handler
	book *ledger.Book
}

func newPanicHandler(book *ledger.Book, w io.Writer) panicHandler {
	return panicHandler{slog.NewTextHandler(w, &slog.HandlerOptions{Level: slog.LevelError}), book}
}

// isLibraryPanic reports whether r is the record of a panic in the library. Unlike such a record, that of a panic in a
// handler names the method.
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
	h.book.AddWrong("the library has panicked, the standard error has the stack: %s", r.Message)
	return h.Handler.Handle(ctx, r)
}

// WithAttrs implements slog.Handler.
func (h panicHandler) WithAttrs(attrs []slog.Attr) slog.Handler {
	return panicHandler{h.Handler.WithAttrs(attrs), h.book}
}

// WithGroup implements slog.Handler.
func (h panicHandler) WithGroup(name string) slog.Handler {
	return panicHandler{h.Handler.WithGroup(name), h.book}
}
