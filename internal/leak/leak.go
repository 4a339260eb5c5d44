package leak

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/quicksilver-rpc/quicksilver/internal/states"
)

// Every test that opens something links this package in, so this is where the checking of state machines begins.
func init() {
	states.Check()
}

// patience is how long things may take to go away after the test.
const patience = 5 * time.Second

// Check fails t at its end if goroutines or descriptors are left that were not there when Check was called.
func Check(t testing.TB) {
	t.Helper()
	check(t, patience)
}

// Gauge fails t at its end if f, which is called several times then, does not return to the value it has now.
func Gauge(t testing.TB, name string, f func() int64) {
	t.Helper()
	gauge(t, name, f, patience)
}

func check(t testing.TB, patience time.Duration) {
	t.Helper()
	startNetpoller()
	stacks, files := goroutines(), descriptors()
	t.Cleanup(func() {
		t.Helper()
		if s := states.Broken(); s != "" {
			t.Error(s)
		}
		var left []string
		settle(t, patience, func() bool {
			left = append(fresh(goroutines(), stacks), fresh(descriptors(), files)...)
			return len(left) == 0
		})
		if len(left) > 0 {
			t.Errorf("left behind by the test:\n\n%s", strings.Join(left, "\n\n"))
		}
	})
}

func gauge(t testing.TB, name string, f func() int64, patience time.Duration) {
	t.Helper()
	want := f()
	t.Cleanup(func() {
		t.Helper()
		var got int64
		settle(t, patience, func() bool {
			got = f()
			return got == want
		})
		if got != want {
			t.Errorf("%s: got %d at the end, want %d as at the beginning", name, got, want)
		}
	})
}

// settle returns once done reports true or patience is over. After a failed test it hardly waits: what was skipped
// then was often the closing.
func settle(t testing.TB, patience time.Duration, done func() bool) {
	for range 10 {
		if done() {
			return
		}
		runtime.Gosched()
	}
	if t.Failed() {
		patience /= 20
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

// startNetpoller lets Go open its epoll descriptors, which it does with the first file that can be polled and never
// undoes.
var startNetpoller = sync.OnceFunc(func() {
	if r, w, err := os.Pipe(); err == nil {
		_ = r.Close()
		_ = w.Close()
	}
})

// fresh describes what is in now but was not before, in the order of the keys.
func fresh(now, before map[string]string) (left []string) {
	for _, key := range slices.Sorted(maps.Keys(now)) {
		if _, old := before[key]; !old {
			left = append(left, now[key])
		}
	}
	return left
}

// goroutines returns the stacks of all goroutines that a test is responsible for, by "goroutine N", without the caller's.
func goroutines() map[string]string {
	buf := make([]byte, 64<<10)
	n := runtime.Stack(buf, true)
	for n == len(buf) {
		buf = make([]byte, 2*len(buf))
		n = runtime.Stack(buf, true)
	}
	stacks := strings.Split(strings.TrimSpace(string(buf[:n])), "\n\n")
	found := make(map[string]string, len(stacks))
	for _, stack := range stacks[1:] { // the caller's comes first
		if !tolerated(stack) {
			id, _, _ := strings.Cut(stack, " [")
			found[id] = stack
		}
	}
	return found
}

// tolerated reports whether a goroutine belongs to something that no test can end.
func tolerated(stack string) bool {
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

// descriptors returns descriptions of all open descriptors, by number and link.
func descriptors() map[string]string {
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
		if err != nil { // closed meanwhile, as the descriptor that read the directory is
			continue
		}
		found["descriptor "+e.Name()+" "+link] = fmt.Sprintf("descriptor %s, open on %s", e.Name(), link)
	}
	return found
}
