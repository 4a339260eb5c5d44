package arq

import (
	"bytes"
	"encoding/binary"
	"math/rand/v2"
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/internal/test/beginnings"
)

func reencode(b []byte) []byte { seal(b); return b }

// packetState is what a hostile packet must not change.
type packetState struct {
	lane  [2]lane
	state state
	cwnd  uint32
	srtt  uint32
}

func (a *Assoc) numbers() packetState { return packetState{a.lane, a.state, a.cwnd, a.srtt} }

// TestUT31Hostile (U4, U5, U-T31) checks that acknowledgments of packets that were never sent,
// invalid selective ones, wrong identities and tokens, and truncated heads are dropped and counted,
// and change nothing.
func TestUT31Hostile(t *testing.T) {
	n := newNetwork(t, 1, faults{delay: ms})
	a, b := n.pair(Config{}, Config{})
	n.stream(a, b, 10, 64, time.Minute)
	n.idle(time.Second)
	as := a.assoc
	good := Packet{form: formOf(Version), kind: kindAck, id: as.id, token: as.token, ack: as.lane[0].una, edge: as.lane[0].edge}
	bulk := good
	bulk.flags, bulk.ack, bulk.edge = flagBulk, as.lane[1].una, as.lane[1].edge
	data := good
	data.kind, data.seq = kindData, as.lane[0].rcv
	with := func(p Packet, change func(p *Packet)) Packet { change(&p); return p }
	cases := map[string]Packet{
		"ack of a packet that was never sent": with(good, func(p *Packet) { p.ack++ }),
		"ack far ahead":                       with(good, func(p *Packet) { p.ack += 1 << 30 }),
		"ack far behind":                      with(good, func(p *Packet) { p.ack -= 1 << 20 }),
		"edge far ahead":                      with(good, func(p *Packet) { p.edge += 1 << 20 }),
		"selective ack of nothing":            with(bulk, func(p *Packet) { p.body = bytes.Repeat([]byte{0xfe}, 128) }),
		"wrong token":                         with(good, func(p *Packet) { p.token++ }),
		"wrong generation":                    with(good, func(p *Packet) { p.id += 1 << slotBits }),
		"slot that does not exist":            with(good, func(p *Packet) { p.id += 12345 }),
		"number beyond the edge":              with(data, func(p *Packet) { p.seq = as.lane[0].granted + 1 }),
		"number far behind":                   with(data, func(p *Packet) { p.seq -= 1 << 20 }),
		"cookie":                              with(good, func(p *Packet) { p.kind, p.body = kindCookie, make([]byte, cookieSize) }),
		"reset with a wrong token":            with(good, func(p *Packet) { p.kind, p.seq, p.token = kindReset, as.peerID, as.peerToken+1 }),
	}
	for name, p := range cases {
		t.Run(name, func(t *testing.T) {
			was, st := as.numbers(), a.m.Stats()
			a.m.Receive(n.now, b.addr, &p)
			require.Equal(t, was, as.numbers())
			require.Equal(t, st.Invalid+st.Stale+1, a.m.Stats().Invalid+a.m.Stats().Stale, "counted")
			n.idle(50 * ms)
			require.Equal(t, open, as.state)
		})
	}
	t.Run("another address", func(t *testing.T) {
		was := as.numbers()
		p := with(data, func(p *Packet) { p.body = []byte("forged") })
		a.m.Receive(n.now, netip.MustParseAddrPort("10.9.9.9:7000"), &p)
		require.Equal(t, was, as.numbers())
	})
	got := len(b.got)
	n.stream(a, b, 10, 64, time.Minute)
	require.Len(t, b.got, got+10)
}

