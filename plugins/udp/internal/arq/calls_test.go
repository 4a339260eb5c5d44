package arq

import (
	"encoding/binary"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/internal/test/long"
)

// burstSize is how many calls begin at once: one, and five hundred after a while, as of a program that was stopped.
func burstSize(call int) int {
	if call == 300 {
		return 500
	}
	return 1
}

// TestCallsUnderLoss checks calls at a steady rate, in both directions at once, with answers of the
// same size, beside pulls of 64 KiB one after the other: with any loss, each is answered within
// seconds. A side that cannot keep up sends more in a packet, not more packets.
func TestCallsUnderLoss(t *testing.T) {
	for _, c := range []struct {
		percent int
		longest time.Duration
		resent  int64 // percent of what is sent
	}{{1, 100 * ms, 3}, {5, 200 * ms, 10}, {20, 2 * time.Second, 33}} {
		for seed := range long.Or(uint64(1), 2) {
			t.Run(fmt.Sprintf("%d%%/%d", c.percent, seed), func(t *testing.T) {
				n := newNetwork(t, seed, faults{delay: 50 * time.Microsecond, loss: float64(c.percent) / 100})
				a, b := n.pair(Config{}, Config{})
				n.idle(100 * ms)
				nodes := [2]*node{a, b}
				var queue [2][][]byte
				var asked [2]map[uint32]time.Duration
				longest, answered := time.Duration(0), 0
				pump := func() {
					for i, nd := range nodes {
						for _, m := range nd.got {
							id := binary.LittleEndian.Uint32(m[1:])
							if m[0] == 'q' {
								m[0] = 'a'
								queue[i] = append(queue[i], m)
							} else {
								longest = max(longest, n.now-asked[i][id])
								delete(asked[i], id)
								answered++
							}
						}
						nd.got = nil
						for len(queue[i]) > 0 {
							if room, _ := nd.assoc.Room(n.now); room < 0 {
								break
							}
							nd.send(nd.assoc, queue[i][0])
							queue[i] = queue[i][1:]
						}
					}
				}
				asked = [2]map[uint32]time.Duration{{}, {}}
				b.mem = make([]byte, 1<<16)
				data := make([]byte, 1<<16)
				id := uint32(0)
				for call := range 300 * 5 {
					for i := range 2 * burstSize(call) {
						i %= 2
						m := make([]byte, 100)
						m[0] = 'q'
						binary.LittleEndian.PutUint32(m[1:], id)
						asked[i][id] = n.now
						id++
						queue[i] = append(queue[i], m)
					}
					if len(a.sources) == len(a.sent) {
						if _, piece := a.assoc.Room(n.now); piece > 0 {
							a.bulk(a.assoc, 0, data[:min(piece, len(data))])
						}
					}
					for end := n.now + time.Second/300; n.now < end; {
						pump()
						n.step(end)
					}
				}
				n.run(time.Minute, func() bool { pump(); return len(asked[0])+len(asked[1]) == 0 })
				require.Equal(t, 2*(1500+499), answered)
				t.Logf("longest %v, %+v", longest, a.m.Stats())
				require.Less(t, longest, c.longest)
				require.Less(t, 100*a.m.Stats().Resent, c.resent*a.m.Stats().Sent, "packets were sent again")
			})
		}
	}
}
