package channel_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/impi"
	"github.com/quicksilver-rpc/quicksilver/impi/channel"
	"github.com/quicksilver-rpc/quicksilver/internal/test/leak"
)

var (
	alice = impi.Proc{Host: [16]byte{15: 1}, PID: 101}
	bob   = impi.Proc{Host: [16]byte{15: 2}, PID: 201}
)

// message makes a send from alice to bob. The request number is its tag.
func message(request uint64, text string) *impi.Send {
	return &impi.Send{From: alice, To: bob, Request: request, Tag: int32(request), Context: 7, Data: []byte(text)}
}

func syncMessage(request uint64, text string) *impi.Send {
	s := message(request, text)
	s.Sync = true
	return s
}

// byTag makes a receive by bob for what message sends.
func byTag(tag int32) *impi.Receive {
	return &impi.Receive{
		Match: impi.Match{To: bob, Context: 7, Rank: impi.AnyRank, Tag: tag}, Buf: make([]byte, 64),
	}
}

// testContext bounds a test that would otherwise wait for ever.
func testContext(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	t.Cleanup(cancel)
	return ctx
}

// oneByteConn writes one byte at a time.
type oneByteConn struct{ net.Conn }

func (d oneByteConn) Write(b []byte) (int, error) {
	for i := range b {
		if _, err := d.Conn.Write(b[i : i+1]); err != nil {
			return i, err
		}
	}
	return len(b), nil
}

func tcpPair(t *testing.T) (net.Conn, net.Conn) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer l.Close()
	a, err := net.Dial("tcp", l.Addr().String())
	require.NoError(t, err)
	b, err := l.Accept()
	require.NoError(t, err)
	return a, b
}

// eachStream runs f over a pipe, over tcp, and over a pipe that moves one byte at a time.
func eachStream(t *testing.T, f func(t *testing.T, a, b net.Conn)) {
	for name, connect := range map[string]func(*testing.T) (net.Conn, net.Conn){
		"tcp":  tcpPair,
		"pipe": func(*testing.T) (net.Conn, net.Conn) { return net.Pipe() },
		"one byte per write": func(*testing.T) (net.Conn, net.Conn) {
			a, b := net.Pipe()
			return oneByteConn{a}, oneByteConn{b}
		},
	} {
		t.Run(name, func(t *testing.T) {
			leak.Check(t)
			a, b := connect(t)
			f(t, a, b)
		})
	}
}

func newChannels(t *testing.T, connA, connB net.Conn, c impi.AgentConfig) (a, b *channel.Channel) {
	t.Helper()
	c.Local, c.Remote = []impi.Proc{alice}, []impi.Proc{bob}
	a, err := channel.Open(connA, c)
	require.NoError(t, err)
	t.Cleanup(func() { a.Close() })
	c.Local, c.Remote = c.Remote, c.Local
	b, err = channel.Open(connB, c)
	require.NoError(t, err)
	t.Cleanup(func() { b.Close() })
	return a, b
}

func startRequest(t *testing.T) func(*channel.Request, error) *channel.Request {
	return func(r *channel.Request, err error) *channel.Request {
		t.Helper()
		require.NoError(t, err)
		return r
	}
}

// waitForMessages waits until b holds n messages.
func waitForMessages(t *testing.T, b *channel.Channel, n int) {
	t.Helper()
	require.Eventually(t, func() bool { return b.Stats().Held == n }, 30*time.Second, time.Millisecond)
}

