//go:build linux

package netns

import (
	"flag"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/internal/test/long"
	"github.com/quicksilver-rpc/quicksilver/internal/test/testcert"
	"github.com/quicksilver-rpc/quicksilver/na"
)

// length is how long lasting faults are kept up; ten minutes and more cover rare events.
var length = flag.Duration("netns.for", long.Or(4*time.Second, 3*time.Minute), "how long each fault that goes on is kept up")

// schemes are the transports that the tests run over.
var schemes = []string{"tcp", "udp"}

func eachScheme(t *testing.T, f func(t *testing.T, scheme string)) {
	for _, scheme := range schemes {
		t.Run(scheme, func(t *testing.T) { f(t, scheme) })
	}
}

// A faultTest is a world with its people: a and b call each other, and a calls a bystander next to b
// which no fault affects.
type faultTest struct {
	*world
	near, far, other *node
	begun            time.Time
}

const rate = 300 // calls a second of each to the other

// newFaultTest begins the calls of a to b, at a rate with a + for pulls, and of b to a.
func newFaultTest(t *testing.T, scheme string, set childConfig, rates ...string) *faultTest {
	t.Helper()
	ours := fmt.Sprintf("%d+", rate)
	if len(rates) > 0 {
		ours = rates[0]
	}
	s := &faultTest{world: newWorld(t, scheme)}
	s.startNodes(scheme, set)
	s.startLoad(ours, s.near.Addr, s.far.Addr, s.other.Addr)
	return s
}

// startNodes starts the nodes that call each other.
func (s *faultTest) startNodes(scheme string, set childConfig) {
	s.near = s.a.start(scheme, 9000, set)
	s.far = s.b.start(scheme, 9000, set)
	s.other = s.b.start(scheme, 9100, childConfig{Cert: set.Cert, Key: set.Key})
}

// startLoad makes the nodes call each other at these addresses.
func (s *faultTest) startLoad(ours, near, far, other string) {
	s.t.Helper()
	s.begun = time.Now()
	s.near.command("load %s %s", far, ours)
	s.near.command("load %s 50", other)
	s.far.command("load %s %d", near, rate)
	waitUntil(s.t, "the first answers", func() bool {
		r := s.near.readReports()
		return r[0].Calls > 0 && r[1].Calls > 0 && s.far.readReports()[0].Calls > 0
	})
}

// sessionErrors are what calls may fail with; the last two when a HELLO is damaged.
var sessionErrors = []string{na.ErrPeerLost.Error(), na.ErrUnreachable.Error(), na.ErrChecksum.Error(), na.ErrProtocol.Error()}

// stopLoad ends the calls, waits for those in flight, and checks what must be true always: no
// answer was wrong, nothing ran twice, calls fail for no other reason than that the session ended
// or could not begin, and the calls to the process that has no fault succeed.
func (s *faultTest) stopLoad() (near, far report) {
	s.t.Helper()
	waitUntil(s.t, "the bystander's answers", func() bool { return s.near.readReports()[1].Calls > 10 })
	s.near.command("rest")
	s.far.command("rest")
	waitUntil(s.t, "the last answers", func() bool {
		return s.near.readReports()[0].Outstanding == 0 && s.far.readReports()[0].Outstanding == 0
	})
	near, far = s.near.readReports()[0], s.far.readReports()[0] // what one runs for the other, it runs after its own last answer
	for _, r := range []report{near, far} {
		s.t.Logf("to %s: %d calls (%.0f/s), %d pulls, errors %v, lost %d times, longest call %v, pull %v %s", r.Peer, r.Calls,
			float64(r.Calls)/time.Since(s.begun).Seconds(), r.Pulls, r.Errors, len(r.Lost), r.Longest.Round(time.Millisecond),
			r.LongestPull.Round(time.Millisecond), r.LastError)
		require.Zero(s.t, r.Wrong, "what is wrong: %s", r.LastWrong)
		require.Zero(s.t, r.Twice, "requests that ran twice")
		for code := range r.Errors {
			require.Contains(s.t, sessionErrors, code, r.LastError)
		}
	}
	require.GreaterOrEqual(s.t, far.Ran, near.Calls)
	require.GreaterOrEqual(s.t, near.Ran, far.Calls)
	by := s.near.readReports()[1]
	require.Empty(s.t, by.Errors, "of the bystander")
	require.Empty(s.t, by.Lost, "the bystander")
	require.Zero(s.t, by.Outstanding)
	return near, far
}

