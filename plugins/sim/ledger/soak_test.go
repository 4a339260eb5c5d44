package ledger

import (
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/internal/test/long"
	"github.com/quicksilver-rpc/quicksilver/plugins/sim"
)

// TestSoak (X-T10): ten minutes of virtual time, in a long run an hour, under a storm, with nodes
// that crash, from a fixed seed. Nothing is left at the end: no goroutine, no envelope, no memory
// that is lent, and every handle and every credit works. What the ledger itself keeps is bounded by
// its lines.
func TestSoak(t *testing.T) {
	hour, crashes, calls, faults := time.Hour, 200, 10_000, uint64(20)
	if !long.On {
		hour, crashes, calls, faults = 10*time.Minute, 30, 5000, 5
	}
	before := heapInUse()
	storm := sim.Storm()
	storm.Again = 0 // a race tries nothing twice
	s := newRace(1, raceOptions{until: hour, span: 200 * time.Millisecond, faults: storm, crashes: crashes})
	err := s.run()
	st := s.w.Stats()
	var total raceCounts
	total.add(s)
	t.Logf("%v; heap %d KiB more for %d calls", &total, (heapInUse()-before)>>10, len(s.calls))
	require.NoError(t, err, s.summary())
	require.GreaterOrEqual(t, s.w.Now(), hour)
	require.Zero(t, s.crashes, "crashes that were left")
	require.Greater(t, len(s.calls), calls)
	for name, n := range map[string]uint64{"resets": st.Resets, "corruptions": st.Corrupted, "clogs": st.Clogs, "pauses": st.Pauses,
		"partitions": st.Partitions, "refusals": st.Refusals} {
		require.GreaterOrEqual(t, n, faults, name)
	}
	require.Less(t, heapInUse()-before, int64(len(s.calls))*384+4<<20, "bytes on the heap")
	runtime.KeepAlive(s)
}

// heapInUse returns the bytes of the heap in use.
func heapInUse() int64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}
