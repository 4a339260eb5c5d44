//go:build linux

package netns

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/internal/test/testcert"
)

// A routedWorld is two sides with two routers between them, by IPv4 and IPv6.
//
//	┌ a ┐ va  ra ┌ router ┐ vr  vs ┌ router ┐ rb  vb ┌ b ┐
//	└───┘────────└────────┘────────└────────┘────────└───┘
type routedWorld struct {
	*world
	routers [2]*side
}

const routersLink = 2 // number of the link between the routers; those of a and b are 0 and 1

// newRoutedWorld makes a crossing whose links take packets of 9,000 bytes.
func newRoutedWorld(t *testing.T) *routedWorld {
	t.Helper()
	c := &routedWorld{world: newEmptyWorld(t, "udp")}
	c.a, c.b = c.newSide("a", ""), c.newSide("b", "")
	c.routers = [2]*side{c.newSide("r", ""), c.newSide("s", "")}
	for _, s := range []*side{c.a, c.b, c.routers[0], c.routers[1]} { // addresses are usable at once
		s.requireOK(runTool("ip", "netns", "exec", s.ns, "sysctl", "-qw", "net.ipv6.conf.all.accept_dad=0", "net.ipv6.conf.default.accept_dad=0"))
	}
	c.link(routersLink, c.routers[0], "vr", c.routers[1], "vs")
	for i, end := range []*side{c.a, c.b} {
		r := c.routers[i]
		c.link(i, r, "r"+end.dev[1:], end, end.dev)
		for _, via := range []string{"2001:db8:%d::%d", "10.78.%d.%d"} {
			end.requireOK(runTool("ip", "-n", end.ns, "route", "add", "default", "via", fmt.Sprintf(via, i, 1)))
			r.requireOK(runTool("ip", "-n", r.ns, "route", "add", "default", "via", fmt.Sprintf(via, routersLink, 2-i)))
		}
		r.requireOK(runTool("ip", "netns", "exec", r.ns, "sysctl", "-qw", "net.ipv6.conf.all.forwarding=1", "net.ipv4.ip_forward=1"))
	}
	return c
}

// link lays a cable with a number: one end has the addresses that end in 1, the other those that
// end in 2.
func (c *routedWorld) link(i int, one *side, dev1 string, two *side, dev2 string) {
	c.t.Helper()
	one.requireOK(runTool("ip", "link", "add", dev1, "netns", one.ns, "mtu", "9000", "type", "veth", "peer", "name", dev2, "netns", two.ns, "mtu", "9000"))
	for n, end := range []struct{ ns, dev string }{{one.ns, dev1}, {two.ns, dev2}} {
		one.requireOK(runTool("ip", "-n", end.ns, "addr", "add", fmt.Sprintf("2001:db8:%d::%d/64", i, n+1), "dev", end.dev, "nodad"))
		one.requireOK(runTool("ip", "-n", end.ns, "addr", "add", fmt.Sprintf("10.78.%d.%d/24", i, n+1), "dev", end.dev))
		one.requireOK(runTool("ip", "-n", end.ns, "link", "set", end.dev, "up"))
	}
}

// setMTU makes the routers drop packets of more than mtu bytes without an ICMP message.
func (c *routedWorld) setMTU(mtu int) {
	c.t.Helper()
	for _, r := range c.routers {
		r.nft("table inet quiet {", "chain out {", "type filter hook output priority 0",
			"icmpv6 type packet-too-big counter drop", "icmp type destination-unreachable counter drop", "}", "}")
		r.requireOK(runTool("ip", "-n", r.ns, "link", "set", r.dev, "mtu", fmt.Sprint(mtu)))
	}
}

