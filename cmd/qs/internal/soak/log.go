package soak

import (
	"context"
	"io"
	"log/slog"

	"github.com/quicksilver-rpc/quicksilver/internal/test/ledger"
)

// panicHandler is the slog.Handler of a soak's nodes. In a soak, handlers panic intentionally and peers are killed,
// which would fill a log. A panic in the library itself, however, is a defect. Its record, including the stack, is the
// only one that is printed, and it is entered into the book as a broken promise, whatever the outcome of the calls.
type panicHandler struct {
	slog.Handler
	book *ledger.Book
}

func newPanicHandler(book *ledger.Book, w io.Writer) panicHandler {
	return panicHandler{slog.NewTextHandler(w, &slog.HandlerOptions{Level: slog.LevelError}), book}
}

// isLibraryPanic reports whether r is about a panic in the library. The log record of a panic in a handler names the
// method.
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
