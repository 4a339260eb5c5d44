package leak

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"
)

// A fakeTB is a test that the tests here may fail.
type fakeTB struct {
	testing.TB
	cleanups []func()
	errors   []string
}

func (f *fakeTB) Helper()           {}
func (f *fakeTB) Cleanup(fn func()) { f.cleanups = append(f.cleanups, fn) }
func (f *fakeTB) Failed() bool      { return len(f.errors) > 0 }

func (f *fakeTB) Errorf(format string, args ...any) {
	f.errors = append(f.errors, fmt.Sprintf(format, args...))
}

// end runs the cleanups as the testing package does, and returns the errors so far.
func (f *fakeTB) end() string {
	for i := len(f.cleanups) - 1; i >= 0; i-- {
		f.cleanups[i]()
	}
	f.cleanups = nil
	return strings.Join(f.errors, "\n")
}

// short is enough for what is never going to end.
const short = 20 * time.Millisecond

func wantMention(t *testing.T, got string, words ...string) {
	t.Helper()
	for _, w := range words {
		if !strings.Contains(got, w) {
			t.Errorf("got report %q, want it to mention %q", got, w)
		}
	}
}

func leakyFunction(stop chan struct{}) { <-stop }

func TestCatchesGoroutine(t *testing.T) {
	Check(t)
	tb := &fakeTB{}
	checkLeft(tb, short)
	stop := make(chan struct{})
	go leakyFunction(stop)
	wantMention(t, tb.end(), "left behind", "leakyFunction", "chan receive")
	close(stop)
}

func TestCatchesFile(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("descriptors are listed on Linux only")
	}
	Check(t)
	path := filepath.Join(t.TempDir(), "forgotten")
	tb := &fakeTB{}
	checkLeft(tb, short)
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	wantMention(t, tb.end(), "left behind", path)
	_ = f.Close()
}

// TestCatchesDescriptorThatTookANumber checks that a descriptor whose number is used again at once
// is distinguished from the earlier one.
func TestCatchesDescriptorThatTookANumber(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("descriptors are listed on Linux only")
	}
	Check(t)
	dir := t.TempDir()
	create := func(name string) *os.File {
		f, err := os.Create(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		return f
	}
	first := create("first")
	tb := &fakeTB{}
	checkLeft(tb, short)
	fd := first.Fd()
	_ = first.Close()
	second := create("second")
	if second.Fd() != fd {
		t.Fatalf("got descriptor %d, want %d again", second.Fd(), fd)
	}
	wantMention(t, tb.end(), "second")
	_ = second.Close()
}

func TestCatchesListener(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("descriptors are listed on Linux only")
	}
	Check(t)
	tb := &fakeTB{}
	checkLeft(tb, short)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	got := tb.end()
	wantMention(t, got, "socket:[")
	if strings.Contains(got, "anon_inode") {
		t.Errorf("got report %q, want nothing about Go's own epoll", got)
	}
	_ = l.Close()
}

func TestPassesWhenClean(t *testing.T) {
	tb := &fakeTB{}
	Check(tb)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	accepted := make(chan struct{})
	go func() {
		defer close(accepted)
		if c, err := l.Accept(); err == nil {
			_ = c.Close()
		}
	}()
	c, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	tb.Cleanup(func() { // runs before the check
		_ = c.Close()
		_ = l.Close()
		<-accepted
	})
	if got := tb.end(); got != "" {
		t.Errorf("got %q, want no complaint", got)
	}
}

func TestWaitsForWhatIsEnding(t *testing.T) {
	tb := &fakeTB{}
	Check(tb)
	stop := make(chan struct{})
	go leakyFunction(stop)
	timer := time.AfterFunc(30*time.Millisecond, func() { close(stop) })
	defer timer.Stop()
	if got := tb.end(); got != "" {
		t.Errorf("got %q, want no complaint about a goroutine that takes a moment", got)
	}
}

func TestToleratesWhatWasThereBefore(t *testing.T) {
	Check(t)
	stop := make(chan struct{})
	go leakyFunction(stop)
	tb := &fakeTB{}
	checkLeft(tb, short)
	if got := tb.end(); got != "" {
		t.Errorf("got %q, want no complaint about older goroutines", got)
	}
	close(stop)
}

func TestToleratesSignalsAndSubtests(t *testing.T) {
	tb := &fakeTB{}
	checkLeft(tb, time.Second)
	ch := make(chan os.Signal, 1)
	signal.Notify(ch, os.Interrupt)
	signal.Stop(ch)
	if got := tb.end(); got != "" {
		t.Errorf("got %q, want no complaint about signal delivery", got)
	}

	tb = &fakeTB{}
	t.Run("group", func(t *testing.T) {
		checkLeft(tb, short)
		t.Run("waiting", func(t *testing.T) { t.Parallel() })
		if got := tb.end(); got != "" {
			t.Errorf("got %q, want no complaint about other tests", got)
		}
	})
}

func TestHardlyWaitsAfterFailure(t *testing.T) {
	tb := &fakeTB{}
	checkLeft(tb, 2*time.Second)
	tb.Errorf("failed before")
	stop := make(chan struct{})
	go leakyFunction(stop)
	begin := time.Now()
	wantMention(t, tb.end(), "failed before", "leakyFunction")
	if took := time.Since(begin); took >= 2*time.Second {
		t.Errorf("waited %v, want a small part of the 2 s", took)
	}
	close(stop)
}

// leakyEnv has TestLeaky leave something behind.
const leakyEnv = "QUICKSILVER_LEAKY"

func TestMain(m *testing.M) {
	if os.Getenv(leakyEnv) != "" {
		patience = short
	}
	Main(m)
}

func TestClean(t *testing.T) { t.Parallel() }

func TestLeaky(t *testing.T) {
	t.Parallel()
	if os.Getenv(leakyEnv) != "" {
		go leakyFunction(make(chan struct{}))
	}
}

func TestMainCatches(t *testing.T) {
	for _, c := range []struct {
		args, leaky string
		want        []string // in the report of a failure; none: it passes
		not         string
	}{
		{"-test.run=^(TestClean|TestLeaky)$", "", nil, "left behind"},
		{"-test.run=^TestClean$", "1", nil, "left behind"},
		{"-test.run=^(TestClean|TestLeaky)$", "1", []string{"left behind by the tests", "leakyFunction"}, "TestClean"},
		{"-test.run=^(TestClean|TestLeaky)$ -leak.each", "1", []string{"TestLeaky: exit status 1", "leakyFunction"}, "TestClean"},
		{"-test.run=^TestClean$/none -leak.each", "1", nil, "left behind"},
	} {
		cmd := exec.Command(os.Args[0], strings.Fields(c.args)...)
		cmd.Env = append(os.Environ(), leakyEnv+"="+c.leaky)
		out, err := cmd.CombinedOutput()
		if (err == nil) != (len(c.want) == 0) {
			t.Errorf("%s, leaky %q: got %v, want a failure: %t", c.args, c.leaky, err, len(c.want) > 0)
		}
		wantMention(t, string(out), c.want...)
		if strings.Contains(string(out), c.not) {
			t.Errorf("%s, leaky %q: got report %q, want nothing of %q", c.args, c.leaky, out, c.not)
		}
	}
}
