package streamnet_test

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/hg"
	"github.com/quicksilver-rpc/quicksilver/internal/frame"
	"github.com/quicksilver-rpc/quicksilver/na"
	"github.com/quicksilver-rpc/quicksilver/na/carrier"
	"github.com/quicksilver-rpc/quicksilver/na/codes"
)

// helloFrame is a HELLO that any context takes.
func helloFrame() []byte {
	g := carrier.Greeting{Versions: frame.Versions(), Envelopes: 32, Eager: 4096}
	_, _ = rand.Read(g.Incarnation[:])
	h := frame.Header{Kind: frame.Hello, Tag: frame.Magic}
	return h.Append(nil, g.Append(nil))
}

// rawConn connects to a node of p.
func rawConn(t testing.TB, p *pipes, name string) net.Conn {
	t.Helper()
	nc, err := p.dial(testContext(t), name)
	require.NoError(t, err)
	require.NoError(t, nc.SetDeadline(time.Now().Add(patience)))
	t.Cleanup(func() { _ = nc.Close() })
	return nc
}

// FuzzRawConn checks that a peer that sends any bytes is refused or waited for, and others are
// served.
func FuzzRawConn(f *testing.F) {
	p := newPipes()
	openNode(f, p.options(), "pipe://target", na.Config{})
	origin := openNode(f, p.options(), "pipe://", na.Config{})
	hello := helloFrame()
	ping := frame.Header{Kind: frame.Ping, Credit: 32}
	get := frame.Header{Kind: frame.Get, Op: 1, Tail: frame.Tail{Length: 1 << 20}}
	for _, b := range [][]byte{
		nil, []byte("GET / HTTP/1.1\r\n\r\n"), make([]byte, 100), {0x16, 3, 1, 0, 200, 1}, hello, hello[:20], hello[1:],
		ping.AppendFront(nil, 0), ping.AppendFront(hello, 0), append(append([]byte(nil), hello...), hello...), get.AppendFront(hello, 0),
		append(append([]byte(nil), hello...), make([]byte, 200)...),
	} {
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		nc, err := p.dial(t.Context(), "target")
		require.NoError(t, err)
		require.NoError(t, nc.SetDeadline(time.Now().Add(patience)))
		sent := make(chan struct{})
		go func() {
			defer close(sent)
			_, _ = io.Copy(io.Discard, nc)
		}()
		_, err = nc.Write(b)
		require.NotErrorIs(t, err, context.DeadlineExceeded)
		_ = nc.Close()
		<-sent
		require.NoError(t, callEcho(testContext(t), origin, "pipe://target", "still here"))
	})
}

// TestRefusal checks that a peer that breaks the protocol gets the reason, also over a connection
// without CloseWrite.
func TestRefusal(t *testing.T) {
	t.Parallel()
	p := newPipes()
	openNode(t, p.options(), "pipe://target", na.Config{})
	nc := rawConn(t, p, "target")
	_, err := nc.Write(make([]byte, 64))
	require.NoError(t, err)
	got, err := io.ReadAll(nc)
	require.NoError(t, err)
	h, err := frame.Parse(got)
	require.NoError(t, err)
	require.Equal(t, codes.ErrProtocol, h.Bye(got[h.Size():]).Code)
}

// TestIncompleteHello checks that a connection whose HELLO does not end is closed when HandshakeTimeout
// is over.
func TestIncompleteHello(t *testing.T) {
	t.Parallel()
	p := newPipes()
	opts := p.options()
	opts.HandshakeTimeout = 100 * time.Millisecond
	openNode(t, opts, "pipe://target", na.Config{})
	for _, n := range []int{0, 1, 40} {
		nc := rawConn(t, p, "target")
		_, err := nc.Write(helloFrame()[:n])
		require.NoError(t, err)
		_, err = nc.Read(make([]byte, 1))
		require.ErrorIs(t, err, io.EOF, "after %d bytes", n)
	}
}

// TestHalfOpenBound checks that connections that send nothing do not block other peers for long.
func TestHalfOpenBound(t *testing.T) {
	t.Parallel()
	p := newPipes()
	opts := p.options()
	opts.MaxHalfOpen, opts.HandshakeTimeout = 3, time.Hour
	openNode(t, opts, "pipe://target", na.Config{})
	first := rawConn(t, p, "target")
	for range 5 {
		rawConn(t, p, "target")
	}
	_, err := first.Read(make([]byte, 1))
	require.ErrorIs(t, err, io.EOF, "the oldest makes room")
	origin := openNode(t, p.options(), "pipe://", na.Config{})
	require.NoError(t, callEcho(testContext(t), origin, "pipe://target", "let in"))
}