// TestUT31Malformed (U-T31) checks bytes that are no packet.
func TestUT31Malformed(t *testing.T) {
	whole := reencode(append((&Packet{form: formOf(Version), kind: kindData}).append(nil), "body"...))
	_, err := Parse(whole)
	require.NoError(t, err)
	for n := range len(whole) {
		_, err := Parse(whole[:n])
		require.Error(t, err, "%d bytes", n)
	}
	for i := range whole {
		for bit := range 8 {
			b := bytes.Clone(whole)
			b[i] ^= 1 << bit
			_, err := Parse(b)
			require.Error(t, err, "byte %d bit %d", i, bit)
		}
	}
	for name, p := range map[string]Packet{
		"kind 0":                {},
		"unknown kind":          {kind: 10},
		"data with gap":         {kind: kindData, flags: flagGap},
		"lane 1 without front":  {kind: kindData, flags: flagBulk, body: make([]byte, bulkSize-1)},
		"void on lane 0":        {kind: kindData, flags: flagVoid},
		"void with payload":     {kind: kindData, flags: flagBulk | flagVoid, body: make([]byte, bulkSize+1)},
		"fin of many words":     {kind: kindData, flags: flagFin, body: make([]byte, maxWords+1)},
		"fin on lane 1":         {kind: kindData, flags: flagBulk | flagFin, body: make([]byte, bulkSize)},
		"selective of 7 bytes":  {kind: kindAck, flags: flagBulk, body: make([]byte, 7)},
		"selective too long":    {kind: kindAck, flags: flagBulk, body: make([]byte, sackSize+8)},
		"hello that is cut off": {kind: kindHello, body: make([]byte, greetingSize-1)},
		"cookie too long":       {kind: kindCookie, body: make([]byte, cookieSize+1)},
		"reset with a body":     {kind: kindReset, body: []byte{1}},
	} {
		_, err := Parse(reencode(append(p.append(nil), p.body...)))
		require.ErrorIs(t, err, ErrMalformed, name)
	}
}

// TestUT32Amplification (U-T32) checks first packets with forged sources: the state is bounded
// before a handshake is valid, and no answer is longer than its request, for any kind of packet.
func TestUT32Amplification(t *testing.T) {
	n := newNetwork(t, 1, faults{delay: ms})
	b := n.add(2, Config{HalfOpen: 16})
	b.hello = string(make([]byte, MaxHello))
	rnd := rand.New(rand.NewPCG(1, 2))
	head := make([]byte, HeadSize)
	for i := range 5000 {
		from := netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 1, byte(i >> 8), byte(i)}), uint16(1+rnd.IntN(65535)))
		p := Packet{kind: kind(1 + i%9), id: rnd.Uint32() & 31, token: rnd.Uint32(), seq: rnd.Uint32()}
		shape := shapes[p.kind]
		p.body = make([]byte, shape.min)
		if p.kind == kindHello {
			g := greeting{oldest: OldestVersion, newest: Version, id: rnd.Uint32(), token: rnd.Uint32(), session: rnd.Uint64(), size: MaxSize}
			p.body = g.append(nil)
			if i%2 == 0 {
				p.body = append(p.body, make([]byte, BaseSize-headSize-len(p.body))...)
			}
		}
		in := headSize + len(p.body)
		b.m.Receive(n.now, from, &p)
		out := 0
		for {
			o, ok := b.m.Next(n.now, head)
			if !ok {
				break
			}
			require.Equal(t, from, o.To)
			out += o.Size()
		}
		require.LessOrEqual(t, out, in, "%v", p.kind)
		if i%100 == 0 {
			n.now += ms
		}
	}
	st := b.m.Stats()
	require.Equal(t, 16, st.HalfOpen)
	require.Positive(t, st.Cookies)
	require.Positive(t, st.Resets)
	n.idle(3 * time.Second)
	require.Zero(t, b.m.Stats().HalfOpen, "a peer without a cookie is dropped")
	require.Zero(t, b.m.Stats().Peers)
	require.Len(t, b.ends, 16)

	// A real peer is accepted under load, with one more round trip.
	b.m.stats.HalfOpen = 16
	b.hello = "short"
	a := n.add(1, Config{})
	n.join(a, b)
	require.Equal(t, true, b.verified[len(b.verified)-1])
	b.m.stats.HalfOpen = 0
	n.stream(a, b, 10, 64, time.Minute)
}

