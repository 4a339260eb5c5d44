package relay

import (
	"errors"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"sync"
	"time"
)

// Rules configures the faults of datagrams. A rate is a probability from 0 to 1 that is drawn for
// each datagram.
type Rules struct {
	Lose    float64
	Repeat  float64
	Damage  float64 // a bit is turned over; the checksum of UDP fits
	Delay   float64 // 2 to 20 others overtake it, or those that arrive within 5 ms
	Seed    uint64
	Latency time.Duration // added to every datagram
}

// lull is how long a delayed datagram waits for others to overtake it.
const lull = 5 * time.Millisecond

// A Relay forwards datagrams. Its methods may be called from any goroutine.
type Relay struct {
	front *net.UDPConn
	to    *net.UDPAddr
	wait  sync.WaitGroup

	mu        sync.Mutex // guards the fields below
	rules     Rules
	rnd       *rand.Rand
	peers     map[netip.AddrPort]*net.UDPConn
	moved     []*net.UDPConn // backs that nothing passes any more
	bytesLeft [2]int         // bytes that may still pass: to the target, and from it; negative: no limit
	isShut    bool
	closed    bool
	passed    [2]int64
	damaged   int64
	watch     func(b []byte, fromTarget bool)
}

// New returns a Relay to the target at to, on a port of its own of the loopback device.
func New(to netip.AddrPort, rules Rules) (*Relay, error) {
	return At(netip.MustParseAddrPort("127.0.0.1:0"), to, rules)
}

// At is New at an address and port.
func At(at, to netip.AddrPort, rules Rules) (*Relay, error) {
	front, err := net.ListenUDP("udp4", net.UDPAddrFromAddrPort(at))
	if err != nil {
		return nil, err
	}
	r := &Relay{front: front, to: net.UDPAddrFromAddrPort(to), rules: rules, rnd: rand.New(rand.NewPCG(rules.Seed, 1)),
		peers: map[netip.AddrPort]*net.UDPConn{}, bytesLeft: [2]int{-1, -1}}
	setBuffers(front)
	r.wait.Go(r.forwardToTarget)
	return r, nil
}

func setBuffers(c *net.UDPConn) {
	_ = c.SetReadBuffer(4 << 20)
	_ = c.SetWriteBuffer(4 << 20)
}

// Addr returns the address to which peers send instead of the target.
func (r *Relay) Addr() netip.AddrPort { return r.front.LocalAddr().(*net.UDPAddr).AddrPort() }

// Passed returns how many datagrams were forwarded to the target and from it, and how many were
// affected by faults.
func (r *Relay) Passed() (forth, back, hurt int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.passed[0], r.passed[1], r.damaged
}

// Watch sets a function that is called with each datagram, which it must not change or keep. f must
// not call methods of r.
func (r *Relay) Watch(f func(b []byte, fromTarget bool)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.watch = f
}

// ShutAfter shuts r in both directions after n more bytes from the target, or to it: later
// datagrams are lost.
func (r *Relay) ShutAfter(n int, fromTarget bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.bytesLeft, r.isShut = [2]int{n, -1}, false
	if fromTarget {
		r.bytesLeft = [2]int{-1, n}
	}
}

// Shut reports whether r has shut.
func (r *Relay) Shut() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.isShut
}

// Open ends the effect of ShutAfter.
func (r *Relay) Open() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.bytesLeft, r.isShut = [2]int{-1, -1}, false
}

// Move makes the datagrams of peers leave from other ports, as an address translator does that has
// dropped their mappings. Datagrams to the old ports are lost.
func (r *Relay) Move() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for peer, c := range r.peers {
		r.moved = append(r.moved, c)
		delete(r.peers, peer)
	}
}

// Close ends r. It returns when nothing of it is left.
func (r *Relay) Close() {
	r.mu.Lock()
	r.closed = true
	_ = r.front.Close()
	for _, c := range r.peers {
		_ = c.Close()
	}
	for _, c := range r.moved {
		_ = c.Close()
	}
	r.mu.Unlock()
	r.wait.Wait()
}

