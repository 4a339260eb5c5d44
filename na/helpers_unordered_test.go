package na_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/quicksilver-rpc/quicksilver/internal/frame"
	"github.com/quicksilver-rpc/quicksilver/internal/simhook"
	"github.com/quicksilver-rpc/quicksilver/na"
	"github.com/quicksilver-rpc/quicksilver/na/carrier"
)

// A looseNetwork is a network of packets in memory, with everything that the contract of carriers allows:
// DATA arrives in any order, packets are duplicated, and memory that is sent is kept until it has
// arrived, as udp does. The simulator's connections are streams. It implements na.Plugin; classes
// that shall meet are opened with the same loose. It has a clock of its own, which passes only
// while a goroutine waits in Progress, and no goroutine.
type looseNetwork struct {
	mu        sync.Mutex // guards the fields below
	rng       *rand.Rand
	now       time.Duration
	listeners map[string]carrier.Class
	carriers  map[carrier.Core]*looseCarrier
}

const (
	looseRoom  = 16   // packets in flight on one flow
	loosePiece = 3000 // bytes of a piece of bulk data
)

func newLooseNetwork(seed uint64) *looseNetwork {
	return &looseNetwork{
		rng: rand.New(rand.NewPCG(seed, 1)), listeners: map[string]carrier.Class{}, carriers: map[carrier.Core]*looseCarrier{},
	}
}

// Scheme implements na.Plugin.
func (n *looseNetwork) Scheme() string { return "loose" }

// Open implements carrier.Plugin: rest is the name to listen on.
func (n *looseNetwork) Open(class carrier.Class, rest string) (*carrier.Network, error) {
	net := &carrier.Network{
		Host: "fake", Exact: true, Names: n,
		NewCarrier: func(e carrier.Core) (carrier.Carrier, error) {
			c := &looseCarrier{net: n, e: e}
			n.mu.Lock()
			n.carriers[e] = c
			n.mu.Unlock()
			return c, nil
		},
	}
	if rest == "" {
		return net, nil
	}
	net.Listen = "loose://" + rest
	net.Close = func() error {
		n.mu.Lock()
		delete(n.listeners, net.Listen)
		n.mu.Unlock()
		return nil
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.listeners[net.Listen] != nil {
		return nil, na.WithText(na.ErrAddrInUse, "somebody listens on "+net.Listen)
	}
	n.listeners[net.Listen] = class
	return net, nil
}

// Driven implements simhook.Clock.
func (n *looseNetwork) Driven() bool { return true }

// Now reads the clock.
func (n *looseNetwork) Now() time.Duration {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.now
}

// Rand fills b from the seed.
func (n *looseNetwork) Rand(b []byte) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for i := range b {
		b[i] = byte(n.rng.Uint32())
	}
}

// drawBelow draws a number from 0 up to k.
func (n *looseNetwork) drawBelow(k int) int {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.rng.IntN(k)
}

// find returns the carrier that listens on a name for a context.
func (n *looseNetwork) find(name string, target int) (*looseCarrier, error) {
	n.mu.Lock()
	g := n.listeners[name]
	n.mu.Unlock()
	if g == nil {
		return nil, na.WithText(na.ErrUnreachable, "nobody listens on "+name)
	}
	e := g.Context(target)
	n.mu.Lock()
	defer n.mu.Unlock()
	if c := n.carriers[e]; e != nil && c != nil {
		return c, nil
	}
	return nil, na.WithText(na.ErrNoEntry, fmt.Sprintf("no such context: %d", target))
}

// A packet is a packet in flight on a path. Those that are not DATA arrive in their order.
type packet struct {
	n      uint64 // its number on the path, the same in a duplicate
	after  uint64 // DATA: the last packet before it that is not
	kind   packetKind
	head   frame.Header
	body   []byte // payload, HELLO, or the text of a goodbye
	copied bool
}

type packetKind uint8

const (
	packetFrame packetKind = iota
	packetData
	packetHello
	packetGoodbye
)

