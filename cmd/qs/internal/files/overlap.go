package files

import (
	"context"
	"errors"
	"io"
	"sync"
)

// overlap calls first repeatedly, and calls second with each value that first returned, in the same order but on
// another goroutine. For example, one reads while the other sends. At most depth values are queued between them. To
// finish, first returns io.EOF.
//
// If either fails, the contexts of both are canceled with its error, which overlap returns. Even then, second receives
// every value that first has returned, so that nothing is left in progress.
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
