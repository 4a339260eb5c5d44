package tcp_test

import (
	"fmt"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/internal/frame"
	"github.com/quicksilver-rpc/quicksilver/na"
	"github.com/quicksilver-rpc/quicksilver/plugins/tcp"
)

// TestSimultaneousDial has two processes dial each other at the same instant, many times. One session is left, and
// every message that was queued before it was up arrives once and in order.
func TestSimultaneousDial(t *testing.T) {
	const rounds, messages = 200, 20
	eachCarrier(t, func(t *testing.T, opts tcp.Options) {
		slow := 0 // rounds in which both had to dial again
		for round := range rounds {
			a := open(t, "tcp://127.0.0.1:0", opts, na.Config{}, 1)
			b := open(t, "tcp://127.0.0.1:0", opts, na.Config{}, 1)
			var ready, both sync.WaitGroup
			ready.Add(2)
			for _, pair := range [][2]*node{{a, b}, {b, a}} {
				both.Go(func() {
					me, to := pair[0].ctx(), pair[1].cls.Addr()
					sent, got := 0, []na.Tag{}
					var recv *na.Op
					recv = me.NewOp(func(_ *na.Op, r na.Result) {
						if r.Err == nil {
							r.Envelope.Free()
							if got = append(got, r.Tag); len(got) < messages {
								_ = me.RecvUnexpected(recv)
							}
						}
					})
					if err := me.RecvUnexpected(recv); err != nil {
						t.Errorf("round %d: receive: %v", round, err)
					}
					ready.Done()
					ready.Wait()
					for i := range messages {
						o := me.NewOp(func(_ *na.Op, r na.Result) {
							if sent++; r.Err != nil {
								t.Errorf("round %d: send %d: %v", round, i, r.Err)
							}
						})
						if err := me.SendUnexpected(o, to, na.Tag(i), []byte("x")); err != nil {
							t.Errorf("round %d: send %d: %v", round, i, err)
						}
					}
					for end := time.Now().Add(patience); sent < messages || len(got) < messages; {
						if time.Now().After(end) {
							t.Errorf("round %d: sent %d and got %d of %d messages", round, sent, len(got), messages)
							return
						}
						_ = me.Progress(10 * time.Millisecond)
						me.Trigger(0)
					}
					for i, tag := range got {
						if tag != na.Tag(i) {
							t.Errorf("round %d: messages arrived as %v", round, got)
							break
						}
					}
				})
			}
			begin := time.Now()
			both.Wait()
			if time.Since(begin) >= 50*time.Millisecond {
				slow++
			}
			for _, n := range []*node{a, b} {
				s := n.ctx().Stats()
				require.Equal(t, 1, s.Peers, "round %d: sessions", round)
				require.Zero(t, s.PeersLost, "round %d: sessions lost", round)
			}
			a.close()
			b.close()
			require.False(t, t.Failed())
		}
		require.Less(t, slow, rounds/10, "rounds in which neither connection stayed at first")
	})
}

// TestRestart has the peer close and another instance take its address. Operations of the old
// session fail, new ones reach the new instance, an address that is bound to the old session does
// not.
func TestRestart(t *testing.T) {
	eachCarrier(t, func(t *testing.T, opts tcp.Options) {
		a := open(t, "tcp://127.0.0.1:0", opts, na.Config{}, 1)
		b := open(t, "tcp://127.0.0.1:0", opts, na.Config{}, 1)
		to := b.cls.Addr()
		for i := range 5 {
			sendUnexpected(t, a.ctx(), to, 1, "to the first", a, b)
			_, _, _ = recvUnexpected(t, b.ctx(), a, b)
			sendUnexpected(t, b.ctx(), a.cls.Addr(), 1, "back", a, b)
			_, bound, _ := recvUnexpected(t, a.ctx(), a, b)
			recv, end := newOp(a.ctx())
			require.NoError(t, a.ctx().RecvExpected(recv, to, 1, make([]byte, 8)))

			b.close()
			b = open(t, to.String(), opts, na.Config{}, 1)
			require.Equal(t, to, b.cls.Addr())
			if i%2 == 0 { // the new instance connects first
				sendUnexpected(t, b.ctx(), a.cls.Addr(), 2, "I am new", a, b)
				text, _, _ := recvUnexpected(t, a.ctx(), a, b)
				require.Equal(t, "I am new", text)
			}
			driveUntil(t, "end of the receive", end.done, a, b)
			requireCode(t, na.ErrPeerLost, end.Err)
			require.Equal(t, na.MaybeRan, end.Fate)

			sendUnexpected(t, a.ctx(), to, 3, "to the second", a, b)
			text, _, tag := recvUnexpected(t, b.ctx(), a, b)
			require.Equal(t, "to the second", text)
			require.Equal(t, na.Tag(3), tag)

			o, gone := newOp(a.ctx())
			require.NoError(t, a.ctx().SendUnexpected(o, bound, 4, []byte("to the first")))
			driveUntil(t, "refusal", gone.done, a, b)
			requireCode(t, na.ErrPeerLost, gone.Err)
			require.Equal(t, na.NotRun, gone.Fate)
		}
	})
}