// A loosePath is the path of one direction of one flow.
type loosePath struct {
	mu     sync.Mutex // guards the fields below
	list   []packet
	sent   uint64
	last   uint64   // sent that is not DATA
	got    uint64   // likewise, arrived
	acks   []uint64 // DATA that has arrived
	closed bool
}

func (w *loosePath) push(p packet) uint64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.sent++
	if p.n = w.sent; p.kind == packetData {
		p.after = w.last
	} else {
		w.last = p.n
	}
	w.list = append(w.list, p)
	return p.n
}

// pop takes a packet off.
func (w *loosePath) pop(n *looseNetwork) (p packet, ok bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.list) == 0 {
		return p, false
	}
	i := n.drawBelow(len(w.list))
	if p := w.list[i]; p.kind != packetData || p.after > w.got {
		i = slices.IndexFunc(w.list, func(p packet) bool { return p.kind != packetData })
	}
	p = w.list[i]
	if !p.copied && n.drawBelow(4) == 0 {
		w.list[i].copied = true
	} else {
		w.list = slices.Delete(w.list, i, i+1)
	}
	return p, true
}

func (w *loosePath) full() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.list) >= looseRoom
}

func (w *loosePath) close() {
	w.mu.Lock()
	w.closed = true
	w.mu.Unlock()
}

func (w *loosePath) over() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.closed && len(w.list) == 0
}

const flows = 2

// A looseConn is one end of a connection. The endpoint's lock guards it.
type looseConn struct {
	c      *looseCarrier
	peer   *looseConn
	link   carrier.Session // nil until the HELLO of a peer that connected
	rx, tx [flows]*loosePath
	seen   [flows]map[uint64]bool
	out    [flows]map[uint64]carrier.View // DATA that has not arrived
	cut    bool
}

func newLooseConn(c *looseCarrier, l carrier.Session, rx, tx [flows]*loosePath) *looseConn {
	cn := &looseConn{c: c, link: l, rx: rx, tx: tx}
	for f := range flows {
		cn.seen[f], cn.out[f] = map[uint64]bool{}, map[uint64]carrier.View{}
	}
	return cn
}

// A failedDial is a failure that the next Poll reports.
type failedDial struct {
	l   carrier.Session
	err error
}

// A looseCarrier is the side of one context.
type looseCarrier struct {
	net     *looseNetwork
	e       carrier.Core
	polling sync.Mutex // held by the goroutine that polls

	mu     sync.Mutex // guards the fields below
	shut   bool
	conns  []*looseConn
	failed []failedDial
}

var (
	_ carrier.Carrier = (*looseCarrier)(nil)
	_ simhook.Driver  = (*looseCarrier)(nil)
)

// Drive implements simhook.Driver.
func (c *looseCarrier) Drive(timeout time.Duration, ready func() bool) bool {
	n := c.net
	deadline := n.Now() + timeout
	for {
		now := n.Now()
		next := c.e.(simhook.Core).Poll(now)
		if ready() {
			return true
		}
		if timeout >= 0 && now >= deadline {
			return false
		}
		to := deadline
		if next != 0 && (timeout < 0 || next < deadline) {
			to = max(next, now+time.Microsecond)
		} else if timeout < 0 {
			return false // nothing can ever happen
		}
		n.mu.Lock()
		n.now = max(n.now, to)
		n.mu.Unlock()
	}
}

// Wake implements simhook.Driver: no goroutine blocks in Drive.
func (c *looseCarrier) Wake() {}

// FlushSoon implements simhook.Driver. It does nothing: Drive polls.
func (c *looseCarrier) FlushSoon() {}

// Check implements na.Names.
func (n *looseNetwork) Check(name string) error {
	if strings.Contains(name, "://@") {
		return na.WithText(na.ErrUnreachable, name+" does not listen")
	}
	return nil
}

