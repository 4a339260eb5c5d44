package tcp_test

import (
	"bytes"
	"log/slog"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/na"
	"github.com/quicksilver-rpc/quicksilver/plugins/tcp"
)

// A logBuffer holds the output of a logger, and a channel that has an element for each line.
type logBuffer struct {
	mu    sync.Mutex
	b     bytes.Buffer
	lines chan struct{}
}

func (l *logBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.lines <- struct{}{}
	return l.b.Write(p)
}

func (l *logBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// TestListenerClosedByProgram checks that a listening socket that the program closes while the
// class is open is logged; one that ends with the class is not.
func TestListenerClosedByProgram(t *testing.T) {
	t.Parallel()
	for _, beneath := range []bool{true, false} {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		require.NoError(t, err)
		logged := &logBuffer{lines: make(chan struct{}, 10)}
		c, err := na.Open("tcp://"+l.Addr().String(), na.Config{
			Plugins: []na.Plugin{tcp.New(tcp.Options{Listener: l.(*net.TCPListener)})},
			Logger:  slog.New(slog.NewTextHandler(logged, nil)),
		})
		require.NoError(t, err)
		_, err = c.NewContext()
		require.NoError(t, err)
		if beneath {
			require.NoError(t, l.Close())
			select {
			case <-logged.lines:
			case <-time.NewTimer(time.Minute).C:
				require.Fail(t, "nothing is logged")
			}
			require.Contains(t, logged.String(), "addr="+l.Addr().String())
			require.Equal(t, 1, strings.Count(logged.String(), "closed by the program"))
		}
		require.NoError(t, c.Close())
		if !beneath {
			require.Empty(t, logged.String())
		}
	}
}