// TestPathNarrows checks a path that becomes narrower in the middle of calls and pulls, without an
// ICMP message: the session continues, in either family.
func TestPathNarrows(t *testing.T) {
	cert, key := testcert.Write(t)
	for name, set := range map[string]childConfig{"plain": {}, "TLS": {Cert: cert, Key: key}} {
		for family, addrs := range map[string][2]string{"IPv6": {"[2001:db8:0::2]", "[2001:db8:1::2]"}, "IPv4": {"10.78.0.2", "10.78.1.2"}} {
			t.Run(family+" "+name, func(t *testing.T) {
				t.Parallel()
				c := newRoutedWorld(t)
				c.a.addr, c.b.addr = addrs[0], addrs[1]
				s := &faultTest{world: c.world}
				s.startNodes("udp", set)
				s.startLoad(fmt.Sprintf("%d+", rate), s.near.Addr, s.far.Addr, s.other.Addr)
				waitUntil(t, "pulls in large packets", func() bool { return s.near.readReports()[0].Pulls > 5 })
				c.setMTU(1300)
				began := time.Now()
				pulls := s.near.readReports()[0].Pulls
				waitUntil(t, "calls and pulls over the narrow path", func() bool {
					r := s.near.readReports()[0]
					return len(r.Lost) > 0 || r.Good.Sub(began) > time.Second && r.Pulls > pulls+5
				})
				t.Logf("%d and %d answers of the routers were lost", c.routers[0].countDropped(), c.routers[1].countDropped())
				s.requireHealthy()
			})
		}
	}
}

// TestFamilyDead checks that a host with an IPv4 and an IPv6 address, where a router drops
// everything of one family. Calls by the name are answered all the same, and none fails.
func TestFamilyDead(t *testing.T) {
	for _, dead := range []string{"ipv6", "ipv4"} {
		for _, scheme := range schemes {
			t.Run(scheme+" "+dead, func(t *testing.T) {
				t.Parallel()
				c := newRoutedWorld(t)
				c.routers[0].nft("table inet dead {", "chain pass {", "type filter hook forward priority 0",
					"meta nfproto "+dead+" counter drop", "}", "}")
				hosts := filepath.Join("/etc/netns", c.a.ns) // what "ip netns exec" lays over /etc
				require.NoError(t, os.MkdirAll(hosts, 0o755))
				t.Cleanup(func() { _ = os.RemoveAll(hosts) })
				require.NoError(t, os.WriteFile(filepath.Join(hosts, "hosts"), []byte("2001:db8:1::2 both\n10.78.1.2 both\n"), 0o644))
				near := c.a.start(scheme, 9000, childConfig{})
				c.b.start(scheme, 9000, childConfig{})
				near.command("load %s://both:9000 %d", scheme, rate)
				waitUntil(t, "calls", func() bool { return near.readReports()[0].Calls > rate/2 })
				r := near.readReports()[0]
				t.Logf("longest call %v, %d packets dropped", r.Longest, c.routers[0].countDropped())
				require.Empty(t, r.Errors, r.LastError)
				require.Empty(t, r.Lost)
				require.Zero(t, r.Wrong, r.LastWrong)
				if dead == "ipv6" {
					require.Positive(t, c.routers[0].countDropped(), "the family that is preferred was tried")
				}
			})
		}
	}
}

// TestScoped checks that processes that listen on link-local addresses call each other by them,
// each with the zone of its own end of the link.
func TestScoped(t *testing.T) {
	eachScheme(t, func(t *testing.T, scheme string) {
		t.Parallel()
		w := newWorld(t, scheme)
		ends := map[*side]string{w.a: "fe80::a", w.b: "fe80::b"}
		for s, ip := range ends {
			s.requireOK(runTool("ip", "-n", s.ns, "addr", "add", ip+"/64", "dev", s.dev, "nodad"))
			s.addr = "[" + ip + "%" + s.dev + "]"
		}
		at := func(s *side, from *side) string { return scheme + "://[" + ends[s] + "%" + from.dev + "]:9000" }
		near, far := w.a.start(scheme, 9000, childConfig{}), w.b.start(scheme, 9000, childConfig{})
		require.Equal(t, at(w.b, w.b), far.Addr)
		near.command("load %s %d", at(w.b, w.a), rate)
		far.command("load %s %d", at(w.a, w.b), rate)
		for _, n := range []*node{near, far} {
			waitUntil(t, "calls", func() bool { return n.readReports()[0].Calls > rate/2 })
			r := n.readReports()[0]
			require.Empty(t, r.Errors, r.LastError)
			require.Zero(t, r.Wrong, r.LastWrong)
		}
	})
}
