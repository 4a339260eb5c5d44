//go:build unix

package main

import (
	"context"
	"encoding/hex"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/contrib/group"
	"github.com/quicksilver-rpc/quicksilver/internal/test/long"
	"github.com/quicksilver-rpc/quicksilver/qs"
)

var (
	rounds   = flag.Int("kv.rounds", long.Or(1, 20), "of each kind of trouble")
	troubles = flag.String("kv.troubles", "killed,ended,stopped", "`kinds` of TestTrouble")
	frozen   = flag.Duration("kv.frozen", long.Or(4*time.Second, 20*time.Second), "how long an owner is stopped, or cut off")
	gone     = flag.Duration("kv.gone", long.Or(time.Second, 5*time.Second), "how long the others go on without an owner that was killed or ended")
)

const (
	namespace   = "QS_KV_NAMESPACE" // set in a TestTrouble that has a network of its own
	peerTimeout = 2 * time.Second
	grace       = 3 * time.Second // after a change of the view
)

func divided() bool { return os.Getenv(namespace) != "" }

// pause is how long a fault lasts, or how much load there is.
func pause(d time.Duration) {
	t := time.NewTimer(d)
	<-t.C
}

func shell(t *testing.T, name string, args ...string) {
	t.Helper()
	text, err := exec.Command(name, args...).CombinedOutput()
	require.NoError(t, err, "%s %s: %s", name, strings.Join(args, " "), text)
}

// TestPartition is TestTrouble with partitions, in network namespaces of its own, which end with it.
func TestPartition(t *testing.T) {
	if why := undividable(); why != "" {
		t.Skip(why)
	}
	args := []string{"-nm", "sh", "-c", `mkdir -p /run/netns && mount -t tmpfs none /run/netns && ip link set lo up && exec "$@"`, "sh", os.Args[0],
		"-test.run=^TestTrouble$", "-test.v", "-kv.troubles=divided", fmt.Sprint("-kv.rounds=", *rounds), fmt.Sprint("-kv.frozen=", *frozen)}
	cmd := exec.Command("unshare", args...)
	cmd.Env = append(os.Environ(), namespace+"=1")
	text, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", text)
	for line := range strings.Lines(string(text)) {
		if _, said, ok := strings.Cut(line, "trouble_test.go:"); ok {
			t.Log(strings.TrimSpace(said))
		}
	}
	require.Contains(t, string(text), fmt.Sprintf("divided: %d rounds", *rounds))
}

// undividable says why a network cannot be divided here.
func undividable() string {
	if runtime.GOOS != "linux" || os.Geteuid() != 0 {
		return "a network namespace needs Linux and root"
	}
	for _, tool := range []string{"unshare", "ip", "nft"} {
		if _, err := exec.LookPath(tool); err != nil {
			return err.Error()
		}
	}
	return ""
}

// connect makes a namespace for each owner, and a bridge to all.
func (f *fleet) connect(n int) {
	shell(f.t, "ip", "link", "add", "kv", "type", "bridge")
	shell(f.t, "ip", "addr", "add", hostOf(0)+"/24", "dev", "kv")
	shell(f.t, "ip", "link", "set", "kv", "up")
	for i, name := range namesOf(n) {
		shell(f.t, "ip", "netns", "add", name)
		shell(f.t, "ip", "link", "add", name, "type", "veth", "peer", "name", "eth0", "netns", name)
		shell(f.t, "ip", "link", "set", name, "master", "kv", "up")
		shell(f.t, "ip", "-n", name, "addr", "add", hostOf(i+1)+"/24", "dev", "eth0")
		for _, dev := range []string{"lo", "eth0"} {
			shell(f.t, "ip", "-n", name, "link", "set", dev, "up")
		}
	}
}

// cut has no packet reach owner i, nor leave it; nobody is told.
func (f *fleet) cut(i int) {
	rules := "table netdev cut {\n"
	for _, hook := range []string{"ingress", "egress"} {
		rules += fmt.Sprintf("chain %s {\ntype filter hook %s device \"eth0\" priority 0; policy drop;\n}\n", hook, hook)
	}
	shell(f.t, "ip", "netns", "exec", fmt.Sprint("kv-", i), "nft", rules+"}")
}

func (f *fleet) heal(i int) {
	shell(f.t, "ip", "netns", "exec", fmt.Sprint("kv-", i), "nft", "delete table netdev cut")
}

// A trouble is what happens to an owner.
type trouble struct {
	name  string
	event group.Kind
	begin func(f *fleet, i int)
	end   func(f *fleet, i int)
}

