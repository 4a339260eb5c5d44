package arq

import (
	"bytes"
	stdheap "container/heap"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// faults is what a network does to packets, in shares of one.
type faults struct {
	loss, dup, reorder, corrupt float64
	delay                       time.Duration // one way
	rate                        int           // bytes/s of a bottleneck that all share each way; 0: none
	queue                       int           // bytes that it holds
}

// A network carries packets between machines in virtual time.
type network struct {
	*testing.T
	rnd      *rand.Rand
	now      time.Duration
	f        faults
	nodes    map[netip.AddrPort]*node
	order    []*node
	flying   datagrams
	seq      int
	free     [2]time.Duration // when the bottleneck is idle again
	drop     func(from *node, p *Packet) bool
	watch    func(from *node, p *Packet)
	packets  int
	bytes    int
	sessions uint64
	stuck    int // steps since lastAt
	lastAt   time.Duration
}

type datagram struct {
	at   time.Duration
	seq  int
	from netip.AddrPort
	to   netip.AddrPort
	b    []byte
}

// A node is a machine with an Upper that checks the received frames.
type node struct {
	net   *network
	addr  netip.AddrPort
	m     *Machine
	path  Path
	hello string
	busy  time.Duration // its socket is not read before then

	assoc     *Assoc // the latest
	greeted   int
	admitted  int
	refuse    string
	crossing  bool
	verified  []bool
	cookie    bool     // requests one
	got       [][]byte // frames
	part      []byte
	mem       []byte // where bulk data goes
	placed    int
	early     int // placed before the frame that opens it
	opens     bool
	opened    bool
	sent      []any
	room      func(a *Assoc)
	onFin     func(a *Assoc)
	finishing int
	words     string // of the received FIN
	ends      []End
	lastWords string // for a peer that does not answer
	void      map[any]bool
	sources   map[any][]byte
}

func newNetwork(t *testing.T, seed uint64, f faults) *network {
	t.Helper()
	t.Logf("seed %d", seed)
	return &network{T: t, rnd: rand.New(rand.NewPCG(seed, 1)), f: f, nodes: map[netip.AddrPort]*node{}, now: time.Second}
}

func (n *network) add(i int, cfg Config) *node {
	nd := &node{net: n, addr: netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, byte(i >> 8), byte(i)}), 7000),
		void: map[any]bool{}, sources: map[any][]byte{}, hello: fmt.Sprintf("hello from %d", i)}
	if cfg.Rand == nil {
		cfg.Rand = func(b []byte) {
			for i := range b {
				b[i] = byte(n.rnd.Uint32())
			}
		}
	}
	if cfg.Session == nil {
		cfg.Session = func() uint64 { n.sessions++; return n.sessions }
	}
	nd.m = New(cfg, nd)
	n.nodes[nd.addr] = nd
	n.order = append(n.order, nd)
	return nd
}

func (nd *node) Admit(from netip.AddrPort, hello []byte, verified bool, dialing *Assoc) Admission {
	nd.verified = append(nd.verified, verified)
	if nd.refuse != "" {
		return Admission{Words: []byte(nd.refuse)}
	}
	if nd.cookie && !verified {
		return Admission{Cookie: true}
	}
	if dialing != nil {
		nd.crossing = true
		return Admission{Crossing: true}
	}
	nd.admitted++
	return Admission{User: nd, Path: nd.path}
}
func (nd *node) Hello(a *Assoc, dst []byte) []byte { return append(dst, nd.hello...) }
func (nd *node) Greet(a *Assoc, hello []byte) error {
	nd.greeted++
	if string(hello) == "bad" {
		return errors.New("bad hello")
	}
	return nil
}
func (nd *node) Heard(*Assoc)           {}
func (nd *node) Sent(a *Assoc, ref any) { nd.sent = append(nd.sent, ref) }
func (nd *node) Room(a *Assoc) {
	if nd.room != nil {
		nd.room(a)
	}
}
func (nd *node) Finishing(a *Assoc, words []byte) {
	nd.words = string(words)
	nd.finishing++
	if nd.onFin != nil {
		nd.onFin(a)
	}
}
func (nd *node) Ended(a *Assoc, e End) {
	nd.ends = append(nd.ends, e)
	if nd.lastWords != "" {
		a.Cut([]byte(nd.lastWords))
	}
}

