package callback_test

import (
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/internal/callback"
	"github.com/quicksilver-rpc/quicksilver/internal/test/leak"
)

func TestMain(m *testing.M) { leak.Main(m) }

// take makes n marks, and gives them back when the test ends.
func take(t *testing.T, n int) []*callback.Mark {
	marks := make([]*callback.Mark, n)
	for i := range marks {
		marks[i] = callback.New()
	}
	t.Cleanup(func() {
		for _, m := range marks {
			m.Free()
		}
	})
	return marks
}

func TestEveryMarkIsItself(t *testing.T) {
	marks := take(t, 4095)
	for i, m := range marks {
		require.False(t, m.Inside())
		require.Equal(t, 17, m.Run(func(n int) int {
			for _, apart := range []int{0, 1, 15, 16, 17, 255, 256, 257, 4094} { // one digit differs, or several
				j := (i + apart) % len(marks)
				if marks[j].Inside() != (i == j) {
					t.Fatalf("mark %d inside mark %d: %v", j, i, i != j)
				}
			}
			return n + 1
		}, 16))
		require.False(t, m.Inside())
	}
}

// Marks are found below one another and below a stack that is deep; another goroutine is inside none of them.
func TestInsideEachOther(t *testing.T) {
	marks := take(t, 40)
	absent := take(t, 1)[0]
	var enter func(depth int) int
	enter = func(depth int) int {
		if depth > 0 && depth%3 == 0 { // frames of others
			return enter(depth-1) + 1
		}
		if depth >= 0 {
			return marks[depth%len(marks)].Run(func(int) int { return enter(depth-1) + 1 }, 0)
		}
		inside := 0
		for i, m := range marks {
			require.Equal(t, i%3 != 0 || i == 0, m.Inside(), "mark %d", i)
			inside++
		}
		require.False(t, absent.Inside())
		var wg sync.WaitGroup
		wg.Go(func() {
			for _, m := range marks {
				if m.Inside() {
					t.Error("inside a callback of another goroutine")
				}
			}
		})
		wg.Wait()
		return inside
	}
	require.Equal(t, 80, enter(39))
}

// When there are too many the others stay exact, and those beyond are taken for one another: they err to the safe side.
func TestMoreMarksThanNumbers(t *testing.T) {
	marks := take(t, 4095)
	beyond := take(t, 2)
	beyond[0].Run(func(int) int {
		require.True(t, beyond[0].Inside())
		require.True(t, beyond[1].Inside())
		require.False(t, marks[0].Inside())
		require.False(t, marks[4094].Inside())
		return 0
	}, 0)
	marks[100].Free()
	marks[100] = callback.New()
	marks[100].Run(func(int) int {
		require.True(t, marks[100].Inside())
		require.False(t, beyond[0].Inside(), "it has the number that was given back")
		return 0
	}, 0)
}

func TestRunAllocatesNothing(t *testing.T) {
	m := take(t, 1)[0]
	fn := func(n int) int { return n }
	require.Zero(t, testing.AllocsPerRun(100, func() { m.Run(fn, 1) }))
}

func BenchmarkRun(b *testing.B) {
	m := callback.New()
	defer m.Free()
	fn := func(n int) int { return n }
	for b.Loop() {
		m.Run(fn, 1)
	}
}

func BenchmarkInside(b *testing.B) {
	m := callback.New()
	defer m.Free()
	for b.Loop() {
		m.Inside()
	}
}
