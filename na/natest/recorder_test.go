package natest

import (
	"fmt"
	"runtime"
	"strings"
	"sync"
	"testing"
)

// A recorder is a testing.TB that remembers that something failed instead of failing.
type recorder struct {
	testing.TB // of the real test: for what is not overridden here

	mu       sync.Mutex // guards the fields below
	failed   bool
	skipped  bool
	lines    []string
	cleanups []func()
}

// runRecorded runs f to its end, cleanups included.
func runRecorded(t testing.TB, f func(tb testing.TB)) *recorder {
	r := &recorder{TB: t}
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer r.cleanUp()
		f(r)
	}()
	<-done
	return r
}

func (r *recorder) cleanUp() {
	for {
		r.mu.Lock()
		n := len(r.cleanups)
		if n == 0 {
			r.mu.Unlock()
			return
		}
		f := r.cleanups[n-1]
		r.cleanups = r.cleanups[:n-1]
		r.mu.Unlock()
		f()
	}
}

func (r *recorder) Cleanup(f func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.cleanups = append(r.cleanups, f)
}

func (r *recorder) note(line string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.lines = append(r.lines, line)
}

func (r *recorder) Fail() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.failed = true
}

func (r *recorder) Failed() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.failed
}

func (r *recorder) Skipped() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.skipped
}

func (r *recorder) SkipNow() {
	r.mu.Lock()
	r.skipped = true
	r.mu.Unlock()
	runtime.Goexit()
}

func (r *recorder) Helper()                   {}
func (r *recorder) Name() string              { return "recorded" }
func (r *recorder) FailNow()                  { r.Fail(); runtime.Goexit() }
func (r *recorder) Log(args ...any)           { r.note(fmt.Sprintln(args...)) }
func (r *recorder) Logf(f string, a ...any)   { r.note(fmt.Sprintf(f, a...)) }
func (r *recorder) Error(args ...any)         { r.Log(args...); r.Fail() }
func (r *recorder) Errorf(f string, a ...any) { r.Logf(f, a...); r.Fail() }
func (r *recorder) Fatal(args ...any)         { r.Log(args...); r.FailNow() }
func (r *recorder) Fatalf(f string, a ...any) { r.Logf(f, a...); r.FailNow() }
func (r *recorder) Skip(args ...any)          { r.Log(args...); r.SkipNow() }
func (r *recorder) Skipf(f string, a ...any)  { r.Logf(f, a...); r.SkipNow() }

// firstLine returns the first logged line.
func (r *recorder) firstLine() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.lines) == 0 {
		return ""
	}
	line := r.lines[0]
	if _, after, ok := strings.Cut(line, "Messages:"); ok { // of a failed requirement
		line = after
	} else if _, after, ok := strings.Cut(line, "Error:"); ok {
		line = after
	}
	line = strings.Join(strings.Fields(line), " ")
	return line[:min(len(line), 200)]
}
