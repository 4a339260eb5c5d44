package bulk

import (
	"context"
	"sync"

	"github.com/quicksilver-rpc/quicksilver/hg"
)

// A window is the pieces of a Reader or a Writer.
//
//	spare ─ take ─► (filled or emptied by the user) ─ launch ─► under way ─ oldest, when it has ended ─► the user, or spare
//	halt: an error, Close or the end of ctx: everything under way is canceled, nothing is started, nobody waits
type window struct {
	flow
	detach func() bool // from ctx

	mu     sync.Mutex // guards the fields below; not held while somebody waits
	under  []*piece   // under way or ended, oldest first
	spare  []*piece
	next   int64 // offset of the first byte that was not launched
	passed int64 // bytes that came through, in order
	err    error // why nothing is started any more
}

// init makes w ready and has the end of ctx halt it.
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

// freePiece returns a piece that is not in use, or nil when as many are under way as may be.
func (w *window) freePiece() (*piece, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.err != nil || len(w.under) >= w.Window {
		return nil, w.err
	}
	if n := len(w.spare); n > 0 {
		p := w.spare[n-1]
		w.spare = w.spare[:n-1]
		return p, nil
	}
	p, err := w.newPiece(make([]byte, min(w.Chunk, w.Size)))
	if err != nil {
		w.haltLocked(err)
		return nil, w.err
	}
	return p, nil
}

// launch starts p, unless w was halted.
func (w *window) launch(p *piece) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.err != nil {
		return
	}
	if err := w.start(p, w.next); err != nil {
		w.haltLocked(err)
		return
	}
	w.under = append(w.under, p)
	w.next += int64(p.n)
}

// unlaunched returns how many bytes were not launched.
func (w *window) unlaunched() int64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.Size - w.next
}

// oldest waits for the oldest piece and takes it out; nil when none is under way.
func (w *window) oldest() (*piece, error) {
	w.mu.Lock()
	if len(w.under) == 0 || w.err != nil {
		w.mu.Unlock()
		return nil, w.failed()
	}
	p := w.under[0]
	w.mu.Unlock()
	err := w.wait(w.ctx, p.done.Load) // which a halt makes true
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
	w.under = append(w.under[:0], w.under[1:]...)
	w.passed += int64(p.n)
	return p, nil
}

// keep has p used again.
func (w *window) keep(p *piece) {
	w.mu.Lock()
	w.spare = append(w.spare, p)
	w.mu.Unlock()
}

// halt fixes the first error, cancels what is under way and waits for nothing.
func (w *window) halt(err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.haltLocked(err)
}

func (w *window) haltLocked(err error) {
	if w.err != nil {
		return
	}
	w.err = w.error(w.passed, err)
	w.hctx.NA().Batch(func() {
		for _, p := range w.under {
			if p.op != nil {
				p.op.Cancel()
			}
		}
	})
	w.under, w.spare = nil, nil
}

// failed returns why w was halted, at once when ctx has ended.
func (w *window) failed() error {
	if w.ctx.Err() != nil {
		w.halt(hg.ErrCanceled)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.err
}

// close halts w for good.
func (w *window) close() {
	w.detach()
	w.halt(hg.ErrClosed)
}