// Resolve implements na.Names.
func (n *looseNetwork) Resolve(text string, done func(string, error)) func() {
	if strings.HasSuffix(text, "://pending") {
		return func() {}
	}
	done(text, nil)
	return nil
}

// Dial implements carrier.Carrier.
func (c *looseCarrier) Dial(l carrier.Session) {
	to, err := c.net.find(l.Name(), l.Target())
	if err != nil {
		c.mu.Lock()
		c.failed = append(c.failed, failedDial{l, err})
		c.mu.Unlock()
		return
	}
	var there, back [flows]*loosePath
	for f := range flows {
		there[f], back[f] = &loosePath{}, &loosePath{}
	}
	theirs, mine := newLooseConn(to, nil, there, back), newLooseConn(c, l, back, there)
	theirs.peer, mine.peer = mine, theirs
	to.add(theirs)
	l.SetConn(mine)
	c.add(mine)
	mine.tx[0].push(packet{kind: packetHello, body: l.Hello(carrier.Messages, nil, nil)})
}

func (c *looseCarrier) add(cn *looseConn) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.shut {
		cn.close()
		return
	}
	c.conns = append(c.conns, cn)
}

// Remote implements na.Addressed.
func (cn *looseConn) Remote() string { return "the other end" }

func (cn *looseConn) close() {
	cn.cut = true
	for _, w := range cn.tx {
		w.close()
	}
}

// Flush implements carrier.Carrier.
func (c *looseCarrier) Flush(ls []carrier.Session) {
	c.e.Pause() // others may arrive in between
	c.e.Lock()
	for _, l := range ls {
		if cn, ok := l.Conn().(*looseConn); ok {
			cn.pull()
		}
	}
}

// pull sends as much as there is room for. It is called with the lock held.
func (cn *looseConn) pull() {
	for f := range carrier.Lane(flows) {
		if !cn.cut && cn.link != nil {
			cn.link.Pull(f, &looseWriter{cn, f})
		}
	}
}

// Cut implements carrier.Carrier.
func (c *looseCarrier) Cut(l carrier.Session, bye frame.Bye) {
	cn, ok := l.Conn().(*looseConn)
	if !ok {
		return
	}
	l.SetConn(nil)
	if words := bye.Words(); words != nil {
		cn.tx[0].push(packet{kind: packetGoodbye, body: words})
	}
	cn.close()
}

// Poll implements carrier.Carrier.
func (c *looseCarrier) Poll(time.Duration) time.Duration {
	if !c.polling.TryLock() {
		return 0
	}
	defer c.polling.Unlock()
	c.mu.Lock()
	conns, failed := slices.Clone(c.conns), c.failed
	c.failed = nil
	c.mu.Unlock()
	for _, f := range failed {
		c.e.Lock()
		if !f.l.Up() {
			f.l.Fail(f.err)
		}
		c.e.Unlock()
	}
	for _, cn := range conns {
		if cn.poll() {
			c.mu.Lock()
			c.conns = slices.DeleteFunc(c.conns, func(x *looseConn) bool { return x == cn })
			c.mu.Unlock()
		}
	}
	return 0
}

// poll takes in the packets that have arrived and sends, and reports whether the connection has
// ended.
func (cn *looseConn) poll() (over bool) {
	e := cn.c.e
	for f := range flows {
		cn.acked(f)
		for {
			e.Lock()
			if cn.cut {
				e.Unlock()
				return true
			}
			p, ok := cn.rx[f].pop(cn.c.net)
			if ok {
				cn.take(f, p)
			}
			e.Unlock()
			if !ok {
				break
			}
		}
	}
	e.Lock()
	if !cn.cut && cn.rx[0].over() {
		if cn.link == nil {
			cn.close()
		} else {
			cn.link.Fail(na.WithText(na.ErrPeerLost, "the connection ended"))
		}
	}
	cn.pull()
	e.Unlock()
	return false
}

