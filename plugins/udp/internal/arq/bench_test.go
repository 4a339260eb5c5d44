package arq

import (
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// discardUpper is an Upper that does nothing.
type discardUpper struct {
	placed, delivered, sent int
	last                    *Assoc
}

func (q *discardUpper) Admit(netip.AddrPort, []byte, bool, *Assoc) Admission {
	return Admission{User: q, Path: Path{Size: 8972, Local: true}}
}
func (q *discardUpper) Hello(a *Assoc, dst []byte) []byte { return dst }
func (q *discardUpper) Greet(*Assoc, []byte) error        { return nil }
func (q *discardUpper) Deliver(a *Assoc, body []byte)     { q.delivered++; q.last = a }
func (q *discardUpper) Place(a *Assoc, front *[FrontSize]byte, at int, payload []byte) {
	q.placed += len(payload)
}
func (q *discardUpper) Sent(*Assoc, any)         { q.sent++ }
func (q *discardUpper) Room(*Assoc)              {}
func (q *discardUpper) Heard(*Assoc)             {}
func (q *discardUpper) Finishing(*Assoc, []byte) {}
func (q *discardUpper) Ended(*Assoc, End)        {}

// machinePair is two machines and the memory of one packet.
type machinePair struct {
	m    [2]*Machine
	q    [2]*discardUpper
	addr [2]netip.AddrPort
	as   *Assoc
	now  time.Duration
	head [HeadSize]byte
	buf  [MaxSize]byte
	data [64 << 10]byte
	n    int
}

func newMachinePair(tb testing.TB, cfg Config) *machinePair {
	w := &machinePair{now: time.Second}
	seed := byte(0)
	cfg.Rand = func(b []byte) {
		for i := range b {
			seed += 31
			b[i] = seed
		}
	}
	sessions := uint64(0)
	cfg.Session = func() uint64 { sessions++; return sessions }
	for i := range w.m {
		w.q[i] = &discardUpper{}
		w.m[i] = New(cfg, w.q[i])
		w.addr[i] = netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, byte(1 + i)}), 7000)
	}
	var err error
	w.as, err = w.m[0].Dial(w.now, w.addr[1], 0, Path{Size: 8972, Local: true}, w)
	require.NoError(tb, err)
	for range 10 {
		w.pump()
	}
	require.Equal(tb, open, w.as.state)
	return w
}

// pump moves what there is, both ways, once.
func (w *machinePair) pump() {
	for i, m := range w.m {
		for {
			o, ok := m.Next(w.now, w.head[:])
			if !ok {
				break
			}
			b := append(w.buf[:0], o.Head...)
			b = append(b, o.Body...)
			if o.Ref != nil {
				b = append(b, w.data[:o.N]...)
				seal(b)
			}
			p, err := Parse(b)
			if err != nil {
				panic(err)
			}
			w.n++
			w.m[1-i].Receive(w.now, w.addr[i], &p)
		}
	}
	w.now += 10 * time.Microsecond
	for _, m := range w.m {
		m.Poll(w.now)
	}
}

// echo is a message there and one back.
func (w *machinePair) echo(msg []byte) {
	w.as.Frame(msg[:32], msg[32:], true)
	w.pump()
	w.q[1].last.Frame(msg[:32], msg[32:], true)
	w.pump()
	w.pump()
}

// bulk moves 64 KiB.
func (w *machinePair) bulk(front *[FrontSize]byte) {
	for sent := w.q[0].sent; w.q[0].sent == sent; w.pump() {
		if w.as.lane[1].una == w.as.lane[1].nxt {
			w.as.Piece(front, w, len(w.data))
		}
	}
}

func BenchmarkEcho(b *testing.B) {
	w := newMachinePair(b, Config{})
	msg := make([]byte, 96)
	b.ReportAllocs()
	w.n = 0
	for b.Loop() {
		w.echo(msg)
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(w.n), "ns/packet")
}

func BenchmarkBulk64KiB(b *testing.B) {
	w := newMachinePair(b, Config{})
	var front [FrontSize]byte
	b.SetBytes(int64(len(w.data)))
	b.ReportAllocs()
	w.n = 0
	for b.Loop() {
		w.bulk(&front)
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(w.n), "ns/packet")
}

// TestNoAllocation checks that nothing is allocated for a packet, once the pools are filled.
func TestNoAllocation(t *testing.T) {
	w := newMachinePair(t, Config{})
	msg := make([]byte, 96)
	var front [FrontSize]byte
	for range 100 {
		w.echo(msg)
		w.bulk(&front)
	}
	require.Zero(t, testing.AllocsPerRun(1000, func() { w.echo(msg) }), "for an echo")
	require.Zero(t, testing.AllocsPerRun(1000, func() { w.bulk(&front) }), "for 64 KiB")
}