// Frames of these tests are their length and their bytes.
func (nd *node) Deliver(a *Assoc, body []byte) {
	nd.assoc = a
	b := append(nd.part, body...)
	for len(b) >= 4 {
		n := int(binary.LittleEndian.Uint32(b))
		if len(b) < 4+n {
			break
		}
		frame := bytes.Clone(b[4 : 4+n])
		if string(frame) == "open" {
			nd.opened = true
		}
		nd.got = append(nd.got, frame)
		b = b[4+n:]
	}
	nd.part = bytes.Clone(b)
}

func (nd *node) Place(a *Assoc, front *[FrontSize]byte, at int, payload []byte) {
	nd.assoc = a
	if nd.opens && !nd.opened {
		nd.early++
	}
	off := int(binary.LittleEndian.Uint64(front[:])) + at
	require.LessOrEqual(nd.net, off+len(payload), len(nd.mem), "placed beyond the memory")
	copy(nd.mem[off:], payload)
	nd.placed += len(payload)
}

func (nd *node) send(a *Assoc, b []byte) {
	a.Frame(binary.LittleEndian.AppendUint32(nil, uint32(len(b))), b, true)
}

// bulk sends b as one piece to offset off.
func (nd *node) bulk(a *Assoc, off int, b []byte) any {
	var front [FrontSize]byte
	binary.LittleEndian.PutUint64(front[:], uint64(off))
	ref := new(int)
	*ref = off
	nd.sources[ref] = b
	a.Piece(&front, ref, len(b))
	return ref
}

// flush takes what the machine wants to send.
func (nd *node) flush() {
	n := nd.net
	head := make([]byte, HeadSize)
	for count := 0; ; count++ {
		o, ok := nd.m.Next(n.now, head)
		if !ok {
			return
		}
		if count > 20000 {
			p, _ := Parse(append(bytes.Clone(o.Head), o.Body...))
			require.Fail(n, "it sends without end", "%v", &p)
		}
		b := append(bytes.Clone(o.Head), o.Body...)
		if o.Ref != nil {
			if nd.void[o.Ref] {
				nd.m.Void(&o)
				b = bytes.Clone(o.Head)
			} else {
				payload := nd.sources[o.Ref][o.At : o.At+o.N]
				o.Seal(payload)
				b = append(bytes.Clone(o.Head), payload...)
			}
		}
		n.transmit(nd, o.To, b)
	}
}

func (n *network) transmit(from *node, to netip.AddrPort, b []byte) {
	p, err := Parse(b)
	require.NoError(n, err, "a machine sends what it could not read")
	n.packets++
	n.bytes += len(b)
	if n.watch != nil {
		n.watch(from, &p)
	}
	if n.drop != nil && n.drop(from, &p) {
		return
	}
	copies := 1
	if n.rnd.Float64() < n.f.loss {
		copies--
	}
	if n.rnd.Float64() < n.f.dup {
		copies++
	}
	for ; copies > 0; copies-- {
		at := n.now + n.f.delay
		if n.f.rate > 0 {
			way := 0
			if from != n.order[0] {
				way = 1
			}
			start := max(n.free[way], n.now)
			if int(int64(start-n.now)*int64(n.f.rate)/int64(time.Second)) > n.f.queue {
				continue
			}
			n.free[way] = start + time.Duration(len(b))*time.Second/time.Duration(n.f.rate)
			at = n.free[way] + n.f.delay
		}
		if n.rnd.Float64() < n.f.reorder {
			at += time.Duration(n.rnd.IntN(int(n.f.delay) + 1))
		}
		c := bytes.Clone(b)
		if n.rnd.Float64() < n.f.corrupt {
			c[n.rnd.IntN(len(c))] ^= byte(1 + n.rnd.IntN(255))
		}
		n.inject(at, from.addr, to, c)
	}
}

