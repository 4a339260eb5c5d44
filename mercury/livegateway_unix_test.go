//go:build unix

package mercury_test

import (
	"context"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/hg"
	"github.com/quicksilver-rpc/quicksilver/mercury"
	"github.com/quicksilver-rpc/quicksilver/mercury/gateway"
	"github.com/quicksilver-rpc/quicksilver/mercury/proc"
	"github.com/quicksilver-rpc/quicksilver/qs"
)

// serveNode opens a node of ours that serves until the test ends.
func serveNode(t *testing.T) *qs.Node {
	n, err := qs.Open("tcp://127.0.0.1:0", qs.Config{})
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- n.Serve(ctx) }()
	t.Cleanup(func() {
		cancel()
		_ = n.Close()
		<-ended
	})
	return n
}

func peerOf(t *testing.T, from, to *qs.Node) qs.Peer {
	p, err := from.Peer(testContext(t), to.Addr().String())
	require.NoError(t, err)
	return p
}

// TestLiveGatewayToC has a program on hg call C's server through a gateway, which reads the memory
// that the program lends.
func TestLiveGatewayToC(t *testing.T) {
	requirePrograms(t, "hg_test_server", "hg_first")
	addr, _ := cServer(t, "hg_test_server")
	middle, origin := serveNode(t), serveNode(t)
	gateway.New(middle, open(t, mercury.Config{}), gateway.Config{Targets: []string{addr}})
	gw := peerOf(t, origin, middle)
	b, err := gateway.Call(testContext(t), gw, addr, unitOpen.ID(), openIn{"./test.txt", 12345})
	require.NoError(t, err)
	var out openOut
	require.NoError(t, proc.Unmarshal(b, &out))
	require.Equal(t, openOut{0, 12345}, out)
	b, err = gateway.Call(testContext(t), gw, addr, unitOverflow.ID())
	require.NoError(t, err)
	require.Greater(t, len(b), 8000)
	mem := make([]byte, 1<<20)
	for i := range mem {
		mem[i] = byte(i)
	}
	b, err = gateway.Call(testContext(t), gw, addr, unitBulk[0].ID(), int32(0), uint64(len(mem)), uint64(0), uint64(0), gateway.Lent{Buf: mem, Access: mercury.Read})
	require.NoError(t, err)
	var wrote uint64
	require.NoError(t, proc.Unmarshal(b, &wrote))
	require.EqualValues(t, len(mem), wrote)
	_, err = gateway.Call(testContext(t), gw, addr, unitKilled.ID())
	remote, ok := hg.RemoteOf(err)
	require.True(t, ok, "%v", err)
	require.Equal(t, qs.ErrAborted, remote.Code, "it may have run")
}

// TestLiveGatewayFromC checks that C's own tests of transfers pass with a service on hg behind a
// gateway.
func TestLiveGatewayFromC(t *testing.T) {
	requirePrograms(t, "hg_test_bulk", "hg_test_server")
	service, middle := serveNode(t), serveNode(t)
	proc := qs.WithCodec(gateway.Proc)
	n := open(t, mercury.Config{})
	g := gateway.New(middle, n, gateway.Config{})
	to := peerOf(t, middle, service)
	for _, m := range unitBulk {
		qs.Define[bulkIn, uint64](m.Name(), proc).Handle(service, func(ctx context.Context, in bulkIn) (uint64, error) {
			buf := make([]byte, in.Size)
			if in.Size > 0 {
				if err := gateway.Get(ctx, in.Mem, buf, int64(in.Origin)); err != nil {
					return 0, err
				}
			}
			for i, b := range buf {
				if b != byte(uint64(i)+in.Origin) {
					return 0, nil
				}
			}
			return in.Size, nil
		})
		g.Forward(m.Name(), m.ID(), to)
	}
	qs.Define[struct{}, struct{}](unitFinalize.Name(), proc).Handle(service, func(context.Context, struct{}) (out struct{}, err error) { return })
	g.Forward(unitFinalize.Name(), unitFinalize.ID(), to)
	out := runC(t, n.Addr(), "hg_test_bulk")
	require.NotContains(t, strings.ToUpper(out), "FAILED")
	t.Log(strings.Count(out, "PASSED"), "passed")
	require.Contains(t, out, "PASSED")
}