// TestPeersAreBounded checks that there are never more than MaxPeers associations, and one beyond
// them is not reported; answers to unknown peers wait in a bounded queue.
func TestPeersAreBounded(t *testing.T) {
	n := newNetwork(t, 1, faults{delay: ms})
	b := n.add(0, Config{MaxPeers: 3, HalfOpen: 1 << 20})
	hello := func(i int) *Packet {
		g := greeting{oldest: OldestVersion, newest: Version, id: uint32(i), token: uint32(i), session: 1, size: BaseSize}
		return &Packet{kind: kindHello, body: append(g.append(nil), make([]byte, BaseSize)...)}
	}
	for i := range 5 {
		b.m.Receive(n.now, netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 1, 0, byte(i)}), 9), hello(1+i))
	}
	require.Equal(t, 3, b.admitted)
	require.Equal(t, 3, b.m.Stats().Peers)
	require.Equal(t, int64(2), b.m.Stats().Dropped)
	_, err := b.m.Dial(n.now, netip.MustParseAddrPort("10.1.1.1:9"), 0, Path{}, b)
	require.ErrorIs(t, err, ErrFull)
	n.idle(time.Minute) // none of them shows that it is there
	n.join(n.add(1, Config{}), b)
	require.Equal(t, 4, b.admitted)

	c := n.add(2, Config{HalfOpen: 1})
	for i := range 1000 {
		c.m.Receive(n.now, netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 2, byte(i >> 8), byte(i)}), 9), hello(1+i))
	}
	require.Len(t, c.m.control, maxControl)
	require.Equal(t, int64(1000-maxControl), c.m.Stats().Dropped)
}

// TestReplay checks replayed packets, of a handshake and of a stream, during the association and
// after it: they change nothing.
func TestReplay(t *testing.T) {
	n := newNetwork(t, 1, faults{delay: ms})
	a, b := n.add(1, Config{}), n.add(2, Config{})
	var all [][]byte
	n.watch = func(from *node, p *Packet) {
		if from == a {
			all = append(all, reencode(append(p.append(nil), p.body...)))
		}
	}
	n.join(a, b)
	n.stream(a, b, 20, 64, time.Minute)
	n.idle(time.Second)
	replay := func() {
		for _, raw := range all {
			p, err := Parse(raw)
			require.NoError(t, err)
			b.m.Receive(n.now, a.addr, &p)
		}
		n.idle(3 * time.Second)
	}
	n.watch = nil
	was := b.assoc.lane[0].rcv
	replay()
	require.Equal(t, was, b.assoc.lane[0].rcv)
	require.Len(t, b.got, 20)
	require.Equal(t, 1, b.admitted)
	require.Equal(t, open, a.assoc.state)
	require.Empty(t, a.ends)

	a.assoc.Cut([]byte("over"))
	n.idle(time.Second)
	require.Equal(t, []End{{Outcome: Refusal, Words: "over"}}, b.ends)
	replay()
	require.Len(t, b.got, 20, "nothing is delivered to an association that is over")
	require.Zero(t, b.m.Stats().Peers)
	require.Zero(t, b.m.Stats().HalfOpen)
}

// TestForgedHello checks that a HELLO with the address of a known peer needs a cookie, which is
// sent to that address: a forged one ends nothing.
func TestForgedHello(t *testing.T) {
	n := newNetwork(t, 1, faults{delay: ms})
	a, b := n.pair(Config{}, Config{})
	g := greeting{oldest: OldestVersion, newest: Version, id: 77, token: 88, session: 1 << 62, size: MaxSize}
	p := Packet{kind: kindHello, body: append(g.append(nil), make([]byte, BaseSize)...)}
	b.m.Receive(n.now, a.addr, &p)
	n.idle(time.Second)
	require.Equal(t, 1, b.admitted)
	n.stream(a, b, 5, 64, time.Minute)

	g.cookie = b.m.cookie(netip.MustParseAddrPort("10.0.0.9:7000"), &g, n.now/cookieEpoch) // another's
	p.body = append(g.append(nil), make([]byte, BaseSize)...)
	b.m.Receive(n.now, a.addr, &p)
	require.Equal(t, 1, b.admitted)

	g.cookie = b.m.cookie(a.addr, &g, n.now/cookieEpoch)
	p.body = append(g.append(nil), make([]byte, BaseSize)...)
	n.now += 3 * cookieEpoch // too old
	b.m.Receive(n.now, a.addr, &p)
	require.Equal(t, 1, b.admitted)
	b.m.Receive(n.now-3*cookieEpoch, a.addr, &p) // but good in time
	require.Equal(t, 2, b.admitted)
}

