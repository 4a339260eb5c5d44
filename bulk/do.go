package bulk

import (
	"context"

	"github.com/quicksilver-rpc/quicksilver/hg"
	"github.com/quicksilver-rpc/quicksilver/internal/hghook"
)

// Do is Transfer that waits, as hg.Context.Wait does. When ctx ends first the transfer is canceled: the error then matches the
// cause of ctx, and hg.ErrTimeout if its deadline has passed, else hg.ErrCanceled. When Do returns, nobody touches the local
// memory for it any more.
func Do(ctx context.Context, hctx *hg.Context, s Spec) error {
	var fail error
	w := hghook.NewWaiter(hctx)
	op, err := transfer(hctx, s, ownerOf(ctx), func(_ *Op, err error) {
		fail = err
		w.End()
	})
	if err != nil {
		return err
	}
	w.Await(ctx, op.Cancel)
	if e, ok := fail.(*Error); ok {
		ended := *e
		ended.Err = endedBy(ctx, e.Err)
		fail = &ended
	}
	return fail
}
