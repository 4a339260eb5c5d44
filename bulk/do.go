package bulk

import (
	"context"

	"github.com/quicksilver-rpc/quicksilver/hg"
	"github.com/quicksilver-rpc/quicksilver/internal/hghook"
)

// Do is Transfer that waits for the end of the transfer.
//
//   - It blocks, and drives Progress and Trigger of hctx as hg.Context.Wait does: other callbacks
//     may run in it.
//   - When it returns, the local memory is not used any more.
//   - If ctx is done first the transfer is canceled. The error then matches context.Cause(ctx),
//     and hg.ErrTimeout if the deadline has passed, else hg.ErrCanceled. Other errors are those of
//     Transfer and of a transfer that failed.
func Do(ctx context.Context, hctx *hg.Context, s Spec) error {
	var fail error
	w := hghook.NewWaiter(hctx)
	op, err := transfer(hctx, s, requestOf(ctx), func(_ *Op, err error) {
		fail = err
		w.End()
	})
	if err != nil {
		return err
	}
	w.Await(ctx, op.Cancel)
	if e, ok := fail.(*Error); ok {
		ended := *e
		ended.Err = contextError(ctx, e.Err)
		fail = &ended
	}
	return fail
}
