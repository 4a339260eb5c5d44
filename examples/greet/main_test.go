package main

import (
	"context"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/internal/leak"
)

func TestMain(m *testing.M) { leak.Main(m) }

// Server and client find each other, and the server ends when it is told to.
func TestGreet(t *testing.T) {
	ctx, stop := context.WithTimeout(context.Background(), time.Minute)
	defer stop()
	const at = "tcp://127.0.0.1:7118"
	serving, end := context.WithCancel(ctx)
	ended := make(chan error, 1)
	go func() { ended <- serve(serving, at) }()
	var answer string
	var err error
	for answer, err = greet(ctx, at, "Ada"); err != nil && ctx.Err() == nil; {
		answer, err = greet(ctx, at, "Ada") // the server is not there yet
	}
	require.NoError(t, err)
	require.Equal(t, "hello, Ada", answer)
	end()
	require.NoError(t, <-ended)
}

// TestShown: the README shows the server and the client of this program, in at most 25 lines.
func TestShown(t *testing.T) {
	program, err := os.ReadFile("main.go")
	require.NoError(t, err)
	_, rest, ok := strings.Cut(string(program), "\nvar Greet")
	require.True(t, ok)
	block, _, ok := strings.Cut("var Greet"+rest, "\nconst addr")
	require.True(t, ok)
	require.LessOrEqual(t, len(strings.Split(strings.TrimSpace(block), "\n")), 25)
	readme, err := os.ReadFile("../../README.md")
	require.NoError(t, err)
	require.Contains(t, string(readme), "```go\n"+block+"```\n")
}
