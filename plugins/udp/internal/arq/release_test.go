package arq

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestUT22Release (U19 to U23, U-T20 to U-T22) checks that with any packet of the release lost for
// good, both sides end in bounded time, and no confirmed packet is reported as unconfirmed.
func TestUT22Release(t *testing.T) {
	for _, p := range pairs {
		for lost := range 8 {
			t.Run(fmt.Sprintf("%s/%d", p.name, lost), func(t *testing.T) {
				n := newNetwork(t, 1, faults{delay: ms})
				a, b := n.pair(p.a, p.b)
				n.idle(100 * ms)
				a.send(a.assoc, []byte("last words"))
				n.settle()
				count := 0
				n.drop = func(from *node, p *Packet) bool {
					count++
					return count == lost+1 || lost >= 4 && count > lost-3 // one, or all from one on
				}
				start := n.now
				a.assoc.Finish(n.now, nil)
				n.run(10*time.Second, func() bool { return a.m.Stats().Peers == 0 })
				require.Less(t, n.now-start, 2*time.Second)
				n.run(40*time.Second, func() bool { return b.m.Stats().Peers == 0 || lost >= 4 && b.finishing == 0 })
				require.Len(t, a.ends, 1)
				if len(b.got) == 0 {
					require.Equal(t, End{Outcome: Unconfirmed, Messages: 1}, a.ends[0])
				}
				if lost < 4 {
					require.Equal(t, Clean, a.ends[0].Outcome, "%v", a.ends)
					require.Equal(t, []End{{Outcome: Clean}}, b.ends)
					require.Zero(t, a.m.Stats().Resets+b.m.Stats().Resets, "a side that has sent everything stays to acknowledge once more")
				}
			})
		}
	}
}

// TestUT21PeerGone (U20, U-T21) checks a peer that has exited during the release: the wait is
// bounded, and the count is reported.
func TestUT21PeerGone(t *testing.T) {
	for _, p := range pairs {
		n := newNetwork(t, 1, faults{delay: ms})
		a, b := n.pair(p.a, p.b)
		n.idle(time.Second)
		delete(n.nodes, b.addr)
		for range 7 {
			a.send(a.assoc, []byte("into the void"))
		}
		start := n.now
		a.assoc.Finish(n.now, nil)
		require.True(t, a.m.Lingering())
		n.run(10*time.Second, func() bool { return len(a.ends) > 0 })
		require.Contains(t, []End{{Outcome: Unconfirmed, Messages: 7}, {Outcome: PeerGone, Messages: 7}}, a.ends[0])
		require.LessOrEqual(t, n.now-start, 1100*ms)
		require.False(t, a.m.Lingering())
		require.Zero(t, a.m.Stats().Retained)
	}
}

// TestUT21FewerTries (U20, U-T21) checks that from Finish of the Machine on, a silent peer is given
// up after FinRetries timeouts, on a path that takes a second too.
func TestUT21FewerTries(t *testing.T) {
	for _, delay := range []time.Duration{ms, 500 * ms} {
		n := newNetwork(t, 1, faults{delay: delay})
		a, b := n.pair(Config{FinRetries: 4}, Config{})
		n.idle(5 * time.Second)
		delete(n.nodes, b.addr)
		a.send(a.assoc, []byte("into the void"))
		before := a.m.Stats().Timeouts
		a.m.Finish()
		n.run(time.Minute, func() bool { return len(a.ends) > 0 })
		require.Equal(t, []End{{Outcome: PeerGone, Messages: 1}}, a.ends)
		require.EqualValues(t, 5, a.m.Stats().Timeouts-before)
	}
}

// TestGivenUp checks that a side that is busy for longer than the other side waits for it receives
// the last packets, and the outcome of the association.
func TestGivenUp(t *testing.T) {
	n := newNetwork(t, 1, faults{delay: ms})
	a, b := n.pair(Config{}, Config{})
	n.idle(100 * ms)
	a.lastWords = "over"
	b.busy = n.now + time.Minute
	a.send(a.assoc, []byte("last message"))
	a.m.Finish()
	n.run(time.Minute, func() bool { return len(a.ends) > 0 })
	require.Equal(t, []End{{Outcome: PeerGone, Messages: 1}}, a.ends)
	require.Zero(t, a.m.Stats().Peers)
	n.settle()
	delete(n.nodes, a.addr) // the process is gone
	n.idle(time.Minute)
	require.Len(t, b.got, 1)
	require.Equal(t, []End{{Outcome: Refusal, Words: "over"}}, b.ends)
}

