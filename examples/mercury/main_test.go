package main

import (
	"bufio"
	"context"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/internal/test/leak"
)

func TestMain(m *testing.M) { leak.Main(m) }

// TestMercury checks that the service answers the two clients, and ends on its signal.
func TestMercury(t *testing.T) {
	t.Chdir(t.TempDir())
	ctx, stop := context.WithTimeout(t.Context(), time.Minute)
	defer stop()
	serving, end := context.WithCancel(ctx)
	r, w := io.Pipe()
	ended := make(chan error, 1)
	go func() { ended <- serve(serving, w) }()
	addr, err := bufio.NewReader(r).ReadString('\n')
	require.NoError(t, err)
	addr = strings.TrimSpace(addr)
	answer, err := call(ctx, addr, "Ada")
	require.NoError(t, err)
	require.Equal(t, "hello, Ada", answer)
	end()
	require.NoError(t, <-ended)
}
