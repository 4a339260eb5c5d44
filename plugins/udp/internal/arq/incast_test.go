package arq

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// bufferUse is what a datagram takes of the receive buffer of a socket: the system's memory for it, in powers of two, and its description.
func bufferUse(n int) int {
	size := 512
	for size < n+384 {
		size *= 2
	}
	return size + 256
}

// A backlog is what waits in the receive buffer of a machine whose process is stopped.
type backlog struct {
	room, held, dropped, most int
}

func (b *backlog) take(n int) (ok bool) {
	if b.held+bufferUse(n) > b.room {
		b.dropped++
		return false
	}
	b.held += bufferUse(n)
	b.most = max(b.most, b.held)
	return true
}

// newIncast is many peers of one machine, whose buffer has room bytes.
func newIncast(t *testing.T, peers, room int) (n *network, target *node, all []*node, b *backlog) {
	n = newNetwork(t, 1, faults{delay: 50 * time.Microsecond})
	receive := func() int { return room / 4 * 3 }
	target, b = n.add(0, Config{Receive: receive}), &backlog{room: room}
	target.path.Local = true
	target.path.Size = 60 << 10
	for i := range peers {
		nd := n.add(1+i, Config{Receive: receive})
		nd.path = target.path
		n.join(nd, target)
		all = append(all, nd)
	}
	n.drop = func(from *node, p *Packet) bool {
		return target.busy > n.now && from != target && !b.take(headSize+len(p.body))
	}
	return n, target, all, b
}

// stopTarget stops the target for a moment, in which each peer has count messages of 1,000 bytes to send, the first of them more, and then
// waits until all are there.
func stopTarget(n *network, target *node, all []*node, b *backlog, count, more int) {
	n.Helper()
	target.got, target.busy, b.held = nil, n.now+500*ms, 0
	for i, nd := range all {
		left := count
		if i == 0 {
			left += more
		}
		nd.room = func(a *Assoc) {
			for left > 0 {
				if frame, _ := a.Room(n.now); frame < 0 {
					return
				}
				left--
				nd.send(a, make([]byte, 1000))
			}
		}
		nd.room(nd.assoc)
	}
	n.run(time.Minute, func() bool { return len(target.got) == count*len(all)+more })
	for _, nd := range all {
		nd.room = nil
	}
}

// TestStoppedTarget checks that many peers send bursts while the target is stopped, and the receive
// buffer of its socket has room for all packets that they may send: when they have all sent just
// before, when they begin after a pause, and when one peer used the whole buffer before.
func TestStoppedTarget(t *testing.T) {
	for _, c := range []struct{ peers, count, room int }{{32, 256, 8 << 20}, {128, 32, 4 << 20}, {8, 256, 416 << 10}} {
		t.Run(fmt.Sprintf("%dx%d in %d KiB", c.peers, c.count, c.room>>10), func(t *testing.T) {
			n, target, all, b := newIncast(t, c.peers, c.room)
			for range 3 {
				stopTarget(n, target, all, b, c.count, 0)
				require.Zero(t, b.dropped, "just after another")
			}
			n.idle(10 * shareEpoch)
			stopTarget(n, target, all, b, c.count, 0)
			require.Zero(t, b.dropped, "after a pause")
			n.idle(10 * shareEpoch)
			for range 20 {
				n.stream(all[0], target, 100, 1000, time.Minute)
				n.idle(time.Second / 2)
			}
			stopTarget(n, target, all, b, c.count, 0)
			require.Zero(t, b.dropped, "one had it alone")
			n.idle(10 * shareEpoch)
			for range 10 {
				n.stream(all[0], target, 200, 1000, time.Minute)
			}
			for _, nd := range all[1:] {
				n.stream(nd, target, 1, 1000, time.Minute)
			}
			n.idle(5 * ms)
			stopTarget(n, target, all, b, c.count, 4000)
			require.Zero(t, b.dropped, "one has it yet")
			require.Greater(t, b.most, b.room/4, "bytes that waited")
		})
	}
}

// TestBlockedGoBack checks packets of a retransmission that are lost again while the congestion
// window is full. At the timer's probe the peer reports the missing packets: the left edge is sent
// again then without regard to a window.
func TestBlockedGoBack(t *testing.T) {
	for _, profile := range []Profile{Modern, Seed} {
		n := newNetwork(t, 1, faults{delay: ms})
		a, b := n.add(1, Config{}), n.add(2, Config{Profile: profile})
		a.path.Size, b.path.Size = 8000, 8000
		n.join(a, b)
		n.stream(a, b, 300, 5000, time.Minute)
		n.idle(10 * ms)
		b.got = nil
		first, asks := a.assoc.lane[0].una, false
		n.drop = func(from *node, p *Packet) bool {
			return from == a && p.kind == kindData && (!before(p.seq, first) || !asks)
		}
		for range 100 {
			a.send(a.assoc, make([]byte, 5000))
			a.flush()
		}
		n.run(10*time.Second, func() bool { return a.assoc.cwnd == minWindow })
		asks = true
		again := a.m.Stats().Resent
		n.run(10*time.Second, func() bool { return a.m.Stats().Resent > again })
		require.Greater(t, a.assoc.flight.flying, int(a.assoc.cwnd)/2, "the congestion window is in use")
		n.idle(time.Second)
		n.drop = nil
		n.run(10*time.Second, func() bool { return len(b.got) == 100 })
	}
}
