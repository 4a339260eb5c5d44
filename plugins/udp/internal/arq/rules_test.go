package arq

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestU11GapIsAnAcknowledgment (U11) checks that only an acknowledgment reports that packets are
// missing. A packet with data that carries the same number again, however it is marked, repeats
// nothing: the peer may have sent it before a newer one.
func TestU11GapIsAnAcknowledgment(t *testing.T) {
	n := newNetwork(t, 1, faults{delay: ms})
	a, _ := n.pair(Config{Profile: Seed}, Config{Profile: Seed})
	n.idle(10 * ms)
	n.drop = func(*node, *Packet) bool { return true }
	for range 8 {
		a.send(a.assoc, []byte("12345678"))
		a.flush()
	}
	l := &a.assoc.lane[0]
	require.EqualValues(t, 8, l.nxt-l.una)
	for range 10 {
		a.assoc.handleAck(n.now, &Packet{form: formOf(Version), kind: kindData, flags: flagGap, ack: l.una, edge: l.edge, seq: l.una + 7})
	}
	require.Zero(t, a.m.Stats().GoneBack, "by packets with data")
	a.assoc.handleAck(n.now, &Packet{form: formOf(Version), kind: kindAck, flags: flagGap, ack: l.una, edge: l.edge, seq: l.una + 7})
	require.EqualValues(t, 1, a.m.Stats().GoneBack, "by an acknowledgment")
}

// TestU16EachClockOnce (U16) checks that a round trip is measured by an echoed timestamp, each
// once: a timestamp that is repeated, or out of order, was kept or is late, and has no effect on
// the estimate. When the peer's timestamp goes back, the newest received one counts.
func TestU16EachClockOnce(t *testing.T) {
	n := newNetwork(t, 1, faults{delay: ms})
	a, _ := n.pair(Config{}, Config{})
	n.idle(10 * ms)
	x, f := a.assoc, a.assoc.takeFlight()
	sent := n.now
	echo := func(at, now time.Duration) { x.sample(now, &Packet{flags: flagEcho, echo: clock(at)}) }
	echo(sent, sent+2*ms)
	once := x.srtt
	require.Positive(t, once)
	echo(sent, sent+time.Second)
	require.Equal(t, once, x.srtt, "the same clock again")
	echo(sent-ms, sent+time.Second)
	require.Equal(t, once, x.srtt, "an older clock")
	echo(sent+ms, sent+9*ms)
	require.NotEqual(t, once, x.srtt, "a newer clock")

	x.noteTimestamp(n.now, &Packet{ts: 1000 + f.ts})
	newest := f.ts
	x.noteTimestamp(n.now+ms, &Packet{ts: newest - 500})
	require.Equal(t, newest, f.ts, "an older clock of the peer")
	x.noteTimestamp(n.now+ms, &Packet{ts: newest + 500})
	require.Equal(t, newest+500, f.ts)
}