// acked gives back the memory of data that has arrived.
func (cn *looseConn) acked(f int) {
	w := cn.tx[f]
	w.mu.Lock()
	acks := w.acks
	w.acks = nil
	w.mu.Unlock()
	cn.c.e.Lock()
	for _, n := range acks {
		if v, ok := cn.out[f][n]; ok && !cn.cut {
			delete(cn.out[f], n)
			cn.link.Sent(v)
		}
	}
	cn.c.e.Unlock()
}

// take handles a packet, once. Locked.
func (cn *looseConn) take(f int, p packet) {
	w := cn.rx[f]
	if p.kind != packetData {
		w.mu.Lock()
		w.got = max(w.got, p.n)
		w.mu.Unlock()
	}
	if cn.seen[f][p.n] {
		return
	}
	cn.seen[f][p.n] = true
	if p.kind == packetData {
		w.mu.Lock()
		w.acks = append(w.acks, p.n)
		w.mu.Unlock()
	}
	var err error
	switch {
	case p.kind == packetHello && cn.link == nil:
		cn.admit(p.body)
		return
	case cn.link == nil:
		return
	case p.kind == packetHello:
		var g frame.Greeting
		if g, err = frame.ParseGreeting(p.body); err == nil {
			err = cn.link.Greet(&g)
		}
		cn.link.LaneUp()
	case p.kind == packetGoodbye:
		cn.link.Refused(frame.ParseBye(p.body))
	case p.kind == packetFrame && len(p.body) < loosePiece:
		err = cn.link.Deliver(&p.head, p.body)
	default:
		var v carrier.View // of DATA, or of a message that would arrive in several packets
		if v, err = cn.link.Place(&p.head); err == nil {
			v.CopyIn(0, p.body)
			err = cn.link.Placed(v)
		}
	}
	if err != nil {
		cn.link.Fail(err)
	}
}

// admit takes in a peer that connected. Locked.
func (cn *looseConn) admit(hello []byte) {
	g, err := frame.ParseGreeting(hello)
	var l carrier.Session
	if err == nil {
		l, err = cn.c.e.Admit(cn.c, cn, &g, true)
	}
	if err != nil {
		cn.tx[0].push(packet{kind: packetGoodbye, body: frame.ByeOf(err).Words()})
		cn.close()
		return
	}
	cn.link = l
	cn.tx[0].push(packet{kind: packetHello, body: l.Hello(carrier.Messages, nil, nil)})
	l.LaneUp()
}

// Lingering implements carrier.Carrier.
func (c *looseCarrier) Lingering(time.Duration) bool { return false }

// Shut implements carrier.Carrier.
func (c *looseCarrier) Shut() {
	c.mu.Lock()
	c.shut = true
	c.mu.Unlock()
}

// Release implements carrier.Carrier.
func (c *looseCarrier) Release() {
	c.mu.Lock()
	conns := c.conns
	c.conns = nil
	c.mu.Unlock()
	for _, cn := range conns {
		cn.close()
	}
	c.net.mu.Lock()
	delete(c.net.carriers, c.e)
	c.net.mu.Unlock()
}

// A looseWriter takes frames of one flow.
type looseWriter struct {
	cn *looseConn
	f  carrier.Lane
}

// Room implements carrier.Writer.
func (w *looseWriter) Room() (whole, piece int) {
	if w.cn.tx[w.f].full() {
		return -1, 0
	}
	return frame.MaxWhole, loosePiece
}

// Frame implements carrier.Writer.
func (w *looseWriter) Frame(h *frame.Header, payload []byte) {
	w.cn.tx[w.f].push(packet{kind: packetFrame, head: *h, body: slices.Clone(payload)})
}

// Piece implements carrier.Writer.
func (w *looseWriter) Piece(h *frame.Header, v carrier.View) {
	cn := w.cn
	body := make([]byte, v.Len())
	if !v.CopyOut(body) {
		cn.link.Sent(v)
		return
	}
	n := cn.tx[w.f].push(packet{kind: packetData, head: *h, body: body})
	cn.out[w.f][n] = v
}
