package transports

import (
	"context"
	"flag"
	"fmt"
	"net/netip"
	"os"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/hg"
	"github.com/quicksilver-rpc/quicksilver/internal/test/long"
	"github.com/quicksilver-rpc/quicksilver/na"
	"github.com/quicksilver-rpc/quicksilver/plugins/sim"
	"github.com/quicksilver-rpc/quicksilver/plugins/sm"
	"github.com/quicksilver-rpc/quicksilver/plugins/tcp"
	"github.com/quicksilver-rpc/quicksilver/plugins/udp"
)

// patience bounds every wait of a test in wall-clock time: a minute.
const patience = time.Minute

// shortPatience bounds the waits after one has timed out: the cause is likely the same, and each
// test is to fail before the time of the whole run is over.
const shortPatience = 2 * time.Second

// hasTimedOut is set when a wait of this process has timed out.
var hasTimedOut atomic.Bool

// transportsFlag selects the transports. A plain run of package hg and those above uses the fastest
// one, and the one with virtual time. .ci/run and long runs use all of them.
var transportsFlag = flag.String("transports", long.Or("tcp,sim", "tcp,tcp-portable,udp,udp-portable,udp-tls,tcp-sm,udp-sm,sm,sim"),
	"the transports of what runs over every transport, of tcp, tcp-portable, tcp-tls, tcp-tls-portable, udp, udp-portable, udp-tls, udp-tls-portable, tcp-sm, udp-sm, sm, sim")

// A Net is one transport during one test.
type Net struct {
	t       *testing.T
	Name    string
	TLS     bool       // peers are authenticated
	Sim     bool       // virtual time
	World   *sim.World // the world of sim; nil for others
	Beside  bool       // shared memory is the second transport, by which all peers are reached
	plugins []na.Plugin
	listen  func(n int) string
	origin  string
	opened  int
	classes []*hg.Class
	drive   []*hg.Context
}

// Each runs f over every transport that -transports names, as subtests.
func Each(t *testing.T, f func(t *testing.T, n *Net)) {
	for name := range strings.SplitSeq(*transportsFlag, ",") {
		kind, variant, _ := strings.Cut(name, "-")
		portable := strings.HasSuffix(variant, "portable")
		switch {
		case variant == "sm" && runtime.GOOS != "linux":
		case kind == "tcp" && strings.HasPrefix(variant, "tls"):
			t.Run(name, func(t *testing.T) { overTCP(t, name, tcp.Options{TLS: mutualTLS(), Portable: portable}, f) })
		case kind == "tcp":
			t.Run(name, func(t *testing.T) { overTCP(t, name, tcp.Options{Portable: portable}, f) })
		case kind == "udp" && strings.HasPrefix(variant, "tls"):
			t.Run(name, func(t *testing.T) { overUDP(t, name, udp.Options{TLS: mutualTLS(), Portable: portable}, f) })
		case kind == "udp":
			t.Run(name, func(t *testing.T) { overUDP(t, name, udp.Options{Portable: portable}, f) })
		case name == "sm" && runtime.GOOS == "linux":
			t.Run(name, func(t *testing.T) { overSM(t, f) })
		case name == "sm":
		case name == "sim":
			t.Run(name, func(t *testing.T) { overSim(t, f) })
		default:
			t.Fatalf("-transports: there is no transport %q", name)
		}
	}
}

func overSim(t *testing.T, f func(t *testing.T, n *Net)) {
	w := sim.NewWorld(sim.Config{Seed: 1, Paced: true}) // some tests use several goroutines
	runTest(t, &Net{Name: "sim", Sim: true, World: w, plugins: []na.Plugin{w.Plugin()}, origin: "sim://",
		listen: func(n int) string { return fmt.Sprintf("sim://node%d", n) }}, f)
}

// TCP runs f over tcp with its defaults only: for tests of speed.
func TCP(t *testing.T, f func(t *testing.T, n *Net)) { overTCP(t, "tcp", tcp.Options{}, f) }

