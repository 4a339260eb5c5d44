package soak

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/quicksilver-rpc/quicksilver/cmd/qs/internal/self"
	"github.com/quicksilver-rpc/quicksilver/hg"
	"github.com/quicksilver-rpc/quicksilver/internal/test/ledger"
	"github.com/quicksilver-rpc/quicksilver/qs"
)

// A Config configures a soak. All fields except Faults and Seed are required.
type Config struct {
	Transport   string // transport used by the targets
	To          string // address at which to open a node that calls the targets
	Targets     int
	Origins     int           // number of origins in addition to the one in this process
	Time        time.Duration // minimum duration of the load, which continues until each kind of fault has occurred
	Every       time.Duration // mean time between the starts of faults
	Callers     int           // number of callers in each origin
	Streams     int           // number of open streams of each kind in each origin
	MaxBulk     int64         // maximum size of a transfer in bytes, at least 2; half of it is sent in each direction
	Seed        uint64        // seed of the random choices in the load and the faults; 0 selects a random seed
	Faults      []string      // kinds of faults to apply, a subset of the variable Faults
	PeerTimeout time.Duration // peer timeout, which must equal that of HG
	HG          hg.Config     // configuration of the origins' classes
	Log         io.Writer     // receives a line for each event
	Show        func(Status)  // if not nil, called every second with the progress of the load
	Listen      string        // address on which targets first listen
	// StartTarget starts a process that runs Target at addr. StartOrigin starts a process that runs Origin with c, to
	// which it must pass the HG configuration itself.
	StartTarget func(book, addr string) (*self.Child, error)
	StartOrigin func(book string, c Calls) (*self.Child, error)
}

// A Status describes the progress of the load.
type Status struct {
	For    time.Duration  // time since the load was started
	Calls  int64          // number of completed calls of the first origin
	Faults map[string]int // number of faults by kind
	Ending bool           // the load is complete, the processes are being stopped, and the audit follows
}

// Calls configures the calls of one origin.
type Calls struct {
	Number, Seed uint64
	Callers      int
	Streams      int
	MaxBulk      int64
	Targets      []string
	To           string // address at which to open a node that calls the targets
}

const maxBulk = 1 << 30

// Check returns an error if a field of c is invalid.
func (c *Config) Check() error {
	if c.Time <= 0 {
		return fmt.Errorf("--time is not positive")
	}
	if c.Every <= 0 {
		return fmt.Errorf("--every is not positive")
	}
	for _, f := range []struct {
		name               string
		value, least, most int64
	}{
		{"inflight", int64(c.Callers), 1, 4096}, {"targets", int64(c.Targets), 2, 64}, {"origins", int64(c.Origins), 0, 64},
		{"bulk", c.MaxBulk, 2, maxBulk}, {"streams", int64(c.Streams), 0, 4096},
	} {
		if f.value < f.least || f.value > f.most {
			return fmt.Errorf("--%s is %d, want %d to %d", f.name, f.value, f.least, f.most)
		}
	}
	for _, k := range c.Faults {
		if !slices.Contains(Faults, k) {
			return fmt.Errorf("--faults has %q, want some of %s, or none", k, strings.Join(Faults, ", "))
		}
		if k == "stop" && !canStop {
			return fmt.Errorf("--faults: processes cannot be stopped on %s", runtime.GOOS)
		}
		if needsRelay(k) && !hasConnections(c.Transport) {
			return fmt.Errorf("--faults: %s needs connections, and --transport %s has none", k, c.Transport)
		}
	}
	return nil
}

// Faults lists the kinds of faults.
var Faults = []string{"kill", "stop", "end", "reset", "stall"}

// FaultsOver returns the kinds of faults that can be applied if the targets use transport.
func FaultsOver(transport string) []string {
	return slices.DeleteFunc(slices.Clone(Faults), func(k string) bool {
		return needsRelay(k) && !hasConnections(transport) || k == "stop" && !canStop
	})
}

// needsRelay reports whether a kind of fault affects connections and can therefore be applied only through a relay.
func needsRelay(fault string) bool { return fault == "reset" || fault == "stall" }

// hasConnections reports whether a transport uses connections that a relay can forward. The transport auto uses them in
// addition to shared memory.
func hasConnections(transport string) bool { return transport == "tcp" || transport == "auto" }

