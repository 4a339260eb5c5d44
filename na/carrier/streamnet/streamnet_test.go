package streamnet_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/hg"
	"github.com/quicksilver-rpc/quicksilver/internal/test/testcert"
	"github.com/quicksilver-rpc/quicksilver/na"
	"github.com/quicksilver-rpc/quicksilver/na/carrier"
	"github.com/quicksilver-rpc/quicksilver/na/carrier/streamnet"
	"github.com/quicksilver-rpc/quicksilver/na/codes"
)

// openAndClose opens a class over a network and closes it.
func openAndClose(opts streamnet.Options, addr string) error {
	class, err := na.Open(addr, na.Config{Plugins: []na.Plugin{streamnet.New(opts)}})
	if err != nil {
		return err
	}
	return class.Close()
}

// TestBadOptions checks that every bad option is named.
func TestBadOptions(t *testing.T) {
	t.Parallel()
	err := openAndClose(streamnet.Options{Scheme: "x", MaxHalfOpen: -1, HandshakeTimeout: -1, WriteTimeout: -1}, "x://")
	require.ErrorIs(t, err, codes.ErrInvalid)
	for _, field := range []string{"Dial", "MaxHalfOpen", "HandshakeTimeout", "WriteTimeout"} {
		require.ErrorContains(t, err, field)
	}
}

// TestListenErrors checks that a code is kept, and an error without one has the code of an
// unreachable address; the name is checked, and a listener whose name is not valid is closed.
func TestListenErrors(t *testing.T) {
	t.Parallel()
	p := newPipes()
	opts := p.options()
	require.NoError(t, openAndClose(opts, "pipe://a"))
	opts.Check = func(name string) error { return errors.New("is bad") }
	require.ErrorIs(t, openAndClose(opts, "pipe://b"), codes.ErrInvalid)
	select {
	case <-p.names["b"].done:
	default:
		require.Fail(t, "the listener is open")
	}
	opts.Check = nil
	for _, name := range []string{"a b", "a#1", strings.Repeat("a", 1100)} { // peers cannot look these up
		require.ErrorIs(t, openAndClose(opts, "pipe://"+name), codes.ErrInvalid)
		select {
		case <-p.names[name].done:
		default:
			require.Fail(t, "the listener is open")
		}
	}
	opts.Scheme = "a_b"
	require.ErrorIs(t, openAndClose(opts, "a_b://"), codes.ErrInvalid)
	opts.Scheme = "pipe"
	opts.Listen = func(string) (net.Listener, string, error) { return nil, "", errors.New("no such device") }
	require.ErrorIs(t, openAndClose(opts, "pipe://a"), codes.ErrAddrInvalid)
	opts.Listen = func(string) (net.Listener, string, error) { return nil, "", codes.ErrAddrInUse }
	require.ErrorIs(t, openAndClose(opts, "pipe://a"), codes.ErrAddrInUse)
	opts.Listen = nil
	require.ErrorIs(t, openAndClose(opts, "pipe://a"), codes.ErrUnsupported)
	require.NoError(t, openAndClose(opts, "pipe://"))
}

// TestVerify checks that of two classes that call each other both use one connection if the network
// verifies names, else each dials.
func TestVerify(t *testing.T) {
	t.Parallel()
	for _, trusts := range []bool{true, false} {
		p := newPipes()
		opts := p.options()
		asked := make(chan string, 1)
		opts.Verify = func(_ net.Conn, name string) bool {
			asked <- name
			return trusts
		}
		a, b := openNode(t, p.options(), "pipe://a", na.Config{}), openNode(t, opts, "pipe://b", na.Config{})
		require.NoError(t, callEcho(testContext(t), a, "pipe://b", "x"))
		require.Equal(t, "a", <-asked)
		require.NoError(t, callEcho(testContext(t), b, "pipe://a", "y"))
		want := 2
		if trusts {
			want = 1
		}
		require.Equal(t, want, b.Stats().NA.Peers)
	}
}

// TestTLS checks that the verified certificate of a *tls.Conn is the peer's identity; a peer
// without TLS is refused, and one that does not begin TLS is not waited for.
func TestTLS(t *testing.T) {
	t.Parallel()
	cert := testcert.New()
	cfg := &tls.Config{
		Certificates: []tls.Certificate{cert}, RootCAs: testcert.Pool(cert), ClientCAs: testcert.Pool(cert),
		ClientAuth: tls.RequireAndVerifyClientCert, ServerName: "127.0.0.1",
	}
	p := newPipes()
	opts := p.options()
	opts.Secure = true
	opts.HandshakeTimeout = time.Second
	opts.Dial = func(ctx context.Context, name string) (net.Conn, error) {
		nc, err := p.dial(ctx, name)
		if err != nil {
			return nil, err
		}
		return tls.Client(nc, cfg), nil
	}
	opts.Listen = func(where string) (net.Listener, string, error) {
		l, name, err := p.listen(where)
		return tls.NewListener(l, cfg), name, err
	}
	target := openNode(t, opts, "pipe://target", na.Config{})
	seen := make(chan na.Identity, 1)
	_, err := target.Class().Register("who", func(r hg.Request) error {
		id, _ := target.NA().Identity(r.Peer())
		seen <- id
		return r.Respond(nil, nil)
	})
	require.NoError(t, err)
	origin := openNode(t, opts, "pipe://", na.Config{})
	_, err = origin.Class().Register("who", nil)
	require.NoError(t, err)
	ctx := testContext(t)
	to, err := origin.LookupWait(ctx, "pipe://target")
	require.NoError(t, err)
	h, err := origin.Create(to, hg.HashName("who"))
	require.NoError(t, err)
	defer h.Close()
	require.NoError(t, h.Call(ctx, nil, nil))
	there, _ := origin.NA().Identity(origin.NA().Peers()[0].Addr)
	for _, id := range []na.Identity{<-seen, there} {
		require.True(t, id.Secure)
		require.Equal(t, cert.Certificate[0], id.Certificates[0].Raw)
		require.Equal(t, carrier.NameOf(id.Certificates[0]), id.Name)
	}

	plain := openNode(t, p.options(), "pipe://", na.Config{ConnectTimeout: 2 * time.Second})
	require.ErrorIs(t, callEcho(ctx, plain, "pipe://target", "x"), codes.ErrUnreachable)
	nc := rawConn(t, p, "target")
	_, err = nc.Read(make([]byte, 1))
	require.Error(t, err)
}