// forwardToTarget forwards the datagrams of peers.
func (r *Relay) forwardToTarget() {
	r.copyDatagrams(r.front, 0, func(b []byte, from netip.AddrPort) {
		if c := r.peerSocket(from); c != nil {
			_, _ = c.Write(b)
		}
	})
}

// peerSocket returns the socket of a peer.
func (r *Relay) peerSocket(peer netip.AddrPort) *net.UDPConn {
	r.mu.Lock()
	defer r.mu.Unlock()
	c := r.peers[peer]
	if c == nil && !r.closed {
		var err error
		if c, err = net.DialUDP("udp4", nil, r.to); err != nil {
			return nil
		}
		setBuffers(c)
		r.peers[peer] = c
		r.wait.Go(func() {
			r.copyDatagrams(c, 1, func(b []byte, _ netip.AddrPort) {
				r.mu.Lock()
				moved := r.peers[peer] != c
				r.mu.Unlock()
				if !moved {
					_, _ = r.front.WriteToUDPAddrPort(b, peer)
				}
			})
		})
	}
	return c
}

// A delayedDatagram waits for others to overtake it.
type delayedDatagram struct {
	b    []byte
	from netip.AddrPort
	n    int
}

// copyDatagrams forwards the datagrams that arrive at one socket.
func (r *Relay) copyDatagrams(in *net.UDPConn, dir int, send func(b []byte, from netip.AddrPort)) {
	buf := make([]byte, 64<<10)
	pass := func(b []byte, from netip.AddrPort) { r.deliverAfter(b, func(b []byte) { send(b, from) }) }
	var held []delayedDatagram
	release := func(all bool) {
		kept := held[:0]
		for _, l := range held {
			if l.n--; l.n <= 0 || all {
				pass(l.b, l.from)
			} else {
				kept = append(kept, l)
			}
		}
		held = kept
	}
	for {
		until := time.Time{}
		if len(held) > 0 {
			until = time.Now().Add(lull)
		}
		_ = in.SetReadDeadline(until)
		n, from, err := in.ReadFromUDPAddrPort(buf)
		switch {
		case errors.Is(err, net.ErrClosed):
			return
		case errors.Is(err, os.ErrDeadlineExceeded):
			release(true)
			continue
		case err != nil: // of a datagram that was sent
			continue
		}
		b := buf[:n]
		times, delay := r.drawFate(b, dir)
		if delay > 0 {
			held = append(held, delayedDatagram{append([]byte(nil), b...), from, delay})
			continue
		}
		for range times {
			pass(b, from)
		}
		release(false)
	}
}

// deliverAfter sends b after Rules.Latency.
func (r *Relay) deliverAfter(b []byte, send func(b []byte)) {
	if r.rules.Latency == 0 {
		send(b)
		return
	}
	b = append([]byte(nil), b...)
	r.wait.Add(1) // the caller is counted too
	time.AfterFunc(r.rules.Latency, func() {
		defer r.wait.Done()
		send(b)
	})
}

// drawFate decides how often a datagram is passed on, and how many others are to overtake it. It
// damages it.
func (r *Relay) drawFate(b []byte, dir int) (times, delay int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.passed[dir]++
	if r.watch != nil {
		r.watch(b, dir == 1)
	}
	if r.bytesLeft[dir] >= 0 {
		if r.bytesLeft[dir] -= len(b); r.bytesLeft[dir] < 0 {
			r.bytesLeft[dir], r.isShut = 0, true
		}
	}
	drawn := func(share float64) bool {
		if share == 0 || r.rnd.Float64() >= share {
			return false
		}
		r.damaged++
		return true
	}
	if r.isShut || drawn(r.rules.Lose) {
		return 0, 0
	}
	if drawn(r.rules.Damage) && len(b) > 0 {
		b[r.rnd.IntN(len(b))] ^= 1 << r.rnd.IntN(8)
	}
	if drawn(r.rules.Delay) {
		return 1, 2 + r.rnd.IntN(19)
	}
	if times = 1; drawn(r.rules.Repeat) {
		times = 2
	}
	return times, 0
}
