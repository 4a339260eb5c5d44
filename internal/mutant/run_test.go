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
	for range 1 + runtime.GOMAXPROCS(0) { // some only wait
		wg.Go(func() {
			for i := range next {
				verdicts[i] = b.judge(all[i].name)
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
		for _, wrong := range v.wrong {
			t.Errorf("%s: %s", m.name, wrong)
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
	bySeeds bool
	seed    int // the first that failed
	seeds   string
	failed  []string // tests named for it, and what they said
	wrong   []string // those that do not catch it, or not for its own sake
	output  string
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
			test, _, _ := strings.Cut(c.test, "/")
			if (*only == "" || *only == name) && !slices.Contains(tests[c.pkg], test) {
				tests[c.pkg] = append(tests[c.pkg], test)
			}
		}
	}
	for pkg, names := range tests {
		out, took, err := b.run(pkg, strings.Join(names, "|"), "", false)
		require.NoError(t, err, "%s without a mutant: %s", pkg, out)
		for _, name := range names {
			require.Contains(t, out, "\n--- PASS: "+name+" ", "%s does not exist", pkg)
		}
		require.Less(t, took, processor/2, "%s without a mutant takes too long", pkg)
	}
}

// run runs the tests with a mutant, and returns what it took of the processor, too. Where it is blind, the tables of states
// are not looked at.
func (b *binaries) run(pkg, tests, mutant string, isBlind bool) (output string, took time.Duration, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), patience+10*time.Second)
	defer cancel()
	args := []string{"-c", `ulimit -t "$0"; exec "$@"`, strconv.Itoa(int(processor.Seconds())), b.path[pkg],
		"-test.v", "-test.failfast", "-test.timeout", patience.String(), "-test.run", "^(" + strings.ReplaceAll(tests, "/", ")$/^(") + ")$"}
	switch pkg {
	case ledger:
		args = append(args, "-sim.seeds", strconv.Itoa(*seeds))
	case "hg":
		args = append(args, "-hg.races", "20000")
	}
	cmd := exec.CommandContext(ctx, "sh", args...)
	cmd.Dir = filepath.Join(b.root, pkg)
	cmd.Env = append(os.Environ(), env+"="+mutant, "GOGC=400")
	if isBlind {
		cmd.Env = append(cmd.Env, blind+"=1")
	}
	cmd.WaitDelay = time.Second
	out, err := cmd.CombinedOutput()
	if cmd.ProcessState != nil {
		took = cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime()
	}
	return string(out), took, err
}

// failedSeed is what the simulator says.
var failedSeed = regexp.MustCompile(`seed (\d+)(?: \(replay with|: coroutine|: strain)`)

