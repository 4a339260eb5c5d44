package ledger

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"go/format"
	"math/bits"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/internal/raceflag"
	"github.com/quicksilver-rpc/quicksilver/plugins/sim"
)

var writeShrunk = flag.Bool("sim.shrink", false, "shrink a failure for a minute, not for seconds, and write the test that replays it")

// A shrinker looks for a smaller case that fails in the same way.
//
//	options ─► a fault less, or fewer nodes, operations, crashes, or an act less ─► fails in the same way? keep it, and repeat
type shrinker struct {
	options
	kind string // of the failure
	runs int    // that are left
	end  time.Time
}

// shrink returns a case that fails as o does, from which nothing can be taken, as far as runs and
// time suffice.
func shrink(o options, kind string, runs int, most time.Duration) options {
	k := &shrinker{options: o, kind: kind, runs: runs, end: time.Now().Add(most)}
	for before := (options{}); k.options != before && k.hasTime(); {
		before = k.options
		k.shrinkFaults()
		k.shrinkNumbers()
		k.shrinkActs()
	}
	return k.options
}

func (k *shrinker) hasTime() bool { return k.runs > 0 && time.Now().Before(k.end) }

// try keeps a case if it fails in the same way, with its own seed or one of a few others: the
// change also changes what the rest draws.
func (k *shrinker) try(change func(o *options)) bool {
	o := k.options
	change(&o)
	for i := uint64(0); o != k.options && i < 16 && k.hasTime(); i++ {
		k.runs--
		next := o
		next.Seed += i * 1_000_003
		s := newScenarioOf(next)
		if s.run() != nil && s.kind == k.kind {
			k.options = next
			return true
		}
	}
	return false
}

func (k *shrinker) shrinkFaults() {
	k.try(func(o *options) { o.Faults = sim.Faults{} })
	for i := range reflect.TypeFor[sim.Faults]().NumField() {
		k.try(func(o *options) { reflect.ValueOf(&o.Faults).Elem().Field(i).SetZero() })
	}
}

func (k *shrinker) shrinkNumbers() {
	k.try(func(o *options) { o.Level = sim.LevelA })
	k.try(func(o *options) { o.NoAssist = false })
	for _, n := range []struct {
		at    func(o *options) *int
		least int
	}{
		{func(o *options) *int { return &o.Nodes }, 2}, {func(o *options) *int { return &o.Contexts }, 1},
		{func(o *options) *int { return &o.Crashes }, 0}, {func(o *options) *int { return &o.Closes }, 0},
		{func(o *options) *int { return &o.MaxSize }, 1}, {func(o *options) *int { return &o.Ops }, 1},
	} {
		if k.try(func(o *options) { *n.at(o) = n.least }) {
			continue
		}
		for _, part := range []int{2, 4} { // half of the way, then a quarter
			for k.try(func(o *options) { *n.at(o) -= (*n.at(o) - n.least + part - 1) / part }) {
			}
		}
	}
}

func (k *shrinker) shrinkActs() {
	k.try(func(o *options) { o.Off = actsEnd - 1 })
	for a := actions(1); a < actsEnd; a <<= 1 {
		k.try(func(o *options) { o.Off |= a })
	}
}

// regressionTest is the source of a test that replays a case.
func regressionTest(o options, err error) []byte {
	text, _, _ := strings.Cut(err.Error(), "\n")
	literal := strings.NewReplacer("ledger.options{", "options{\n", "Faults:sim.Faults{", "Faults: sim.Faults{\n", ", ", ",\n", "}", ",\n}").
		Replace(fmt.Sprintf("%#v", o))
	src := fmt.Sprintf(`package ledger

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/plugins/sim"
)

// It failed with: %s
func TestRegress%d(t *testing.T) {
	s := newScenarioOf(%s)
	require.NoError(t, s.run(), s.summary())
}
`, text, o.Seed, literal)
	out, err := format.Source([]byte(src))
	if err != nil {
		panic(fmt.Sprintf("%v in\n%s", err, src))
	}
	return out
}

// shrunkText shrinks a failure and returns a text about it. With -sim.shrink it writes a regression
// test, too.
func shrunkText(s *scenario) string {
	runs, most := 200, 5*time.Second
	if *writeShrunk {
		runs, most = 5000, time.Minute
	}
	o := shrink(s.options, s.kind, runs, most)
	small := newScenarioOf(o)
	err := small.run()
	if err == nil {
		return "it does not fail again"
	}
	name := fmt.Sprintf("regress_%d_test.go", o.Seed)
	src := regressionTest(o, err)
	text := fmt.Sprintf("shrunk: %v\n%s\n%s:\n%s", err, small.summary(), name, src)
	if *writeShrunk {
		if err := os.WriteFile(name, src, 0o644); err != nil {
			return text + err.Error()
		}
		dir, _ := os.Getwd()
		text += "written to " + filepath.Join(dir, name)
	}
	return text
}

// TestShrink checks that a bug that needs a closed class and a canceled call is shrunk to little
// more than these, and the generated test compiles.
func TestShrink(t *testing.T) {
	o := drawOptions(1)
	o.Planted, o.Closes, o.Crashes, o.Nodes, o.Off = true, 2, 2, 6, 0
	s := newScenarioOf(o)
	err := s.run()
	require.ErrorContains(t, err, "planted")
	runs := 5000
	if raceflag.Enabled {
		runs = 300
	}
	small := shrink(o, s.kind, runs, time.Hour)
	again := newScenarioOf(small)
	require.ErrorContains(t, again.run(), "planted")
	t.Logf("%v\n%v", &o, &small)
	if raceflag.Enabled { // these runs are too few for more
		return
	}
	require.Equal(t, sim.Faults{}, small.Faults)
	require.Equal(t, 2, small.Nodes)
	require.Zero(t, small.Crashes)
	require.LessOrEqual(t, small.Ops, 40)
	require.LessOrEqual(t, small.Closes, 1)
	on := ^small.Off & (actsEnd - 1)
	require.NotZero(t, on)
	require.LessOrEqual(t, bits.OnesCount32(uint32(on)), 3, "acts: %v", on)

	src := regressionTest(small, err)
	require.True(t, bytes.Contains(src, []byte(fmt.Sprintf("func TestRegress%d(", small.Seed))), "%s", src)
	dir := t.TempDir()
	file := filepath.Join(dir, "regress_test.go")
	require.NoError(t, os.WriteFile(file, src, 0o644))
	here, err := os.Getwd()
	require.NoError(t, err)
	overlay, err := json.Marshal(map[string]any{"Replace": map[string]string{filepath.Join(here, "regress_test.go"): file}})
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(dir, "overlay"), overlay, 0o644))
	out, err := exec.Command("go", "vet", "-overlay", filepath.Join(dir, "overlay"), ".").CombinedOutput()
	require.NoError(t, err, "%s\n%s", out, src)
}