// TestRestartUnnoticed checks a peer that has disappeared without a Goaway, where another instance
// of the same name connects. The existing session is probed before it makes room.
func TestRestartUnnoticed(t *testing.T) {
	t.Parallel()
	eachCarrier(t, func(t *testing.T, opts tcp.Options) {
		t.Parallel()
		n := open(t, "tcp://127.0.0.1:0", opts, na.Config{PeerTimeout: 500 * time.Millisecond}, 1)
		g := greeting()
		g.Listen = "tcp://127.0.0.1:9"
		first := rawJoin(t, n, g)
		recv, end := newOp(n.ctx())
		require.NoError(t, n.ctx().RecvExpected(recv, na.MakeAddr(g.Listen, 0), 1, make([]byte, 8)))

		g.Incarnation = greeting().Incarnation
		early := rawDial(t, n)
		early.hello(g)
		first.readKind(frame.Ping)
		got, _ := early.readEnd()
		require.Equal(t, na.ErrDuplicate, got)
		driveUntil(t, "end of the old session", end.done, n)
		requireCode(t, na.ErrPeerLost, end.Err)
		require.ErrorContains(t, end.Err, "has reconnected")
		got, _ = first.readEnd()
		require.Equal(t, na.ErrPeerLost, got)
		second := rawJoin(t, n, g)
		requireExchange(t, n, second, na.MakeAddr(g.Listen, 0), "new")
	})
}

// TestForgedHelloKeepsSession checks that a peer that is alive keeps its session, whichever peer sends a HELLO with
// its address, and with its incarnation, which is public.
func TestForgedHelloKeepsSession(t *testing.T) {
	t.Parallel()
	eachCarrier(t, func(t *testing.T, opts tcp.Options) {
		t.Parallel()
		const timeout = 500 * time.Millisecond
		n := open(t, "tcp://127.0.0.1:0", opts, na.Config{PeerTimeout: timeout}, 1)
		g := greeting()
		g.Listen = "tcp://127.0.0.1:9"
		peer := rawJoin(t, n, g)
		unknown := rawJoin(t, n, greeting())
		begun := time.Now()
		for asked := 0; asked < 5 || time.Since(begun) < timeout; pause(timeout / 50) {
			g.Incarnation = peer.mine.Incarnation
			switch asked % 3 {
			case 1:
				g.Incarnation = greeting().Incarnation
			case 2:
				g.Proof = unknown.peer.Secret // of another session
			}
			other := rawDial(t, n)
			other.hello(g)
			got, _ := other.readEnd()
			require.Equal(t, na.ErrDuplicate, got)
			h, _ := peer.readKind(frame.Ping)
			peer.send(frame.Header{Kind: frame.Pong, Tag: h.Tag}, nil)
			asked++
		}
		requireExchange(t, n, peer, na.MakeAddr(g.Listen, 0), "the old one")
		require.Zero(t, n.ctx().Stats().PeersLost)
		require.Equal(t, 2, n.ctx().Stats().Peers)
	})
}