// judge has one mutant meet the seeds and the tests that are named for it. What counts of the seeds is that one of them
// failed: not that all together missed something rare.
func (b *binaries) judge(name string) (v verdict) {
	out, _, err := b.run(ledger, "TestSeeds", name, false)
	v.seeds, v.output = "-", out
	if err != nil {
		v.seeds = "none in particular" + how(out, err)
		for _, m := range failedSeed.FindAllStringSubmatch(out, -1) {
			if n, _ := strconv.Atoi(m[1]); !v.bySeeds || n < v.seed {
				v.bySeeds, v.seed = true, n
			}
		}
		if v.bySeeds {
			v.seeds = fmt.Sprintf("seed %d%s", v.seed, how(out, err))
		}
	}
	for _, c := range catchers[name] {
		out, _, err := b.run(c.pkg, c.test, name, !strings.HasPrefix(c.says, "states: "))
		said := regexp.MustCompile(c.says).FindString(strings.Join(strings.Fields(out), " "))
		switch {
		case err == nil:
			v.wrong = append(v.wrong, c.String()+" does not catch it")
		case said == "":
			v.wrong = append(v.wrong, fmt.Sprintf("%v fails%s, but does not say %q:\n%s", c, how(out, err), c.says, out))
		default:
			v.failed = append(v.failed, fmt.Sprintf("%v%s: %.60q", c, how(out, err), said))
		}
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

// A catcher is a test that must fail when a mutant is there, and for its sake: says is a regular expression that its output
// matches, with one blank for all white space. The tables of states are not looked at meanwhile, unless it is their word that
// counts: most mutants would meet them before the test could say anything.
type catcher struct{ pkg, test, says string }

func (c catcher) String() string { return c.pkg + " " + c.test }

// What tests have to say.
const (
	waits     = `nothing happened for`                 // for the end of a call
	waitsMore = `Outstanding:1 .*nothing happened for` // with an operation that nobody ends
)

// catchers are the tests that are named for a mutant. Where there is none a seed catches it.
var catchers = map[string][]catcher{
	"h1-cancel-before-post": {{"hg", "TestH1CancelRacesForward", waitsMore}},
	"h1-cancel-between":     {{"na/natest", "TestH1CancelBetween", `expected: 1 actual : 0 .*Messages: (lookup|receive|send|get|lease)`}},
	"h2-parts-late":         {{"hg", "TestH2EndsOnce", `Messages: (callbacks|handles)|the handle is closed|closed more often|the handle has a call that has not ended`}},
	"h3-deaf-pull":          {{"hg", "TestH3CancelWhileFetched", `canceled while its output was fetched`}},
	"h3b-pull-not-begun":    {{"hg", "TestH3bFetchThatCannotBegin", waits}},
	"h3b-pull-refused": {
		{"hg", "TestH3bTargetGoesBeforeTheFetch", waits},
		{ledger, "TestH3bPostsFail", `0 callbacks`},
	},
	"h4-loan-outlives": {{"hg", "TestH4ReuseWhileFetched", `the input of the second call`}},
	"h5-narrow-id":     {{"hg", "TestH5LateAnswerAfterReuse", `Messages: the answer of the last call`}},
	"h6-loans-collide": {{"hg", "TestH6SameNumbersBothWays", `refused: memory is no longer registered`}},
	"h7-receive-stays": {{"hg", "TestH7SendFails", `actual : 0 .*callbacks of a call without an envelope`}},
	"h8-second-error": {
		{"hg", "TestH8BothFail", `actual : 0 .*callbacks when both parts have ended`},
		{"hg", "TestH8PeerGoes", `actual : 0 .*callbacks of a call whose peer has gone`},
		{ledger, "TestH8SendAndReceiveFail", `0 callbacks`},
	},
	"h9-error-swallowed": {
		{"hg", "TestH9OtherErrorAfterCancel", `actual : 0 .*callbacks when both parts have ended`},
		{"hg", "TestH9CancelWhenThePeerHasGone", `actual : 0 .*callbacks of a call whose peer has gone`},
	},
	"h10-two-owners":          {{"hg", "TestH10ManyCancel", `Messages: (callbacks|handles)`}},
	"h11-error-and-callback":  {{"hg", "TestH11ErrorOrCallback", `callbacks of calls that were refused`}},
	"h12-cancel-refused":      {{"hg", "TestH12EndAtEachStage", `actual : 0 .*callbacks of a call that was ended here`}},
	"h13-output-after-cancel": {{"hg", "TestH13NoOutputAfterCancel", `"operation canceled" in chain but got nil`}},
	"h14-stale-token":         {{"bulk", "TestH14CloseInsideTheCallbackOfACanceledForward", `"memory is no longer registered" in chain but got nil`}},
	"h15-not-told":            {{"hg", "TestH15OversizeResponsesToCanceledOrigin", `Leases:[1-9].*nothing happened for`}},
	"h16-first-failure-ends": {
		{"bulk", "TestH16OneOfManyPiecesFails", `the local memory was written after done`},
		{ledger, "TestH16PostsFail", `states: transfer: (ended|over): piece (ended|failed) is illegal`},
	},
	"h17-closed-early": {{"hg", "TestH17CallbackStillToRun", `Messages: closed before the callback has run`}},

	"cancel-wins":      {{"hg", "TestCancelAfterArrival", `operation canceled .*Messages: success wins`}},
	"pooled-early":     {{"hg", "TestResponseCallbackHasItsHandle", `expected: string\("mine"\)`}},
	"timer-stays":      {{"hg", "TestTimeoutEndsCall", waitsMore}},
	"runs-late":        {{"hg", "TestExpiredInTheQueue", `"i/o timeout" in chain but got nil`}},
	"place-at-abandon": {{"hg", "TestAbandonFreesNoPlace", `Messages: handlers at work`}},

	"stale-ticket":    {{"na", "TestOpLife", `Should be false Test: TestOpLife/a_ticket_is_good_for_one_life`}},
	"held-delivered":  {{"na", "TestOpLife", `expected: 0 actual : 1 Test: TestOpLife/`}},
	"free-early":      {{"na", "TestMemUsers", `Should be zero, but was 1`}},
	"unguarded-range": {{"na", "TestInRange", `expected: false actual : true .*bytes at`}},
	"any-access":      {{"bulk", "TestForgedDescriptor", `"permission denied" in chain but got nil`}},
	"same-move-id":    {{"plugins/internal/engine", "TestIDTableOracle", `a late answer meets a dead generation`}},
	"receive-stays":   {{"na/natest", "TestNoFault/CancelTwice", `a receive of this peer and tag is posted already`}},

	"credit-on-cancel":  {{"hg", "TestCancelTenThousand", `envelopes were guaranteed|credit \d+ after \d+, \d+ used|Messages: the session is the first`}},
	"credit-plus-one":   {{"plugins/internal/engine", "TestCreditOracle", `Messages: envelopes in use`}},
	"unbounded":         {{"hg", "TestRapidReset", `is not less than or equal to "8"`}},
	"any-incarnation":   {{"plugins/tcp", "TestRestartUnnoticed", `does not contain "restarted"`}},
	"rebinds":           {{"bulk", "TestPeerReplaced", `expected: "peer lost" in chain: .*the owner of the memory refused`}},
	"user-heartbeats":   {{"hg", "TestNobodyDrivesTheTarget", `expected: "timed out" in chain: .*the peer was silent for`}},
	"silence-ignored":   {{"na/natest", "TestNoFault/FrozenPeer", `ends: not after .*rule FrozenPeer: `}},
	"own-freeze-blames": {{"plugins/internal/engine", "TestOwnFreezeAccusesNobody", `Messages: the session after a freeze`}},
}
