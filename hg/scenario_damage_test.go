package hg_test

import (
	"encoding/binary"
	"flag"
	"math/rand/v2"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/hg"
	"github.com/quicksilver-rpc/quicksilver/internal/test/transports"
	"github.com/quicksilver-rpc/quicksilver/na"
)

var damages = flag.Int64("damages", 100, "bits that TestDamagedBytes flips")

// A damagingProxy passes connections on to an address and flips a bit of what passes now and then, anywhere.
//
//	origin ─► lis ─ conn ─ pass ─► conn ─► target
//	              ◄─ pass ────────
type damagingProxy struct {
	to    string
	every int // bytes between two bits, on average
	hits  atomic.Int64
	lis   net.Listener
	all   sync.WaitGroup

	mu    sync.Mutex // guards the fields below
	rng   *rand.Rand
	conns []net.Conn
	ended bool
}

func newDamagingProxy(t *testing.T, to string, every int, seed uint64) *damagingProxy {
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	d := &damagingProxy{to: to, every: every, lis: lis, rng: rand.New(rand.NewPCG(seed, 0))}
	d.all.Go(d.accept)
	t.Cleanup(func() {
		_ = lis.Close()
		d.mu.Lock()
		d.ended = true
		for _, c := range d.conns {
			_ = c.Close()
		}
		d.mu.Unlock()
		d.all.Wait()
	})
	return d
}

func (d *damagingProxy) accept() {
	for {
		near, err := d.lis.Accept()
		if err != nil {
			return
		}
		far, err := net.Dial("tcp", d.to)
		if err != nil {
			_ = near.Close()
			continue
		}
		d.mu.Lock()
		ended := d.ended
		d.conns = append(d.conns, near, far)
		d.mu.Unlock()
		if ended {
			_ = near.Close()
			_ = far.Close()
			return
		}
		d.all.Go(func() { d.pass(near, far) })
		d.all.Go(func() { d.pass(far, near) })
	}
}

// pass passes on until one side ends, and ends the other.
func (d *damagingProxy) pass(from, to net.Conn) {
	defer func() {
		_ = from.Close()
		_ = to.Close()
	}()
	b := make([]byte, 4<<10)
	for left := d.next(); ; {
		n, err := from.Read(b)
		for ; left < n; left += d.next() {
			b[left] ^= 1 << (left % 8)
			d.hits.Add(1)
		}
		left -= n
		if _, failed := to.Write(b[:n]); failed != nil || err != nil {
			return
		}
	}
}

// next draws after how many bytes the next bit is flipped.
func (d *damagingProxy) next() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return 1 + d.rng.IntN(2*d.every)
}

// TestDamagedBytes flips bits of the bytes between two processes, anywhere (F25): calls are lost
// and made again over new sessions, no answer is wrong, and no handler sees a wrong input. (Bulk
// data has no checksum but TCP's.)
func TestDamagedBytes(t *testing.T) {
	t.Parallel()
	transports.TCP(t, func(t *testing.T, n *transports.Net) {
		const inFlight, seed = 16, 1
		p := newPair(t, n, hg.Config{NA: na.Config{PeerTimeout: 500 * time.Millisecond}})
		d := newDamagingProxy(t, strings.TrimPrefix(p.target.Addr().Name(), "tcp://"), 6<<10, seed)
		t.Logf("seed %d", seed)
		fill := func(b []byte, token uint64) []byte {
			b = b[:8]
			binary.LittleEndian.PutUint64(b, token)
			for i := range 8 + token%200 {
				b = append(b, byte(token+i))
			}
			return b
		}
		wrong := 0
		check := func(where string, b []byte) {
			if len(b) < 8 || string(b) != string(fill(make([]byte, 8, 256), binary.LittleEndian.Uint64(b))) {
				wrong++
				t.Errorf("%s: %x", where, b)
			}
		}
		id := p.rpc("echo", func(h hg.Request) error {
			b, err := h.InputRaw()
			if err == nil {
				check("a wrong input", b)
			}
			return h.RespondRaw(b, nil)
		})
		token, open, ok, lost := uint64(0), 0, 0, 0
		var call func(h *hg.Handle)
		call = func(h *hg.Handle) {
			if d.hits.Load() >= *damages || wrong > 0 {
				h.Close()
				return
			}
			token++
			mine := token
			open++
			require.NoError(t, h.ForwardRaw(fill(make([]byte, 8, 256), mine), func(h *hg.Handle, err error) {
				open--
				if err != nil {
					lost++
				} else {
					ok++
					b, err := h.OutputRaw()
					require.NoError(t, err)
					if check("a wrong answer", b); binary.LittleEndian.Uint64(b) != mine {
						wrong++
						t.Errorf("call %d got the answer to another: %x", mine, b)
					}
				}
				call(h)
			}))
		}
		for range inFlight {
			h, err := p.octx.Create(na.MakeAddr("tcp://"+d.lis.Addr().String(), 0), id)
			require.NoError(t, err)
			call(h)
		}
		p.Until(func() bool { return open == 0 })
		t.Logf("%d bits flipped, %d calls answered, %d lost with %d sessions", d.hits.Load(), ok, lost, p.octx.Stats().NA.PeersLost)
		require.Positive(t, ok)
		require.Positive(t, lost)
	})
}