// TestRedial checks that a peer that has lost its session without a Goaway is accepted at once: it
// shows the secret of that session.
func TestRedial(t *testing.T) {
	eachCarrier(t, func(t *testing.T, opts tcp.Options) {
		n := open(t, "tcp://127.0.0.1:0", opts, na.Config{PeerTimeout: time.Hour}, 1)
		g := greeting()
		g.Listen = "tcp://127.0.0.1:9"
		first := rawJoin(t, n, g)
		recv, end := newOp(n.ctx())
		require.NoError(t, n.ctx().RecvExpected(recv, na.MakeAddr(g.Listen, 0), 1, make([]byte, 8)))
		g.Proof = first.peer.Secret
		second := rawJoin(t, n, g)
		driveUntil(t, "end of the old session", end.done, n)
		requireCode(t, na.ErrPeerLost, end.Err)
		require.ErrorContains(t, end.Err, "superseded by a new connection")
		require.NotEqual(t, first.peer.Secret, second.peer.Secret)
		requireExchange(t, n, second, na.MakeAddr(g.Listen, 0), "new")

		l := rawListen(t) // and so do we
		for i := range byte(3) {
			o, end := newOp(n.ctx())
			require.NoError(t, n.ctx().SendUnexpected(o, l.addr(), 1, []byte("hello")))
			_ = n.ctx().Progress(0)
			mine := greeting()
			mine.Secret = frame.Secret{i + 1}
			r := l.greet(mine)
			requireSuccess(t, "hello", end, n)
			var shown frame.Secret
			if i > 0 {
				shown = frame.Secret{i}
			}
			require.Equal(t, shown, r.peer.Proof)
			lost := n.ctx().Stats().PeersLost
			require.NoError(t, r.nc.Close())
			driveUntil(t, "end of the session", func() bool { return n.ctx().Stats().PeersLost > lost }, n)
		}
	})
}

// TestReconnect checks that a connection that breaks is made anew by the next operation.
func TestReconnect(t *testing.T) {
	eachCarrier(t, func(t *testing.T, opts tcp.Options) {
		l := rawListen(t)
		n := open(t, "tcp://", opts, na.Config{}, 1)
		var faults []error
		n.ctx().OnFault(func(peer na.Addr, err error) {
			require.Equal(t, l.addr(), peer.Named())
			faults = append(faults, err)
		})
		for i, how := range []string{"closed", "reset", "closed", "reset"} {
			o, end := newOp(n.ctx())
			require.NoError(t, n.ctx().SendUnexpected(o, l.addr(), 1, []byte("hello")))
			_ = n.ctx().Progress(0)
			r := l.join()
			requireSuccess(t, "hello", end, n)
			r.readKind(frame.Unexpected)
			if how == "reset" {
				require.NoError(t, r.tcp.SetLinger(0))
			}
			require.NoError(t, r.nc.Close())
			driveUntil(t, "fault", func() bool { return len(faults) == i+1 }, n)
			requireCode(t, na.ErrPeerLost, faults[i])
			require.ErrorContains(t, faults[i], how)
		}
	})
}

// closedPort returns an address on which no process listens during the test: a connection is bound to it.
func closedPort(t testing.TB) string {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer func() { _ = l.Close() }()
	from := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)}}
	nc, err := from.Dial("tcp", l.Addr().String())
	require.NoError(t, err)
	t.Cleanup(func() { _ = nc.Close() })
	return nc.LocalAddr().String()
}

func TestDialRefused(t *testing.T) {
	eachCarrier(t, func(t *testing.T, opts tcp.Options) {
		n := open(t, "tcp://", opts, na.Config{}, 1)
		to := na.MakeAddr("tcp://"+closedPort(t), 0)
		for range 3 {
			var ends []*outcome
			for i := range 10 {
				o, end := newOp(n.ctx())
				if i%2 == 0 {
					require.NoError(t, n.ctx().SendUnexpected(o, to, 1, []byte("x")))
				} else {
					require.NoError(t, n.ctx().RecvExpected(o, to, na.Tag(i), make([]byte, 1)))
				}
				ends = append(ends, end)
			}
			for _, end := range ends {
				driveUntil(t, "refusal", end.done, n)
				requireCode(t, na.ErrUnreachable, end.Err)
				require.ErrorContains(t, end.Err, "refused")
				require.Equal(t, na.NotRun, end.Fate)
			}
		}
		require.Zero(t, n.ctx().Stats().Peers)
		require.Zero(t, n.ctx().Stats().PeersLost)
	})
}

// TestConnectTimeout dials a listener that accepts and sends nothing.
func TestConnectTimeout(t *testing.T) {
	t.Parallel()
	eachCarrier(t, func(t *testing.T, opts tcp.Options) {
		t.Parallel()
		l := rawListen(t)
		n := open(t, "tcp://", opts, na.Config{ConnectTimeout: 100 * time.Millisecond}, 1)
		begin := time.Now()
		o, end := newOp(n.ctx())
		require.NoError(t, n.ctx().SendUnexpected(o, l.addr(), 1, []byte("x")))
		driveUntil(t, "timeout", end.done, n)
		requireCode(t, na.ErrUnreachable, end.Err)
		require.ErrorContains(t, end.Err, "100ms")
		require.Equal(t, na.NotRun, end.Fate)
		took := time.Since(begin)
		require.GreaterOrEqual(t, took, 100*time.Millisecond)
		require.Less(t, took, 10*time.Second)
	})
}

