package tcp_test

import (
	"crypto/tls"
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/quicksilver-rpc/quicksilver/internal/frame"
	"github.com/quicksilver-rpc/quicksilver/na"
	"github.com/quicksilver-rpc/quicksilver/plugins/tcp"
)

// TestTLSBulk checks that large transfers use a second connection that has TLS too, in both
// directions, and cancels in their middle do not affect the session.
func TestTLSBulk(t *testing.T) {
	const size = 8 << 20
	opts := withTLS(tcp.Options{}, mutualTLS(t))
	a := open(t, "tcp://127.0.0.1:0", opts, na.Config{}, 1)
	b := open(t, "tcp://127.0.0.1:0", opts, na.Config{}, 1)
	theirs := randomBytes(size)
	mem, err := b.cls.Register(na.ReadWrite, theirs)
	require.NoError(t, err)
	want := append([]byte(nil), theirs...)
	ours := make([]byte, size)
	local, err := a.cls.NewMem(ours)
	require.NoError(t, err)
	get := func() (*na.Op, *outcome) {
		o, end := newOp(a.ctx())
		require.NoError(t, a.ctx().Get(o, local, 0, b.cls.Addr(), mem.Key(), 0, size))
		return o, end
	}
	for range 3 {
		clear(ours)
		_, end := get()
		requireSuccess(t, "get", end, a, b)
		require.Equal(t, want, ours)
	}
	require.Equal(t, 1, a.ctx().Stats().BulkFlows)
	require.Equal(t, 1, b.ctx().Stats().BulkFlows)
	for i := range 20 {
		o, end := get()
		for range i {
			_ = a.ctx().Progress(0)
			_ = b.ctx().Progress(0)
		}
		o.Cancel()
		driveUntil(t, "cancel of the get", end.done, a, b)
		p, end := newOp(a.ctx())
		require.NoError(t, a.ctx().Put(p, local, 0, b.cls.Addr(), mem.Key(), 0, size))
		for range i {
			_ = a.ctx().Progress(0)
			_ = b.ctx().Progress(0)
		}
		p.Cancel()
		driveUntil(t, "cancel of the put", end.done, a, b)
	}
	want = randomBytes(size)
	copy(ours, want)
	p, end := newOp(a.ctx())
	require.NoError(t, a.ctx().Put(p, local, 0, b.cls.Addr(), mem.Key(), 0, size))
	requireSuccess(t, "put", end, a, b)
	clear(ours)
	_, end = get()
	requireSuccess(t, "get", end, a, b)
	require.Equal(t, want, ours)
	require.Zero(t, a.ctx().Stats().PeersLost)
	require.Equal(t, 1, a.ctx().Stats().BulkFlows)
}

// TestTLSBulkOfAnother checks that a second connection must be of the peer of the session, also if
// another peer has its token.
func TestTLSBulkOfAnother(t *testing.T) {
	ca := newAuthority(t, "cluster")
	cfg, other := ca.mutual(ca.issue("node", nil)), ca.mutual(ca.issue("other", nil))
	n := open(t, "tcp://127.0.0.1:0", withTLS(tcp.Options{}, cfg), na.Config{}, 1)
	r := secureJoin(t, n, cfg, greeting())
	second := func(cfg *tls.Config) *rawPeer {
		second := rawDial(t, n).secure(raw13(cfg))
		g := r.mine
		g.Label = r.peer.Label
		second.hello(g)
		return second
	}
	got, text := second(other).readEnd()
	require.Equal(t, na.ErrPermission, got)
	require.Contains(t, text, "another peer certificate")
	require.Zero(t, n.ctx().Stats().BulkFlows)
	second(cfg).readHello()
	require.Equal(t, 1, n.ctx().Stats().BulkFlows)
	r.ping()
}

// TestTLSBulkToAnother checks that where the second connection is dialed the same peer must answer
// as before. Another one gets no HELLO: if it accepted the connection, its end would be that of the
// session.
func TestTLSBulkToAnother(t *testing.T) {
	ca := newAuthority(t, "cluster")
	cfg, other := ca.mutual(ca.issue("node", nil)), ca.mutual(ca.issue("other", nil))
	n := open(t, "tcp://", withTLS(tcp.Options{}, cfg), na.Config{}, 1)
	l := rawListen(t)
	o, end := newOp(n.ctx())
	require.NoError(t, n.ctx().SendUnexpected(o, l.addr(), 1, []byte("hello")))
	_ = n.ctx().Progress(0)
	accept := func(cfg *tls.Config) *rawPeer {
		r := newRaw(t, l.accept())
		r.nc = tls.Server(r.tcp, raw13(cfg))
		return r
	}
	r := accept(cfg)
	r.readHello()
	g := greeting()
	g.Listen, g.Label = l.addr().Name(), make([]byte, 16)
	g.Label[3] = 1
	r.hello(g)
	requireSuccess(t, "hello", end, n)
	r.readKind(frame.Unexpected)

	mem, err := n.cls.NewMem(make([]byte, bulkSize))
	require.NoError(t, err)
	put, _ := newOp(n.ctx())
	require.NoError(t, n.ctx().Put(put, mem, 0, l.addr(), someKey(bulkSize), 0, bulkSize))
	_, err = accept(other).nc.Read(make([]byte, 1))
	require.Equal(t, io.EOF, err)
	require.Zero(t, n.ctx().Stats().BulkFlows)
	r.send(frame.Header{Kind: frame.Ping}, nil)
	for h, _ := r.read(); h.Kind != frame.Pong; h, _ = r.read() { // the put stays where it began
	}
}

