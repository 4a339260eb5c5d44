package udp_test

import (
	"bufio"
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/na"
	"github.com/quicksilver-rpc/quicksilver/plugins/udp"
)

// drops is how many datagrams the system has thrown away that came to a port.
func drops(t *testing.T, name string) (n int) {
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

// TestIncast: 32 peers send 64 KiB each to one at once, ten times, with TLS: everything arrives, and the system drops nothing.
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
		await(t, "puts", func() bool { return left == 0 }, nodes...)
		for i := range senders {
			require.Equal(t, src, dst[i*size:(i+1)*size])
		}
	}
	require.Zero(t, drops(t, b.cls.Addr().Name()))
}