// TestConnectTimeoutAfterRefusal checks that the first operation after the pause that a refusal
// causes has the whole ConnectTimeout.
func TestConnectTimeoutAfterRefusal(t *testing.T) {
	t.Parallel()
	eachCarrier(t, func(t *testing.T, opts tcp.Options) {
		t.Parallel()
		n := open(t, "tcp://", opts, na.Config{ConnectTimeout: 500 * time.Millisecond}, 1)
		l, err := net.Listen("tcp", "127.0.0.1:0")
		require.NoError(t, err)
		at := l.Addr().String()
		require.NoError(t, l.Close())
		send := func() error {
			o, end := newOp(n.ctx())
			require.NoError(t, n.ctx().SendUnexpected(o, na.MakeAddr("tcp://"+at, 0), 1, nil))
			driveUntil(t, "end", end.done, n)
			return end.Err
		}
		require.ErrorContains(t, send(), "refused")
		l, err = net.Listen("tcp", at) // and sends nothing
		require.NoError(t, err)
		defer func() { _ = l.Close() }()
		begin, err := time.Now(), error(nil)
		for err = send(); strings.Contains(err.Error(), "next dial in"); err = send() {
			require.Less(t, time.Since(begin), 10*time.Second)
		}
		require.ErrorContains(t, err, "500ms")
		require.Less(t, time.Since(begin), 10*time.Second)
	})
}

// TestCancelWhileDialing cancels the last operation of a session that is being made; later ones
// work.
func TestCancelWhileDialing(t *testing.T) {
	eachCarrier(t, func(t *testing.T, opts tcp.Options) {
		l := rawListen(t)
		n := open(t, "tcp://", opts, na.Config{}, 1)
		o, end := newOp(n.ctx())
		require.NoError(t, n.ctx().SendUnexpected(o, l.addr(), 1, []byte("never")))
		cancelNow(t, n.ctx(), o, end)
		require.Equal(t, na.NotRun, end.Fate)
		o, end = newOp(n.ctx())
		require.NoError(t, n.ctx().SendUnexpected(o, l.addr(), 1, []byte("hello")))
		_ = n.ctx().Progress(0)
		r := l.join()
		requireSuccess(t, "hello", end, n)
		_, payload := r.readKind(frame.Unexpected)
		require.Equal(t, "hello", string(payload))
	})
}

// TestManyPeers has one class talk to many at once.
func TestManyPeers(t *testing.T) {
	eachCarrier(t, func(t *testing.T, opts tcp.Options) {
		const peers = 40
		hub := open(t, "tcp://127.0.0.1:0", opts, na.Config{}, 2)
		all := []*node{hub}
		var sends []*outcome
		for i := range peers {
			p := open(t, "tcp://", opts, na.Config{}, 1)
			all = append(all, p)
			o, end := newOp(p.ctx())
			require.NoError(t, p.ctx().SendUnexpected(o, hub.cls.Addr().WithTarget(i%2), na.Tag(i), []byte(fmt.Sprint(i))))
			sends = append(sends, end)
		}
		for i, end := range sends {
			requireSuccess(t, fmt.Sprintf("send %d", i), end, all...)
		}
		seen := map[na.Tag]bool{}
		for i := range peers {
			text, _, tag := recvUnexpected(t, hub.ctxs[i%2], all...)
			require.Equal(t, fmt.Sprint(tag), text)
			seen[tag] = true
		}
		require.Len(t, seen, peers)
	})
}

// TestDialZone checks that the zone of an address, which is the name of an interface, is looked up
// while nothing waits for that.
func TestDialZone(t *testing.T) {
	if l, err := net.Listen("tcp6", "[::1]:0"); err != nil {
		t.Skip("no IPv6 here: ", err)
	} else {
		require.NoError(t, l.Close())
	}
	eachCarrier(t, func(t *testing.T, opts tcp.Options) {
		server := open(t, "tcp://[::1]:0", opts, na.Config{}, 1)
		client := open(t, "tcp://", opts, na.Config{}, 1)
		to := na.MakeAddr(strings.Replace(server.cls.Addr().Name(), "::1", "::1%lo", 1), 0)
		sendUnexpected(t, client.ctx(), to, 1, "hello", server, client)
		text, _, _ := recvUnexpected(t, server.ctx(), server, client)
		require.Equal(t, "hello", text)
	})
}
