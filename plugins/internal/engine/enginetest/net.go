package enginetest

import (
	"encoding/binary"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/quicksilver-rpc/quicksilver/na"
	"github.com/quicksilver-rpc/quicksilver/plugins/internal/engine"
)

// Pending is an address whose Lookup never ends by itself.
const Pending = "mem://pending"

// A Net is a network in memory. It implements na.Plugin; classes that shall meet are opened with the same Net.
type Net struct {
	// Room is how many bytes may be under way in one direction of a connection. Zero means 64 KiB.
	Room int
	// Slice, if set, says how many of the n bytes that are there the next read gives: 1 to n.
	Slice func(n int) int

	mu        sync.Mutex // guards the fields below
	now       time.Duration
	rand      uint64
	listeners map[string]*engine.Engine
	strangers map[string]func(*Raw)
	carriers  map[*engine.Endpoint]*carrier
}

var _ na.Plugin = (*Net)(nil)

// New returns a network whose random bytes come from seed.
func New(seed uint64) *Net {
	return &Net{rand: seed, listeners: map[string]*engine.Engine{}, carriers: map[*engine.Endpoint]*carrier{}}
}

// Scheme implements na.Plugin.
func (n *Net) Scheme() string { return "mem" }

// Open implements na.Plugin: rest is the name to listen on.
func (n *Net) Open(cls *na.Class, rest string) (na.Domain, error) {
	opts := engine.Options{Host: "mem", Now: n.Now, Rand: n.Rand, Driven: true, Transports: []engine.Transport{{
		Scheme: "mem", Names: &carrier{},
		Carrier: func(e *engine.Endpoint) (engine.Carrier, error) { return n.carrier(e), nil },
	}}}
	if rest == "" {
		return engine.New(cls, opts), nil
	}
	self := "mem://" + rest
	opts.Transports[0].Self, opts.Transports[0].Listen = self, self
	opts.Close = func() error {
		n.mu.Lock()
		delete(n.listeners, rest)
		n.mu.Unlock()
		return nil
	}
	g := engine.New(cls, opts)
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.listeners[rest] != nil {
		return nil, na.WithText(na.ErrAddrInUse, "somebody listens on "+self)
	}
	n.listeners[rest] = g
	return g, nil
}

// Now reads the clock.
func (n *Net) Now() time.Duration {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.now
}

// Advance lets time pass while nobody drives.
func (n *Net) Advance(d time.Duration) {
	n.mu.Lock()
	n.now += d
	n.mu.Unlock()
}

// Rand fills b from the seed (splitmix64).
func (n *Net) Rand(b []byte) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for len(b) > 0 {
		n.rand += 0x9e3779b97f4a7c15
		z := n.rand
		z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
		z = (z ^ z>>27) * 0x94d049bb133111eb
		var w [8]byte
		binary.LittleEndian.PutUint64(w[:], z^z>>31)
		b = b[copy(b, w[:]):]
	}
}

func (n *Net) carrier(e *engine.Endpoint) *carrier {
	c := &carrier{net: n, e: e}
	n.mu.Lock()
	n.carriers[e] = c
	n.mu.Unlock()
	return c
}

// find returns the carrier that listens on a name for a context.
func (n *Net) find(name string, target int) (*carrier, error) {
	n.mu.Lock()
	g := n.listeners[strings.TrimPrefix(name, "mem://")]
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
	return nil, na.WithText(na.ErrNoEntry, fmt.Sprintf("there is no context %d", target))
}

// room is Net.Room with its default.
func (n *Net) room() int {
	if n.Room > 0 {
		return n.Room
	}
	return 64 << 10
}

// A pipe is one direction of a connection.
type pipe struct {
	mu     sync.Mutex // guards the fields below
	buf    []byte
	closed bool
}

// write takes as many bytes as there is room for.
func (p *pipe) write(iov [][]byte, room int) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	n := 0
	for _, b := range iov {
		b = b[:max(min(len(b), room-len(p.buf)), 0)]
		p.buf = append(p.buf, b...)
		n += len(b)
	}
	return n
}

// read takes bytes off; over tells that there will be no more.
func (p *pipe) read(iov [][]byte, slice func(int) int) (n int, over bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	left := len(p.buf)
	if left > 0 && slice != nil {
		left = min(max(slice(left), 1), left)
	}
	for _, b := range iov {
		k := copy(b, p.buf[n:left])
		n += k
	}
	p.buf = p.buf[n:]
	if len(p.buf) == 0 {
		p.buf = nil
	}
	return n, p.closed && p.buf == nil
}

func (p *pipe) close() {
	p.mu.Lock()
	p.closed = true
	p.mu.Unlock()
}