// A soak is one run. The first origin runs in this process. For each process to which faults are applied, a goroutine
// applies them.
type soak struct {
	Config
	dir     string
	targets []*target
	origins []*origin
	here    *ledger.Origin

	endEarly context.CancelFunc // cancels the context of Run, which ends the load
	ended    atomic.Int64       // number of completed calls of the origin in this process
	isEnding atomic.Bool        // the load is complete

	mu      sync.Mutex // guards the fields below
	faults  map[string]int
	died    map[uint64]bool // numbers of origins that were killed
	numbers uint64
	broken  error
}

// patience returns a timeout for operations that take long only on a busy machine.
func (s *soak) patience() time.Duration { return 4*s.PeerTimeout + 30*time.Second }

// Run runs the load and the faults, and then audits the books. The configuration must have passed Check. If ctx is
// done, Run ends the load early and reports on the time until then.
func Run(ctx context.Context, cfg Config) (*Report, error) {
	ctx, endEarly := context.WithCancel(ctx)
	defer endEarly()
	s := &soak{Config: cfg, endEarly: endEarly, faults: map[string]int{}, died: map[uint64]bool{}}
	if s.Seed == 0 {
		s.Seed = rand.Uint64()>>12 | 1 // fits in the 53 bits that every JSON parser represents exactly
	}
	var err error
	if s.dir, err = os.MkdirTemp("", "qs-soak-"); err != nil {
		return nil, err
	}
	defer func() { _ = os.RemoveAll(s.dir) }()
	defer s.stop()
	for i := range s.Targets {
		t, err := s.startTarget(i)
		if err != nil {
			return nil, err
		}
		s.targets = append(s.targets, t)
	}
	r := &Report{Commit: commit(), Seed: s.Seed, Faults: s.faults, Audit: ledger.NewAudit()}
	book, err := os.Create(filepath.Join(s.dir, "origin-0"))
	if err != nil {
		return nil, err
	}
	defer func() { _ = book.Close() }()
	s.here = NewOrigin(&endCounter{book, &s.ended}, s.newCalls(), s.HG)
	s.here.Spared = true
	for range s.Origins {
		o := &origin{s: s}
		if err := o.start(); err != nil {
			return nil, err
		}
		s.origins = append(s.origins, o)
	}
	if err := s.run(ctx, r); err != nil {
		return nil, err
	}
	return r, s.audit(r)
}

// run runs the load, applies the faults until the load's time has passed, and stores the measurements in r.
func (s *soak) run(ctx context.Context, r *Report) error {
	begun := time.Now()
	shown := s.showStatus(begun)
	defer shown()
	load, endLoad := context.WithCancel(context.Background())
	defer endLoad()
	var here sync.WaitGroup
	here.Go(func() { s.fail(s.here.Run(load, 0)) })
	breaks, heal := context.WithCancel(load)
	defer heal()
	var chaos sync.WaitGroup
	if len(s.Faults) > 0 {
		seed := s.Seed
		for _, v := range s.listVictims() {
			seed++
			rng := rand.New(rand.NewPCG(seed, 3))
			chaos.Go(func() { s.runFaults(breaks, v, rng) })
		}
	}
	pause(ctx, s.Time/10)
	r.takeSample(s, func(g *growth) *int64 { return &g.First })
	pause(ctx, s.Time-time.Since(begun))
	for end := time.Now().Add(s.patience() + 20*s.Every); ctx.Err() == nil && !s.haveAllFaults() && s.failure() == nil && time.Now().Before(end); {
		pause(ctx, 20*time.Millisecond)
	}
	r.Interrupted = ctx.Err() != nil
	s.isEnding.Store(true)
	heal()
	chaos.Wait() // wait until all faults have been repaired
	if s.failure() == nil {
		r.Silent = s.knock()
	}
	fmt.Fprintf(s.Log, "soak: the load ends after %v\n", time.Since(begun).Round(time.Millisecond))
	endLoad()
	for _, o := range s.origins {
		if !o.child.End(s.patience()) {
			r.Left++
			r.addNote("an origin has not exited")
		}
	}
	here.Wait()
	r.takeSample(s, func(g *growth) *int64 { return &g.Last })
	r.Seconds = time.Since(begun).Seconds()
	r.slow(s)
	r.countOutgrown(s)
	return s.failure()
}