// requireNoLoss is rest, after which no call has failed and no peer was reported lost, although
// rules have struck packets at both sides.
func (s *faultTest) requireNoLoss() (near report) {
	s.t.Helper()
	s.t.Logf("%d and %d packets were struck", s.a.countDropped(), s.b.countDropped())
	require.Positive(s.t, s.a.countDropped())
	require.Positive(s.t, s.b.countDropped())
	return s.requireHealthy()
}

// requireHealthy is rest, after which no call has failed and no peer was reported lost.
func (s *faultTest) requireHealthy() (near report) {
	s.t.Helper()
	near, far := s.stopLoad()
	for _, r := range []report{near, far} {
		require.Empty(s.t, r.Errors, "of calls to %s: %s", r.Peer, r.LastError)
		require.Empty(s.t, r.Lost, "accused %s", r.Peer)
	}
	require.Positive(s.t, near.Pulls)
	return near
}

// waitForLoss waits until a child has lost its peer, and returns how long that took.
func (s *faultTest) waitForLoss(n *node, what string, since time.Time) time.Duration {
	s.t.Helper()
	var took time.Duration
	waitUntil(s.t, what, func() bool {
		all := n.readReports()[0].Lost
		i := slices.IndexFunc(all, func(at time.Time) bool { return !at.Before(since) })
		if i < 0 {
			return false
		}
		took = all[i].Sub(since)
		return true
	})
	s.t.Logf("%s: lost after %v", what, took.Round(time.Millisecond))
	return took
}

// waitForRecovery waits until both sides are served again.
func (s *faultTest) waitForRecovery(since time.Time) {
	s.t.Helper()
	for _, n := range []*node{s.near, s.far} {
		waitUntil(s.t, "calls after the fault", func() bool { return n.readReports()[0].Good.After(since) })
		took := time.Since(since)
		s.t.Logf("calls of %s are answered again after %v", n.Addr, took.Round(time.Millisecond))
		require.Less(s.t, took, 15*time.Second)
	}
}

// TestLoss checks random loss in both directions: every call succeeds, before a peer could be
// reported lost (F16, F17, F18).
func TestLoss(t *testing.T) {
	cert, key := testcert.Write(t)
	eachScheme(t, func(t *testing.T, scheme string) { testLoss(t, scheme, childConfig{}) })
	t.Run("udp-tls", func(t *testing.T) { testLoss(t, "udp", childConfig{Cert: cert, Key: key}) })
}

func testLoss(t *testing.T, scheme string, set childConfig) {
	for _, row := range []struct {
		percent int
		timeout time.Duration
		longest time.Duration // of udp, whose timers are its own
	}{{1, 5 * time.Second, 2 * time.Second}, {5, 5 * time.Second, 3 * time.Second}, {20, 30 * time.Second, 10 * time.Second}} {
		set := set
		set.PeerTimeout = row.timeout
		t.Run(fmt.Sprintf("%d%%", row.percent), func(t *testing.T) {
			t.Parallel() // it waits rather than computes
			s := newFaultTest(t, scheme, set)
			s.setBothInputs(fmt.Sprintf("numgen random mod 100 < %d counter drop", row.percent))
			pause(*length)
			near := s.requireNoLoss()
			require.Less(t, near.Longest, row.timeout)
			if scheme == "udp" {
				require.Less(t, near.Longest, row.longest)
			}
			if *length >= time.Minute {
				require.GreaterOrEqual(t, float64(near.Calls)/time.Since(s.begun).Seconds(), 200.0, "calls a second")
			}
		})
	}
}

