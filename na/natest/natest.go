package natest

import (
	"fmt"
	"net/netip"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/quicksilver-rpc/quicksilver/internal/test/leak"
	"github.com/quicksilver-rpc/quicksilver/na/carrier"
)

// A Network describes how to open classes of the plugin under test. All of them can reach each
// other.
type Network struct {
	// Listen returns what the n-th class listens on: "tcp://127.0.0.1:0".
	Listen func(n int) string
	// Origin opens a class that only originates: "tcp://".
	Origin string
	// Nobody is an address without a listener.
	Nobody string
	// Pending is an address whose Lookup does not end soon: "tcp://host:1", of a host that the
	// resolver is slow to find. Empty if all lookups end at once, because the plugin needs no
	// resolver.
	Pending string
	// Invalid is an address that Names.Check and Names.Resolve reject, because its text is no name
	// of this network: "tcp://host", without a port. It must pass package na, which requires a
	// scheme, "://" and up to 512 printable characters without '#' and space. Empty if any text may
	// be a name.
	Invalid string
	// Plugins are searched before the registered ones.
	Plugins []carrier.Plugin
	// Concurrent means that several goroutines may use one context, and that Progress may sleep.
	Concurrent bool
	// Assisted means that the library serves the peers of a context that is not driven.
	Assisted bool
	// Unverified means that a peer which connects is never identified with the listener at the name
	// in its HELLO (verified is false in Core.Admit): operations to that name make a session of
	// their own. The rules then reach the peer by its own session.
	Unverified bool
	// Datagrams means that a process that exits without a BYE is only detected by its silence,
	// because no connection ends with it.
	Datagrams bool
	// Carrier omits the rules for code that this plugin shares with another plugin, which is tested
	// with all rules: credit, room, tags, leases, withdrawals. The remaining rules are about the
	// transfer of bytes, and the begin and end of sessions.
	Carrier bool
}

// A Maker makes a new network for one rule. With a concurrent plugin several are in use at a time:
// a network must not use an address that another one has used before.
type Maker func(t testing.TB) Network

var ownHosts atomic.Uint32

// OwnHost returns a loopback address that no other network of this process uses, on systems that
// have enough of them: a rule that dials a port which it has closed must not reach the class of
// another rule there.
func OwnHost() string {
	if runtime.GOOS != "linux" {
		return "127.0.0.1"
	}
	n := ownHosts.Add(1)
	return netip.AddrFrom4([4]byte{127, 1, byte(n >> 8), byte(n)}).String()
}

// A rule is a promise of package na that every plugin has to keep.
type rule struct {
	name   string
	why    string               // the consequence for users if it is broken
	engine bool                 // the rule does not depend on the carrier
	needs  func(Network) string // returns what the network lacks for the rule, or ""; nil if any network will do
	check  func(b *bed)

	optional bool // a plugin may lack the subject of the rule in all of its networks
}

// Requirements of rules on a network.
func concurrent(n Network) string {
	if !n.Concurrent {
		return "Network.Concurrent is false: one goroutine at a time uses this plugin"
	}
	return ""
}

func assisted(n Network) string {
	if !n.Assisted {
		return "Network.Assisted is false: a context that nobody drives serves nobody"
	}
	return ""
}

func frozen(n Network) string {
	if n.Assisted {
		return "Network.Assisted is true: a context cannot be frozen from here"
	}
	return ""
}

func invalidName(n Network) string {
	if n.Invalid == "" {
		return "Network.Invalid is empty: any text may be a name"
	}
	return ""
}

func oneTransport(n Network) string {
	if strings.Contains(n.Origin, ",") {
		return "Network.Origin has a second transport: each is looked at by itself"
	}
	return ""
}

func connections(n Network) string {
	if why := oneTransport(n); why != "" {
		return why
	}
	if n.Datagrams {
		return "Network.Datagrams is true: nothing ends when a process dies"
	}
	return ""
}

func pendingLookup(n Network) string {
	if n.Pending == "" {
		return "Network.Pending is empty: lookups end at once"
	}
	return ""
}

// rules are all rules, in the order of the files.
var rules = slices.Concat(messageRules, askRules, addressRules, moveRules, streamRules, streamFlowRules, leaseRules, cancelRules, contractRules, creditRules, roomRules, bodyRules, flowRules, withdrawRules, idleRules, closeRules, progressRules, probeRules)

// Names returns the names of all rules.
func Names() []string {
	names := make([]string, len(rules))
	for i, r := range rules {
		names[i] = r.name
	}
	return names
}

// TestPlugin checks every rule in a subtest of its name, several at a time if the network is
// concurrent, and then checks that they have leaked nothing, so no other test may run at the same
// time. skip has the rules that the plugin cannot keep, and the reasons.
func TestPlugin(t *testing.T, mk Maker, skip map[string]string) {
	t.Helper()
	leak.Check(t)
	test(t, mk, skip, func(*rule) bool { return true })
}

