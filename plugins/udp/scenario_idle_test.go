package udp_test

import (
	"crypto/rand"
	"net"
	"net/netip"
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/internal/frame"
	"github.com/quicksilver-rpc/quicksilver/internal/test/leak"
	"github.com/quicksilver-rpc/quicksilver/internal/test/long"
	"github.com/quicksilver-rpc/quicksilver/na"
	"github.com/quicksilver-rpc/quicksilver/plugins/udp"
	"github.com/quicksilver-rpc/quicksilver/plugins/udp/internal/arq"
)

// A silentPeers is many peers behind one socket: each sends HELLO, acknowledges the answer, and sends
// nothing more.
type silentPeers struct {
	conn  *net.UDPConn
	m     *arq.Machine
	start time.Time
	up    int
}

func (c *silentPeers) now() time.Duration { return time.Since(c.start) + 1 }

func (c *silentPeers) Hello(_ *arq.Assoc, dst []byte) []byte {
	g := frame.Greeting{Versions: frame.Versions(), Envelopes: 1, Eager: 4096, Need: 1, Want: 1, Host: "crowd"}
	_, _ = rand.Read(g.Incarnation[:])
	return g.Append(dst)
}
func (c *silentPeers) Greet(*arq.Assoc, []byte) error { c.up++; return nil }
func (c *silentPeers) Admit(netip.AddrPort, []byte, bool, *arq.Assoc) arq.Admission {
	return arq.Admission{}
}
func (c *silentPeers) Deliver(*arq.Assoc, []byte)                          {}
func (c *silentPeers) Place(*arq.Assoc, *[arq.FrontSize]byte, int, []byte) {}
func (c *silentPeers) Sent(*arq.Assoc, any)                                {}
func (c *silentPeers) Room(*arq.Assoc)                                     {}
func (c *silentPeers) Heard(*arq.Assoc)                                    {}
func (c *silentPeers) Finishing(*arq.Assoc, []byte)                        {}
func (c *silentPeers) Ended(*arq.Assoc, arq.End)                           {}

// pass sends the pending packets, and takes in those that arrive within a moment.
func (c *silentPeers) pass(t *testing.T, buf []byte) {
	var head [arq.HeadSize]byte
	for {
		o, ok := c.m.Next(c.now(), head[:])
		if !ok {
			break
		}
		_, err := c.conn.WriteToUDPAddrPort(append(append(buf[:0], o.Head...), o.Body...), o.To)
		require.NoError(t, err)
	}
	for {
		_ = c.conn.SetReadDeadline(time.Now().Add(100 * time.Microsecond))
		n, from, err := c.conn.ReadFromUDPAddrPort(buf)
		if err != nil {
			break
		}
		p, err := arq.Parse(buf[:n])
		require.NoError(t, err)
		c.m.Receive(c.now(), netip.AddrPortFrom(from.Addr().Unmap(), from.Port()), &p)
	}
	c.m.Poll(c.now())
}

// connectSilentPeers connects peers to a node, some from each socket, and leaves them silent.
func connectSilentPeers(t *testing.T, n *node, peers, each int) {
	ap, err := netip.ParseAddrPort(n.cls.Addr().Name()[len("udp://"):])
	require.NoError(t, err)
	buf := make([]byte, arq.MaxSize)
	session := uint64(time.Now().UnixNano()) // ports are used again
	for peers > 0 {
		conn, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
		require.NoError(t, err)
		c := &silentPeers{conn: conn, start: time.Now()}
		c.m = arq.New(arq.Config{Rand: func(b []byte) { _, _ = rand.Read(b) }, Session: func() uint64 { session++; return session }}, c)
		want := min(each, peers)
		peers -= want
		for range want {
			_, err := c.m.Dial(c.now(), ap, 0, arq.Path{Local: true}, c)
			require.NoError(t, err)
			c.pass(t, buf)
		}
		for end := time.Now().Add(patience); c.up < want; c.pass(t, buf) {
			require.Less(t, time.Now(), end, "%d of %d are up", c.up, want)
		}
		for calm := time.Now().Add(10 * time.Millisecond); time.Now().Before(calm); { // its acknowledgment may be sent late
			c.pass(t, buf)
		}
		_ = conn.Close()
	}
}

// TestContextBuffers checks that a context that neither reads nor sends at this moment has no room
// for datagrams, and an idle pair of contexts in two classes is small: measured when each has sent
// a message and had one back.
func TestContextBuffers(t *testing.T) {
	const many, limit = 20, 40 << 10 // 24 KiB were measured; room of its own is 2.4 MB for each context
	b := open(t, "udp://127.0.0.1:0", udp.Options{}, 1)
	talk := func() {
		a := open(t, "udp://", udp.Options{}, 1)
		sender := sendMessage(t, a.ctxs[0], b.cls.Addr(), b.ctxs[0], "hello", a, b)
		sendMessage(t, b.ctxs[0], sender, a.ctxs[0], "answer", a, b)
	}
	heap := func() int64 {
		runtime.GC()
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return int64(m.HeapAlloc)
	}
	talk()
	// All contexts of the process share the room: one more for reading, or for sending, when more of them than ever before do so at once,
	// and of either kind at most so many. So there are rounds that add none.
	shared := 2 * max(4, runtime.GOMAXPROCS(0))
	for round := 1; ; round++ {
		before := heap()
		for range many {
			talk()
		}
		each := (heap() - before) / many
		t.Logf("%d bytes for each pair", each)
		if each <= limit {
			return
		}
		require.Less(t, round, shared, "each round takes more than %d bytes for a pair", limit)
	}
}

// TestIdlePeers checks that thousands of peers that are silent take no more than one KiB each in
// addition to the envelope that they are guaranteed.
func TestIdlePeers(t *testing.T) {
	if !leak.Alone(t) {
		return
	}
	peers := long.Or(500, 10_000)
	cls, err := na.Open("udp://127.0.0.1:0", na.Config{Envelopes: 1, Plugins: []na.Plugin{udp.New(udp.Options{})}, PeerTimeout: 500 * time.Millisecond})
	require.NoError(t, err)
	c, err := cls.NewContext()
	require.NoError(t, err)
	n := &node{cls: cls, ctxs: []*na.Context{c}}
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		for {
			select {
			case <-stop:
				return
			default:
				_ = c.Progress(10 * time.Millisecond)
				c.Trigger(0)
			}
		}
	}()
	heap := func() int64 {
		runtime.GC()
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return int64(m.HeapAlloc)
	}
	connectSilentPeers(t, n, 100, 100) // buffers
	before, reserved := heap(), c.Stats().Reserved
	connectSilentPeers(t, n, peers, 50)
	driveUntil(t, "all", func() bool { return c.Stats().Peers == 100+peers })
	var each int64
	defer func() { t.Logf("%d bytes for each of %d peers at the end", each, peers) }()
	driveUntil(t, "all to be idle", func() bool {
		each = (heap() - before) / int64(peers)
		return each <= 1200 // 1,035 to 1,115 were measured
	})
	t.Logf("%d bytes for each of %d peers; %d are reserved for its envelope", each, peers, (c.Stats().Reserved-reserved)/int64(peers))
	close(stop)
	<-stopped
	c.Close()
	for !c.Closed() {
		_ = c.Progress(10 * time.Millisecond)
		c.Trigger(0)
	}
	require.NoError(t, cls.Close())
}