var kinds = []trouble{
	{"killed", group.Fails, func(f *fleet, i int) { _ = f.end(i, syscall.SIGKILL) }, (*fleet).start},
	{"ended", group.Leaves, func(f *fleet, i int) { require.NoError(f.t, f.end(i, syscall.SIGTERM), "it drains") }, (*fleet).start},
	{"stopped", group.Fails, func(f *fleet, i int) { require.NoError(f.t, f.cmds[i].Process.Signal(syscall.SIGSTOP)) },
		func(f *fleet, i int) { require.NoError(f.t, f.cmds[i].Process.Signal(syscall.SIGCONT)) }},
	{"divided", group.Fails, (*fleet).cut, (*fleet).heal},
}

// A call is one that a test has made: of an owner, or, with -1, an operation of a client.
type call struct {
	owner        int
	begun, ended time.Time
	err          error
}

// A book has the calls since a round began.
type book struct {
	mu    sync.Mutex // guards calls
	calls []call
}

func (b *book) add(owner int, begun time.Time, err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.calls = append(b.calls, call{owner, begun, time.Now(), err})
}

func (b *book) take() []call {
	b.mu.Lock()
	defer b.mu.Unlock()
	all := b.calls
	b.calls = nil
	return all
}

// A sum is what the rounds of a trouble have shown; the durations are the longest.
type sum struct {
	rounds, calls int
	noticed       time.Duration // from the trouble to the view that shows it
	ended         time.Duration // from there to the end of a call to the owner that was under way, or since its beginning
	late          int           // of these, that took longer than they may
	failed        int           // other calls and operations
	settled       time.Duration // the end of the last of them, after the view
	unsettled     int           // that began later than grace
	back          time.Duration // from the end of the trouble to the owner's readiness
	returning     int           // calls and operations that failed meanwhile
	why           error         // of one that should not have
}

// take takes in a round: trouble for owner i at begun, noticed at view, over at over.
func (s *sum) take(calls []call, i int, begun, view, over time.Time, may time.Duration) {
	s.rounds++
	s.noticed = max(s.noticed, view.Sub(begun))
	for _, c := range calls {
		from := c.begun
		if from.Before(begun) {
			from = begun
		}
		switch took := c.ended.Sub(from); {
		case c.ended.Before(begun):
		case c.owner == i && from.Before(over):
			s.calls++
			s.ended = max(s.ended, took)
			if took > may {
				s.late++
			}
		case c.owner == i || c.err == nil:
		case from.Before(over):
			s.failed++
			s.settled = max(s.settled, c.ended.Sub(view))
			if c.begun.Sub(view) > grace {
				s.unsettled++
				s.why = c.err
			}
		default:
			s.returning++
			s.why = c.err
		}
	}
}

func (s *sum) String() string {
	text := fmt.Sprintf("%d rounds; noticed after %v; %d calls to it ended after %v, %d of them late; of the others %d failed, the last %v after that, %d began later than %v; back after %v, meanwhile %d failed",
		s.rounds, s.noticed.Round(time.Millisecond), s.calls, s.ended.Round(time.Millisecond), s.late, s.failed, s.settled.Round(time.Millisecond), s.unsettled, grace, s.back.Round(time.Millisecond), s.returning)
	if s.why != nil {
		text += ": " + s.why.Error()
	}
	return text
}

