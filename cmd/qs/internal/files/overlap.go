package files

import (
	"context"
	"errors"
	"io"
	"sync"
)

// overlap calls first repeatedly on the calling goroutine. On another goroutine it calls second with each value
// returned by first, in the same order, so that, for example, one reads while the other sends. At most depth values are
// queued between the two. To finish, first returns io.EOF.
//
// If first or second fails, overlap cancels the contexts of both and returns the error. Even then, it calls second with
// every value that first has returned, so that no operation is left in progress.
func overlap[T any](ctx context.Context, depth int, first func(context.Context) (T, error), second func(context.Context, T) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	things := make(chan T, depth)
	var behind sync.WaitGroup
	behind.Go(func() {
		for v := range things {
			if err := second(ctx, v); err != nil {
				cancel(err)
			}
		}
	})
	for ctx.Err() == nil {
		v, err := first(ctx)
		if err != nil {
			if !errors.Is(err, io.EOF) {
				cancel(err)
			}
			break
		}
		things <- v
	}
	close(things)
	behind.Wait()
	return context.Cause(ctx)
}
