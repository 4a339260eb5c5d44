package raftqs

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hashicorp/raft"
	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/internal/test/leak"
	_ "github.com/quicksilver-rpc/quicksilver/plugins/all"
	"github.com/quicksilver-rpc/quicksilver/qs"
)

func TestMain(m *testing.M) {
	if os.Getenv(serverEnv) != "" {
		runServer()
	}
	leak.Main(m)
}

// patience bounds short waits, on a busy machine.
const patience = time.Minute

// schemes are the transports that tests run over.
var schemes = []string{"tcp", "sm", "udp"}

var names atomic.Int64

// listenAddr returns one to listen at.
func listenAddr(scheme string) string {
	if scheme == "sm" {
		return fmt.Sprintf("sm://raftqs-%d-%d", os.Getpid(), names.Add(1))
	}
	return scheme + "://127.0.0.1:0"
}

// openNode returns a node that serves until the test ends.
func openNode(t testing.TB, addr string, cfg qs.Config, register func(*qs.Node)) *qs.Node {
	if cfg.PeerTimeout == 0 {
		cfg.PeerTimeout = 2 * time.Second
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	cfg.ShutdownTimeout = -1
	node, err := qs.Open(addr, cfg)
	require.NoError(t, err)
	register(node)
	served := make(chan error, 1)
	go func() { served <- node.Serve(context.Background()) }()
	t.Cleanup(func() {
		require.NoError(t, node.Close())
		<-served
	})
	return node
}

// openPair returns the Transports of two nodes.
func openPair(t testing.TB, scheme string, o Options) (from, to *Transport) {
	for _, p := range []**Transport{&from, &to} {
		openNode(t, listenAddr(scheme), qs.Config{}, func(n *qs.Node) { *p = NewTransport(n, o) })
		t.Cleanup(func() { require.NoError(t, (*p).Close()) })
	}
	return from, to
}

// answerRequests answers the requests to a Transport with f, until the test ends.
func answerRequests(t testing.TB, to *Transport, f func(raft.RPC) (any, error)) {
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		for {
			select {
			case rpc := <-to.Consumer():
				rpc.Respond(f(rpc))
			case <-stop:
				return
			}
		}
	}()
	t.Cleanup(func() {
		close(stop)
		<-stopped
	})
}

// receive returns the next value, which must arrive soon.
func receive[T any](t testing.TB, ch <-chan T) (v T) {
	t.Helper()
	select {
	case v = <-ch:
	case <-time.After(patience):
		require.FailNow(t, "nothing was received")
	}
	return v
}