// TestTrouble: owners are killed, ended, stopped, cut off and started again under load. No call hangs, every answer is right, and what was
// acknowledged is there at the end. How long it takes is printed.
func TestTrouble(t *testing.T) {
	f, seeds := newFleet(t, 5)
	for i := range f.cmds {
		f.ready(i)
	}
	ctx, stop := context.WithTimeout(context.Background(), 2*time.Hour)
	defer stop()
	client, g := member(t, ctx, "client", seeds, qs.Retry(qs.RetryPolicy{Attempts: 2}))
	plain, _ := member(t, ctx, "plain", seeds)
	var over atomic.Bool
	var tasks sync.WaitGroup
	var b book
	for i, name := range namesOf(5) {
		for range 4 {
			tasks.Go(func() {
				for ; !over.Load(); pause(10 * time.Millisecond) {
					begun := time.Now()
					to, err := plain.of(ctx, name)
					if err == nil {
						one, stop := context.WithTimeout(ctx, 20*time.Second)
						_, err = stat.Call(one, to, "nobody's")
						stop()
					}
					b.add(i, begun, err)
				}
			})
		}
	}
	workers, wrong := make([]*worker, 4), make([]error, 4)
	for i := range workers {
		name := fmt.Sprint("w", i)
		w := &worker{c: newClient(client.node, namesOf(5), client, name), name: name, keys: 20, large: 100_000, timeout: 5 * time.Second,
			rand: rand.New(rand.NewPCG(7, uint64(i))), ledger: ledger{may: map[string][]string{}}}
		workers[i] = w
		tasks.Go(func() {
			for ; !over.Load() && wrong[i] == nil; pause(5 * time.Millisecond) {
				begun := time.Now()
				w.ledger.last = nil
				wrong[i] = w.step(ctx)
				b.add(-1, begun, errors.Join(wrong[i], w.ledger.last))
			}
		})
	}
	expect := func(k group.Kind, name string) (happened func() time.Time) {
		seen := make(chan time.Time, 16)
		remove := g.OnEvent(func(e group.Event) {
			if e.Kind == k && e.Member.Name == name {
				seen <- time.Now()
			}
		})
		return func() time.Time {
			defer remove()
			select {
			case at := <-seen:
				return at
			case <-time.After(time.Minute):
				t.Errorf("no event: %s %v", name, k)
				return time.Now()
			}
		}
	}
	sums := map[string]*sum{}
	slowest := time.Duration(0)
	for round := range *rounds {
		for k, kind := range kinds {
			if !strings.Contains(*troubles, kind.name) {
				continue
			}
			i := (3*round + k) % 5
			name := namesOf(5)[i]
			if sums[kind.name] == nil {
				sums[kind.name] = &sum{}
			}
			s := sums[kind.name]
			noticed, back := expect(kind.event, name), expect(group.Back, name)
			b.take()
			begun := time.Now()
			kind.begin(f, i)
			view := noticed()
			may, until := time.Second, view.Add(*gone)
			if kind.name == "stopped" || kind.name == "divided" {
				may, until = peerTimeout+time.Second, begun.Add(*frozen)
				may = max(min(may, view.Sub(begun)+100*time.Millisecond), time.Second)
			}
			pause(time.Until(until))
			ends := time.Now()
			kind.end(f, i)
			f.ready(i)
			back()
			s.back = max(s.back, time.Since(ends))
			pause(*gone / 2)
			calls := b.take()
			s.take(calls, i, begun, view, ends, may)
			for _, c := range calls {
				slowest = max(slowest, c.ended.Sub(c.begun))
			}
		}
	}
	over.Store(true)
	tasks.Wait()
	for _, kind := range kinds {
		if s := sums[kind.name]; s != nil {
			t.Logf("%s: %v", kind.name, s)
		}
	}
	puts, gets, errs := 0, 0, 0
	for i, w := range workers {
		require.NoError(t, wrong[i])
		require.NoError(t, w.audit(ctx))
		puts, gets, errs = puts+w.ledger.puts, gets+w.ledger.gets, errs+w.ledger.errs
	}
	t.Logf("%d writes and %d reads, all right; %d failed; the slowest call or operation took %v", puts, gets, errs, slowest.Round(time.Millisecond))
	require.Greater(t, puts, 100)
	require.Less(t, slowest, 20*time.Second, "a call hangs")

	code, text := f.get(0, "/metrics")
	require.Equal(t, http.StatusOK, code)
	require.Contains(t, text, `quicksilver_ended_total{code="ok",method="kv/write",side="target"}`)
	code, text = f.get(0, "/")
	require.Equal(t, http.StatusOK, code)
	require.Contains(t, text, "kv/write")
	code, _ = f.get(0, "/healthz")
	require.Equal(t, http.StatusOK, code)
}

// member returns a member that owns nothing.
func member(t *testing.T, ctx context.Context, name string, seeds []string, client ...qs.Interceptor) (*peers, *group.Group) {
	node, err := qs.Open("tcp://"+hostOf(0)+":0", qs.Config{PeerTimeout: peerTimeout, ClientInterceptors: client})
	require.NoError(t, err)
	t.Cleanup(func() { _ = node.Close() })
	key, err := hex.DecodeString(gossipKey)
	require.NoError(t, err)
	g, err := group.Join(ctx, node, group.Options{Name: name, Seeds: seeds, Key: key, Logger: slog.New(slog.DiscardHandler)})
	require.NoError(t, err)
	t.Cleanup(func() { _ = g.Close() })
	return &peers{node: node, resolver: g, all: map[string]qs.Peer{}}, g
}
