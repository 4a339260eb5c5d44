package na

import (
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/internal/loop"
)

// callUnder calls run below the frame of c, as code of the program.
func callUnder(c *Context, run func()) {
	c.frame(loop.UserCode{Run: func(loop.UserCode) int { run(); return 0 }})
}

// TestInside checks that a frame is found on the stack of the goroutine that runs below it, and on
// no other; not that of another context.
func TestInside(t *testing.T) {
	c, _ := newFake(t, Config{})
	other, _ := newFake(t, Config{})
	require.False(t, c.Upper().Inside())
	callUnder(c, func() {
		require.True(t, c.Upper().Inside())
		require.False(t, other.Upper().Inside())
		callUnder(other, func() {
			require.True(t, c.Upper().Inside())
			require.True(t, other.Upper().Inside())
		})
		var wg sync.WaitGroup
		wg.Go(func() {
			if c.Upper().Inside() {
				t.Error("inside the code of another goroutine")
			}
		})
		wg.Wait()
		var deep func(n int)
		deep = func(n int) {
			if n > 0 {
				deep(n - 1)
				return
			}
			require.True(t, c.Upper().Inside(), "below a stack that is deep")
		}
		deep(500)
	})
	require.False(t, c.Upper().Inside())
	ran := 0
	require.Equal(t, 7, c.Upper().UserFrame()(loop.UserCode{N: 7, Run: func(k loop.UserCode) int {
		require.True(t, c.Upper().Inside())
		ran++
		return k.N
	}}))
	op := c.NewOp(func(*Op, Result) {
		require.True(t, c.Upper().Inside())
		ran++
	})
	require.NoError(t, c.RecvUnexpected(op))
	op.Cancel()
	c.Trigger(0)
	require.Equal(t, 2, ran)
}

// TestFrames checks that each frame is found as itself. Contexts for which there is none are taken
// for one another, and for none that has one of its own.
func TestFrames(t *testing.T) {
	var frames [sharedFrame + 2]userFrame
	var numbers [len(frames)]int
	n := 0
	for i := range frames {
		if frames[i], numbers[i] = takeFrame(); numbers[i] < sharedFrame {
			n++
		}
	}
	defer func() {
		for _, i := range numbers {
			returnFrame(i)
		}
	}()
	require.GreaterOrEqual(t, n, 32, "frames of their own, beside those of other tests")
	contexts := make([]*Context, len(frames))
	for i, f := range frames {
		contexts[i] = &Context{frame: f, frameNumber: numbers[i]}
	}
	for i := range frames {
		callUnder(contexts[i], func() {
			for j, c := range contexts {
				require.Equal(t, numbers[i] == numbers[j], c.Upper().Inside(), "frame %d below frame %d", numbers[j], numbers[i])
			}
		})
	}
	returnFrame(numbers[10])
	_, number := takeFrame()
	require.Equal(t, numbers[10], number)
}
