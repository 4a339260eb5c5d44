package main

import (
	"context"
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/contrib/group"
	"github.com/quicksilver-rpc/quicksilver/hg"
	"github.com/quicksilver-rpc/quicksilver/internal/test/leak"
	"github.com/quicksilver-rpc/quicksilver/internal/test/long"
	"github.com/quicksilver-rpc/quicksilver/plugins/sim"
	"github.com/quicksilver-rpc/quicksilver/qs"
)

var seedFlag = flag.Uint64("seed", 0, "run this seed only")

func TestMain(m *testing.M) { leak.Main(m) }

// A memory is a Store that survives a crash of its node.
type memory struct {
	records map[string]Record
	whole   bool
}

func (m *memory) Get(key string) (Record, error) { return m.records[key], nil }
func (m *memory) Put(r Record) error {
	if m.records[r.Key].Version.compare(r.Version) < 0 {
		m.records[r.Key] = r
	}
	return nil
}
func (m *memory) List() (map[string]Version, error) {
	all := map[string]Version{}
	for key, r := range m.records {
		all[key] = r.Version
	}
	return all, nil
}
func (m *memory) Whole() bool     { return m.whole }
func (m *memory) SetWhole() error { m.whole = true; return nil }

// A double is the membership of one process: it says of all what they are.
type double struct {
	w      *cluster
	report func(group.Member)
}

func (d *double) Watch(report func(group.Member)) error {
	d.report = report
	for _, m := range d.w.members {
		report(m)
	}
	d.w.doubles[d] = true
	return nil
}
func (d *double) Leave(context.Context) error { return nil }
func (d *double) Close() error                { delete(d.w.doubles, d); return nil }

const (
	simOwners  = 5
	simClients = 2
	simTime    = 15 * time.Second
)

// A cluster is owners, clients and trouble in a world.
type cluster struct {
	*sim.World
	t       *testing.T
	need    int // acknowledgements
	stores  map[string]*memory
	members []group.Member
	doubles map[*double]bool
	order   []*double
	wrong   error // the first answer that was
	puts    int
	gets    int
	failed  int
	left    int // clients
	repairs int64
	stop    context.CancelFunc
}

// tell has every process told of a member, in an order that replays.
func (c *cluster) tell(m group.Member) {
	for i := range c.members {
		if c.members[i].Name == m.Name {
			c.members[i] = m
		}
	}
	for _, d := range c.order {
		if c.doubles[d] {
			d.report(m)
		}
	}
}

func (c *cluster) open(addr string) *qs.Node {
	cfg := qs.Config{PeerTimeout: time.Second, ShutdownTimeout: -1, ClientInterceptors: []qs.Interceptor{qs.Retry(qs.RetryPolicy{Attempts: 2, ProgressTimeout: time.Second})},
		HG: hg.Config{NA: hg.NetConfig{Plugins: []hg.Plugin{c.Plugin()}}}}
	n, err := qs.Open(addr, cfg)
	require.NoError(c.t, err)
	return n
}

func (c *cluster) group(n *qs.Node, name string) *group.Group {
	d := &double{w: c}
	c.order = append(c.order, d)
	g, err := group.Over(n, name, d)
	require.NoError(c.t, err)
	return g
}

func (c *cluster) owner(ctx context.Context, name string) {
	c.Go(name, func() {
		n := c.open("sim://" + name)
		g := c.group(n, name)
		s := &Service{node: n, self: name, names: namesOf(simOwners), store: c.stores[name]}
		s.handle()
		n.HG().NA().Spawn(func() {
			_ = s.repair(ctx, &peers{node: n, resolver: g, all: map[string]qs.Peer{}})
			c.repairs += s.repairs.Load()
		})
		_ = n.Serve(ctx)
		_ = g.Close()
	})
}

