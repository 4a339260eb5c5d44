package soak

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"os"
	"time"

	"github.com/quicksilver-rpc/quicksilver/hg"
	"github.com/quicksilver-rpc/quicksilver/internal/test/ledger"
	"github.com/quicksilver-rpc/quicksilver/qs"
)

// site provides package ledger with this machine's network, goroutines and clock.
var site = ledger.Site{Open: qs.Open, Go: func(f func()) { go f() }, Sleep: time.Sleep}

// stopTimeout is how long a target waits for its handlers when it shuts down. It is short, because
// many of the handlers do not return.
const stopTimeout = 300 * time.Millisecond

// nodeConfig returns the configuration of a node whose process writes to book.
func nodeConfig(book *ledger.Book, cfg hg.Config) qs.Config {
	return qs.Config{ShutdownTimeout: stopTimeout, HG: cfg, Logger: slog.New(newPanicHandler(book, os.Stderr))}
}

// appendTo opens the named book for appending, creating it if necessary.
func appendTo(name string) (*os.File, error) {
	return os.OpenFile(name, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
}

// untilEOF returns a context that is canceled when standard input is closed. Before the
// cancellation, it calls first.
func untilEOF(first func()) context.Context {
	ctx, end := context.WithCancel(context.Background())
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		first()
		end()
	}()
	return ctx
}

// Target serves calls at addr until standard input is closed. It calls listening with the address
// on which it listens.
func Target(addr, book string, cfg hg.Config, listening func(addr string)) error {
	f, err := appendTo(book)
	if err != nil {
		return err
	}
	t := &ledger.Target{Site: site, Book: ledger.NewBook(f)}
	err = t.Serve(untilEOF(t.End), addr, nodeConfig(t.Book, cfg), listening)
	if _, cut := errors.AsType[*hg.ShutdownError](err); cut {
		return nil
	}
	return err
}

// NewOrigin returns an origin that runs in this process and writes its book to to.
func NewOrigin(to io.Writer, c Calls, cfg hg.Config) *ledger.Origin {
	book := ledger.NewBook(to)
	return &ledger.Origin{
		Site: site, Book: book, Number: c.Number, Seed: c.Seed, Addr: c.To, Targets: c.Targets, Callers: c.Callers, Streams: c.Streams, MaxData: int(c.MaxBulk),
		Config: func() qs.Config { return nodeConfig(book, cfg) }, Life: 2 * time.Second, Patience: 2*cfg.NA.PeerTimeout + 30*time.Second,
	}
}

// Origin makes calls until standard input is closed. It calls ready before the first call.
func Origin(book string, c Calls, cfg hg.Config, ready func()) error {
	f, err := appendTo(book)
	if err != nil {
		return err
	}
	ready()
	return NewOrigin(f, c, cfg).Run(untilEOF(func() {}), 0)
}
