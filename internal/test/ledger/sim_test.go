package ledger

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"time"

	"github.com/quicksilver-rpc/quicksilver/hg"
	"github.com/quicksilver-rpc/quicksilver/plugins/sim"
	"github.com/quicksilver-rpc/quicksilver/qs"
)

// options are what a seed draws, and what a shrinker takes away.
type options struct {
	Seed                                        uint64
	Faults                                      sim.Faults
	Targets, Origins, Callers, Rounds, Breakers int
	Idle                                        time.Duration // hg.NetConfig.IdleTimeout
	Budget                                      int64         // likewise
	Pause                                       time.Duration // between two calls of a caller, at most
	Off                                         Deeds
}

func drawOptions(seed uint64) options {
	rng := rand.New(rand.NewPCG(seed, 1))
	most := sim.Faults{
		Jitter: 2 * time.Millisecond, Refuse: 0.05, Reset: 0.01, Corrupt: 0.005, Clog: 0.005, ClogFor: time.Second, Pause: 0.002, PauseFor: time.Second,
		Partition: 0.003, PartitionFor: 2 * time.Second, Stall: time.Millisecond, Silence: 0.3, Loss: 0.03, Again: 0.005,
	}
	return options{
		Seed: seed, Faults: most.Draw(rng), Targets: 2 + rng.IntN(2), Origins: 1 + rng.IntN(2), Callers: 1 + rng.IntN(4), Rounds: 4 + rng.IntN(8),
		Breakers: 2 + rng.IntN(12), Idle: []time.Duration{-1, 1, 1, 100 * time.Millisecond}[rng.IntN(4)],
		Off: Deeds(*without) | DeedExit, // there the end of a coroutine's goroutine is the end of the test's
	}
}

// A world is a run of the simulator.
type world struct {
	options
	*sim.World
	book  bytes.Buffer
	lines []string // of it, with their time
	audit *Audit
	died  map[uint64]bool // origins
	nodes []*qs.Node      // that were ever opened
	broke map[string]int

	rng     *rand.Rand
	targets []*machine
	origins []*machine
	left    int // origins
	numbers uint64
	failed  error
}

// A machine has one target or origin, which crashes, is stopped, or ends, and begins again.
type machine struct {
	*world
	name   string
	number uint64 // of the origin
	target *Target
	stop   context.CancelFunc
	up     bool
}

// play plays one seed, and returns what is wrong.
func play(o options) (*world, error) {
	w := &world{
		options: o, World: sim.NewWorld(sim.Config{Seed: o.Seed, Faults: o.Faults, Patience: -1}), audit: NewAudit(), died: map[uint64]bool{}, broke: map[string]int{},
		rng: rand.New(rand.NewPCG(o.Seed, 2)),
	}
	defer w.Close()
	for i := range o.Targets {
		m := &machine{world: w, name: fmt.Sprint("target", i)}
		w.targets = append(w.targets, m)
		m.serve()
	}
	for i := range o.Origins {
		m := &machine{world: w, name: fmt.Sprint("origin", i)}
		w.origins = append(w.origins, m)
		m.originate(o.Seed)
	}
	w.Go("breaker", w.breaks)
	err := w.Run(10 * time.Minute)
	if errors.Is(err, sim.ErrLimit) || errors.Is(err, sim.ErrDeadlock) {
		err = fmt.Errorf("something has not ended: %w", err)
	}
	failed := w.audit.Read(&w.book)
	w.audit.Close(func(n uint64) bool { return w.died[n] })
	return w, errors.Join(w.audit.Err(), err, failed, w.failed)
}

func (w *world) site() Site {
	open := func(addr string, cfg qs.Config) (*qs.Node, error) {
		n, err := qs.Open(addr, cfg)
		if err == nil {
			w.nodes = append(w.nodes, n)
		}
		return n, err
	}
	return Site{Open: open, Go: w.Spawn, Sleep: w.Sleep}
}

