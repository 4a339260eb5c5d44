package arq

import (
	"fmt"
	"hash/crc32"
	"math/rand/v2"
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestSeedIsAsPublished checks the packets that two sides of profile seed send over networks that
// lose, repeat and reorder packets, and their times: go-back-n, a receive window of one, one timer
// with a bounded backoff. Only the version of the packets may change.
func TestSeedIsAsPublished(t *testing.T) {
	sum, packets := crc32.NewIEEE(), 0
	for seed := range uint64(10) {
		for _, ack := range []AckMode{Lazy, Eager, Adaptive} {
			n := &network{T: t, rnd: rand.New(rand.NewPCG(seed, 1)), nodes: map[netip.AddrPort]*node{}, now: time.Second,
				f: faults{loss: 0.05 * float64(seed%5), dup: 0.05, reorder: 0.1, delay: time.Duration(1+seed%7) * ms}}
			a, b := n.pair(Config{Profile: Seed, Ack: ack}, Config{Profile: Seed, Ack: ack})
			n.watch = func(from *node, p *Packet) {
				packets++
				_, _ = fmt.Fprintf(sum, "%v %v %v %d %d %x\n", n.now, from.addr, p, p.flags, p.delay, p.body)
			}
			n.stream(a, b, 200, 64, time.Hour)
			n.stream(b, a, 10, 30000, time.Hour)
			n.sendBulk(a, b, 100_000, time.Hour)
			n.idle(10 * time.Second)
		}
	}
	require.Equal(t, uint32(0x95b8429b), sum.Sum32(), "checksum of %d packets and their times", packets)
}