func (n *network) inject(at time.Duration, from, to netip.AddrPort, b []byte) {
	n.seq++
	stdheap.Push(&n.flying, datagram{at, n.seq, from, to, b})
}

// datagrams is a heap, by time.
type datagrams []datagram

func (d datagrams) Len() int { return len(d) }
func (d datagrams) Less(i, j int) bool {
	if d[i].at != d[j].at {
		return d[i].at < d[j].at
	}
	return d[i].seq < d[j].seq
}
func (d datagrams) Swap(i, j int) { d[i], d[j] = d[j], d[i] }
func (d *datagrams) Push(x any)   { *d = append(*d, x.(datagram)) }
func (d *datagrams) Pop() any {
	x := (*d)[len(*d)-1]
	*d = (*d)[:len(*d)-1]
	return x
}

// settle flushes all nodes until none has anything to send now.
func (n *network) settle() {
	for _, nd := range n.order {
		nd.flush()
	}
}

// step goes to the next moment at which something happens, and reports false if there is none by the time.
func (n *network) step(until time.Duration) bool {
	n.settle()
	next, any := until, false
	if len(n.flying) > 0 && n.flying[0].at <= next {
		next, any = n.flying[0].at, true
	}
	for _, nd := range n.order {
		if d, ok := nd.m.Deadline(); ok && max(d, nd.busy) <= next {
			next, any = max(d, nd.busy), true
		}
	}
	if !any {
		n.now = until
		return false
	}
	if n.now = max(n.now, next); n.now-n.lastAt < time.Microsecond {
		n.stuck++
		require.Less(n, n.stuck, 20000, "time stands still")
	} else {
		n.stuck, n.lastAt = 0, n.now
	}
	for len(n.flying) > 0 && n.flying[0].at <= n.now {
		d := stdheap.Pop(&n.flying).(datagram)
		nd := n.nodes[d.to]
		if nd == nil {
			continue
		}
		if nd.busy > n.now {
			n.inject(nd.busy, d.from, d.to, d.b)
			continue
		}
		if p, err := Parse(d.b); err == nil {
			nd.m.Receive(n.now, d.from, &p)
			for i := range d.b { // of which it keeps nothing
				d.b[i] = 0xDB
			}
			if n.seq%16 == 0 {
				nd.check()
			}
		}
	}
	for _, nd := range n.order {
		if nd.busy <= n.now {
			nd.m.Poll(n.now)
		}
	}
	return true
}

// run runs until done reports true, and fails after the time.
func (n *network) run(most time.Duration, done func() bool) {
	n.Helper()
	until := n.now + most
	for n.settle(); !done(); n.settle() {
		if !n.step(until) {
			require.Fail(n, "it does not end", "after %v", most)
		}
	}
}

// idle lets the time pass.
func (n *network) idle(d time.Duration) {
	for until := n.now + d; n.step(until); {
	}
}