// TestBursts checks outages of 500 ms, one after the other (F19).
func TestBursts(t *testing.T) {
	eachScheme(t, func(t *testing.T, scheme string) {
		s := newFaultTest(t, scheme, childConfig{})
		for end := time.Now().Add(max(*length, 4*time.Second)); time.Now().Before(end); {
			s.setBothInputs("counter drop")
			pause(500 * time.Millisecond)
			s.heal()
			pause(1500 * time.Millisecond)
		}
		require.Greater(t, s.requireNoLoss().Longest, 400*time.Millisecond, "a call waits for the end of a burst")
	})
}

// TestDuplicates checks packets that arrive twice, every fifth, over udp every second (F23): they
// have no effect.
func TestDuplicates(t *testing.T) {
	eachScheme(t, func(t *testing.T, scheme string) {
		t.Parallel() // it waits rather than computes
		s := newFaultTest(t, scheme, childConfig{})
		for _, side := range []*side{s.a, s.b} {
			side.hook("egress", fmt.Sprintf("numgen random mod 100 < %d counter dup to %q", map[string]int{"tcp": 20, "udp": 50}[scheme], side.dev))
		}
		pause(*length)
		s.requireNoLoss()
	})
}

// TestDamage checks that one packet in a hundred carries a damaged byte that the checksum of TCP
// does not cover, since a veth pair computes none (F25): sessions end, no answer is wrong, and new
// sessions are used. Calls only: the bytes of pulls have no checksum of their own. Over udp, where
// packets have one, a damaged packet is a lost one: one in twenty has no effect.
func TestDamage(t *testing.T) {
	eachScheme(t, func(t *testing.T, scheme string) {
		t.Parallel() // it waits rather than computes
		if scheme == "udp" {
			s := newFaultTest(t, scheme, childConfig{})
			for _, side := range []*side{s.a, s.b} {
				side.hook("ingress", "meta length > 60 numgen random mod 100 < 5 counter @th,320,8 set 0xa5")
			}
			pause(*length)
			s.requireNoLoss()
			return
		}
		s := newFaultTest(t, scheme, childConfig{}, fmt.Sprint(rate))
		for _, side := range []*side{s.a, s.b} {
			side.hook("ingress", "meta length > 60 numgen random mod 100 < 1 counter @th,320,8 set 0xa5")
		}
		pause(*length)
		s.heal()
		healed := time.Now()
		s.waitForRecovery(healed)
		near, far := s.stopLoad()
		require.NotEmpty(t, append(near.Lost, far.Lost...), "nothing was damaged")
	})
}

// TestPartition checks a partition that is shorter than the timeout (F27): all operations succeed
// over the existing session. It heals after 3.5 s because a system that doubles its retransmission
// timeout retries after 3.2 s and then after 6.4 s, when the peer has been given up.
func TestPartition(t *testing.T) {
	eachScheme(t, func(t *testing.T, scheme string) {
		s := newFaultTest(t, scheme, childConfig{})
		s.setBothInputs("counter drop")
		pause(3500 * time.Millisecond)
		s.heal()
		require.Greater(t, s.requireNoLoss().Longest, 3*time.Second, "a call waits for the end of the partition")
	})
}

const short = time.Second // a PeerTimeout

// TestLongPartition checks a partition that is longer than the timeout (F28), in both directions or
// one (F29): both ends report the other lost in time, and have a new session soon after it has
// healed.
func TestLongPartition(t *testing.T) {
	eachScheme(t, func(t *testing.T, scheme string) {
		for name, cut := range map[string]func(s *faultTest){
			"both ways": func(s *faultTest) { s.setBothInputs("counter drop") },
			"a to b":    func(s *faultTest) { s.b.input("counter drop") },
			"b to a":    func(s *faultTest) { s.a.input("counter drop") },
		} {
			t.Run(name, func(t *testing.T) {
				s := newFaultTest(t, scheme, childConfig{PeerTimeout: short})
				begun := time.Now()
				cut(s)
				for _, n := range []*node{s.near, s.far} {
					took := s.waitForLoss(n, n.Addr, begun)
					require.Greater(t, took, short/2)
					require.Less(t, took, short+10*time.Second)
				}
				pause(2*short - time.Since(begun))
				s.heal()
				require.Positive(t, s.a.countDropped()+s.b.countDropped())
				s.waitForRecovery(time.Now())
				near, far := s.stopLoad()
				require.Positive(t, near.Errors[na.ErrPeerLost.Error()], "calls that wait end with the peer")
				require.Positive(t, far.Errors[na.ErrPeerLost.Error()])
			})
		}
	})
}