func (c *cluster) client(i int, seed uint64) {
	name := fmt.Sprint("client", i)
	c.Go(name, func() {
		n := c.open("sim://")
		defer n.Close()
		g := c.group(n, name)
		defer g.Close()
		client := newClient(n, namesOf(simOwners), &peers{node: n, resolver: g, all: map[string]qs.Peer{}}, name)
		client.need = c.need
		w := &worker{c: client, name: name, keys: 4, large: 5000, timeout: 10 * time.Second,
			rand: rand.New(rand.NewPCG(seed, uint64(i))), ledger: ledger{may: map[string][]string{}}}
		ctx, stop := n.HG().NA().WithTimeout(context.Background(), time.Hour)
		defer stop()
		for end := c.Now() + simTime; c.Now() < end && c.wrong == nil; c.Sleep(time.Duration(w.rand.IntN(40)) * time.Millisecond) {
			if err := w.step(ctx); err != nil {
				c.wrong = err
			}
		}
		for c.left > simClients { // trouble
			c.Sleep(100 * time.Millisecond)
		}
		if c.wrong == nil {
			c.wrong = w.audit(ctx)
		}
		c.puts, c.gets, c.failed = c.puts+w.ledger.puts, c.gets+w.ledger.gets, c.failed+w.ledger.errs
		if c.left--; c.left == 0 {
			c.stop()
		}
	})
}

// trouble crashes, restarts, pauses and divides owners, one after the other, and heals everything at the end. What the group says comes
// late, and of partitions it says nothing.
func (c *cluster) trouble(ctx context.Context, seed uint64) {
	c.Go("trouble", func() {
		r := rand.New(rand.NewPCG(seed, 99))
		incarnation := uint64(1)
		for end := c.Now() + simTime; c.Now() < end; c.Sleep(time.Duration(r.IntN(2000)) * time.Millisecond) {
			name := namesOf(simOwners)[r.IntN(simOwners)]
			m := group.Member{Name: name, Addr: "sim://" + name, Incarnation: incarnation}
			pause := time.Duration(100+r.IntN(3000)) * time.Millisecond
			switch r.IntN(3) {
			case 0:
				c.Node(name).Crash()
				c.Sleep(pause / 2)
				m.State = group.Failed
				c.tell(m)
				c.Sleep(pause / 2)
				c.owner(ctx, name)
			case 1:
				c.Node(name).Pause(pause)
				c.Sleep(pause / 2)
				m.State = group.Failed
				c.tell(m)
				c.Sleep(pause / 2)
			case 2:
				other := namesOf(simOwners)[r.IntN(simOwners)]
				if r.IntN(2) == 0 {
					other = fmt.Sprint("client", r.IntN(simClients))
				}
				if other != name {
					c.Partition(name, other, r.IntN(2) == 0)
				}
				c.Sleep(pause)
				c.Heal()
			}
			incarnation++
			m.State, m.Incarnation = group.Alive, incarnation
			c.tell(m)
		}
		c.Heal()
		c.left--
	})
}

// play runs one seed.
func play(t *testing.T, seed uint64, need int) *cluster {
	return owners(t, sim.Config{Seed: seed, Faults: sim.Faults{Jitter: 20 * time.Millisecond, Loss: 0.02, Reset: 0.002}}, need, func(ctx context.Context, c *cluster) {
		for i := range simClients {
			c.client(i, seed)
		}
		c.trouble(ctx, seed)
	})
}

// owners runs a world of owners, with what do adds to it.
func owners(t *testing.T, cfg sim.Config, need int, do func(context.Context, *cluster)) *cluster {
	w := sim.NewWorld(cfg)
	defer w.Close()
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	c := &cluster{World: w, t: t, need: need, stores: map[string]*memory{}, doubles: map[*double]bool{}, left: simClients + 1, stop: stop}
	for _, name := range namesOf(simOwners) {
		c.stores[name] = &memory{records: map[string]Record{}}
		c.members = append(c.members, group.Member{Name: name, Addr: "sim://" + name, Incarnation: 1})
	}
	for _, name := range namesOf(simOwners) {
		c.owner(ctx, name)
	}
	do(ctx, c)
	require.NoError(t, w.Run(2*time.Hour), "replay with -seed=%d", cfg.Seed)
	return c
}