// TestVariants is TestPlugin for several networks of a plugin, in subtests with their names.
// Concurrent ones run in parallel.
func TestVariants(t *testing.T, variants map[string]Maker) {
	t.Helper()
	leak.Check(t)
	for name, mk := range variants {
		t.Run(name, func(t *testing.T) {
			if mk(t).Concurrent {
				t.Parallel()
			}
			test(t, mk, nil, func(*rule) bool { return true })
		})
	}
}

// TestRest is TestPlugin for those rules that could not be tested on other, a network of the same
// plugin. It does not check for leaks, so other tests may run at the same time.
func TestRest(t *testing.T, mk Maker, other Network) {
	t.Helper()
	test(t, mk, nil, func(r *rule) bool { return r.lacks(other) != "" })
}

func test(t *testing.T, mk Maker, skip map[string]string, wanted func(r *rule) bool) {
	t.Helper()
	for _, problem := range checkSkip(skip) {
		t.Error(problem)
	}
	n := mk(t)
	for i := range rules {
		r := &rules[i]
		if !wanted(r) {
			continue
		}
		if lack := r.lacks(n); lack != "" {
			t.Logf("rule %s is not for this network: %s", r.name, lack)
			continue
		}
		t.Run(r.name, func(t *testing.T) {
			if reason := skip[r.name]; reason != "" {
				t.Skipf("rule %s is skipped: %s", r.name, reason)
			}
			if n.Concurrent { // parallel: a rule mostly waits
				t.Parallel()
			}
			r.run(t, mk)
		})
	}
}

// checkSkip returns what is wrong with the names and the reasons in skip.
func checkSkip(skip map[string]string) (problems []string) {
	for name, reason := range skip {
		if find(name) == nil {
			problems = append(problems, fmt.Sprintf("natest: skip names the rule %q, which does not exist; there are %s",
				name, strings.Join(Names(), ", ")))
		}
		if reason == "" {
			problems = append(problems, fmt.Sprintf("natest: rule %s is skipped without a reason", name))
		}
	}
	slices.Sort(problems)
	return problems
}

// Cover requires that every rule is tested on at least one of the networks of a plugin: an assisted
// network cannot test a frozen peer, and the other way round. Features that all its networks lack,
// by Datagrams and the empty fields Pending and Invalid, need no rule: Cover logs these.
func Cover(t testing.TB, networks ...Network) {
	t.Helper()
	for i := range rules {
		why := make([]string, 0, len(networks))
		for _, n := range networks {
			if lack := rules[i].lacks(n); lack != "" {
				why = append(why, lack)
			}
		}
		if len(why) < len(networks) {
			continue
		}
		report := t.Errorf
		if rules[i].optional {
			report = t.Logf
		}
		report("natest: no network checks rule %s: %s", rules[i].name, strings.Join(why, "; "))
	}
}

// lacks returns what n lacks for the rule, or "".
func (r *rule) lacks(n Network) string {
	if r.engine && n.Carrier {
		return "Network.Carrier is true: another plugin, which shares the code for it, keeps the rule"
	}
	if r.needs == nil {
		return ""
	}
	return r.needs(n)
}

// Check checks one rule, during the development of a plugin.
func Check(t testing.TB, mk Maker, name string) {
	t.Helper()
	leak.Check(t)
	r := find(name)
	if r == nil {
		t.Fatalf("natest: there is no rule %q; there are %s", name, strings.Join(Names(), ", "))
	}
	r.run(t, mk)
}

func find(name string) *rule {
	for i := range rules {
		if rules[i].name == name {
			return &rules[i]
		}
	}
	return nil
}

// hang limits the time of a rule that blocks inside the plugin, which the bed's patience cannot
// end.
const hang = 4 * time.Minute

func (r *rule) run(t testing.TB, mk Maker) {
	t.Helper()
	r.runWithin(t, mk, hang)
}

// runWithin runs the rule on a goroutine of its own: if the plugin blocks, only that goroutine
// does, and the test fails with the rule's name.
func (r *rule) runWithin(t testing.TB, mk Maker, limit time.Duration) {
	t.Helper()
	over := make(chan struct{})
	go func() {
		defer close(over)
		r.checkOn(t, mk)
	}()
	late := time.NewTimer(limit)
	defer late.Stop()
	select {
	case <-over:
		if t.Failed() {
			t.FailNow() // the rule has called FailNow, too
		}
		if t.Skipped() {
			t.SkipNow()
		}
	case <-late.C:
		stacks := make([]byte, 256<<10)
		t.Fatalf("rule %s hangs: a call of package na or of the plugin has not returned for %v; goroutines:\n%s",
			r.name, limit, stacks[:runtime.Stack(stacks, true)])
	}
}

func (r *rule) checkOn(t testing.TB, mk Maker) {
	b := newBed(t, r)
	b.net = mk(t)
	if lack := r.lacks(b.net); lack != "" {
		t.Fatalf("rule %s is not for this network: %s", r.name, lack)
	}
	defer b.end()
	r.check(b)
	b.settle()
}
