package files

import (
	"context"
	"errors"
	"io"
	"sync"
)

// overlap runs first again and again, and second for each thing that first returned, in the same order but on another
// goroutine: one reads while the other sends. At most depth things wait between them. first ends it with io.EOF.
//
// When one fails, ctx of both ends with its error, which overlap returns. second still gets everything that first has
// returned, so that nothing is left under way.
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