// TestReadRepair: what a read returns is at a quorum, although one owner alone had it.
func TestReadRepair(t *testing.T) {
	t.Parallel()
	for _, size := range []int{10, 100_000} {
		owners(t, sim.Config{}, quorum, func(_ context.Context, c *cluster) {
			c.Go("client", func() {
				defer c.stop()
				n := c.open("sim://")
				defer n.Close()
				g := c.group(n, "client")
				defer g.Close()
				client := newClient(n, namesOf(simOwners), &peers{node: n, resolver: g, all: map[string]qs.Peer{}}, "client")
				c.Sleep(5 * time.Second) // the owners are ready
				first := group.Owners(namesOf(simOwners), "k", copies)[0]
				require.NoError(t, c.stores[first].Put(Record{"k", Version{7, "somebody"}, make([]byte, size)}))
				ctx, stop := n.HG().NA().WithTimeout(context.Background(), time.Minute)
				defer stop()
				value, ok, err := client.Get(ctx, "k")
				require.NoError(t, err)
				require.True(t, ok)
				require.Len(t, value, size)
				have := 0
				for _, s := range c.stores {
					if r := s.records["k"]; r.Version == (Version{7, "somebody"}) && len(r.Value) == size {
						have++
					}
				}
				require.GreaterOrEqual(t, have, quorum)
			})
		})
	}
}

// TestSeeds: every acknowledged write reads back, none that is reported NotRun is ever read, whatever happens to owners and network.
func TestSeeds(t *testing.T) {
	t.Parallel()
	first, last := uint64(1), uint64(50)
	if long.On {
		last = 1000
	}
	if *seedFlag != 0 {
		first, last = *seedFlag, *seedFlag
	}
	var puts, gets, failed int
	var repairs int64
	for seed := first; seed <= last; seed++ {
		c := play(t, seed, quorum)
		require.NoError(t, c.wrong, "replay with -seed=%d", seed)
		puts, gets, failed, repairs = puts+c.puts, gets+c.gets, failed+c.failed, repairs+c.repairs
	}
	t.Logf("%d writes, %d reads, %d of them failed; %d records repaired", puts, gets, failed, repairs)
	require.Positive(t, repairs, "no restart had anything to repair")
	require.Less(t, failed, (puts+gets)/4, "too few say anything")
}

// TestPlantedBug: a client that takes one acknowledgement for enough is found by a seed, and the seed finds it again.
func TestPlantedBug(t *testing.T) {
	t.Parallel()
	for seed := uint64(1); seed <= 400; seed++ {
		c := play(t, seed, 1)
		if c.wrong == nil {
			continue
		}
		again := play(t, seed, 1)
		require.Equal(t, c.wrong.Error(), again.wrong.Error())
		require.Equal(t, c.Hash(), again.Hash())
		t.Logf("found by seed %d: %v", seed, c.wrong)
		return
	}
	t.Fatal("no seed has found it")
}

// TestStores: the files hold what the memory of the simulator does.
func TestStores(t *testing.T) {
	t.Parallel()
	path := t.TempDir()
	d, err := openDir(path)
	require.NoError(t, err)
	m := &memory{records: map[string]Record{}}
	r := rand.New(rand.NewPCG(1, 2))
	for range 200 {
		rec := Record{fmt.Sprint("k", r.IntN(5)), Version{uint64(r.IntN(20)), fmt.Sprint(r.IntN(2))}, []byte(fmt.Sprint(r.Uint64()))}
		require.NoError(t, d.Put(rec))
		require.NoError(t, m.Put(rec))
	}
	require.False(t, d.Whole())
	require.NoError(t, d.SetWhole())
	d, err = openDir(path) // a restart
	require.NoError(t, err)
	require.True(t, d.Whole())
	all, err := d.List()
	require.NoError(t, err)
	want, _ := m.List()
	require.Equal(t, want, maps.Clone(all))
	for key := range want {
		got, err := d.Get(key)
		require.NoError(t, err)
		require.Equal(t, m.records[key], got)
	}
}

// TestLedger: it takes what may be, and nothing else.
func TestLedger(t *testing.T) {
	t.Parallel()
	l := ledger{may: map[string][]string{}}
	require.NoError(t, l.check("k", ""))
	require.Error(t, l.check("k", "v"))
	l.put("k", "1", nil)
	l.put("k", "2", notSent("kv/put", qs.ErrUnavailable))
	require.Error(t, l.check("k", "2"), "it did not run")
	l.put("k", "3", &hg.Error{Fate: qs.MaybeRan, Err: qs.ErrUnavailable})
	require.NoError(t, l.check("k", "1"))
	require.NoError(t, l.check("k", "3"))
	require.Error(t, l.check("k", "1"), "it went back")
}
