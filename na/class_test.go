package na

import (
	"bytes"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestClosedWaitsForNetwork checks that a class is not closed before its plugin has given the
// address back, whether its last context ends it, or Close of a class without contexts.
func TestClosedWaitsForNetwork(t *testing.T) {
	t.Parallel()
	for _, contexts := range []int{0, 1, 2} {
		closing, goOn := make(chan struct{}), make(chan struct{})
		p := &fakePlugin{onClose: func() error { close(closing); <-goOn; return nil }}
		cls, err := Open("fake://here", Config{Plugins: []Plugin{p}})
		require.NoError(t, err)
		for range contexts {
			_, err := cls.NewContext()
			require.NoError(t, err)
		}
		ended := make(chan error, 1)
		go func() { ended <- cls.Close() }()
		receiveWithin(t, closing, "the network is being closed")
		require.False(t, cls.Closed(), "closed while the plugin still has the address, %d contexts", contexts)
		require.NoError(t, cls.Close(), "a second Close does not wait")
		require.False(t, cls.Closed(), "after the second Close, %d contexts", contexts)
		close(goOn)
		require.NoError(t, receiveWithin(t, ended, "Close returns"))
		require.True(t, cls.Closed())
		require.EqualValues(t, 1, p.closed.Load(), "the network is closed once")
	}
}

// TestNetworkCloseError checks that the error of a plugin that cannot give its network back is
// logged, or returned by Close where that closes it.
func TestNetworkCloseError(t *testing.T) {
	t.Parallel()
	stuck := errors.New("the name is stuck")
	var log lockedBuffer
	cfg := Config{
		Logger:  slog.New(slog.NewTextHandler(&log, nil)),
		Plugins: []Plugin{&fakePlugin{onClose: func() error { return stuck }}},
	}
	cls, err := Open("fake://here", cfg)
	require.NoError(t, err)
	require.ErrorIs(t, cls.Close(), stuck, "Close of a class without contexts")
	require.Empty(t, log.String())

	cls, err = Open("fake://here", cfg)
	require.NoError(t, err)
	_, err = cls.NewContext()
	require.NoError(t, err)
	require.NoError(t, cls.Close())
	require.True(t, cls.Closed())
	require.Eventually(t, func() bool { return strings.Contains(log.String(), stuck.Error()) }, patience, time.Millisecond)
	require.Contains(t, log.String(), "fake://here")
}

// A lockedBuffer is a buffer that a logger writes to from other goroutines.
type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(b)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}
