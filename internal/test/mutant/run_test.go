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

	"github.com/quicksilver-rpc/quicksilver/internal/test/leak"
)

var (
	seeds = flag.Int("mutant.seeds", 300, "seeds of the simulator that each mutant meets, at most")
	which = flag.String("mutant.run", "", "run TestMutants with the mutants whose names match this; of a single one, print what the tests say")
)

// Bounds of one run of one test. A mutant that has one run for ever is found by the time of the
// processor that it takes: the machine may be busy with something else. What only waits finds the
// bounds of its own test.
const (
	patience  = 5 * time.Minute
	processor = 30 * time.Second
)

// TestMain leaves TestMutants, which takes minutes, out of a plain run.
func TestMain(m *testing.M) {
	flag.Parse()
	if *which == "" {
		_ = flag.Set("test.skip", "^TestMutants$")
	}
	leak.Main(m)
}

// TestMutants checks that each mutant is caught, by the tests that are named for it, all of which
// fail, or else by a seed. The report has the table.
func TestMutants(t *testing.T) {
	var chosen []Mutant
	name := regexp.MustCompile(*which)
	for _, m := range All() {
		if name.MatchString(m.Name) {
			chosen = append(chosen, m)
		}
	}
	require.NotEmpty(t, chosen, "no mutant has such a name")
	b := buildBinaries(t, chosen)
	b.requirePass(t, chosen)
	verdicts := make([]verdict, len(chosen))
	var wg sync.WaitGroup
	next := make(chan int)
	for range 1 + runtime.GOMAXPROCS(0) { // some only wait
		wg.Go(func() {
			for i := range next {
				verdicts[i] = b.judge(chosen[i])
			}
		})
	}
	for i := range chosen {
		next <- i
	}
	close(next)
	wg.Wait()

	var table strings.Builder
	for i, m := range chosen {
		fmt.Fprintf(&table, "%-24s %-70s %s\n", m.Name, strings.Join(verdicts[i].caught, ", "), m.Bug)
		for _, wrong := range verdicts[i].wrong {
			t.Errorf("%s (%s): %s", m.Name, m.Bug, wrong)
		}
	}
	if len(chosen) == 1 {
		t.Log(verdicts[0].output)
	}
	t.Logf("%d mutants\n%s", len(chosen), table.String())
}

// A verdict is what became of one mutant.
type verdict struct {
	caught []string // by which tests, with their output
	wrong  []string // those that do not catch it, or not for its own sake
	output string
}

// binaries are the test binaries, by the folder of their package.
type binaries struct {
	root string
	path map[string]string
}

func buildBinaries(t *testing.T, chosen []Mutant) *binaries {
	dir := t.TempDir()
	overlay, err := Overlay(root, dir)
	require.NoError(t, err)
	b := &binaries{root, map[string]string{}}
	for _, m := range chosen {
		for _, c := range m.catchers() {
			if b.path[c.Pkg] != "" {
				continue
			}
			b.path[c.Pkg] = filepath.Join(dir, "test-"+strings.ReplaceAll(c.Pkg, "/", "-")) // "." is one, too
			cmd := exec.Command("go", "test", "-c", "-overlay", overlay, "-o", b.path[c.Pkg], "./"+c.Pkg)
			cmd.Dir = root
			out, err := cmd.CombinedOutput()
			require.NoError(t, err, "%s", out)
		}
	}
	return b
}

// bySeeds catches what no test is named for.
var bySeeds = Catcher{ledger, "TestSeeds", `seed \d+( \(replay with|: coroutine|: strain)`}

func (m Mutant) catchers() []Catcher {
	if len(m.Catchers) == 0 {
		return []Catcher{bySeeds}
	}
	return m.Catchers
}

// requirePass requires that every test passes, in time, where no mutant is on.
func (b *binaries) requirePass(t *testing.T, chosen []Mutant) {
	tests := map[string][]string{}
	for _, m := range chosen {
		for _, c := range m.catchers() {
			test, _, _ := strings.Cut(c.Test, "/")
			if !slices.Contains(tests[c.Pkg], test) {
				tests[c.Pkg] = append(tests[c.Pkg], test)
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

// run runs the tests with a mutant, and returns what it took of the processor, too. Where it is
// blind, the tables of states are not looked at.
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
	// A run of a long run is not long: the bounds are those of the cases that a plain one has.
	cmd.Env = append(os.Environ(), Env+"="+mutant, "GOGC=400", "QUICKSILVER_LONG=")
	if isBlind {
		cmd.Env = append(cmd.Env, EnvBlind+"=1")
	}
	cmd.WaitDelay = time.Second
	out, err := cmd.CombinedOutput()
	if cmd.ProcessState != nil {
		took = cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime()
	}
	return string(out), took, err
}

// judge has one mutant meet the tests that must catch it. What counts of the seeds is that one of
// them failed: not that all together missed something rare.
func (b *binaries) judge(m Mutant) (v verdict) {
	for _, c := range m.catchers() {
		out, _, err := b.run(c.Pkg, c.Test, m.Name, c != bySeeds)
		v.output += out
		matched := regexp.MustCompile(c.Says).FindString(strings.Join(strings.Fields(out), " "))
		switch {
		case err == nil:
			v.wrong = append(v.wrong, fmt.Sprintf("NOT CAUGHT by %v", c))
		case matched == "":
			v.wrong = append(v.wrong, fmt.Sprintf("%v fails%s, but does not say %q:\n%s", c, describeEnd(out, err), c.Says, out))
		default:
			v.caught = append(v.caught, fmt.Sprintf("%v%s: %.60q", c, describeEnd(out, err), matched))
		}
	}
	return v
}

// describeEnd describes an end that is not a failed test.
func describeEnd(out string, err error) string {
	var exit *exec.ExitError
	switch {
	case strings.Contains(out, "SIGXCPU"), strings.Contains(out, "panic: test timed out"), !errors.As(err, &exit):
		return " (hang)"
	case strings.Contains(out, "\npanic: ") || strings.Contains(out, "\nfatal error: "):
		return " (panic)"
	}
	return ""
}