// check is what holds at any time.
func (nd *node) check() {
	held := 0
	for _, s := range nd.m.slots {
		a := s.a
		if a == nil || a.flight == nil {
			continue
		}
		flying := 0
		for i := range a.lane {
			l, snd := &a.lane[i], &a.flight.send[i]
			if before(snd.high, l.una) || before(l.nxt, snd.high) || before(snd.snd, l.una) || before(snd.high, snd.snd) {
				require.Fail(nd.net, "numbers out of order", "lane %d: una %d snd %d high %d nxt %d", i, l.una, snd.snd, snd.high, l.nxt)
			}
			lost, sacked, units := 0, 0, 0
			for seq := l.una; seq != l.nxt; seq++ {
				q := snd.at(seq)
				flying += int(q.size)
				units += int(q.units)
				lost += int(q.flags & pktLost / pktLost)
				sacked += int(q.flags & pktAcked / pktAcked)
			}
			require.Equal(nd.net, lost, snd.lost, "packets that are lost, and their count")
			require.Equal(nd.net, sacked, snd.sacked, "packets that are acknowledged selectively, and their count")
			require.Equal(nd.net, units, snd.cost, "units that are used up, and their count")
		}
		require.Equal(nd.net, flying, a.flight.flying, "bytes under way, and their count")
		r, units := &a.flight.recv[0], 0
		for seq, h := range r.held {
			require.True(nd.net, r.hasPacket(seq-a.lane[0].rcv), "a packet that is kept has arrived")
			units += numbersFor(headSize + len(h.body))
		}
		require.Equal(nd.net, units, r.units, "units that kept packets take, and their count")
		held += units
	}
	require.Equal(nd.net, held, nd.m.held, "units that all kept packets take, and their count")
}

// pair returns two nodes with an association, from the first to the second.
func (n *network) pair(x, y Config) (*node, *node) {
	n.Helper()
	a, b := n.add(1, x), n.add(2, y)
	n.join(a, b)
	return a, b
}

func (n *network) join(a, b *node) {
	n.Helper()
	as, err := a.m.Dial(n.now, b.addr, 0, a.path, a)
	require.NoError(n, err)
	a.assoc = as
	n.run(10*time.Second, func() bool {
		if n.peerOf(a.assoc, b) == nil {
			return false
		}
		return as.state == open && b.assoc.state == open && !as.flight.confirming()
	})
}

func (f *flight) confirming() bool { return f != nil && (f.ping.confirm || f.ping.size != 0) }

// peerOf finds the other end of as at b.
func (n *network) peerOf(as *Assoc, b *node) *Assoc {
	b.assoc = b.m.find(as.peerID)
	if as.peerID == 0 && as.peerToken == 0 {
		b.assoc = nil
	}
	return b.assoc
}

// stream sends count messages of about size bytes from a to b, as fast as there is room, and waits until they are there.
func (n *network) stream(a, b *node, count, size int, most time.Duration) {
	n.Helper()
	want := len(b.got) + count
	first := len(b.got)
	i := 0
	fill := func(as *Assoc) {
		for i < count {
			if frame, _ := as.Room(n.now); frame < size+8 {
				return
			}
			m := make([]byte, max(8, size))
			binary.LittleEndian.PutUint64(m, uint64(i))
			a.send(as, m)
			i++
		}
	}
	a.room = fill
	fill(a.assoc)
	n.run(most, func() bool { return len(b.got) >= want })
	a.room = nil
	for j, m := range b.got[first:] {
		require.Equal(n, uint64(j), binary.LittleEndian.Uint64(m), "order of messages")
	}
	require.Len(n, b.got, want)
}

// sendBulk sends size bytes of bulk data from a to b and waits until they have arrived and are
// acknowledged.
func (n *network) sendBulk(a, b *node, size int, most time.Duration) time.Duration {
	n.Helper()
	src := make([]byte, size)
	for i := range src {
		src[i] = byte(i * 7 >> 3)
	}
	b.mem, b.placed = make([]byte, size), 0
	pieces, done := 0, len(a.sent)
	off := 0
	fill := func(as *Assoc) {
		for off < size {
			_, piece := as.Room(n.now)
			k := min(piece, size-off)
			if k == 0 {
				return
			}
			a.bulk(as, off, src[off:off+k])
			pieces++
			off += k
		}
	}
	a.room = fill
	start := n.now
	fill(a.assoc)
	n.run(most, func() bool { return b.placed >= size && len(a.sent)-done == pieces && off == size })
	a.room = nil
	require.Equal(n, size, b.placed, "bytes placed: each once")
	require.True(n, bytes.Equal(src, b.mem), "what was placed")
	return n.now - start
}
