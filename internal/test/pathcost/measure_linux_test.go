package pathcost

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// sample is a module with a program whose costs are known.
var sample = map[string]string{
	"go.mod": "module example.org/m\n\ngo 1.26\n",
	"main.go": `package main

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"runtime/coverage"
	"strconv"

	"example.org/m/p"
)

func main() {
	flag.String("kind", "", "")
	flag.String("transport", "", "")
	rounds := flag.Int("rounds", 0, "")
	calls := flag.Int("calls", 0, "")
	counters := flag.String("counters", "", "")
	flag.Parse()
	if *counters == "" {
		fmt.Println(` + "`" + `{"CPU": 7, "Allocations": {"example.org/m/p.(*T[...]).Call": 1}, "Frames": ["example.org/m/p.Call", "runtime.main"]}` + "`" + `)
		return
	}
	for round := range *rounds {
		dir := filepath.Join(*counters, strconv.Itoa(round))
		if os.Mkdir(dir, 0o700) != nil || coverage.ClearCounters() != nil {
			os.Exit(1)
		}
		for i := range *calls {
			p.Call(i, round)
		}
		if coverage.WriteCountersDir(dir) != nil || coverage.WriteMetaDir(dir) != nil {
			os.Exit(1)
		}
	}
}
`,
	"p/p.go": `package p

import (
	"os"
	"sync"
	"syscall"
	"time"
)

type T[A any] struct {
	mu sync.Mutex
	rw sync.RWMutex
	a  A
}

type locker interface{ Lock() }

// Lock is counted where it is called.
func (t *T[A]) Lock() { t.mu.Lock() }

// file has a method Lock that is none of a mutex.
type file struct{}

func (file) Lock(path string) error { return nil }
func (file) TryLock() error         { return nil }

var (
	t     T[int]
	l     locker = &t
	start        = time.Now()
	hook         = func() { t.mu.Lock(); t.mu.Unlock() }
)

func now() time.Duration { return time.Since(start) }

func Call(i, round int) {
	func() {
		t.rw.RLock()
		defer t.rw.RUnlock()
		for range 3 {
			t.mu.Lock()
			t.mu.Unlock()
		}
	}()
	l.Lock()
	t.mu.Unlock()
	hook()
	_ = file{}.Lock("")
	_ = file{}.TryLock()
	if i < 0 {
		t.mu.Lock()
		never()
	}
	if i < 0 && now() > 0 {
		never()
	}
	if now() < 0 || time.Until(start) > 0 {
		never()
	}
	_, _ = syscall.Write(-1, nil)
	_ = syscall.Getpid()
	_, _ = (*os.File)(nil).Read(nil)
	if i%10 == 0 {
		seldom()
	}
	if round == 1 {
		once()
	}
	empty() // has no block, and is not counted
}

func never()  {}
func seldom() {}
func once()   { t.mu.Lock(); t.mu.Unlock() }
func empty()  {}
`,
}

// TestMeasure checks that the costs of the sample are those of every call, in the functions that
// cause them.
func TestMeasure(t *testing.T) {
	t.Setenv("GOWORK", "off")
	dir := t.TempDir()
	for name, text := range sample {
		require.NoError(t, os.MkdirAll(filepath.Join(dir, filepath.Dir(name)), 0o700))
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600))
	}
	m, err := newMeter(dir, t.TempDir())
	require.NoError(t, err)
	found, cpu, err := m.measure(cell{"callback", "tcp"}, 3)
	require.NoError(t, err)
	require.Equal(t, 7.0, cpu)
	require.Equal(t, costs{
		functions:    {"p.Call": 1, "p.Call.func1": 1, "p.T.Lock": 1, "p.var.func1": 1, "p.now": 1, "p.file.Lock": 1, "p.file.TryLock": 1},
		varying:      {"p.once": 1},
		locks:        {"p.Call.func1": 4, "p.Call": 1, "p.var.func1": 1},
		clockReads:   {"p.now": 1, "p.Call": 1},
		clockReaders: {"p.Call": 2},
		systemCalls:  {"p.Call": 2},
		allocations:  {"p.T.Call": 1},
		frames:       {"p.Call": 1, "runtime.main": 1},
	}, found.withoutVarying())
}
