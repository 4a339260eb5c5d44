package qstest

import (
	"context"
	"testing"
	"time"

	"github.com/quicksilver-rpc/quicksilver/qs"
)

// connectTimeout bounds the connect over loopback. It takes a millisecond, but the machine may be busy.
const connectTimeout = time.Minute

// Serve opens a server, calls register to add its handlers, opens a client and returns the server as a peer of the client, for any number of
// calls from any goroutine. The two nodes are in this process and are connected by tcp over 127.0.0.1, at a free port.
//
// At the end of the test, after the cleanups that were registered later, the client is closed and the server shut down: calls in flight end,
// and Serve waits for the handlers for up to the server's Config.ShutdownTimeout. An error of that fails the test. Serve ends the test when a
// node cannot be opened, so call it from the test's own goroutine.
func Serve(t testing.TB, register func(node *qs.Node)) qs.Peer {
	t.Helper()
	return ServeWith(t, qs.Config{}, qs.Config{}, register)
}

// ServeWith is Serve with configurations for the two nodes: interceptors, TLS, limits.
func ServeWith(t testing.TB, server, client qs.Config, register func(node *qs.Node)) qs.Peer {
	t.Helper()
	serverNode, err := qs.Open("tcp://127.0.0.1:0", server)
	if err != nil {
		t.Fatalf("qstest: open the server: %v", err)
	}
	serving, stop := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	serves := false
	t.Cleanup(func() { // set before register, which may fail the test
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
	t.Cleanup(func() { // runs before the server's
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

// pollInterval is the virtual time between two polls of a channel in the simulator.
const pollInterval = time.Millisecond

// Wait receives a value from ch, or the zero value once ch is closed. It blocks until then, or until ctx ends: then the error is the cause of
// ctx. Any number of goroutines may call it, for one node or one channel.
//
// In the simulator a coroutine that blocks on a channel stops its world. There Wait lets the virtual time of node's world pass instead, and
// polls the channel every millisecond of it. The sender must not block either: give ch a buffer, or close it. A ctx with a deadline comes
// from sim.World.WithTimeout, or node.HG().NA().WithTimeout, there.
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
