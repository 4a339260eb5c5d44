package qstest

import (
	"context"
	"testing"
	"time"

	"github.com/quicksilver-rpc/quicksilver/qs"
)

// connectTimeout is the timeout for connecting over loopback. It is much longer than the usual time
// of about a millisecond, because the machine may be busy.
const connectTimeout = time.Minute

// Serve opens a server, calls register to register its handlers, opens a client, and returns a Peer
// of the client for calls to the server. The Peer is safe for concurrent use. Both nodes run in
// this process and are connected by tcp over 127.0.0.1, using a free port.
//
// At the end of the test, after cleanup functions that were registered later, the client is closed,
// which ends calls in flight, and the server is shut down. The shutdown waits up to the server's
// Config.ShutdownTimeout for handlers to return. The test fails if closing or shutting down returns
// an error. If a node cannot be opened, Serve calls t.Fatalf, so it must be called from the
// goroutine running the test.
func Serve(t testing.TB, register func(node *qs.Node)) qs.Peer {
	t.Helper()
	return ServeWith(t, qs.Config{}, qs.Config{}, register)
}

// ServeWith is like Serve but uses the given configurations for the server and the client, for
// example to set interceptors, TLS or limits.
func ServeWith(t testing.TB, server, client qs.Config, register func(node *qs.Node)) qs.Peer {
	t.Helper()
	serverNode, err := qs.Open("tcp://127.0.0.1:0", server)
	if err != nil {
		t.Fatalf("qstest: open the server: %v", err)
	}
	serving, stop := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	serves := false
	t.Cleanup(func() { // registered before register is called, which may fail the test
		stop()
		if !serves {
			_ = serverNode.Close()
		} else if err := <-ended; err != nil {
			t.Errorf("qstest: shut down the server: %v", err)
		}
	})
	register(serverNode)
	serves = true
	go func() { ended <- serverNode.Serve(serving) }()
	clientNode, err := qs.Open("tcp://", client)
	if err != nil {
		t.Fatalf("qstest: open the client: %v", err)
	}
	t.Cleanup(func() { // runs before the server's cleanup
		if err := clientNode.Close(); err != nil {
			t.Errorf("qstest: close the client: %v", err)
		}
	})
	ctx, cancel := context.WithTimeout(context.Background(), connectTimeout)
	defer cancel()
	peer, err := clientNode.Peer(ctx, serverNode.Addr().String())
	if err != nil {
		t.Fatalf("qstest: find the server: %v", err)
	}
	return peer
}

// pollInterval is the interval, in virtual time, at which Wait polls the channel in the simulator.
const pollInterval = time.Millisecond

// Wait receives a value from ch and returns it, or the zero value if ch is closed. It blocks until
// a value is available or ctx is done. In the latter case it returns the cause of ctx. Wait may be
// called concurrently, even for the same node or channel.
//
// In the simulator, a coroutine that blocks on a channel would block the entire sim.World. Wait
// therefore polls the channel every millisecond of virtual time, while the world of node continues
// to run. The sender must not block either, so ch must be buffered or closed. For a context with a
// deadline in virtual time, use sim.World.WithTimeout or node.HG().NA().WithTimeout.
func Wait[T any](ctx context.Context, node *qs.Node, ch <-chan T) (value T, err error) {
	if !node.HG().NA().Scheduled() {
		select {
		case value = <-ch:
			return value, nil
		case <-ctx.Done():
			return value, context.Cause(ctx)
		}
	}
	for {
		select {
		case value = <-ch:
			return value, nil
		default:
		}
		if err := node.HG().Sleep(ctx, pollInterval); err != nil {
			return value, err
		}
	}
}