// Fast runs f over tcp and, where available, sm, each with its defaults only: for tests of the cost
// of an operation.
func Fast(t *testing.T, f func(t *testing.T, n *Net)) {
	t.Run("tcp", func(t *testing.T) { TCP(t, f) })
	if runtime.GOOS == "linux" {
		t.Run("sm", func(t *testing.T) { overSM(t, f) })
	}
}

func overTCP(t *testing.T, name string, opts tcp.Options, f func(t *testing.T, n *Net)) {
	opts.Resolver = slowResolver{}
	runTest(t, addSharedMemory(t, &Net{Name: name, TLS: opts.TLS != nil, plugins: []na.Plugin{tcp.New(opts)}, origin: "tcp://",
		listen: func(int) string { return "tcp://127.0.0.1:0" }}), f)
}

// UDP runs f over udp with its defaults only: for tests of faults of datagrams.
func UDP(t *testing.T, f func(t *testing.T, n *Net)) { overUDP(t, "udp", udp.Options{}, f) }

func overUDP(t *testing.T, name string, opts udp.Options, f func(t *testing.T, n *Net)) {
	opts.Resolver = slowResolver{}
	runTest(t, addSharedMemory(t, &Net{Name: name, TLS: opts.TLS != nil, plugins: []na.Plugin{udp.New(opts)}, origin: "udp://",
		listen: func(int) string { return "udp://127.0.0.1:0" }}), f)
}

// addSharedMemory adds shared memory as the second transport if the name of n ends in "sm".
func addSharedMemory(t *testing.T, n *Net) *Net {
	if strings.HasSuffix(n.Name, "-sm") {
		n.Beside = true
		n.plugins = append(n.plugins, sm.New(sm.Options{Dir: smDir(t)}))
		first := n.listen
		n.listen = func(i int) string { return first(i) + ",sm://" }
		n.origin += ",sm://"
	}
	return n
}

