package ledger

// What small worlds of two nodes and one RPC have in common.

import (
	"bytes"
	"errors"
	"fmt"
	"time"

	"github.com/quicksilver-rpc/quicksilver/bulk"
	"github.com/quicksilver-rpc/quicksilver/hg"
	"github.com/quicksilver-rpc/quicksilver/hg/codec"
	"github.com/quicksilver-rpc/quicksilver/na"
)

// openNode opens a node of a small world, with one RPC.
func openNode(plugin na.Plugin, name string, eager int, work hg.Handler) (*hg.Class, *hg.Context) {
	cfg := hg.Config{Codec: codec.Raw}
	cfg.NA.Plugins, cfg.NA.Eager = []na.Plugin{plugin}, eager
	cls, err := hg.Open("sim://"+name, cfg)
	if err == nil {
		_, err = cls.Register("work", work)
	}
	if err != nil {
		panic(err)
	}
	hctx, err := cls.NewContext()
	if err != nil {
		panic(err)
	}
	return cls, hctx
}

// driveUntil drives a context until done, or d has passed.
func driveUntil(hctx *hg.Context, d time.Duration, done func() bool) {
	end := hctx.Now() + d
	for turn := 0; turn < 100_000 && hctx.Now() < end && (done == nil || !done()); turn++ { // time does not advance in a closed context
		hctx.Trigger(0)
		_ = hctx.Progress(100 * time.Microsecond)
		hctx.Trigger(0)
	}
}

// isIdle reports whether nothing is in flight in a context, and nothing is reserved.
func isIdle(st *hg.Stats) bool {
	n := &st.NA
	return st.Handles == 0 && st.Lent == 0 && st.Pulled == 0 && st.Active == 0 && st.Waiting == 0 && n.Regions == 0 && n.Leases == 0 &&
		n.Outstanding == 0 && n.Queued == 0 && n.Envelopes == 0
}

// endNode checks that nothing is left, and closes.
func endNode(cls *hg.Class, hctx *hg.Context, fail func(string, ...any)) {
	clean := func() bool { st := hctx.Stats(); return isIdle(&st) && st.NA.Violations == 0 }
	if driveUntil(hctx, 10*time.Second, clean); !clean() {
		fail("something is left at %v: %+v", cls.Addr(), hctx.Stats())
	}
	_ = cls.Close()
	if driveUntil(hctx, time.Second, cls.NA().Closed); !cls.NA().Closed() {
		fail("Close has not completed: %+v", hctx.Stats())
	}
}

// A targetProgram is the program of a target: it moves memory, and then answers. Everything ends once.
type targetProgram struct {
	answers, answered int   // responses that were accepted, and their callbacks
	answerErr         error // of the last, refused or not
	moves, moved      int   // transfers begun, and ended
	moveErr           error
	locals            [][]byte // poisoned when their transfers ended
	failed            error
}

func (w *targetProgram) fail(format string, args ...any) {
	if w.failed == nil {
		w.failed = fmt.Errorf(format, args...)
	}
}

// answer gives a response.
func (w *targetProgram) answer(give func(cb hg.RespondFunc) error) error {
	err := give(func(_ hg.Request, err error) { w.answered, w.answerErr = w.answered+1, err })
	if err == nil {
		w.answers++
	} else {
		w.answerErr = err
	}
	return err
}

// moveAndAnswer pulls ones from the origin's memory, or pushes twos to it, and answers with out
// when that has ended.
func (w *targetProgram) moveAndAnswer(h hg.Request, remote *bulk.Handle, out []byte) error {
	dir, size := bulk.Pull, int(remote.Len())
	if remote.Access() == bulk.WriteOnly {
		dir = bulk.Push
	}
	local := bytes.Repeat([]byte{2}, size)
	lh, err := bulk.Create(h.HG(), bulk.Options{Access: bulk.LocalOnly}, local)
	if err != nil {
		return err
	}
	_ = h.Detach()
	_, err = bulk.Transfer(h.HG(), bulk.Spec{Dir: dir, Peer: h.Peer(), Remote: remote, Local: lh, Size: int64(size), Chunk: 4096, Window: 2},
		func(_ *bulk.Op, err error) {
			w.moved, w.moveErr = w.moved+1, err
			whole := size
			if e, ok := errors.AsType[*bulk.Error](err); ok {
				whole = int(e.Moved)
			}
			if ones := bytes.Count(local, []byte{1}); dir == bulk.Pull && ones < whole || whole > size {
				w.fail("%d bytes were pulled, %d are reported", ones, whole)
			}
			copy(local, poisoned)
			w.locals = append(w.locals, local)
			if err != nil {
				_ = w.answer(func(cb hg.RespondFunc) error { return h.RespondError(err, cb) })
				return
			}
			_ = w.answer(func(cb hg.RespondFunc) error { return h.RespondRaw(out, cb) })
		})
	if err != nil {
		return err
	}
	w.moves++
	return nil
}

// audit checks the actions of the target after its class was closed.
func (w *targetProgram) audit() {
	if w.answered != w.answers || w.moved != w.moves {
		w.fail("%d responses had %d callbacks, %d transfers had %d", w.answers, w.answered, w.moves, w.moved)
	}
	for _, b := range w.locals {
		if !bytes.Equal(b, poisoned[:len(b)]) {
			w.fail("memory was written after its transfer had ended")
		}
	}
}