func (w *world) config() qs.Config {
	cfg := qs.Config{PeerTimeout: 500 * time.Millisecond, ShutdownTimeout: time.Duration(w.rng.IntN(3)) * 100 * time.Millisecond}
	cfg.HG.NA = hg.NetConfig{Plugins: []hg.Plugin{w.Plugin()}, IdleTimeout: w.Idle, Budget: w.Budget}
	cfg.HG.Logger = slog.New(slog.DiscardHandler)
	return cfg
}

// Write takes in a line of a book.
func (w *world) Write(b []byte) (int, error) {
	w.lines = append(w.lines, fmt.Sprintf("%11v %s", w.Now(), bytes.TrimSpace(b)))
	return w.book.Write(b)
}

var noFaults sim.Faults

// serve begins a target.
func (m *machine) serve() {
	ctx, stop := context.WithCancel(context.Background())
	t := &Target{Site: m.site(), Book: NewBook(m.world)}
	m.target, m.stop, m.up = t, stop, true
	m.Go(m.name, func() {
		if err := t.Serve(ctx, "sim://"+m.name, m.config(), func(string) {}); err != nil {
			var cut *hg.ShutdownError
			if !errors.As(err, &cut) {
				m.failed = fmt.Errorf("%s: %w", m.name, err)
			}
		}
		m.up = false
	})
}

// originate begins an origin.
func (m *machine) originate(seed uint64) {
	m.numbers++
	m.number, m.up = m.numbers, true
	o := &Origin{
		Site: m.site(), Book: NewBook(m.world), Number: m.number, Seed: seed, Addr: "sim://", Config: m.config, Callers: m.Callers, Rounds: m.Rounds,
		MaxData: 20_000, Pause: m.options.Pause, Patience: 2 * time.Minute, Off: m.Off,
	}
	for _, t := range m.targets {
		o.Targets = append(o.Targets, "sim://"+t.name)
	}
	ctx, stop := context.WithCancel(context.Background())
	m.stop = stop
	m.left++
	m.Go(m.name, func() {
		if err := o.Run(ctx, 2); err != nil {
			m.failed = fmt.Errorf("%s: %w", m.name, err)
		}
		m.up = false
		m.left--
	})
}

// breaks breaks machines and puts them right again, then lets everything end.
func (w *world) breaks() {
	for range w.Breakers {
		w.Sleep(time.Duration(w.rng.Int64N(int64(time.Millisecond) << w.rng.IntN(8))))
		all := w.targets
		if w.rng.IntN(4) == 0 {
			all = w.origins
		}
		m := all[w.rng.IntN(len(all))]
		if !m.up {
			continue
		}
		kind := []string{"kill", "stop", "end", "power"}[w.rng.IntN(4)]
		w.broke[kind]++
		switch kind {
		case "stop":
			w.Node(m.name).Pause(time.Duration(w.rng.Int64N(int64(time.Second))))
		case "end":
			if m.target != nil {
				m.target.End()
			}
			m.stop()
			for m.target != nil && m.up {
				w.Sleep(10 * time.Millisecond)
			}
		case "kill":
			w.Node(m.name).Crash()
			m.crashed()
		case "power":
			w.Node(m.name).PowerOff()
			m.crashed()
		}
		if !m.up {
			w.Sleep(time.Duration(w.rng.Int64N(int64(100 * time.Millisecond))))
			if m.target != nil {
				m.serve()
			} else if kind != "end" {
				m.originate(w.options.Seed)
			}
		}
	}
	w.SetFaults(sim.Faults{})
	w.Heal()
	for w.left > 0 {
		w.Sleep(50 * time.Millisecond)
	}
	for _, m := range w.targets {
		m.target.End()
		m.stop()
	}
}

func (m *machine) crashed() {
	m.up = false
	if m.target == nil {
		m.died[m.number] = true
		m.left--
	}
}
