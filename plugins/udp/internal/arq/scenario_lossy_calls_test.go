package arq

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// lossyCalls makes count small calls from a to b, each in a packet of its own and begun apart after the one before, or when that is
// answered if apart is negative. It returns how long all of them took, and how many packets were sent again.
func lossyCalls(t *testing.T, seed uint64, rtt time.Duration, loss float64, count int, apart time.Duration) (took time.Duration, resent int64) {
	n := &network{T: t, rnd: rand.New(rand.NewPCG(seed, 1)), f: faults{delay: rtt / 2}, nodes: map[netip.AddrPort]*node{}, now: time.Second}
	a, b := n.pair(Config{}, Config{})
	n.idle(10 * rtt)
	n.f.loss = loss
	start := n.now
	begun := 0
	pump := func() {
		for _, m := range b.got {
			b.send(b.assoc, m)
			b.flush()
		}
		b.got = nil
		for begun < count && (apart >= 0 && n.now >= start+time.Duration(begun)*apart || apart < 0 && len(a.got) == begun) {
			begun++
			a.send(a.assoc, make([]byte, 100))
			a.flush()
		}
	}
	for pump(); len(a.got) < count; pump() {
		until := n.now + time.Minute
		if begun < count && apart >= 0 {
			until = start + time.Duration(begun)*apart
		}
		n.step(until)
		require.Less(t, n.now-start, time.Minute, "seed %d", seed)
	}
	return n.now - start, a.m.Stats().Resent + b.m.Stats().Resent
}

// TestLossyCalls checks that 30 small calls over paths that lose packets at random end within a few
// round trips, of 60 seeds in nine of ten. With -v it prints the table of
// docs/internals/DECISIONS.md, 43.
func TestLossyCalls(t *testing.T) {
	const seeds, count = 60, 30
	// Round trips that 30 calls which do not wait for each other may take, and 30 which do.
	limits := map[float64][2]float64{0: {2.5, 30}, 0.01: {4, 34}, 0.05: {6, 41}, 0.1: {7, 48}, 0.2: {11, 64}}
	const timers = 80 * ms // that are no finer, over a short path
	table := "|round trip|lost|calls|p50|p90|sent again|\n|---:|---:|---|---:|---:|---:|\n"
	for _, rtt := range []time.Duration{ms, 50 * ms, 200 * ms} {
		for _, loss := range []float64{0, 0.01, 0.05, 0.1, 0.2} {
			for _, w := range []struct {
				name  string
				apart time.Duration
			}{{"at once", 0}, {"apart", rtt / 20}, {"in turn", -1}} {
				var took []time.Duration
				again := int64(0)
				for seed := range uint64(seeds) {
					all, resent := lossyCalls(t, seed, rtt, loss, count, w.apart)
					took, again = append(took, all), again+resent
				}
				slices.Sort(took)
				p50, p90 := took[seeds/2], took[seeds*9/10]
				table += fmt.Sprintf("|%v|%.0f %%|%s|%v|%v|%.1f|\n", rtt, 100*loss, w.name, p50.Round(ms/10), p90.Round(ms/10), float64(again)/seeds)
				limit := limits[loss][0]
				if w.apart < 0 {
					limit = limits[loss][1]
				}
				require.LessOrEqual(t, p90, time.Duration(limit*float64(rtt))+timers, "%v, %v lost, %s", rtt, loss, w.name)
				if loss == 0 {
					require.Zero(t, again, "packets sent again, and none is lost")
				}
			}
		}
	}
	t.Log("\n" + table)
}