// TestTLSFault checks that memory that is unmapped ends its transfer, not the process: TLS never
// accesses it.
func TestTLSFault(t *testing.T) {
	eachCarrier(t, func(t *testing.T, opts tcp.Options) {
		const size = 1 << 20
		opts.TLS = mutualTLS(t)
		a := open(t, "tcp://", opts, na.Config{}, 1)
		b := open(t, "tcp://127.0.0.1:0", opts, na.Config{}, 1)
		whole, err := b.cls.Register(na.ReadWrite, make([]byte, size))
		require.NoError(t, err)
		gone, err := b.cls.Register(na.ReadWrite, halfMapped(t, size))
		require.NoError(t, err)
		local := func(buf []byte) *na.Mem {
			m, err := a.cls.NewMem(buf)
			require.NoError(t, err)
			return m
		}
		fine, bad := make([]byte, size), halfMapped(t, size)
		for range 3 { // the second is made meanwhile
			for name, start := range map[string]func(o *na.Op) error{
				"get into it": func(o *na.Op) error { return a.ctx().Get(o, local(bad), 0, b.cls.Addr(), whole.Key(), 0, size) },
				"put from it": func(o *na.Op) error { return a.ctx().Put(o, local(bad), 0, b.cls.Addr(), whole.Key(), 0, size) },
				"get from it": func(o *na.Op) error { return a.ctx().Get(o, local(fine), 0, b.cls.Addr(), gone.Key(), 0, size) },
				"put into it": func(o *na.Op) error { return a.ctx().Put(o, local(fine), 0, b.cls.Addr(), gone.Key(), 0, size) },
			} {
				o, end := newOp(a.ctx())
				require.NoError(t, start(o))
				driveUntil(t, name, end.done, a, b)
				requireCode(t, na.ErrFault, end.Err)
			}
			o, end := newOp(a.ctx())
			require.NoError(t, a.ctx().Get(o, local(fine), 0, b.cls.Addr(), whole.Key(), 0, size))
			requireSuccess(t, "get", end, a, b)
		}
		require.Zero(t, a.ctx().Stats().PeersLost)
	})
}

// halfMapped returns memory of which half is unmapped.
func halfMapped(t *testing.T, n int) []byte {
	t.Helper()
	f, err := os.Create(filepath.Join(t.TempDir(), "f"))
	require.NoError(t, err)
	defer f.Close()
	require.NoError(t, f.Truncate(int64(n)))
	b, err := unix.Mmap(int(f.Fd()), 0, n, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, unix.Munmap(b)) })
	require.NoError(t, f.Truncate(int64(n/2)))
	return b
}

// TestTLSSlowPeer checks that a peer that takes a little all the time is not cut, although a write
// takes longer than WriteTimeout.
func TestTLSSlowPeer(t *testing.T) {
	t.Parallel()
	const size, limit = 1 << 20, time.Second
	const rate, most = 30 << 10, 56 << 10 // 64 KiB are written at a time
	cfg := mutualTLS(t)
	var nodes []*node
	var peers []*rawPeer
	for _, opts := range []tcp.Options{{TLS: cfg}, {TLS: cfg, Portable: true}, {Portable: true}} {
		opts.WriteTimeout = limit
		n := open(t, "tcp://127.0.0.1:0", opts, na.Config{PeerTimeout: time.Hour}, 1)
		mem, err := n.cls.Register(na.ReadOnly, make([]byte, size))
		require.NoError(t, err)
		r := narrowDial(t, n)
		defer startDriver(n)()
		if opts.TLS != nil {
			r.secure(raw13(cfg))
		}
		r.hello(greeting())
		r.readHello()
		r.send(frame.Header{Kind: frame.Get, Op: 1, Tail: frame.Tail{Token: mem.Key().Token, Length: size}}, nil)
		nodes, peers = append(nodes, n), append(peers, r)
	}
	taken, buf := make([]int, len(peers)), make([]byte, 1<<10)
	for begun := time.Now(); slices.Min(taken) < most; pause(10 * time.Millisecond) {
		due := int(rate * time.Since(begun).Seconds())
		for i, r := range peers {
			for taken[i] < due {
				n, err := r.nc.Read(buf)
				require.NoError(t, err, "peer %d, after %d bytes and %v", i, taken[i], time.Since(begun))
				taken[i] += n
			}
		}
	}
	for _, n := range nodes {
		require.Equal(t, 1, n.ctx().Stats().Peers)
		require.Zero(t, n.ctx().Stats().PeersLost)
	}
}

// narrowDial connects to a node so that few bytes are in flight to it at a time.
func narrowDial(t *testing.T, n *node) *rawPeer {
	t.Helper()
	d := net.Dialer{Control: func(_, _ string, c syscall.RawConn) error {
		return c.Control(func(fd uintptr) {
			_ = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_MAXSEG, 500)
			_ = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVBUF, 4<<10)
		})
	}}
	nc, err := d.Dial("tcp", hostPort(n))
	require.NoError(t, err)
	t.Cleanup(func() { _ = nc.Close() })
	require.NoError(t, nc.SetDeadline(time.Now().Add(patience)))
	far := -1 // the descriptor of the other end
	driveUntil(t, "accept", func() bool {
		for fd := range 1000 {
			peer, err := unix.Getpeername(fd)
			if in, ok := peer.(*unix.SockaddrInet4); err == nil && ok && in.Port == nc.LocalAddr().(*net.TCPAddr).Port {
				far = fd
			}
		}
		return far >= 0
	}, n)
	require.NoError(t, unix.SetsockoptInt(far, unix.SOL_SOCKET, unix.SO_SNDBUF, 8<<10))
	return &rawPeer{t: t, nc: nc, tcp: nc.(*net.TCPConn)}
}
