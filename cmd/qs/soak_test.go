//go:build unix

package main

import (
	"encoding/json"
	"flag"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/cmd/qs/internal/soak"
	"github.com/quicksilver-rpc/quicksilver/internal/test/ledger"
	"github.com/quicksilver-rpc/quicksilver/internal/test/long"
	"github.com/quicksilver-rpc/quicksilver/qs"
)

var (
	soakTime   = flag.Duration("soak.time", 400*time.Millisecond, "how long TestSoak loads each transport")
	soakTotals = flag.String("soak.least", "0,0,0", "calls,kills,stops over all transports that TestSoak goes on for, with one more seed after the other")
)

// TestSoak is the ledger over real transports, with processes that are killed, stopped and ended:
// no promise is broken.
func TestSoak(t *testing.T) {
	t.Parallel()
	var least [3]int
	_, err := fmt.Sscanf(*soakTotals, "%d,%d,%d", &least[0], &least[1], &least[2])
	require.NoError(t, err)
	var mu sync.Mutex
	calls, faults := 0, map[string]int{}
	for seed := uint64(184955); ; seed++ {
		t.Run("over", func(t *testing.T) {
			for _, transport := range []string{"tcp", "udp", "sm"} {
				if transport == "sm" && runtime.GOOS != "linux" {
					continue
				}
				t.Run(transport, func(t *testing.T) {
					t.Parallel()
					r := runSoak(t, transport, seed)
					mu.Lock()
					defer mu.Unlock()
					calls += r.Calls
					for k, n := range r.Faults {
						faults[k] += n
					}
				})
			}
		})
		t.Logf("%d calls, %v", calls, faults)
		if t.Failed() || calls >= least[0] && faults["kill"] >= least[1] && faults["stop"] >= least[2] {
			return
		}
	}
}

// runSoak runs "qs soak" in a process of its own: it compares the resources of the process at the
// end with those at the beginning. The first faults of the first seed are short.
func runSoak(t *testing.T, transport string, seed uint64) soak.Report {
	args := []string{"soak", "-json", "-transport", transport, "-time", soakTime.String(), "-every", "100ms", "-peer-timeout", "500ms", "-targets", "3",
		"-inflight", long.Or("12", "24"), "-origins", long.Or("1", "3"), "-bulk", "100000", "-streams", long.Or("4", "40"), "-seed", fmt.Sprint(seed)}
	q := newQSWithin(t, *soakTime+4*patience, args...).start().wait(0)
	var r soak.Report
	require.NoError(t, json.Unmarshal(q.out.Bytes(), &r), "%s", &q.out)
	requireSchema(t, "soak", q.out.Bytes())
	t.Logf("qs %s\n%s", strings.Join(args, " "), &q.out)
	require.Equal(t, seed, r.Seed)
	require.Positive(t, r.Outcomes["success"])
	require.Positive(t, r.Outcomes[ledger.CanceledOnPurpose])
	require.Zero(t, r.Outcomes[qs.ErrCanceled.Error()], "what it cancels itself is no error")
	require.Positive(t, r.Outcomes[qs.ErrPeerLost.Error()])
	require.Positive(t, r.Withdraws["withdrawn"])
	require.Positive(t, r.Cancels)
	require.Positive(t, r.Executed)
	for _, kind := range soak.FaultsOver(transport) {
		require.Positive(t, r.Faults[kind], kind)
	}
	return r
}

// TestSoakBadFlags checks that invalid flags are reported before anything is started.
func TestSoakBadFlags(t *testing.T) {
	for _, args := range [][]string{{"-targets", "1"}, {"-faults", "fire"}, {"-every", "0s"}, {"-inflight", "0"}, {"-bulk", "1"}, {"-streams", "-1"},
		{"-faults", "stall", "-transport", "sm"}} {
		require.Contains(t, run(t, exitUsage, append([]string{"soak"}, args...)...).errors.String(), "-"+args[0])
	}
}