func TestChannel(t *testing.T) {
	eachStream(t, func(t *testing.T, connA, connB net.Conn) {
		ctx := testContext(t)
		a, b := newChannels(t, connA, connB, impi.AgentConfig{MaxPacket: 16, Hiwater: 4, Ackmark: 2})

		short := startRequest(t)(a.Send(message(1, "short")))
		long := startRequest(t)(a.Send(message(2, "a message of more than one packet")))
		doomed := startRequest(t)(a.Send(syncMessage(3, "destroyed")))
		rl, rs := byTag(2), byTag(1)
		require.NoError(t, startRequest(t)(b.Receive(rl)).Wait(ctx))
		require.NoError(t, startRequest(t)(b.Receive(rs)).Wait(ctx))
		require.Equal(t, "a message of more than one packet", string(rl.Buf[:rl.N]))
		require.Equal(t, "short", string(rs.Buf[:rs.N]))
		require.NoError(t, short.Wait(ctx))
		require.NoError(t, long.Wait(ctx))

		waitForMessages(t, b, 1)
		_, ok := b.Probe(byTag(3).Match)
		require.True(t, ok)
		answer, err := doomed.Cancel(ctx)
		require.NoError(t, err)
		require.Equal(t, impi.Canceled, answer)
		require.ErrorIs(t, doomed.Wait(ctx), impi.ErrCanceled)
		waitForMessages(t, b, 0)

		answer, err = long.Cancel(ctx)
		require.NoError(t, err)
		require.Equal(t, impi.TooLate, answer)

		posted := startRequest(t)(b.Receive(byTag(9)))
		answer, err = posted.Cancel(ctx)
		require.NoError(t, err)
		require.Equal(t, impi.Canceled, answer)
		require.ErrorIs(t, posted.Wait(ctx), impi.ErrCanceled)

		done := make(chan error)
		go func() { done <- b.Finish(ctx) }()
		require.NoError(t, a.Finish(ctx))
		require.NoError(t, <-done)
		require.ErrorIs(t, second(a.Send(message(1, ""))), io.EOF)
	})
}

func second[A, B any](_ A, b B) B { return b }

// TestConcurrentCancels (C-T6) checks that any number of goroutines may cancel. One request is
// sent, and all get its answer, also late callers.
func TestConcurrentCancels(t *testing.T) {
	leak.Check(t)
	ctx := testContext(t)
	connA, connB := net.Pipe()
	a, b := newChannels(t, connA, connB, impi.AgentConfig{})
	for _, want := range []impi.Answer{impi.Canceled, impi.TooLate} {
		r := startRequest(t)(a.Send(syncMessage(1, "")))
		waitForMessages(t, b, 1)
		if want == impi.TooLate {
			startRequest(t)(b.Receive(byTag(1)))
			require.NoError(t, r.Wait(ctx))
		}
		answers := make(chan impi.Answer, 100)
		var all sync.WaitGroup
		for range cap(answers) {
			all.Go(func() {
				answer, err := r.Cancel(ctx)
				if err != nil {
					t.Error(err)
				}
				answers <- answer
			})
		}
		all.Wait()
		for range cap(answers) {
			require.Equal(t, want, <-answers)
		}
		waitForMessages(t, b, 0)
	}
}

// TestReceiveRacesCancelOverChannel (C12, C-T11) checks that receives race cancels. Each message
// goes one way, and both ends agree which.
func TestReceiveRacesCancelOverChannel(t *testing.T) {
	leak.Check(t)
	ctx := testContext(t)
	connA, connB := tcpPair(t)
	a, b := newChannels(t, connA, connB, impi.AgentConfig{Hiwater: 8, Ackmark: 3})
	const many = 2000
	canceled, received := 0, 0
	for i := range many {
		s := startRequest(t)(a.Send(syncMessage(1, fmt.Sprint(i))))
		r := byTag(1)
		var rx *channel.Request
		var both sync.WaitGroup
		both.Go(func() {
			for range i % 40 { // to begin at another time in each round
				b.Stats()
			}
			rx = startRequest(t)(b.Receive(r))
		})
		answer, err := s.Cancel(ctx)
		require.NoError(t, err)
		both.Wait()
		if answer == impi.Canceled {
			canceled++
			require.ErrorIs(t, s.Wait(ctx), impi.ErrCanceled)
			got, err := rx.Cancel(ctx)
			require.NoError(t, err)
			require.Equal(t, impi.Canceled, got, "it was destroyed, so that nothing can have been received")
		} else {
			received++
			require.Equal(t, impi.TooLate, answer)
			require.NoError(t, s.Wait(ctx))
			require.NoError(t, rx.Wait(ctx))
			require.Equal(t, fmt.Sprint(i), string(r.Buf[:r.N]))
		}
	}
	t.Logf("%d canceled, %d received", canceled, received)
	require.Zero(t, b.Stats().Held)
	require.Zero(t, a.Stats().Operations+b.Stats().Operations)
}

