//go:build unix

package qs_test

import (
	"context"
	"fmt"
	"net"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/plugins/tcp"
	"github.com/quicksilver-rpc/quicksilver/qs"
)

// TestDrainLeavesSharedSocket checks two servers with one listening socket, as two generations of a
// service have. While the old one drains, with a call that takes long, every client that connects
// reaches the new one, without Retry. The contexts of a server share the socket.
func TestDrainLeavesSharedSocket(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		portable bool
		contexts int
	}{{false, 1}, {true, 1}, {false, 3}} {
		t.Run(fmt.Sprintf("portable %v, contexts %d", c.portable, c.contexts), func(t *testing.T) {
			t.Parallel()
			socket, err := net.ListenTCP("tcp", &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)})
			require.NoError(t, err)
			shared, err := socket.File()
			require.NoError(t, err)
			defer shared.Close()
			again, err := net.FileListener(shared)
			require.NoError(t, err)

			name := qs.Define[bool, string]("test/name")
			began, drains, release := make(chan struct{}), make(chan struct{}), make(chan struct{})
			serve := func(called string, l net.Listener) *qs.Node {
				n := open(t, "tcp://:0", qs.Config{Contexts: c.contexts, TCP: tcp.Options{Listener: l.(*net.TCPListener), Portable: c.portable}})
				name.Handle(n, func(ctx context.Context, long bool) (string, error) {
					if long {
						close(began)
						<-qs.Draining(ctx).Done()
						close(drains)
						<-release
					}
					return called, nil
				})
				return n
			}
			old := serve("old", socket)
			ctx, stop := context.WithCancel(testContext(t))
			served := make(chan error, 1)
			go func() { served <- old.Serve(ctx) }()
			first := open(t, "tcp://", qs.Config{})
			long := name.Go(testContext(t), peer(t, first, old.Addr().String()), true)
			<-began

			next := serve("new", again)
			go func() { _ = next.Serve(testContext(t)) }()
			stop()
			<-drains
			calls := testContext(t)
			for reached := 0; reached < 16; {
				client := open(t, "tcp://", qs.Config{})
				got, err := name.Call(calls, peer(t, client, old.Addr().String()), false)
				if reached == 0 && err != nil && qs.FateOf(err) == qs.NotRun && calls.Err() == nil {
					continue // Draining is done shortly before the old node closes its socket
				}
				require.NoError(t, err)
				require.Equal(t, "new", got)
				reached++
			}
			close(release)
			got, err := long.Wait(testContext(t))
			require.NoError(t, err)
			require.Equal(t, "old", got)
			require.NoError(t, <-served)
		})
	}
}
