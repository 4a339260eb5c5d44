package arq

import (
	"bytes"
	"net/netip"
	"reflect"
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestHandshakeFaults checks that with lost, repeated or late packets of the handshake there is one
// association.
func TestHandshakeFaults(t *testing.T) {
	for seed := range uint64(50) {
		n := newNetwork(t, seed, faults{delay: 5 * ms, loss: 0.4, dup: 0.3, reorder: 0.5})
		a, b := n.pair(Config{}, Config{})
		n.idle(3 * time.Second)
		require.Equal(t, 1, b.admitted)
		require.Equal(t, 1, a.greeted)
		require.Equal(t, 1, a.m.Stats().Peers)
		require.Equal(t, 1, b.m.Stats().Peers)
		n.stream(a, b, 10, 64, time.Minute)
	}
}

// TestCrossing checks that two sides that dial each other at once have one association.
func TestCrossing(t *testing.T) {
	for seed := range uint64(30) {
		n := newNetwork(t, seed, faults{delay: 5 * ms, loss: float64(seed%3) * 0.2})
		a, b := n.add(1, Config{}), n.add(2, Config{})
		var err error
		a.assoc, err = a.m.Dial(n.now, b.addr, 0, Path{}, a)
		require.NoError(t, err)
		b.assoc, err = b.m.Dial(n.now, a.addr, 0, Path{}, b)
		require.NoError(t, err)
		n.run(time.Minute, func() bool { return a.greeted > 0 && b.greeted > 0 })
		n.idle(5 * time.Second)
		require.Equal(t, 1, a.m.Stats().Peers)
		require.Equal(t, 1, b.m.Stats().Peers)
		require.Zero(t, a.admitted+b.admitted)
		n.stream(a, b, 10, 64, time.Minute)
		n.stream(b, a, 10, 64, time.Minute)
	}
}

func TestRefuse(t *testing.T) {
	n := newNetwork(t, 1, faults{delay: ms})
	a, b := n.add(1, Config{}), n.add(2, Config{})
	b.refuse = "no"
	_, err := a.m.Dial(n.now, b.addr, 0, Path{}, a)
	require.NoError(t, err)
	n.idle(time.Second)
	require.Equal(t, []End{{Outcome: Refusal, Words: "no"}}, a.ends)
	require.Zero(t, a.m.Stats().Peers)
	require.Zero(t, b.m.Stats().Peers)

	b.refuse, b.hello = "", "bad"
	_, err = a.m.Dial(n.now, b.addr, 0, Path{}, a)
	require.NoError(t, err)
	n.idle(5 * time.Second)
	require.Zero(t, a.m.Stats().Peers)
	require.Zero(t, b.m.Stats().Peers, "half open, and forgotten")

	b.m.Shut()
	_, err = a.m.Dial(n.now, b.addr, 0, Path{}, a)
	require.NoError(t, err)
	n.idle(30 * time.Second)
	require.Equal(t, PeerGone, a.ends[len(a.ends)-1].Outcome)
}

// TestAdmitAsksForCookie checks that a peer may have to prove first that it receives at its
// address: it does, and is challenged only then.
func TestAdmitAsksForCookie(t *testing.T) {
	for seed := range uint64(20) {
		n := newNetwork(t, seed, faults{delay: ms, loss: float64(seed%2) * 0.3})
		a, b := n.add(1, Config{}), n.add(2, Config{})
		b.cookie = true
		n.join(a, b)
		require.Positive(t, b.m.Stats().Cookies)
		require.Equal(t, 1, b.admitted)
		require.Equal(t, true, b.verified[len(b.verified)-1], "admitted before it has shown that it receives")
		require.Zero(t, b.m.Stats().HalfOpen)
		n.stream(a, b, 10, 64, time.Minute)
	}
}

// TestDialRetries checks that a dial is repeated as often as it is configured.
func TestDialRetries(t *testing.T) {
	n := newNetwork(t, 1, faults{delay: ms})
	a := n.add(1, Config{DialRetries: 4})
	hellos := 0
	n.drop = func(*node, *Packet) bool { hellos++; return true }
	_, err := a.m.Dial(n.now, n.add(2, Config{}).addr, 0, Path{}, a)
	require.NoError(t, err)
	n.idle(1600 * ms)
	require.Equal(t, []End{{Outcome: PeerGone}}, a.ends)
	require.Equal(t, 5, hellos)
}

// TestRefusedHint checks an ICMP error of the system: it counts when the peer does not answer three
// probes, and not when it does.
func TestRefusedHint(t *testing.T) {
	for _, delay := range []time.Duration{ms, 20 * ms} { // an answer takes twice as long
		for _, alive := range []bool{true, false} {
			n := newNetwork(t, 1, faults{delay: delay})
			a, b := n.pair(Config{}, Config{})
			n.idle(time.Second)
			if !alive {
				delete(n.nodes, b.addr)
			}
			a.m.Refused(n.now, b.addr)
			n.idle(20*ms + 10*delay)
			require.Equal(t, alive, len(a.ends) == 0, "%v %v", delay, a.ends)
		}
	}
}

// TestPathSize checks the size of datagrams: the announced path size is probed, then the next step;
// a path that carries less later is detected.
func TestPathSize(t *testing.T) {
	for _, c := range []struct{ carries, tried, want int }{
		{9000, 9000, 9000}, {1500, 9000, 1472}, {1200, 9000, BaseSize}, {65507, 65507, 65507}, {1500, 1460, 1460}, {9000, 0, BaseSize},
	} {
		n := newNetwork(t, 1, faults{delay: ms})
		a, b := n.add(1, Config{}), n.add(2, Config{})
		a.path.Size, b.path.Size = c.tried, c.tried
		carries := c.carries
		n.drop = func(from *node, p *Packet) bool { return headSize+len(p.body) > carries }
		n.join(a, b)
		n.idle(10 * time.Second)
		require.Equal(t, c.want, a.assoc.maxDatagram(), "%+v", c)
		require.Equal(t, c.want, b.assoc.maxDatagram(), "%+v", c)
		n.sendBulk(a, b, 200_000, time.Minute)
		require.Zero(t, a.m.Stats().Resent, "a lost probe is no congestion, and what follows fits")

		if c.want > BaseSize {
			carries = BaseSize
			var fragments int
			n.drop = func(from *node, p *Packet) bool {
				if headSize+len(p.body) > carries {
					fragments++
					return a.assoc.maxDatagram() > BaseSize // afterwards they are fragmented
				}
				return false
			}
			n.sendBulk(a, b, 200_000, time.Minute)
			require.Equal(t, BaseSize, a.assoc.maxDatagram())
			require.Positive(t, fragments)
		}
	}
}

// TestLocalPath checks that on the same machine the size is used without probes.
func TestLocalPath(t *testing.T) {
	n := newNetwork(t, 1, faults{delay: ms})
	a, b := n.add(1, Config{}), n.add(2, Config{Size: 32 << 10})
	a.path, b.path = Path{Size: MaxSize, Local: true}, Path{Size: MaxSize, Local: true}
	n.join(a, b)
	require.Equal(t, 32<<10, a.assoc.maxDatagram(), "what the peer receives")
	require.Equal(t, MaxSize, b.assoc.maxDatagram())
	n.sendBulk(a, b, 1<<20, time.Minute)
	n.stream(b, a, 20, 60000, time.Minute)
}

// TestRetainedIsBounded checks that retained packets are bounded for all associations together, and
// a blocked sender continues when there is room.
func TestRetainedIsBounded(t *testing.T) {
	n := newNetwork(t, 1, faults{delay: ms})
	a := n.add(1, Config{MaxRetained: 200_000})
	var peers []*node
	for i := range 10 {
		b := n.add(2+i, Config{})
		n.join(a, b)
		peers = append(peers, b)
	}
	left, most := map[*Assoc]int{}, int64(0)
	fill := func(as *Assoc) {
		for left[as] > 0 {
			if frame, _ := as.Room(n.now); frame < 0 {
				return
			}
			left[as]--
			a.send(as, make([]byte, 30000))
			most = max(most, a.m.Stats().Retained)
		}
	}
	a.room = fill
	for _, b := range peers {
		as := a.m.at(b.addr)
		left[as] = 20
		fill(as)
	}
	n.run(time.Minute, func() bool {
		for _, b := range peers {
			if len(b.got) < 20 {
				return false
			}
		}
		return true
	})
	require.LessOrEqual(t, most, int64(200_000+64<<10))
	n.idle(time.Second)
	require.Zero(t, a.m.Stats().Retained)
}

// TestIdlePeers checks 10,000 idle peers: about 300 bytes each, no timer, and no packet in flight.
func TestIdlePeers(t *testing.T) {
	require.LessOrEqual(t, reflect.TypeFor[Assoc]().Size(), uintptr(256))
	const peers = 10_000
	n := newNetwork(t, 1, faults{delay: ms})
	srv := n.add(0, Config{HalfOpen: 1 << 20})
	heap := func() uint64 {
		var st runtime.MemStats
		runtime.GC()
		runtime.GC()
		runtime.ReadMemStats(&st)
		return st.HeapAlloc
	}
	at := func(i int) netip.AddrPort {
		return netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 2, byte(i >> 8), byte(i)}), 9)
	}
	was := heap()
	for i := range peers {
		g := greeting{oldest: OldestVersion, newest: Version, id: uint32(1 + i), token: uint32(i), session: uint64(1 + i), size: BaseSize}
		hello := Packet{kind: kindHello, body: append(g.append(nil), make([]byte, BaseSize)...)}
		srv.m.Receive(n.now, at(i), &hello)
		srv.flush()
		a := srv.m.at(at(i))
		confirm := Packet{form: formOf(Version), kind: kindAck, id: a.id, token: a.token, ack: a.lane[0].una, edge: a.lane[0].edge}
		srv.m.Receive(n.now, at(i), &confirm)
		srv.flush()
		require.Nil(t, a.flight)
	}
	n.flying = nil
	each := int(heap()-was) / peers
	t.Logf("%d bytes for each idle peer, of which %d are the association", each, reflect.TypeFor[Assoc]().Size())
	require.LessOrEqual(t, each, 330)
	_, any := srv.m.Deadline()
	require.False(t, any, "no timer runs")
	runtime.KeepAlive(srv)
}

