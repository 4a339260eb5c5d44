package soak

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/cmd/qs/internal/self"
	"github.com/quicksilver-rpc/quicksilver/hg"
	"github.com/quicksilver-rpc/quicksilver/internal/test/leak"
	"github.com/quicksilver-rpc/quicksilver/na"
)

const peerTimeout = 500 * time.Millisecond

var testHG = hg.Config{NA: na.Config{PeerTimeout: peerTimeout}}

// TestMain is also the target: Config.StartTarget starts this program again.
func TestMain(m *testing.M) {
	if os.Getenv(self.Env) == "" {
		leak.Main(m)
		return
	}
	if err := Target(os.Args[1], os.Args[2], testHG, func(addr string) { fmt.Println(self.Ready + addr) }); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// newConfig returns one of a soak over tcp that kills targets until the test ends it.
func newConfig() Config {
	return Config{
		Transport: "tcp", To: "tcp://", Listen: "tcp://127.0.0.1:0", Targets: 2, Time: time.Hour, Every: 20 * time.Millisecond, Callers: 1, MaxBulk: 2,
		Faults: []string{"kill"}, PeerTimeout: peerTimeout, HG: testHG, Log: io.Discard,
		StartTarget: func(book, addr string) (*self.Child, error) { return self.Start(self.Ready, addr, book) },
	}
}

// TestRunPortTaken checks that when a target is killed another process may take its port before it
// starts again.
func TestRunPortTaken(t *testing.T) {
	t.Parallel()
	cfg := newConfig()
	ctx, end := context.WithCancel(t.Context())
	defer end()
	start := cfg.StartTarget
	var mu sync.Mutex
	last := map[string]string{}
	var taken []net.Listener
	cfg.StartTarget = func(book, addr string) (*self.Child, error) {
		mu.Lock()
		defer mu.Unlock()
		if before := last[book]; before != "" {
			lis, err := net.Listen("tcp", strings.TrimPrefix(before, "tcp://"))
			if err != nil {
				return nil, err
			}
			if taken = append(taken, lis); len(taken) == 2 {
				end()
			}
		}
		c, err := start(book, addr)
		if err == nil {
			last[book] = c.Addr
		}
		return c, err
	}
	r, err := Run(ctx, cfg)
	for _, lis := range taken {
		require.NoError(t, lis.Close())
	}
	require.NoError(t, err)
	require.NoError(t, r.Err())
	require.Positive(t, r.Faults["kill"])
}

// TestRunFails checks that a soak with a target that does not start again ends, and reports that.
func TestRunFails(t *testing.T) {
	t.Parallel()
	cfg := newConfig()
	start, starts := cfg.StartTarget, 0
	cfg.StartTarget = func(book, addr string) (*self.Child, error) {
		if starts++; starts > cfg.Targets {
			return nil, errors.New("no target today")
		}
		return start(book, addr)
	}
	_, err := Run(t.Context(), cfg)
	require.ErrorContains(t, err, "restart target 1: no target today")
}
