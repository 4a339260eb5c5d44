//go:build mutants

package mutant

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

var (
	seeds = flag.Int("mutant.seeds", 300, "seeds of the simulator that each mutant meets, at most")
	only  = flag.String("mutant.only", "", "the one mutant that is run, with what the tests said of it")
)

// leastBySeeds is how many mutants the seeds alone must catch.
const leastBySeeds = 15

// ledger is where the simulator's seeds are run.
const ledger = "plugins/sim/ledger"

// Bounds of one run of one test. A mutant that has one run for ever is found by the time of the processor that it takes: the
// machine may be busy with something else. What only waits finds the bounds of its own test.
const (
	patience  = 5 * time.Minute
	processor = 30 * time.Second
)

// Each mutant is caught: by the tests that are named for it, all of which fail, or by a seed. The report is the table.
func TestMutants(t *testing.T) {
	b := build(t)
	b.sound(t)
	verdicts := make([]verdict, len(all))
	var wg sync.WaitGroup
	next := make(chan int)
	for range runtime.GOMAXPROCS(0) {
		wg.Go(func() {
			for i := range next {
				v := b.judge(all[i].name)
				t.Logf("%s: %s; %s", all[i].name, v.seeds, v.tests())
				verdicts[i] = v
			}
		})
	}
	for i, m := range all {
		if *only == "" || *only == m.name {
			next <- i
		}
	}
	close(next)
	wg.Wait()

	var table strings.Builder
	bySeeds, needed := 0, []int{}
	for i, m := range all {
		v := verdicts[i]
		if *only != "" && *only != m.name {
			continue
		}
		fmt.Fprintf(&table, "%-24s %-28s %-60s %s\n", m.name, v.seeds, v.tests(), m.bug)
		if v.bySeeds {
			bySeeds++
			needed = append(needed, v.seed)
		}
		for _, name := range v.passed {
			t.Errorf("%s: %s does not catch it", m.name, name)
		}
		if !v.bySeeds && len(v.failed) == 0 {
			t.Errorf("%s: NOT CAUGHT: %s", m.name, m.bug)
		}
		if *only != "" {
			t.Log(v.output)
		}
	}
	t.Logf("\n%s", table.String())
	if *only != "" {
		return
	}
	slices.Sort(needed)
	require.GreaterOrEqual(t, bySeeds, leastBySeeds, "mutants caught by seeds")
	t.Logf("%d mutants, %d of them caught by seeds alone, at seed %d in the median", len(all), bySeeds, needed[len(needed)/2])
}

// A verdict is what became of one mutant.
type verdict struct {
	bySeeds        bool
	seed           int // the first that failed
	seeds          string
	failed, passed []string // tests named for it
	output         string
}

func (v verdict) tests() string {
	if len(v.failed) == 0 {
		return "-"
	}
	return strings.Join(v.failed, ", ")
}

// binaries are the test binaries, by the folder of their package.
type binaries struct {
	root string
	path map[string]string
}

func build(t *testing.T) *binaries {
	root, err := filepath.Abs("../..")
	require.NoError(t, err)
	b := &binaries{root, map[string]string{}}
	dir := t.TempDir()
	pkgs := map[string]bool{ledger: true}
	for name, tests := range catchers {
		require.True(t, slices.ContainsFunc(all, func(m planted) bool { return m.name == name }), "there is no mutant %s", name)
		for _, test := range tests {
			pkgs[test.pkg] = true
		}
	}
	for pkg := range pkgs {
		b.path[pkg] = filepath.Join(dir, strings.ReplaceAll(pkg, "/", "-"))
		cmd := exec.Command("go", "test", "-c", "-tags", "mutants", "-o", b.path[pkg], "./"+pkg)
		cmd.Dir = root
		out, err := cmd.CombinedOutput()
		require.NoError(t, err, "%s", out)
	}
	return b
}

// sound requires that every test passes, in time, where there is no mutant.
func (b *binaries) sound(t *testing.T) {
	tests := map[string][]string{ledger: {"TestSeeds"}}
	for name, cs := range catchers {
		for _, c := range cs {
			if *only == "" || *only == name {
				tests[c.pkg] = append(tests[c.pkg], c.test)
			}
		}
	}
	for pkg, names := range tests {
		out, took, err := b.run(pkg, strings.Join(names, "|"), "")
		require.NoError(t, err, "%s without a mutant: %s", pkg, out)
		for _, name := range names {
			require.Contains(t, out, "\n--- PASS: "+name+" ", "%s does not exist", pkg)
		}
		require.Less(t, took, processor/2, "%s without a mutant takes too long", pkg)
	}
}

// run runs the tests with a mutant, and returns what it took of the processor, too.
func (b *binaries) run(pkg, tests, mutant string) (output string, took time.Duration, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), patience+10*time.Second)
	defer cancel()
	args := []string{"-c", `ulimit -t "$0"; exec "$@"`, strconv.Itoa(int(processor.Seconds())), b.path[pkg],
		"-test.v", "-test.failfast", "-test.timeout", patience.String(), "-test.run", "^(" + tests + ")$"}
	switch pkg {
	case ledger:
		args = append(args, "-sim.seeds", strconv.Itoa(*seeds))
	case "hg":
		args = append(args, "-hg.races", "20000")
	}
	cmd := exec.CommandContext(ctx, "sh", args...)
	cmd.Dir = filepath.Join(b.root, pkg)
	cmd.Env = append(os.Environ(), env+"="+mutant)
	cmd.WaitDelay = time.Second
	out, err := cmd.CombinedOutput()
	if cmd.ProcessState != nil {
		took = cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime()
	}
	return string(out), took, err
}

