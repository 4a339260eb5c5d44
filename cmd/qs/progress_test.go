package main

import (
	"os"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// TestPlainProgress checks that without a terminal there is a line every second at most.
func TestPlainProgress(t *testing.T) {
	out, err := os.Create(t.TempDir() + "/out")
	require.NoError(t, err)
	defer out.Close()
	lines := func() []string {
		b, err := os.ReadFile(out.Name())
		require.NoError(t, err)
		require.NoError(t, out.Truncate(0))
		_, err = out.Seek(0, 0)
		require.NoError(t, err)
		return strings.Split(strings.TrimSuffix(string(b), "\n"), "\n")
	}
	synctest.Test(t, func(t *testing.T) {
		p := newProgress(out, 100<<20, false)
		p.File("a")
		p.Skip(50 << 20) // bytes that were present already do not count for the rate
		for range 8 {
			pause(300 * time.Millisecond)
			p.Add(3 << 20)
		}
		p.File("b")
		pause(3 * time.Minute)
		p.Add(1 << 20)
		p.Note("something")
		p.close()
	})
	require.Equal(t, []string{
		" 62 %  62.0 MiB of 100 MiB, 10.0 MiB/s, 4s left  a",
		" 74 %  74.0 MiB of 100 MiB, 10.0 MiB/s, 3s left  a",
		" 75 %  75.0 MiB of 100 MiB, 140 KiB/s, 3m3s left  b",
		"something",
	}, lines())

	p := newProgress(out, 100, true)
	p.lastShown = p.lastShown.Add(-time.Hour)
	p.Add(50)
	p.Note("something")
	p.close()
	require.Equal(t, []string{"something"}, lines(), "a quiet one prints what matters")
}

// pause advances the time of the bubble.
func pause(d time.Duration) { <-time.NewTimer(d).C }
