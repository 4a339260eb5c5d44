package bulk

import (
	"context"

	"github.com/quicksilver-rpc/quicksilver/hg"
	"github.com/quicksilver-rpc/quicksilver/internal/hghook"
)

// Do performs a transfer like Transfer, but waits for it to complete.
//
//   - Do blocks and drives Progress and Trigger of hctx, as hg.Context.Wait does. Other callbacks may
//     run in it.
//   - After Do returns, the transfer no longer uses the local memory.
//   - If ctx is done first, Do cancels the transfer. The error then matches context.Cause(ctx), and
//     either hg.ErrTimeout if the deadline has passed or hg.ErrCanceled. Otherwise Do returns the
//     error of Transfer or of the failed transfer.
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