func smDir(t *testing.T) string {
	dir, err := os.MkdirTemp("", "sm") // short: it is part of the address of a socket
	require.NoError(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}

func overSM(t *testing.T, f func(t *testing.T, n *Net)) {
	runTest(t, &Net{Name: "sm", plugins: []na.Plugin{sm.New(sm.Options{Dir: smDir(t)})}, origin: "sm://", listen: func(int) string { return "sm://*" }}, f)
}

// Virtual runs f over a simulated network whose clock moves only during a wait in Progress or
// World.Sleep: for tests of times, which are exact there. One goroutine drives.
func Virtual(t *testing.T, f func(t *testing.T, n *Net)) {
	w := sim.NewWorld(sim.Config{Seed: 1})
	runTest(t, &Net{Name: "virtual", Sim: true, World: w, plugins: []na.Plugin{w.Plugin()}, origin: "sim://origin",
		listen: func(n int) string { return fmt.Sprintf("sim://node%d", n) }}, f)
}

func runTest(t *testing.T, n *Net, f func(t *testing.T, n *Net)) {
	n.t = t
	t.Cleanup(n.shutdown)
	f(t, n)
}

// SlowName is the text of an address whose lookup does not end by itself within a test. It is empty
// over a transport whose lookups end at once.
func (n *Net) SlowName() string {
	switch {
	case n.Sim:
		return "sim://far"
	case n.Name == "sm":
		return ""
	}
	return strings.TrimSuffix(n.origin, ",sm://") + "never.test:1"
}

// slowResolver never answers for one name.
type slowResolver struct{}

func (slowResolver) LookupNetIP(ctx context.Context, _, host string) ([]netip.Addr, error) {
	<-ctx.Done()
	return nil, ctx.Err()
}

// Target opens a class that listens, with one context that Until drives.
func (n *Net) Target(cfg hg.Config) (*hg.Class, *hg.Context) {
	n.opened++
	return n.open(n.listen(n.opened), cfg)
}

// Origin opens a class that does not listen, with one context that Until drives.
func (n *Net) Origin(cfg hg.Config) (*hg.Class, *hg.Context) { return n.open(n.origin, cfg) }

// Open opens a class at an address of the transport.
func (n *Net) Open(addr string, cfg hg.Config) (*hg.Class, *hg.Context) { return n.open(addr, cfg) }

func (n *Net) open(addr string, cfg hg.Config) (*hg.Class, *hg.Context) {
	n.t.Helper()
	if cfg.NA.Plugins == nil {
		cfg.NA.Plugins = n.plugins
	}
	cls, err := hg.Open(addr, cfg)
	require.NoError(n.t, err)
	n.classes = append(n.classes, cls)
	return cls, n.Context(cls)
}

// Context makes one more context of cls and has Until drive it.
func (n *Net) Context(cls *hg.Class) *hg.Context {
	n.t.Helper()
	hctx, err := cls.NewContext()
	require.NoError(n.t, err)
	n.drive = append(n.drive, hctx)
	return hctx
}

// Undriven takes contexts out of those that Until drives: a stopped peer, or one that a goroutine
// drives.
func (n *Net) Undriven(hctxs ...*hg.Context) {
	for _, out := range hctxs {
		for i, hctx := range n.drive {
			if hctx == out {
				n.drive = append(n.drive[:i:i], n.drive[i+1:]...)
				break
			}
		}
	}
}

// Until drives all contexts in turn until done reports true.
func (n *Net) Until(done func() bool) {
	n.t.Helper()
	still := n.Bounded()
	for round := 0; !done(); round++ {
		still()
		ran := 0
		for _, hctx := range n.drive {
			ran += hctx.Trigger(0)
			if hctx.Progress(0) == nil {
				ran++
			}
		}
		if ran > 0 || done() {
			continue
		}
		if len(n.drive) > 0 {
			_ = n.drive[round%len(n.drive)].Progress(time.Millisecond)
		}
	}
}

// Bounded returns a function for a loop that waits to call in each round: it fails the test when
// the wait takes too long.
func (n *Net) Bounded() (still func()) {
	n.t.Helper()
	most := patience
	if hasTimedOut.Load() {
		most = shortPatience
	}
	end := time.Now().Add(most)
	return func() {
		n.t.Helper()
		if time.Now().After(end) {
			hasTimedOut.Store(true)
			n.failTest(most)
		}
	}
}

// Serve drives a context in goroutines of its own until the test ends: its handlers run
// concurrently with the test.
func (n *Net) Serve(hctx *hg.Context, goroutines int) {
	n.Undriven(hctx)
	var stop atomic.Bool
	ended := make(chan struct{}, goroutines)
	for range goroutines {
		go func() {
			defer func() { ended <- struct{}{} }()
			for !stop.Load() {
				hctx.Trigger(1)
				if err := hctx.Progress(20 * time.Millisecond); na.CodeOf(err) == na.ErrClosed {
					return
				}
			}
		}()
	}
	n.t.Cleanup(func() {
		stop.Store(true)
		hctx.Wake()
		for range goroutines {
			hctx.Wake()
			<-ended
		}
	})
}

func (n *Net) failTest(most time.Duration) {
	n.t.Helper()
	buf := make([]byte, 1<<20)
	buf = buf[:runtime.Stack(buf, true)]
	for i, hctx := range n.drive {
		n.t.Logf("context %d: %+v", i, hctx.Stats())
	}
	n.t.Fatalf("nothing happened for %v\n%s", most, buf)
}

// shutdown closes every class and requires that every callback has run. Classes that the test has
// opened by itself are not closed.
func (n *Net) shutdown() {
	for _, cls := range n.classes {
		_ = cls.Close()
		if err := cls.Shutdown(context.Background()); !cls.NA().Closed() {
			n.t.Errorf("shutdown of %v: %v", cls.Addr(), err)
		}
	}
}