// TestHalfOpen checks a peer whose machine disappears without closing its connections (F30): a side
// that waits for an answer ends the session after PeerTimeout, and a side that does not ends it when
// the keepalive of the system has failed.
func TestHalfOpen(t *testing.T) {
	eachScheme(t, func(t *testing.T, scheme string) {
		for _, idle := range []bool{false, true} {
			if idle && scheme == "udp" {
				continue // an idle side sends nothing, and is not probed
			}
			t.Run(fmt.Sprintf("idle %v", idle), func(t *testing.T) {
				s := newFaultTest(t, scheme, childConfig{PeerTimeout: short, KeepAlive: time.Second})
				if idle {
					s.near.command("rest")
					s.far.command("rest")
					waitUntil(t, "rest", func() bool {
						return s.near.readReports()[0].Outstanding == 0 && s.far.readReports()[0].Outstanding == 0
					})
				}
				s.setBothInputs("counter drop")
				begun := time.Now()
				s.far.kill()
				took := s.waitForLoss(s.near, "the vanished peer", begun)
				require.Greater(t, took, short/2, "by its silence")
				require.Less(t, took, 20*time.Second)
				s.near.command("rest")
				waitUntil(t, "the last errors", func() bool { return s.near.readReports()[0].Outstanding == 0 })
				near, by := s.near.readReports()[0], s.near.readReports()[1]
				require.Zero(t, near.Wrong, near.LastWrong)
				require.Equal(t, !idle, near.Errors[na.ErrPeerLost.Error()] > 0, "%v", near.Errors)
				require.Empty(t, by.Errors, "of the bystander")
				require.Empty(t, by.Lost)
			})
		}
	})
}

// TestReset checks connections that are reset in the middle of a frame (F31). There are none of
// udp.
func TestReset(t *testing.T) {
	t.Run("tcp", func(t *testing.T) {
		scheme := "tcp"
		s := newFaultTest(t, scheme, childConfig{}, fmt.Sprintf("%d++", rate))
		for range 3 {
			begun := time.Now()
			s.b.input("counter reject with tcp reset")
			s.waitForLoss(s.near, "a, after the reset", begun)
			s.heal()
			require.Positive(t, s.b.countDropped())
			s.waitForRecovery(time.Now())
		}
		near, _ := s.stopLoad()
		require.Positive(t, near.Errors[na.ErrPeerLost.Error()])
	})
}

// TestRate checks a narrow link (F34): 20 Mbit/s with a queue of 50 ms. No operation fails, pulls
// continue, and use no more than the link has.
func TestRate(t *testing.T) {
	const mbit = 20
	eachScheme(t, func(t *testing.T, scheme string) {
		s := newFaultTest(t, scheme, childConfig{}, fmt.Sprintf("%d++", rate))
		for _, side := range []*side{s.a, s.b} {
			side.requireOK(runTool("tc", "-n", side.ns, "qdisc", "add", "dev", side.dev, "root", "tbf",
				"rate", fmt.Sprintf("%dmbit", mbit), "burst", "16kb", "latency", "50ms"))
		}
		before, begun := s.near.readReports()[0].Pulls, time.Now()
		pause(*length)
		pulls, took := s.near.readReports()[0].Pulls-before, time.Since(begun)
		used := float64(pulls*piece*8) / took.Seconds() / (mbit * 1e6)
		t.Logf("pulls use %.0f %% of the link", 100*used)
		require.Greater(t, used, 0.3) // on a busy machine; the log has what it is
		require.Less(t, used, 1.1, "the link is not narrow")
		s.requireHealthy()
	})
}
