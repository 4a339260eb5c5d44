package udp_test

import (
	"bufio"
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/na"
	"github.com/quicksilver-rpc/quicksilver/plugins/udp"
)

// droppedDatagrams returns the number of datagrams to a port that the system has dropped.
func droppedDatagrams(t *testing.T, name string) (n int) {
	t.Helper()
	_, port, _ := strings.Cut(strings.TrimPrefix(name, "udp://"), ":")
	p, err := strconv.Atoi(port)
	require.NoError(t, err)
	f, err := os.Open("/proc/net/udp")
	require.NoError(t, err)
	defer func() { _ = f.Close() }()
	found := false
	for s := bufio.NewScanner(f); s.Scan(); {
		if line := strings.Fields(s.Text()); len(line) > 12 && strings.HasSuffix(line[1], fmt.Sprintf(":%04X", p)) {
			n, err = strconv.Atoi(line[12])
			require.NoError(t, err)
			found = true
		}
	}
	require.True(t, found, "no socket has the port")
	return n
}

// TestIncast has 32 peers send 64 KiB each to one at once, ten times, with TLS: everything arrives,
// and the system drops nothing.
func TestIncast(t *testing.T) {
	const senders, rounds, size = 32, 10, 64 << 10
	opts := udp.Options{TLS: mutualTLS()}
	b := open(t, "udp://127.0.0.1:0", opts, 1)
	nodes := []*node{b}
	dst := make([]byte, senders*size)
	there, err := b.cls.Register(na.WriteOnly, dst)
	require.NoError(t, err)
	for range senders {
		nodes = append(nodes, open(t, "udp://", opts, 1))
	}
	src := make([]byte, size)
	for round := range rounds {
		for i := range src {
			src[i] = byte(i^i>>8) + byte(round)
		}
		left := senders
		for i, a := range nodes[1:] {
			here, err := a.cls.NewMem(src)
			require.NoError(t, err)
			c := a.ctxs[0]
			require.NoError(t, c.Put(c.NewOp(func(_ *na.Op, r na.Result) {
				require.NoError(t, r.Err)
				left--
			}), here, 0, b.cls.Addr(), there.Key(), int64(i*size), size))
		}
		driveUntil(t, "puts", func() bool { return left == 0 }, nodes...)
		for i := range senders {
			require.Equal(t, src, dst[i*size:(i+1)*size])
		}
	}
	require.Zero(t, droppedDatagrams(t, b.cls.Addr().Name()))
}

// TestStoppedReceiver has many peers send bursts of messages to a process that is stopped for a
// moment, each up to its limit: the system drops nothing, and everything arrives.
func TestStoppedReceiver(t *testing.T) {
	for _, c := range []struct{ peers, count int }{{32, 256}, {128, 32}} {
		t.Run(fmt.Sprintf("%dx%d", c.peers, c.count), func(t *testing.T) {
			cls, err := na.Open("udp://127.0.0.1:0", na.Config{Envelopes: c.count, Plugins: []na.Plugin{udp.New(udp.Options{Unassisted: true, Profile: "modern"})}})
			require.NoError(t, err)
			b := openContexts(t, cls, 1)
			at := b.ctxs[0]
			senders, err := na.Open("udp://", na.Config{Contexts: c.peers, Plugins: []na.Plugin{udp.New(udp.Options{Profile: "modern"})}})
			require.NoError(t, err)
			a := openContexts(t, senders, c.peers)
			for _, from := range a.ctxs {
				sendMessage(t, from, cls.Addr(), at, "hello", &node{ctxs: []*na.Context{from}}, b)
			}
			for range 3 {
				sent, got, n := 0, 0, c.peers*c.count
				for range n {
					require.NoError(t, at.RecvUnexpected(at.NewOp(func(_ *na.Op, r na.Result) {
						require.NoError(t, r.Err)
						got++
						r.Envelope.Free()
					})))
				}
				for range c.count {
					for _, from := range a.ctxs {
						require.NoError(t, from.SendUnexpected(from.NewOp(func(_ *na.Op, r na.Result) {
							require.NoError(t, r.Err)
							sent++
						}), cls.Addr(), 1, make([]byte, 1000)))
					}
				}
				drive := func(all ...*na.Context) {
					for _, c := range all {
						_ = c.Progress(0)
						c.Trigger(0)
					}
				}
				for range 20 { // the target is stopped
					drive(a.ctxs...)
				}
				for end := time.Now().Add(patience); sent < n || got < n; drive(append(a.ctxs, at)...) {
					require.Less(t, time.Now(), end, "%d of %d messages have arrived", got, n)
				}
			}
			require.Zero(t, droppedDatagrams(t, cls.Addr().Name()), "datagrams that the system has dropped")
		})
	}
}
