package tcp_test

import (
	"fmt"
	"io"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/internal/frame"
	"github.com/quicksilver-rpc/quicksilver/na"
	"github.com/quicksilver-rpc/quicksilver/plugins/tcp"
)

// TestContexts reaches each of several contexts by its target id, from each of several contexts, whichever of them
// accepts the connection.
func TestContexts(t *testing.T) {
	eachCarrier(t, func(t *testing.T, opts tcp.Options) {
		for _, reuse := range []bool{false, true} {
			t.Run(fmt.Sprintf("ReusePort=%v", reuse), func(t *testing.T) {
				opts := opts
				opts.ReusePort = reuse
				a := open(t, "tcp://127.0.0.1:0", opts, na.Config{}, 3)
				b := open(t, "tcp://127.0.0.1:0", opts, na.Config{}, 3)
				for i, from := range a.ctxs {
					for j, at := range b.ctxs {
						text := fmt.Sprintf("from %d to %d", i, j)
						to := b.cls.Addr().WithTarget(j)
						sendUnexpected(t, from, to, na.Tag(10*i+j), text, a, b)
						got, sender, tag := recvUnexpected(t, at, a, b)
						require.Equal(t, text, got)
						require.Equal(t, na.Tag(10*i+j), tag)
						require.Equal(t, a.cls.Addr().WithTarget(i), sender.Named())
						// The answer is sent over the same session.
						sendUnexpected(t, at, sender, 1, "answer to "+text, a, b)
						got, _, _ = recvUnexpected(t, from, a, b)
						require.Equal(t, "answer to "+text, got)
					}
				}
				for _, c := range append(a.ctxs, b.ctxs...) {
					require.Equal(t, 3, c.Stats().Peers)
				}
			})
		}
	})
}

// TestContextsAppear has peers request contexts while they are being made: each is served or
// refused.
func TestContextsAppear(t *testing.T) {
	eachCarrier(t, func(t *testing.T, opts tcp.Options) {
		for range 10 {
			n := open(t, "tcp://127.0.0.1:0", opts, na.Config{}, 1)
			stop := startDriver(n)
			var peers sync.WaitGroup
			for w := range 4 {
				peers.Go(func() {
					for served := false; !served; {
						nc, err := net.Dial("tcp", hostPort(n))
						if err != nil {
							t.Error(err)
							return
						}
						_ = nc.SetDeadline(time.Now().Add(patience))
						_, _ = nc.Write(helloFrame(func(g *frame.Greeting) { g.Target = uint16(w) }))
						b := make([]byte, frame.HeaderSize)
						if _, err := io.ReadFull(nc, b); err != nil {
							t.Error(err)
							served = true
						}
						served = served || frame.Kind(b[4]) == frame.Hello
						_ = nc.Close()
					}
				})
			}
			for range 3 {
				c, err := n.cls.NewContext()
				require.NoError(t, err)
				n.ctxs = append(n.ctxs, c)
			}
			peers.Wait()
			stop()
			n.close()
		}
	})
}

// TestNoContexts checks that a class that never had a context gives its address back.
func TestNoContexts(t *testing.T) {
	eachCarrier(t, func(t *testing.T, opts tcp.Options) {
		for range 2 {
			n := open(t, "tcp://127.0.0.1:0", opts, na.Config{}, 0)
			at := n.cls.Addr().String()
			n.close()
			open(t, at, opts, na.Config{}, 0).close()
		}
	})
}

// TestNoSuchContext checks that the peer gets an error for a context that does not exist.
func TestNoSuchContext(t *testing.T) {
	eachCarrier(t, func(t *testing.T, opts tcp.Options) {
		a := open(t, "tcp://", opts, na.Config{}, 1)
		b := open(t, "tcp://127.0.0.1:0", opts, na.Config{}, 2)
		o, end := newOp(a.ctx())
		require.NoError(t, a.ctx().SendUnexpected(o, b.cls.Addr().WithTarget(7), 1, []byte("x")))
		driveUntil(t, "refusal", end.done, a, b)
		requireCode(t, na.ErrUnreachable, end.Err)
		require.ErrorContains(t, end.Err, "no such context: 7")
		require.Equal(t, na.NotRun, end.Fate)
	})
}

// TestAcceptorCloses checks that when the context that accepts is closed another one accepts.
func TestAcceptorCloses(t *testing.T) {
	eachCarrier(t, func(t *testing.T, opts tcp.Options) {
		for _, reuse := range []bool{false, true} {
			t.Run(fmt.Sprintf("ReusePort=%v", reuse), func(t *testing.T) {
				opts := opts
				opts.ReusePort = reuse
				b := open(t, "tcp://127.0.0.1:0", opts, na.Config{}, 3)
				for i := range 3 {
					a := open(t, "tcp://", opts, na.Config{}, 1)
					for j := i; j < 3; j++ {
						to := b.cls.Addr().WithTarget(j)
						sendUnexpected(t, a.ctx(), to, 1, "hi", a, b)
						got, _, _ := recvUnexpected(t, b.ctxs[j], a, b)
						require.Equal(t, "hi", got)
					}
					b.ctxs[i].Close()
				}
				// No context accepts now: a peer that connects is refused at once.
				a := open(t, "tcp://", opts, na.Config{}, 1)
				o, end := newOp(a.ctx())
				require.NoError(t, a.ctx().SendUnexpected(o, b.cls.Addr(), 1, []byte("x")))
				driveUntil(t, "refusal", end.done, a, b)
				requireCode(t, na.ErrUnreachable, end.Err)
			})
		}
	})
}

// TestReusePortIsExclusive checks that a server that is started by mistake is refused although
// contexts share the port.
func TestReusePortIsExclusive(t *testing.T) {
	eachCarrier(t, func(t *testing.T, opts tcp.Options) {
		opts.ReusePort = true
		b := open(t, "tcp://127.0.0.1:0", opts, na.Config{}, 3)
		for _, reuse := range []bool{false, true} {
			other := opts
			other.ReusePort = reuse
			_, err := na.Open("tcp://"+hostPort(b), na.Config{Plugins: []na.Plugin{tcp.New(other)}})
			requireCode(t, na.ErrAddrInUse, err)
		}
		l, err := net.Listen("tcp", hostPort(b))
		require.Error(t, err)
		require.Nil(t, l)
	})
}

// TestSelf checks that a class reaches its own contexts, by its name and by every other name of its
// address.
func TestSelf(t *testing.T) {
	eachCarrier(t, func(t *testing.T, opts tcp.Options) {
		for _, addr := range []string{"tcp://", "tcp://127.0.0.1:0", "tcp://:0"} {
			t.Run(addr, func(t *testing.T) {
				n := open(t, addr, opts, na.Config{}, 2)
				names := []string{n.cls.Addr().String()}
				if addr == "tcp://:0" {
					_, port, err := net.SplitHostPort(hostPort(n))
					require.NoError(t, err)
					names = append(names, "tcp://127.0.0.1:"+port, "tcp://localhost:"+port)
				}
				for _, name := range names {
					to := lookup(t, n, name)
					require.Equal(t, n.cls.Addr(), to)
					for j, c := range n.ctxs {
						sendUnexpected(t, n.ctx(), to.WithTarget(j), 3, "to myself", n)
						got, from, _ := recvUnexpected(t, c, n)
						require.Equal(t, "to myself", got)
						require.Equal(t, n.cls.Addr(), from.Named())
					}
				}
			})
		}
	})
}