// TestDialsOfOneAddress checks that contexts of one process share its address, and number their
// dials together: the first number may arrive last.
func TestDialsOfOneAddress(t *testing.T) {
	n := newNetwork(t, 1, faults{delay: ms})
	late := func(session uint64) func() uint64 { return func() uint64 { return session } }
	a, b := n.add(1, Config{Context: 1, Session: late(100)}), n.add(2, Config{Context: 7})
	n.join(a, b)
	again := n.add(1, Config{Context: 2, Session: late(50)})
	n.order = []*node{again, b}
	n.join(again, b)
	require.Equal(t, 2, b.m.Stats().Peers, "both are there")

	old := n.add(1, Config{Context: 2, Session: late(49)})
	n.order = []*node{old, b}
	_, err := old.m.Dial(n.now, b.addr, 7, Path{}, old)
	require.NoError(t, err)
	n.idle(time.Minute)
	require.Equal(t, 2, b.m.Stats().Peers)
	require.Equal(t, 2, b.admitted, "earlier numbers of the same context are old")
}

// TestHelloAtTheEnd checks that a HELLO that arrives again when its association is ending, because
// the network or a peer repeats it, has no answer: its upper layer has ended it.
func TestHelloAtTheEnd(t *testing.T) {
	n := newNetwork(t, 1, faults{delay: ms})
	var hello []byte
	n.watch = func(_ *node, p *Packet) {
		if p.kind == kindHello {
			hello = append(p.append(nil), p.body...)
			seal(hello)
		}
	}
	a, b := n.pair(Config{}, Config{})
	require.NotEmpty(t, hello)
	accepts := 0
	n.watch = func(_ *node, p *Packet) {
		if p.kind == kindAccept {
			accepts++
		}
	}
	n.inject(n.now, a.addr, b.addr, bytes.Clone(hello))
	n.idle(10 * ms)
	require.Equal(t, 1, accepts, "the first answer may be lost")
	b.assoc.Detach()
	b.assoc.Finish(n.now, []byte("bye"))
	require.Nil(t, b.assoc.User)
	n.inject(n.now, a.addr, b.addr, bytes.Clone(hello))
	n.idle(100 * ms)
	require.Equal(t, 1, accepts)
}