// TestCookieOnce checks that the HELLO of a peer, recorded and sent again when its association has
// ended, is no proof that a process receives there.
func TestCookieOnce(t *testing.T) {
	n := newNetwork(t, 1, faults{delay: ms})
	a, b := n.add(1, Config{}), n.add(2, Config{})
	b.cookie = true
	var tape []Packet
	n.drop = func(from *node, p *Packet) bool {
		if from == a && p.kind == kindHello {
			again := *p
			again.body = append([]byte(nil), p.body...)
			tape = append(tape, again)
		}
		return false
	}
	n.join(a, b)
	require.Len(t, tape, 2, "without a cookie, and with one")
	a.assoc.Finish(n.now, nil)
	b.assoc.Finish(n.now, nil)
	n.idle(5 * time.Second)
	require.Zero(t, b.m.Stats().Peers)
	cookies := b.m.Stats().Cookies
	b.m.Receive(n.now, a.addr, &tape[1])
	require.Equal(t, 1, b.admitted)
	require.Equal(t, false, b.verified[len(b.verified)-1], "a cookie that was used proves nothing")
	require.Equal(t, cookies+1, b.m.Stats().Cookies)
	n.idle(time.Second)
	n.join(a, b)
	require.Equal(t, 2, b.admitted, "the peer itself dials again")

	for i := range maxUsedCookies {
		b.m.useCookie(n.now, [cookieSize]byte{1, byte(i), byte(i >> 8)})
		require.LessOrEqual(t, len(b.m.cookies), maxUsedCookies)
	}
	n.idle(time.Second)
	b.m.Receive(n.now, a.addr, &tape[1])
	require.Equal(t, 2, b.admitted, "one that had to be forgotten is void")
}

func FuzzParse(f *testing.F) {
	beginnings.Seed(f, []byte{})
	for k := kindData; k <= kindReset; k++ {
		p := Packet{kind: k, body: make([]byte, shapes[k].min)}
		beginnings.Seed(f, reencode(append(p.append(nil), p.body...)))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		for range 2 {
			p, err := Parse(b)
			if err == nil && p.kind == kindOther { // in the form of another version: no more than the addressing is known
				require.Equal(t, b[4:12], binary.LittleEndian.AppendUint32(binary.LittleEndian.AppendUint32(nil, p.id), p.token))
				_ = p.String()
			} else if err == nil {
				again := reencode(append(p.append(nil), p.body...))
				require.Equal(t, b[1:], again[1:], "encodes to the same")
				_ = p.String()
				if p.kind == kindHello || p.kind == kindAccept {
					if g, ok := parseGreeting(p.body); ok {
						require.Equal(t, p.body[:greetingSize+len(g.hello)], g.append(nil))
					}
				}
			}
			if len(b) < headSize {
				return
			}
			b = bytes.Clone(b) // and with a checksum that is right
			reencode(b)
		}
	})
}

// FuzzMachine (U-T35) checks two machines over a network that the input drives, and an attacker
// that knows the identities: messages arrive once and in order, una <= ack <= nxt, and the counts
// match the kept packets.
func FuzzMachine(f *testing.F) {
	for seed := range uint64(20) {
		f.Add(seed, []byte{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11})
	}
	f.Fuzz(schedule)
}