// A bareConn is a connection without addresses, as net.Conn allows.
type bareConn struct{ net.Conn }

func (bareConn) RemoteAddr() net.Addr { return nil }
func (bareConn) LocalAddr() net.Addr  { return nil }

// TestNoAddresses checks that connections may report no addresses, on either side.
func TestNoAddresses(t *testing.T) {
	t.Parallel()
	p := newPipes()
	p.wrap = func(nc net.Conn) net.Conn { return bareConn{nc} }
	target, origin := openNode(t, p.options(), "pipe://target", na.Config{}), openNode(t, p.options(), "pipe://", na.Config{})
	require.NoError(t, callEcho(testContext(t), origin, "pipe://target", "x"))
	for _, c := range []*hg.Context{target, origin} {
		peer := c.NA().Peers()[0].Addr
		id, ok := c.NA().Identity(peer)
		require.True(t, ok)
		require.Empty(t, id.Remote)
		require.NotContains(t, peer.Label(), "()")
	}
}

// A shortWriteConn writes less than it is given, and reports no error.
type shortWriteConn struct {
	net.Conn
	short *atomic.Bool
}

func (c shortWriteConn) Write(b []byte) (int, error) {
	if c.short.Load() && len(b) > 10_000 {
		b = b[:len(b)-10]
	}
	return c.Conn.Write(b)
}

// TestShortWrite checks that a write that loses bytes without an error ends the session, before the
// peer reads the following bytes as bulk data.
func TestShortWrite(t *testing.T) {
	t.Parallel()
	p := newPipes()
	var short atomic.Bool
	p.wrap = func(nc net.Conn) net.Conn { return shortWriteConn{nc, &short} }
	target, origin := openNode(t, p.options(), "pipe://target", na.Config{}).NA(), openNode(t, p.options(), "pipe://", na.Config{})
	require.NoError(t, callEcho(testContext(t), origin, "pipe://target", "x"))
	there := make([]byte, 30_000)
	mem, err := target.Class().Register(na.WriteOnly, there)
	require.NoError(t, err)
	local, err := origin.NA().Class().NewMem(bytes.Repeat([]byte{7}, len(there)))
	require.NoError(t, err)
	short.Store(true)
	to, key := origin.NA().Peers()[0].Addr, mem.Key()
	ended := make(chan error, 1)
	put := origin.NA().NewOp(func(_ *na.Op, r na.Result) { ended <- r.Err })
	require.NoError(t, origin.NA().Put(put, local, 0, to, key, 0, key.Len))
	for range 10 { // what would be taken for the rest
		send := origin.NA().NewOp(func(*na.Op, na.Result) {})
		require.NoError(t, origin.NA().SendUnexpected(send, to, 1, []byte("behind it")))
	}
	require.ErrorIs(t, <-ended, codes.ErrPeerLost)
}

// TestOptionsGiveNothing checks that a function of the options that returns nil in place of its
// result is named in the error.
func TestOptionsGiveNothing(t *testing.T) {
	t.Parallel()
	p := newPipes()
	opts := p.options()
	opts.Listen = func(string) (net.Listener, string, error) { return nil, "a", nil }
	err := openAndClose(opts, "pipe://a")
	require.ErrorIs(t, err, codes.ErrInvalid)
	require.ErrorContains(t, err, `options of "pipe": Options.Listen returned neither`)

	opts = p.options()
	opts.Dial = func(context.Context, string) (net.Conn, error) { return nil, nil }
	origin := openNode(t, opts, "pipe://", na.Config{})
	err = callEcho(testContext(t), origin, "pipe://a", "x")
	require.ErrorIs(t, err, codes.ErrUnreachable)
	require.ErrorContains(t, err, `options of "pipe": Options.Dial returned neither`)

	opts = p.options()
	opts.Listen = func(where string) (net.Listener, string, error) {
		l, name, err := p.listen(where)
		return &nilListener{Listener: l, hollow: 2}, name, err
	}
	openNode(t, opts, "pipe://hollow", na.Config{})
	require.NoError(t, callEcho(testContext(t), openNode(t, p.options(), "pipe://", na.Config{}), "pipe://hollow", "accepted"))
}

// A nilListener accepts nil first.
type nilListener struct {
	net.Listener
	hollow int
}

func (l *nilListener) Accept() (net.Conn, error) {
	if l.hollow > 0 {
		l.hollow--
		return nil, nil
	}
	return l.Listener.Accept()
}