// An endCounter counts the completed calls while it writes a book.
type endCounter struct {
	book  io.Writer
	ended *atomic.Int64
}

// Write implements io.Writer. Each call must pass exactly one line.
func (c *endCounter) Write(line []byte) (int, error) {
	if bytes.HasPrefix(line, []byte("end ")) {
		c.ended.Add(1)
	}
	return c.book.Write(line)
}

// showStatus calls Config.Show every second with the progress of the load. The caller must call stop, which waits for
// the last call of Show.
func (s *soak) showStatus(begun time.Time) (stop func()) {
	if s.Show == nil {
		return func() {}
	}
	ctx, cancel := context.WithCancel(context.Background())
	var shown sync.WaitGroup
	shown.Go(func() {
		for {
			s.mu.Lock()
			faults := maps.Clone(s.faults)
			s.mu.Unlock()
			s.Show(Status{time.Since(begun), s.ended.Load(), faults, s.isEnding.Load()})
			if !pause(ctx, time.Second) {
				return
			}
		}
	})
	return func() {
		cancel()
		shown.Wait()
	}
}

// haveAllFaults reports whether each kind of fault in Config.Faults has occurred. If the transport is auto,
// connection faults are ignored: all calls may have used shared memory.
func (s *soak) haveAllFaults() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return !slices.ContainsFunc(s.Faults, func(k string) bool {
		return s.faults[k] == 0 && !(needsRelay(k) && s.Transport == "auto")
	})
}

// fail records err as the reason why the soak cannot continue, and ends the load. It has no effect if err is nil.
func (s *soak) fail(err error) {
	if err == nil {
		return
	}
	s.mu.Lock()
	if s.broken == nil {
		s.broken = err
	}
	s.mu.Unlock()
	s.endEarly()
}

func (s *soak) failure() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.broken
}

// newCalls returns the configuration of the calls of the next origin.
func (s *soak) newCalls() Calls {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.numbers++
	c := Calls{Number: s.numbers - 1, Seed: s.Seed, Callers: s.Callers, Streams: s.Streams, MaxBulk: s.MaxBulk, To: s.To}
	for _, t := range s.targets {
		c.Targets = append(c.Targets, t.reached)
	}
	return c
}

// knock calls each target until it answers or a timeout expires. It returns the number of targets that did not answer.
func (s *soak) knock() (silent int) {
	n, err := qs.Open(s.To, qs.Config{HG: s.HG})
	if err != nil {
		s.fail(err)
		return 0
	}
	defer func() { _ = n.Close() }()
	ctx, stop := context.WithTimeout(context.Background(), s.patience())
	defer stop()
	for _, t := range s.targets {
		p, err := n.Peer(ctx, t.reached)
		for err == nil {
			if _, err = p.Ping(ctx); err == nil {
				break
			}
			if pause(ctx, 20*time.Millisecond) {
				err = nil
			}
		}
		if err != nil {
			silent++
			fmt.Fprintf(s.Log, "soak: target %d does not answer: %v\n", t.i, err)
		}
	}
	return silent
}

// stop terminates all target and origin processes.
func (s *soak) stop() {
	for _, o := range s.origins {
		o.child.Stop()
	}
	for _, t := range s.targets {
		t.stop()
	}
}

// audit reads and checks the books of all targets and origins.
func (s *soak) audit(r *Report) error {
	s.stop()
	books, err := filepath.Glob(filepath.Join(s.dir, "*-*"))
	if err != nil {
		return err
	}
	slices.Sort(books)
	for _, name := range books {
		f, err := os.Open(name)
		if err != nil {
			return err
		}
		err = r.Read(f)
		_ = f.Close()
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
	r.Close(func(number uint64) bool { return s.died[number] })
	return nil
}

// pause waits for the duration d and returns true. If ctx is done first, it returns false.
func pause(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}

var canStop = runtime.GOOS != "windows"

func (s *soak) bookPath(kind string, n uint64) string {
	return filepath.Join(s.dir, kind+"-"+strconv.FormatUint(n, 10))
}