// failedSeed is what the simulator says.
var failedSeed = regexp.MustCompile(`seed (\d+)(?: \(replay with|: coroutine)`)

// judge has one mutant meet the seeds and the tests that are named for it.
func (b *binaries) judge(name string) (v verdict) {
	out, _, err := b.run(ledger, "TestSeeds", name)
	v.seeds = "-"
	if err != nil {
		v.bySeeds, v.output = true, out
		v.seed = *seeds
		for _, m := range failedSeed.FindAllStringSubmatch(out, -1) {
			n, _ := strconv.Atoi(m[1])
			v.seed = min(v.seed, n)
		}
		v.seeds = fmt.Sprintf("seed %d%s", v.seed, how(out, err))
		if v.seed == *seeds { // it ended before it could say which
			v.seeds = fmt.Sprintf("one of %d%s", *seeds, how(out, err))
		}
	}
	for _, c := range catchers[name] {
		out, _, err := b.run(c.pkg, c.test, name)
		if err == nil {
			v.passed = append(v.passed, c.String())
			continue
		}
		v.failed = append(v.failed, c.String()+how(out, err))
		v.output += out
	}
	return v
}

// how tells of an end that is not a failed test.
func how(out string, err error) string {
	var exit *exec.ExitError
	switch {
	case strings.Contains(out, "SIGXCPU"), strings.Contains(out, "panic: test timed out"), !errors.As(err, &exit):
		return " (hang)"
	case strings.Contains(out, "\npanic: ") || strings.Contains(out, "\nfatal error: "):
		return " (panic)"
	}
	return ""
}

// A catcher is a test, or several, that must fail when a mutant is there.
type catcher struct{ pkg, test string }

func (c catcher) String() string { return c.pkg + " " + c.test }

// catchers are the tests that are named for a mutant. Where there is none a seed catches it.
var catchers = map[string][]catcher{
	"h1-cancel-before-post":   {{"hg", "TestH1CancelRacesForward"}},
	"h1-cancel-between":       {{"na/natest", "TestH1CancelBetween"}},
	"h2-parts-late":           {{"hg", "TestH2EndsOnce"}},
	"h3-deaf-pull":            {{"hg", "TestH3CancelWhileFetched"}},
	"h3b-pull-not-begun":      {{"hg", "TestH3bFetchThatCannotBegin"}},
	"h4-loan-outlives":        {{"hg", "TestH4ReuseWhileFetched"}},
	"h5-narrow-id":            {{"hg", "TestH5LateAnswerAfterReuse"}},
	"h6-loans-collide":        {{"hg", "TestH6SameNumbersBothWays"}},
	"h7-receive-stays":        {{"hg", "TestH7SendFails"}},
	"h8-second-error":         {{"hg", "TestH8BothFail"}},
	"h9-error-swallowed":      {{"hg", "TestH9OtherErrorAfterCancel"}},
	"h10-two-owners":          {{"hg", "TestH10ManyCancel"}},
	"h11-error-and-callback":  {{"hg", "TestH11ErrorOrCallback"}},
	"h12-cancel-refused":      {{"hg", "TestH12EndAtEachStage"}},
	"h13-output-after-cancel": {{"hg", "TestH13NoOutputAfterCancel"}},
	"h14-stale-token":         {{"bulk", "TestH14CloseInsideTheCallbackOfACanceledForward"}},
	"h15-not-told":            {{"hg", "TestH15OversizeResponsesToCanceledOrigin"}},
	"h16-first-failure-ends":  {{"bulk", "TestH16OneOfManyPiecesFails"}},
	"h17-closed-early":        {{"hg", "TestH17"}},

	"cancel-wins":      {{"hg", "TestCancelAfterArrival"}},
	"pooled-early":     {{"hg", "TestResponseCallbackHasItsHandle"}},
	"timer-stays":      {{"hg", "TestTimeoutEndsCall"}},
	"runs-late":        {{"hg", "TestExpiredInTheQueue"}},
	"place-at-abandon": {{"hg", "TestAbandonFreesNoPlace"}},

	"stale-ticket":    {{"na", "TestOpLife"}},
	"held-delivered":  {{"na", "TestOpLife"}},
	"free-early":      {{"na", "TestMemUsers"}},
	"unguarded-range": {{"na", "TestInRange"}},
	"any-access":      {{"bulk", "TestForgedDescriptor"}},
	"same-move-id":    {{"plugins/internal/engine", "TestIDTableOracle"}},

	"credit-on-cancel":  {{"hg", "TestCancelTenThousand"}},
	"credit-plus-one":   {{"plugins/internal/engine", "TestCreditOracle"}},
	"unbounded":         {{"hg", "TestRapidReset"}},
	"any-incarnation":   {{"plugins/tcp", "TestRestartUnnoticed"}},
	"rebinds":           {{"bulk", "TestPeerReplaced"}},
	"user-heartbeats":   {{"plugins/tcp", "TestOneSided"}},
	"own-freeze-blames": {{"plugins/internal/engine", "TestOwnFreezeAccusesNobody"}},
}