// TestUT25AfterFinish (U26, U-T25) checks that after Finish nothing is taken, and what comes is
// delivered until the peer's FIN.
func TestUT25AfterFinish(t *testing.T) {
	n := newNetwork(t, 1, faults{delay: ms})
	a, b := n.pair(Config{}, Config{})
	n.idle(100 * ms)
	for range 3 {
		b.send(b.assoc, []byte("on its way"))
	}
	n.settle()
	a.assoc.Finish(n.now, []byte("over"))
	frame, piece := a.assoc.Room(n.now)
	require.Equal(t, -1, frame)
	require.Zero(t, piece)
	require.False(t, a.assoc.Up())
	n.idle(time.Second)
	require.Len(t, a.got, 3)
	require.Equal(t, []End{{Outcome: Clean}}, a.ends)
	require.Equal(t, []End{{Outcome: Clean}}, b.ends)
	require.Equal(t, 1, b.finishing)
	require.Equal(t, "over", b.words)
}

// TestFinishUnanswered checks that a side that is busy for longer than the release takes has the last
// data in its socket, and after it the end of the peer. The same holds if that data is lost.
func TestFinishUnanswered(t *testing.T) {
	for _, lost := range []bool{false, true} {
		n := newNetwork(t, 1, faults{delay: ms})
		a, b := n.pair(Config{}, Config{})
		n.idle(100 * ms)
		n.drop = func(from *node, p *Packet) bool { return lost && p.kind == kindData }
		b.busy = n.now + 3*time.Second
		a.send(a.assoc, []byte("last words"))
		a.assoc.Finish(n.now, []byte("over"))
		n.run(2*time.Second, func() bool { return !a.m.Lingering() })
		require.Equal(t, []End{{Outcome: Unconfirmed, Messages: 1}}, a.ends)
		delete(n.nodes, a.addr) // the process is gone
		n.idle(4 * time.Second)
		require.Equal(t, !lost, len(b.got) == 1)
		require.Equal(t, []End{{Outcome: Refusal, Words: "over"}}, b.ends)
	}
}

// TestFinishDetached checks that bulk data in flight is void when its upper layer has ended, and
// the release continues.
func TestFinishDetached(t *testing.T) {
	n := newNetwork(t, 1, faults{delay: ms, loss: 0.2})
	a, b := n.pair(Config{}, Config{})
	b.mem = make([]byte, 60000)
	a.bulk(a.assoc, 0, make([]byte, 60000))
	n.idle(ms)
	a.assoc.Detach()
	n.watch = func(from *node, p *Packet) {
		if p.kind == kindData && p.lane() == 1 {
			require.NotZero(t, p.flags&flagVoid, "sent after its user has left: %v", p)
		}
	}
	a.assoc.Finish(n.now, nil)
	n.idle(3 * time.Second)
	require.Empty(t, a.sent, "unreported")
	require.Equal(t, Clean, a.ends[0].Outcome)
	require.Equal(t, Clean, b.ends[0].Outcome)
}

// TestCut checks that a cut is sent once; if that is lost, the next packet is answered with RESET.
func TestCut(t *testing.T) {
	for _, lost := range []bool{false, true} {
		n := newNetwork(t, 1, faults{delay: ms})
		a, b := n.pair(Config{}, Config{})
		n.idle(100 * ms)
		n.drop = func(from *node, p *Packet) bool { return lost && p.kind == kindRefuse }
		a.assoc.Cut([]byte("enough"))
		a.assoc.Cut([]byte("again"))
		n.idle(100 * ms)
		require.Empty(t, a.ends)
		if lost {
			require.Empty(t, b.ends)
			b.send(b.assoc, []byte("anybody?"))
			n.idle(100 * ms)
			require.Equal(t, []End{{Outcome: PeerGone, Messages: 1, Absent: true}}, b.ends)
		} else {
			require.Equal(t, []End{{Outcome: Refusal, Words: "enough"}}, b.ends)
		}
	}
}

// TestUT15Restart (U5, U-T15) checks a peer that restarts at its address: packets of its earlier
// life are dropped and answered with RESET, and the old association ends.
func TestUT15Restart(t *testing.T) {
	n := newNetwork(t, 1, faults{delay: ms})
	a, b := n.pair(Config{}, Config{})
	n.idle(100 * ms)
	old := a.assoc
	again := n.add(2, Config{})
	n.order = append(n.order[:1], again)
	a.send(old, []byte("to the old one"))
	n.idle(100 * ms)
	require.Equal(t, []End{{Outcome: PeerGone, Messages: 1, Absent: true}}, a.ends)
	require.Empty(t, again.got)
	_ = b

	// The other way: the one that dialed restarts, and dials again. Both associations are there until the user cuts the old one.
	n.join(a, again)
	n.idle(100 * ms)
	a2 := n.add(1, Config{})
	n.order = []*node{a2, again}
	n.join(a2, again)
	require.Equal(t, 2, again.admitted)
	require.Equal(t, []bool{false, true}, again.verified, "an address that is known shows a cookie")
	n.stream(a2, again, 10, 64, time.Minute)
}