// TestNeverReads checks that a peer that reads nothing is lost after WriteTimeout. Neither a cancel
// nor another peer waits for that.
func TestNeverReads(t *testing.T) {
	t.Parallel()
	p := newPipes()
	opts := p.options()
	opts.WriteTimeout = 300 * time.Millisecond
	origin := openNode(t, opts, "pipe://", na.Config{PeerTimeout: time.Hour})
	openNode(t, p.options(), "pipe://target", na.Config{})
	mute, _, err := p.listen("mute")
	require.NoError(t, err)
	defer mute.Close()
	go func() {
		nc, err := mute.Accept()
		if err != nil {
			return
		}
		t.Cleanup(func() { _ = nc.Close() })
		_, _ = nc.Read(make([]byte, 4096)) // the HELLO: a pipe gives all of a write
		_, _ = nc.Write(helloFrame())
	}()
	ctx := testContext(t)
	to, err := origin.LookupWait(ctx, "pipe://mute")
	require.NoError(t, err)
	call := func(ctx context.Context) error {
		h, err := origin.Create(to, hg.HashName("echo"))
		require.NoError(t, err)
		defer h.Close()
		return h.Call(ctx, make([]byte, 3000), nil)
	}
	short, stop := context.WithTimeout(ctx, 50*time.Millisecond)
	defer stop()
	require.ErrorIs(t, call(short), context.DeadlineExceeded)
	begun := time.Now()
	require.ErrorIs(t, call(ctx), codes.ErrPeerLost)
	require.Less(t, time.Since(begun), patience/2)
	require.NoError(t, callEcho(ctx, origin, "pipe://target", "not held up"))
}

// TestDialGivenUp checks that the context of Dial ends with the session, and with the class.
func TestDialGivenUp(t *testing.T) {
	t.Parallel()
	for name, end := range map[string]func(t *testing.T, origin *hg.Context){
		"connect timeout": func(*testing.T, *hg.Context) {},
		"close":           func(t *testing.T, origin *hg.Context) { require.NoError(t, origin.Class().Close()) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dialing, given := make(chan struct{}), make(chan error, 1)
			opts := newPipes().options()
			opts.Dial = func(ctx context.Context, _ string) (net.Conn, error) {
				close(dialing)
				<-ctx.Done()
				given <- ctx.Err()
				return nil, ctx.Err()
			}
			cfg := na.Config{ConnectTimeout: patience}
			if name == "connect timeout" {
				cfg.ConnectTimeout = 100 * time.Millisecond
			}
			origin := openNode(t, opts, "pipe://", cfg)
			ended := make(chan error, 1)
			go func() { ended <- callEcho(testContext(t), origin, "pipe://nobody", "x") }()
			<-dialing
			end(t, origin)
			require.ErrorIs(t, <-given, context.Canceled)
			require.Error(t, <-ended)
		})
	}
}

// TestDialErrors checks that a dial that fails is ErrUnreachable with its reason, and nothing ran.
func TestDialErrors(t *testing.T) {
	t.Parallel()
	for _, err := range []error{errors.New("no route"), codes.WithText(codes.ErrPermission, "not for you")} {
		opts := newPipes().options()
		opts.Dial = func(context.Context, string) (net.Conn, error) { return nil, err }
		got := callEcho(testContext(t), openNode(t, opts, "pipe://", na.Config{}), "pipe://nobody", "x")
		require.ErrorIs(t, got, codes.ErrUnreachable)
		require.ErrorContains(t, got, err.Error())
		require.Equal(t, hg.NotRun, hg.FateOf(got))
	}
}

// TestDialAgain checks that a peer that cannot take a connection at the moment is dialed again, for
// the call that waits.
func TestDialAgain(t *testing.T) {
	t.Parallel()
	p := newPipes()
	openNode(t, p.options(), "pipe://target", na.Config{})
	opts := p.options()
	dials := 0 // one at a time
	opts.Dial = func(ctx context.Context, name string) (net.Conn, error) {
		if dials++; dials < 3 {
			return nil, codes.ErrAgain
		}
		return p.dial(ctx, name)
	}
	require.NoError(t, callEcho(testContext(t), openNode(t, opts, "pipe://", na.Config{}), "pipe://target", "x"))
	require.Equal(t, 3, dials)
}

// TestManyConnections checks that a hundred classes call one at the same time, and all connections
// end with them.
func TestManyConnections(t *testing.T) {
	p := newPipes()
	target := openNode(t, p.options(), "pipe://target", na.Config{})
	ctx := testContext(t)
	var all sync.WaitGroup
	errs := make([]error, 100)
	for i := range errs {
		origin := openNode(t, p.options(), "pipe://", na.Config{})
		all.Go(func() {
			for n := range 5 {
				errs[i] = errors.Join(errs[i], callEcho(ctx, origin, "pipe://target", fmt.Sprint(i, " ", n)))
			}
		})
	}
	all.Wait()
	require.NoError(t, errors.Join(errs...))
	require.Equal(t, len(errs), target.Stats().NA.Peers)
}
