package tcp_test

import (
	"crypto/rand"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/internal/frame"
	"github.com/quicksilver-rpc/quicksilver/na"
)

// A rawPeer is a peer made of a socket and the frame package, which only does what a test calls. The
// other side is driven by its background poller or its goroutines meanwhile.
type rawPeer struct {
	t     testing.TB
	nc    net.Conn
	tcp   *net.TCPConn // nc, or the connection under its TLS
	mine  frame.Greeting
	peer  frame.Greeting
	limit uint32 // credit that is sent in each frame
}

// greeting is a HELLO that any context takes.
func greeting() frame.Greeting {
	g := frame.Greeting{Versions: frame.Versions(), Envelopes: 32, Eager: 4096}
	_, _ = rand.Read(g.Incarnation[:])
	return g
}

func newRaw(t testing.TB, nc net.Conn) *rawPeer {
	r := &rawPeer{t: t, nc: nc, tcp: nc.(*net.TCPConn)}
	t.Cleanup(func() { _ = nc.Close() })
	require.NoError(t, nc.SetDeadline(time.Now().Add(patience)))
	require.NoError(t, r.tcp.SetReadBuffer(64<<10)) // so that unread bytes fill the sockets soon
	return r
}

// rawDial connects to a node and sends nothing.
func rawDial(t testing.TB, n *node) *rawPeer {
	t.Helper()
	nc, err := net.Dial("tcp", hostPort(n))
	require.NoError(t, err)
	return newRaw(t, nc)
}

// rawJoin connects to a node and completes the handshake.
func rawJoin(t testing.TB, n *node, g frame.Greeting) *rawPeer {
	t.Helper()
	r := rawDial(t, n)
	r.hello(g)
	r.readHello()
	return r
}

func hostPort(n *node) string { return strings.TrimPrefix(n.cls.Addr().Name(), "tcp://") }

// A rawListener accepts a node's connections.
type rawListener struct {
	t testing.TB
	l net.Listener
}

func rawListen(t testing.TB) *rawListener {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { _ = l.Close() })
	return &rawListener{t, l}
}

func (l *rawListener) addr() na.Addr { return na.MakeAddr("tcp://"+l.l.Addr().String(), 0) }

func (l *rawListener) accept() net.Conn {
	l.t.Helper()
	require.NoError(l.t, l.l.(*net.TCPListener).SetDeadline(time.Now().Add(patience)))
	nc, err := l.l.Accept()
	require.NoError(l.t, err)
	return nc
}

// join accepts a connection and completes the handshake.
func (l *rawListener) join() *rawPeer {
	l.t.Helper()
	return l.greet(greeting())
}

func (l *rawListener) greet(g frame.Greeting) *rawPeer {
	l.t.Helper()
	r := newRaw(l.t, l.accept())
	r.readHello()
	g.Target = r.peer.Context
	g.Listen = "tcp://" + l.l.Addr().String()
	r.hello(g)
	return r
}

func (r *rawPeer) hello(g frame.Greeting) {
	r.t.Helper()
	r.mine, r.limit = g, g.Envelopes
	h := frame.Header{Kind: frame.Hello, Tag: frame.Magic}
	r.write(h.Append(nil, g.Append(nil)))
}

func (r *rawPeer) readHello() {
	r.t.Helper()
	h, payload := r.read()
	require.Equal(r.t, frame.Hello, h.Kind)
	g, err := frame.ParseGreeting(payload)
	require.NoError(r.t, err)
	r.peer = g
}

// send sends a whole frame.
func (r *rawPeer) send(h frame.Header, payload []byte) {
	r.t.Helper()
	h.Context, h.Credit = r.peer.Context, r.limit
	r.write(h.Append(nil, payload))
}

// sendFront sends the front of a frame whose n bytes of payload follow.
func (r *rawPeer) sendFront(h frame.Header, n int) {
	r.t.Helper()
	h.Context, h.Credit = r.peer.Context, r.limit
	r.write(h.AppendFront(nil, n))
}

func (r *rawPeer) write(b []byte) {
	r.t.Helper()
	_, err := r.nc.Write(b)
	require.NoError(r.t, err)
}

// read reads one frame, and checks it as any receiver does.
func (r *rawPeer) read() (frame.Header, []byte) {
	r.t.Helper()
	front := make([]byte, frame.HeaderSize, frame.HeaderSize+frame.TailSize)
	_, err := io.ReadFull(r.nc, front)
	require.NoError(r.t, err)
	tail := front[len(front):frame.Need(front)]
	_, err = io.ReadFull(r.nc, tail)
	require.NoError(r.t, err)
	front = front[:len(front)+len(tail)]
	h, err := frame.Parse(front)
	require.NoError(r.t, err)
	payload := make([]byte, h.Payload())
	_, err = io.ReadFull(r.nc, payload)
	require.NoError(r.t, err)
	if h.Flags&frame.FlagPayload != 0 {
		require.NoError(r.t, h.Verify(append(front, payload...)))
	}
	return h, payload
}

// readKind reads frames until one of kind; only control frames precede it.
func (r *rawPeer) readKind(kind frame.Kind) (frame.Header, []byte) {
	r.t.Helper()
	for {
		h, payload := r.read()
		if h.Kind == kind {
			return h, payload
		}
		require.Contains(r.t, []frame.Kind{frame.Ping, frame.Credit}, h.Kind)
	}
}

// readEnd reads until the connection ends, and returns the code of the preceding Goaway, or 0.
func (r *rawPeer) readEnd() (code na.Code, text string) {
	r.t.Helper()
	for {
		var one [1]byte
		if _, err := r.nc.Read(one[:0]); err != nil {
			return code, text
		}
		b := make([]byte, frame.HeaderSize)
		n, err := io.ReadFull(r.nc, b)
		if err != nil {
			require.Zero(r.t, n, "ends in the middle of a frame")
			var late net.Error
			if e, ok := err.(net.Error); ok {
				late = e
				require.False(r.t, late.Timeout(), "the connection does not end")
			}
			return code, text
		}
		h, err := frame.Parse(b)
		require.NoError(r.t, err)
		payload := make([]byte, h.Payload())
		_, err = io.ReadFull(r.nc, payload)
		require.NoError(r.t, err)
		if h.Kind == frame.Goaway {
			code, text = na.Code(h.Tag), string(payload)
		}
	}
}

// mail is the front of an unexpected message.
var mail = frame.Header{Kind: frame.Unexpected, Op: 1, Tag: 1}
