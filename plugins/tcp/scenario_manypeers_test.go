package tcp_test

import (
	"flag"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/internal/test/long"
	"github.com/quicksilver-rpc/quicksilver/na"
	"github.com/quicksilver-rpc/quicksilver/plugins/tcp"
)

var (
	numPeers   = flag.Int("tcp.herd", long.Or(300, 2000), "peers of TestManyPeersAtOnce")
	herdRounds = flag.Int("tcp.rounds", long.Or(1, 5), "rounds of TestManyPeersAtOnce")
	redials    = flag.Int("tcp.redials", long.Or(40, 400), "sockets of TestRedials that dial again; MaxHalfOpen is five eighths of it, the clients are a quarter")
	inTime     = flag.Duration("tcp.within", 0, "how long a call of TestRedials may take; 0: as long as ConnectTimeout lets it")
)

// serve answers every message with itself, to tag 1, until the returned function is called.
func serve(n *node) (stop func()) {
	c := n.ctx()
	over := make(chan struct{})
	var one sync.WaitGroup
	one.Go(func() {
		var recv *na.Op
		recv = c.NewOp(func(_ *na.Op, r na.Result) {
			if r.Err != nil {
				return
			}
			_ = c.SendExpected(c.NewOp(func(*na.Op, na.Result) {}), r.Addr, 1, r.Envelope.Data)
			r.Envelope.Free()
			_ = c.RecvUnexpected(recv)
		})
		_ = c.RecvUnexpected(recv)
		for {
			select {
			case <-over:
				return
			default:
			}
			_ = c.Progress(10 * time.Millisecond)
			c.Trigger(0)
		}
	})
	return func() {
		close(over)
		c.Wake()
		one.Wait()
	}
}

// startCall begins a call of a node that serve drives, and returns the outcomes of the answer and of the
// message.
func startCall(t testing.TB, c *na.Context, to na.Addr) (answer, sent *outcome) {
	recv, answer := newOp(c)
	require.NoError(t, c.RecvExpected(recv, to, 1, make([]byte, 8)))
	send, sent := newOp(c)
	require.NoError(t, c.SendUnexpected(send, to, 1, []byte("anybody?")))
	return answer, sent
}

// TestManyPeersAtOnce checks that many peers may connect and call at once, as when a parallel job starts, or a
// server has restarted. None is refused.
func TestManyPeersAtOnce(t *testing.T) {
	eachCarrier(t, func(t *testing.T, opts tcp.Options) {
		server := open(t, "tcp://127.0.0.1:0", opts, na.Config{Budget: 4 << 30}, 1)
		defer serve(server)()
		for range *herdRounds {
			peers := make([]*node, *numPeers)
			answers, sent := make([]*outcome, len(peers)), make([]*outcome, len(peers))
			for i := range peers {
				peers[i] = open(t, "tcp://", opts, na.Config{}, 1)
			}
			begun := time.Now()
			for i, p := range peers {
				answers[i], sent[i] = startCall(t, p.ctx(), server.cls.Addr())
			}
			failed := 0
			for i, p := range peers {
				driveUntil(t, "answer", func() bool { return answers[i].done() && sent[i].done() }, p)
				if answers[i].Err != nil {
					t.Log(answers[i].Err)
					failed++
				}
			}
			t.Logf("%d calls, %d failed, %v", len(peers), failed, time.Since(begun))
			require.Zero(t, failed)
			for _, p := range peers {
				p.close()
			}
		}
	})
}

// TestRedials checks that peers that send nothing, and dial again whenever they are closed, do not
// keep other peers out.
func TestRedials(t *testing.T) {
	t.Parallel()
	eachCarrier(t, func(t *testing.T, opts tcp.Options) {
		clients := *redials / 4
		opts.MaxHalfOpen = *redials * 5 / 8
		server := open(t, "tcp://127.0.0.1:0", opts, na.Config{}, 1)
		defer serve(server)()
		var all sync.WaitGroup
		var over atomic.Bool
		var dials atomic.Int64
		for range *redials {
			all.Go(func() {
				for !over.Load() {
					nc, err := net.Dial("tcp", hostPort(server))
					if err != nil {
						continue
					}
					dials.Add(1)
					_, _ = io.Copy(io.Discard, nc)
					_ = nc.Close()
				}
			})
		}
		driveUntil(t, "the flood", func() bool { return dials.Load() > int64(opts.MaxHalfOpen) }, server)
		late, longest := 0, time.Duration(0)
		for range clients {
			p := open(t, "tcp://", opts, na.Config{}, 1)
			begun := time.Now()
			answer, _ := startCall(t, p.ctx(), server.cls.Addr())
			driveUntil(t, "answer", answer.done, p)
			took := time.Since(begun)
			if longest = max(longest, took); answer.Err != nil || *inTime > 0 && took > *inTime {
				t.Log(took, answer.Err)
				late++
			}
			p.close()
		}
		over.Store(true)
		t.Logf("%d of %d late, %v at most; %d dials", late, clients, longest, dials.Load())
		require.LessOrEqual(t, late, clients/100)
		server.close()
		all.Wait()
	})
}