// TestSchedules is FuzzMachine with seeds.
func TestSchedules(t *testing.T) {
	for seed := range uint64(300) {
		rnd := rand.New(rand.NewPCG(seed, 9))
		script := make([]byte, 60)
		for i := range script {
			script[i] = byte(rnd.Uint32())
		}
		schedule(t, seed, script)
		if t.Failed() {
			t.Fatalf("seed %d", seed)
		}
	}
}

func schedule(t *testing.T, seed uint64, script []byte) {
	if len(script) > 300 {
		return
	}
	rnd := rand.New(rand.NewPCG(seed, 2))
	n := &network{T: t, rnd: rand.New(rand.NewPCG(seed, 1)), nodes: map[netip.AddrPort]*node{}, now: time.Second}
	p := pairs[seed%uint64(len(pairs))]
	a, b := n.add(1, p.a), n.add(2, p.b)
	b.path.Size, a.path.Size = 9000, 9000
	n.join(a, b)
	n.f = faults{loss: rnd.Float64() * 0.4, dup: rnd.Float64() * 0.5, reorder: rnd.Float64() * 0.5, corrupt: rnd.Float64() * 0.1,
		delay: time.Duration(1 + rnd.IntN(int(5*ms)))}
	sent, count := [2]uint64{}, 0
	refs, placed := 0, 0
	b.mem = make([]byte, 1<<20)
	for _, op := range script {
		nd := []*node{a, b}[op>>7]
		as := nd.assoc
		frame, piece := as.Room(n.now)
		switch op & 15 {
		case 0, 1, 2, 3, 4:
			if frame >= 0 {
				m := make([]byte, 8+rnd.IntN(3000)*int(op&1))
				binary.LittleEndian.PutUint64(m, sent[op>>7])
				sent[op>>7]++
				nd.send(as, m)
			}
		case 5, 6:
			if k := min(piece, 20000); nd == a && k > 0 {
				a.bulk(as, refs%1000*1000, make([]byte, k))
				refs, placed = refs+1, placed+k
			}
		case 7:
			as.Barrier()
		case 8, 9, 10:
			n.idle(time.Duration(rnd.IntN(int(20 * ms))))
		case 11:
			nd.busy = n.now + time.Duration(rnd.IntN(int(100*ms)))
		case 12, 13, 14: // an attacker with the right identity
			p := Packet{kind: kind(1 + rnd.IntN(9)), id: as.id, token: as.token + uint32(rnd.IntN(2)*int(op>>6&1)), seq: rnd.Uint32(),
				ack: as.lane[0].una + uint32(rnd.IntN(100)) - 200, edge: as.lane[0].edge, ts: rnd.Uint32()}
			p.flags = uint8(rnd.Uint32()) & shapes[p.kind].flags &^ flagBulk
			if p.kind == kindData || p.kind == kindRefuse || p.kind == kindReset {
				break
			}
			p.body = make([]byte, shapes[p.kind].min)
			if q, err := Parse(reencode(append(p.append(nil), p.body...))); err == nil {
				from := []*node{b, a}[op>>7].addr
				if rnd.IntN(2) == 0 {
					from = netip.MustParseAddrPort("10.1.1.1:1")
				}
				if before(as.lane[0].una, q.ack) || q.flags&flagEcho != 0 || q.kind == kindPing {
					break
				}
				nd.m.Receive(n.now, from, &q)
			}
		case 15:
			count++
			n.settle()
		}
		nd.check()
	}
	n.f.loss, n.f.corrupt = min(n.f.loss, 0.2), 0
	n.run(time.Hour, func() bool {
		return uint64(len(b.got)) == sent[0] && uint64(len(a.got)) == sent[1] && len(a.sent) == refs
	})
	for i, nd := range []*node{b, a} {
		for j, m := range nd.got {
			require.Equal(t, uint64(j), binary.LittleEndian.Uint64(m), "messages of %d", i)
		}
	}
	require.Equal(t, placed, b.placed, "each byte placed once")
	n.idle(time.Minute)
	require.Zero(t, a.m.Stats().Retained+b.m.Stats().Retained)
	require.True(t, a.assoc.flight == nil && b.assoc.flight == nil, "nothing is under way, and no flight kept")
}
