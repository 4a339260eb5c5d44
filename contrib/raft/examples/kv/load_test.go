package main

import (
	"context"
	"testing"
	"time"

	"github.com/hashicorp/raft"
	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/hg"
)

// TestLoad checks that the load waits for each other server once; a server calls again when its
// call has failed, and ends when the load is over.
func TestLoad(t *testing.T) {
	t.Parallel()
	node := openNode(t, "tcp://127.0.0.1:0", patience)
	served := make(chan error, 1)
	go func() { served <- node.Serve(context.Background()) }()
	l := newLoadRun(2)
	l.registerMethod(node)
	other := openNode(t, "tcp://", patience)
	d := &directory{last: map[raft.ServerID]raft.ServerAddress{loadServer: raft.ServerAddress(node.Addr().String())}}
	returned := make(chan struct{})
	go func() {
		awaitLoad(context.Background(), other, d, "kv-1")
		close(returned)
	}()
	arrived := func(n int) {
		require.Eventually(t, func() bool {
			l.mu.Lock()
			defer l.mu.Unlock()
			return len(l.arrived) == n
		}, patience, time.Millisecond)
	}
	arrived(1)
	l.mu.Lock()
	clear(l.arrived) // as if it had not called
	l.missing++
	l.mu.Unlock()
	addr, err := hg.ParseAddr(node.Addr().String())
	require.NoError(t, err)
	for _, hctx := range other.HG().Class().Contexts() {
		hctx.NA().Disconnect(addr, hg.ErrPeerLost)
	}
	arrived(1)
	l.addServer("kv-1")
	select {
	case <-l.allReady:
		t.Fatal("the load does not wait for kv-2")
	default:
	}
	l.addServer("kv-2")
	<-l.allReady
	close(l.done)
	select {
	case <-returned:
	case <-time.After(patience):
		t.Fatal("kv-1 continues")
	}
	require.NoError(t, other.Close())
	require.NoError(t, node.Close())
	<-served
}