// TestChannelPeerLost (C19, C-T17) checks a peer that has exited: every pending operation ends, and
// a cancel without an answer reports an unknown outcome.
func TestChannelPeerLost(t *testing.T) {
	eachStream(t, func(t *testing.T, connA, connB net.Conn) {
		ctx := testContext(t)
		config := impi.AgentConfig{Local: []impi.Proc{alice}, Remote: []impi.Proc{bob}, Hiwater: 2}
		a, err := channel.Open(connA, config)
		require.NoError(t, err)
		defer a.Close()
		exposed, asked := startRequest(t)(a.Send(syncMessage(1, ""))), startRequest(t)(a.Send(syncMessage(2, "")))
		queued := startRequest(t)(a.Send(message(3, "")))
		posted := startRequest(t)(a.Receive(&impi.Receive{Match: impi.Match{To: alice}}))
		_, err = io.ReadFull(connB, make([]byte, 2*impi.PacketSize)) // they have left
		require.NoError(t, err)

		short, cancel := context.WithCancel(ctx)
		cancel()
		answer, err := asked.Cancel(short)
		require.ErrorIs(t, err, context.Canceled)
		require.Equal(t, impi.Unknown, answer)
		_, err = io.ReadFull(connB, make([]byte, impi.PacketSize)) // the request
		require.NoError(t, err)
		require.NoError(t, connB.Close())

		answer, err = asked.Cancel(ctx) // joins
		require.NoError(t, err)
		require.Equal(t, impi.Unknown, answer)
		require.ErrorIs(t, asked.Wait(ctx), impi.ErrUnknown)
		require.ErrorIs(t, exposed.Wait(ctx), impi.ErrUnknown)
		require.ErrorIs(t, queued.Wait(ctx), impi.ErrNotSent)
		require.Error(t, posted.Wait(ctx))
		answer, err = exposed.Cancel(ctx)
		require.NoError(t, err)
		require.Equal(t, impi.Unknown, answer)
		require.Error(t, second(a.Send(message(9, ""))))
		require.Error(t, a.Finish(ctx))
	})
}

// TestChannelClose checks that Close ends all pending operations at once, though the peer does not
// read.
func TestChannelClose(t *testing.T) {
	eachStream(t, func(t *testing.T, connA, connB net.Conn) {
		ctx := testContext(t)
		defer connB.Close()
		a, err := channel.Open(connA, impi.AgentConfig{Local: []impi.Proc{alice}, Remote: []impi.Proc{bob}})
		require.NoError(t, err)
		s := startRequest(t)(a.Send(syncMessage(1, "")))
		require.NoError(t, a.Close())
		err = s.Wait(ctx)
		require.ErrorIs(t, err, net.ErrClosed)
		require.True(t, errors.Is(err, impi.ErrUnknown) || errors.Is(err, impi.ErrNotSent), "%v", err)
		require.ErrorIs(t, a.Finish(ctx), net.ErrClosed)
		require.NoError(t, a.Close())
	})
}

// TestChannelViolation checks that a peer that breaks the protocol is cut off, and all operations
// report the reason.
func TestChannelViolation(t *testing.T) {
	eachStream(t, func(t *testing.T, connA, connB net.Conn) {
		ctx := testContext(t)
		a, err := channel.Open(connA, impi.AgentConfig{Local: []impi.Proc{alice}, Remote: []impi.Proc{bob}})
		require.NoError(t, err)
		defer a.Close()
		r := startRequest(t)(a.Receive(&impi.Receive{Match: impi.Match{To: alice}}))
		bad := impi.Packet{Type: impi.PacketData, Len: 1 << 31, MsgLen: 1 << 31, Src: bob, Dest: alice}
		_, err = connB.Write(bad.Append(nil))
		require.NoError(t, err)
		require.ErrorIs(t, r.Wait(ctx), impi.ErrProtocol)
		_, err = connB.Read(make([]byte, 1))
		require.Error(t, err, "the connection is closed")
		connB.Close()
	})
}

// TestChannelFinishWaits checks that Finish waits for that of the peer, and no longer than its
// context.
func TestChannelFinishWaits(t *testing.T) {
	leak.Check(t)
	connA, connB := net.Pipe()
	a, b := newChannels(t, connA, connB, impi.AgentConfig{})
	short, cancel := context.WithCancel(context.Background())
	s := startRequest(t)(a.Send(syncMessage(1, "")))
	require.ErrorIs(t, a.Finish(short), impi.ErrActive)
	waitForMessages(t, b, 1)
	startRequest(t)(b.Receive(byTag(1)))
	require.NoError(t, s.Wait(testContext(t)))
	cancel()
	require.ErrorIs(t, a.Finish(short), context.Canceled)
	require.NoError(t, b.Finish(testContext(t)))
	require.NoError(t, a.Finish(testContext(t)))
}
