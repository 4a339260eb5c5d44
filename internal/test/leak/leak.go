package leak

import (
	"cmp"
	"flag"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/quicksilver-rpc/quicksilver/internal/fsmcheck"
)

// Every test that opens something links this package in, so this is where the checking of state
// machines begins.
func init() {
	fsmcheck.Check()
}

// patience is how long things may take to go away after the test.
var patience = 5 * time.Second

var eachFlag = flag.Bool("leak.each", false, "run each test in a process of its own, which says which of them leaks")

// Parallel is how many tests that call t.Parallel run at a time, unless -parallel is given. A
// package may set it before Main.
var Parallel = 8

// Main runs the tests of a package and ends the process. It fails if goroutines or descriptors are
// left afterwards. Tests that call t.Parallel mostly wait, so more of them than there are
// processors run at a time: Parallel. Garbage is collected less often than by default, unless GOGC
// is set.
func Main(m *testing.M) {
	_ = flag.Set("test.parallel", strconv.Itoa(Parallel))
	flag.Parse()
	if os.Getenv("GOGC") == "" { // the heaps of tests are small, and each collection costs the same
		debug.SetGCPercent(400)
	}
	if *eachFlag {
		os.Exit(runEach())
	}
	startNetpoller()
	before := listOpen()
	code := m.Run()
	if s := fsmcheck.Broken(); s != "" {
		fmt.Println(s)
		code = 1
	}
	if code == 0 {
		if left := leftSince(before, patience); left != "" {
			fmt.Printf("FAIL: left behind by the tests; -leak.each says by which:\n\n%s\n", left)
			code = 1
		}
	}
	os.Exit(code)
}

// runEach runs this program again for every test that -run names, and returns its exit code.
func runEach() (code int) {
	pattern, _, _ := strings.Cut(flag.Lookup("test.run").Value.String(), "/")
	names, err := runAgain("-test.list=" + cmp.Or(pattern, "."))
	if err != nil {
		fmt.Printf("%s%v\n", names, err)
		return 1
	}
	for _, name := range strings.Fields(names) {
		if !strings.HasPrefix(name, "Test") {
			continue
		}
		if out, err := runAgain("-test.run=^" + name + "$"); err != nil {
			fmt.Printf("%s: %v\n%s\n", name, err, out)
			code = 1
		}
	}
	return code
}

// runAgain runs this program with its arguments and more.
func runAgain(more ...string) (string, error) {
	args := slices.Concat(os.Args[1:], []string{"-leak.each=false"}, more)
	out, err := exec.Command(os.Args[0], args...).CombinedOutput()
	return string(out), err
}

// Check fails t at its end if goroutines or descriptors are left that were not there when Check was
// called. Not for tests that call t.Parallel: another test's would be counted.
func Check(t testing.TB) {
	t.Helper()
	checkLeft(t, patience)
}

func checkLeft(t testing.TB, patience time.Duration) {
	t.Helper()
	startNetpoller()
	before := listOpen()
	t.Cleanup(func() {
		t.Helper()
		if s := fsmcheck.Broken(); s != "" {
			t.Error(s)
		}
		if t.Failed() { // a failed test often skips its cleanup
			patience /= 20
		}
		if left := leftSince(before, patience); left != "" {
			t.Errorf("left behind by the test:\n\n%s", left)
		}
	})
}

// listOpen describes the open descriptors and the running goroutines, by keys that are never used
// again.
func listOpen() map[string]string {
	found := listGoroutines()
	maps.Copy(found, listDescriptors())
	return found
}

// leftSince describes the entries that were not there before, once patience is over or there are none.
func leftSince(before map[string]string, patience time.Duration) string {
	var left []string
	waitUntilSettled(patience, func() bool {
		left = newEntries(listOpen(), before)
		return len(left) == 0
	})
	return strings.Join(left, "\n\n")
}

// waitUntilSettled returns once done reports true or patience is over.
func waitUntilSettled(patience time.Duration, done func() bool) {
	for range 10 {
		if done() {
			return
		}
		runtime.Gosched()
	}
	pause := time.Millisecond
	tick := time.NewTicker(pause)
	defer tick.Stop()
	for end := time.Now().Add(patience); time.Now().Before(end); {
		<-tick.C
		if done() {
			return
		}
		pause = min(2*pause, 50*time.Millisecond)
		tick.Reset(pause)
	}
}

// startNetpoller lets Go open its epoll descriptors, which it does with the first file that can be
// polled and never undoes.
var startNetpoller = sync.OnceFunc(func() {
	if r, w, err := os.Pipe(); err == nil {
		_ = r.Close()
		_ = w.Close()
	}
})

// newEntries describes the entries of now that are not in before, in the order of the keys.
func newEntries(now, before map[string]string) (left []string) {
	for _, key := range slices.Sorted(maps.Keys(now)) {
		if _, old := before[key]; !old {
			left = append(left, now[key])
		}
	}
	return left
}

// listGoroutines returns the stacks of all goroutines that a test is responsible for, by "goroutine
// N", without the caller's.
func listGoroutines() map[string]string {
	buf := make([]byte, 64<<10)
	n := runtime.Stack(buf, true)
	for n == len(buf) {
		buf = make([]byte, 2*len(buf))
		n = runtime.Stack(buf, true)
	}
	stacks := strings.Split(strings.TrimSpace(string(buf[:n])), "\n\n")
	found := make(map[string]string, len(stacks))
	for _, stack := range stacks[1:] { // the first stack is the caller's
		if !isTolerated(stack) {
			id, _, _ := strings.Cut(stack, " [")
			found[id] = stack
		}
	}
	return found
}

// isTolerated reports whether a goroutine belongs to something that no test can end.
func isTolerated(stack string) bool {
	_, creator, ok := strings.Cut(stack, "\ncreated by ")
	if !ok {
		return true // the main goroutine
	}
	for _, pkg := range []string{"runtime.", "runtime/", "testing.", "os/signal."} {
		if strings.HasPrefix(creator, pkg) {
			return true
		}
	}
	return false
}

// listDescriptors returns descriptions of all open descriptors, by number and link.
func listDescriptors() map[string]string {
	const dir = "/proc/self/fd"
	found := map[string]string{}
	if runtime.GOOS != "linux" {
		return found
	}
	list, err := os.ReadDir(dir)
	if err != nil {
		return found
	}
	for _, e := range list {
		link, err := os.Readlink(filepath.Join(dir, e.Name()))
		if err != nil { // closed since, as the descriptor that read the directory is
			continue
		}
		found["descriptor "+e.Name()+" "+link] = fmt.Sprintf("descriptor %s, open on %s", e.Name(), link)
	}
	return found
}
