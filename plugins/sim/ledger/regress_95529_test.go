package ledger

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/plugins/sim"
)

// It failed with: call 50 ended with hg: forward grow to sim://n2: the peer restarted, or has lost
// this session: it connected anew, and is silent here after 310ms (may have run), and no peer was
// lost
//
// n0 and n2 dialled each other, n2 took n0's connection, and its own HELLO came 8 ms after the
// session was up. n0 took that for a peer that has lost the session, so that a quarter of a second
// without an answer, on a slow link, ended it.
func TestRegress95529(t *testing.T) {
	s := newScenarioOf(options{
		Seed:     0x17529,
		Level:    0x1,
		NoAssist: false,
		Nodes:    3,
		Contexts: 1,
		Ops:      220,
		MaxSize:  2048,
		Crashes:  0,
		Closes:   0,
		Idle:     1,
		Off:      0x3b0200,
		Faults: sim.Faults{
			Jitter:       45554384,
			Refuse:       0.2576892616458977,
			Reset:        0,
			Corrupt:      0,
			CorruptBulk:  false,
			Clog:         0,
			ClogFor:      0,
			Pause:        0,
			PauseFor:     0,
			Partition:    0.0015268115720453803,
			PartitionFor: 0,
			Narrow:       0.40836812540856104,
			Stall:        0,
			Silence:      0,
			Loss:         0,
			Duplicate:    0,
			Reorder:      0.02398062194990378,
			ReorderFor:   0,
			Again:        0.02735287666514696,
		},
		Planted: false,
	})
	require.NoError(t, s.run(), s.summary())
}
