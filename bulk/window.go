package bulk

import (
	"context"
	"sync"

	"github.com/quicksilver-rpc/quicksilver/hg"
)

// A window manages the chunks of a Reader or a Writer. acquireChunk returns an unused chunk, which
// a Writer fills. startChunk starts the chunk's transfer, waitOldest waits for the transfer to
// complete, and releaseChunk makes the chunk available for reuse.
//
// An error, close, or cancellation of ctx halts the window. This cancels every chunk in flight and
// wakes a goroutine blocked in waitOldest. No chunk is started afterward.
type window struct {
	flow
	detach func() bool // prevents ctx from halting the window

	mu         sync.Mutex     // guards the fields below; not held while waitOldest waits
	inFlight   []*streamChunk // chunks started and not yet returned by waitOldest, oldest first
	free       []*streamChunk
	nextOffset int64 // offset of the first byte for which no transfer has been started
	delivered  int64 // number of bytes in chunks returned by waitOldest
	err        error // error with which the window was halted, or nil
}

// init initializes w and arranges for ctx to halt it.
func (w *window) init(ctx context.Context, hctx *hg.Context, dir Dir, s Stream) (err error) {
	if w.flow, err = newFlow(ctx, hctx, dir, s); err != nil {
		return err
	}
	w.detach = func() bool { return true }
	if !hctx.NA().Scheduled() {
		w.detach = context.AfterFunc(ctx, func() { w.halt(hg.ErrCanceled) })
	}
	return nil
}

// acquireChunk returns an unused chunk, or nil if Window chunks are in flight.
func (w *window) acquireChunk() (*streamChunk, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.err != nil || len(w.inFlight) >= w.Window {
		return nil, w.err
	}
	if n := len(w.free); n > 0 {
		p := w.free[n-1]
		w.free = w.free[:n-1]
		return p, nil
	}
	p, err := w.newChunk(make([]byte, min(w.Chunk, w.Size)))
	if err != nil {
		w.haltLocked(err)
		return nil, w.err
	}
	return p, nil
}

// startChunk starts the transfer of p at the next offset. It has no effect if w has been halted.
func (w *window) startChunk(p *streamChunk) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.err != nil {
		return
	}
	if err := w.startTransfer(p, w.nextOffset); err != nil {
		w.haltLocked(err)
		return
	}
	w.inFlight = append(w.inFlight, p)
	w.nextOffset += int64(p.n)
}

// remaining returns the number of bytes for which no transfer has been started.
func (w *window) remaining() int64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.Size - w.nextOffset
}

// waitOldest waits for the oldest chunk in flight to complete, removes it from the window, and
// returns it. It returns nil if no chunk is in flight.
func (w *window) waitOldest() (*streamChunk, error) {
	w.mu.Lock()
	if len(w.inFlight) == 0 || w.err != nil {
		w.mu.Unlock()
		return nil, w.haltErr()
	}
	p := w.inFlight[0]
	w.mu.Unlock()
	err := w.waitUntil(w.ctx, p.done.Load) // halt cancels the transfer, which ends the wait
	if err == nil {
		err = p.err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if err != nil {
		w.haltLocked(err)
	}
	if w.err != nil {
		return nil, w.err
	}
	w.inFlight = append(w.inFlight[:0], w.inFlight[1:]...)
	w.delivered += int64(p.n)
	return p, nil
}

// releaseChunk makes p available to acquireChunk.
func (w *window) releaseChunk(p *streamChunk) {
	w.mu.Lock()
	w.free = append(w.free, p)
	w.mu.Unlock()
}

// halt cancels the chunks in flight and records err, unless w is already halted. It does not block.
func (w *window) halt(err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.haltLocked(err)
}

func (w *window) haltLocked(err error) {
	if w.err != nil {
		return
	}
	w.err = w.wrapError(w.delivered, err)
	w.hctx.NA().Batch(func() {
		for _, p := range w.inFlight {
			if p.op != nil {
				p.op.Cancel()
			}
		}
	})
	w.inFlight, w.free = nil, nil
}

// haltErr returns the error with which w was halted, or nil if it was not. If ctx is done, haltErr
// first halts w.
func (w *window) haltErr() error {
	if w.ctx.Err() != nil {
		w.halt(hg.ErrCanceled)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.err
}

// close halts w with hg.ErrClosed.
func (w *window) close() {
	w.detach()
	w.halt(hg.ErrClosed)
}
