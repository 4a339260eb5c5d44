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

// A Network describes how to open classes of the plugin under test. All of these classes must be
// able to reach one another.
type Network struct {
	// Listen returns the address on which the n-th class listens, such as "tcp://127.0.0.1:0".
	Listen func(n int) string
	// Origin is the address of a class that does not listen, such as "tcp://".
	Origin string
	// Nobody is an address without a listener.
	Nobody string
	// Pending is an address whose Lookup takes long to complete, such as "tcp://host:1" with a host
	// that the resolver is slow to find. It is empty if the plugin needs no resolver and all lookups
	// complete immediately.
	Pending string
	// Invalid is an address that Names.Check and Names.Resolve reject because its text is not a name
	// in this network, such as "tcp://host" without a port. It must be accepted by package na, which
	// requires a scheme, "://", and up to 512 printable characters other than '#' and space. It is
	// empty if any text may be a name.
	Invalid string
	// Plugins is searched before the registered plugins.
	Plugins []carrier.Plugin
	// Concurrent reports whether several goroutines may use one context and Progress may sleep.
	Concurrent bool
	// Assisted reports whether the library serves the peers of a context that is not driven.
	Assisted bool
	// Unverified reports whether a peer that connects is never identified with the listener at the
	// name in its HELLO (verified is false in Core.Admit), so that operations to that name create a
	// separate session. The rules then reach the peer through its own session.
	Unverified bool
	// Datagrams reports whether a process that exits without a BYE is detected only by its silence,
	// because no connection is closed when it exits.
	Datagrams bool
	// Carrier omits the rules for code that this plugin shares with another plugin that is tested
	// with all rules: credit, room, tags, leases, and withdrawals. The remaining rules are about the
	// transfer of bytes and about opening and closing sessions.
	Carrier bool
}

// A Maker creates a network for one rule. With a concurrent plugin, several networks are in use at
// a time, so a network must not use an address that another one has used before.
type Maker func(t testing.TB) Network

var ownHosts atomic.Uint32

// OwnHost returns a loopback address that no other network in this process uses, on systems that
// have enough of them. This way, a rule that dials a port it has closed does not reach another
// rule's class there.
func OwnHost() string {
	if runtime.GOOS != "linux" {
		return "127.0.0.1"
	}
	n := ownHosts.Add(1)
	return netip.AddrFrom4([4]byte{127, 1, byte(n >> 8), byte(n)}).String()
}

// A rule is a promise of package na that every plugin must keep.
type rule struct {
	name   string
	why    string               // consequence for users if the rule is broken
	engine bool                 // the rule does not depend on the carrier
	needs  func(Network) string // returns what the network lacks for the rule, or ""; nil if any network will do
	check  func(b *bed)

	optional bool // the plugin may lack the subject of the rule in all of its networks
}

// The following functions are requirements of rules on a network.
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

// rules holds all rules, ordered by file.
var rules = slices.Concat(messageRules, askRules, addressRules, moveRules, streamRules, streamFlowRules, leaseRules, cancelRules, contractRules, creditRules, roomRules, bodyRules, flowRules, withdrawRules, idleRules, closeRules, progressRules, probeRules)

// Names returns the names of all rules.
func Names() []string {
	names := make([]string, len(rules))
	for i, r := range rules {
		names[i] = r.name
	}
	return names
}

// TestPlugin checks each rule in a subtest with its name, several at a time if the network is
// concurrent. It then checks that the rules have leaked nothing, so no other test may run at the
// same time. skip maps the names of rules that the plugin cannot keep to the reasons.
func TestPlugin(t *testing.T, mk Maker, skip map[string]string) {
	t.Helper()
	leak.Check(t)
	test(t, mk, skip, func(*rule) bool { return true })
}

// TestVariants is like TestPlugin for several networks of a plugin, each in a subtest with its
// name. Subtests of concurrent networks run in parallel.
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

// TestRest is like TestPlugin for the rules that could not be tested on other, which is a network
// of the same plugin. It does not check for leaks, so other tests may run at the same time.
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
			if n.Concurrent { // in parallel, because a rule mostly waits
				t.Parallel()
			}
			r.run(t, mk)
		})
	}
}

// checkSkip returns an error text for each key of skip that is not the name of a rule and for each
// reason that is empty.
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

// Cover requires that every rule be tested on at least one of a plugin's networks. For example, an
// assisted network cannot test a frozen peer, and a network that is not assisted cannot test
// service by the library. Features that all networks lack, as indicated by Datagrams and by empty
// Pending and Invalid fields, need no rule. Cover logs these.
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

// lacks returns a text that says what n lacks for the rule, or "" if the rule can be tested on n.
func (r *rule) lacks(n Network) string {
	if r.engine && n.Carrier {
		return "Network.Carrier is true: another plugin, which shares the code for it, keeps the rule"
	}
	if r.needs == nil {
		return ""
	}
	return r.needs(n)
}

// Check checks a single rule. It is meant for use during the development of a plugin.
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

// hang is the maximum duration of a rule. It ends rules that block inside the plugin, which the
// bed's time limits cannot interrupt.
const hang = 4 * time.Minute

func (r *rule) run(t testing.TB, mk Maker) {
	t.Helper()
	r.runWithin(t, mk, hang)
}

// runWithin runs the rule in a new goroutine. If the plugin blocks, only that goroutine does, and
// the test fails with the rule's name.
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
			t.FailNow() // the rule has called FailNow as well
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
