//go:build linux

package netns

import (
	"bufio"
	"crypto/sha256"
	"fmt"
	"io"
	"math/rand/v2"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/internal/test/long"
	"github.com/quicksilver-rpc/quicksilver/internal/test/relay"
	"github.com/quicksilver-rpc/quicksilver/internal/test/testcert"
)

// A relaySpec is one relay of a child.
type relaySpec struct {
	At, To netip.AddrPort
	Rules  relay.Rules
}

// runRelays is the main function of a child that relays. It answers each line of its standard input
// with the number of datagrams to which something has happened.
func runRelays(all []relaySpec) error {
	var relays []*relay.Relay
	for _, p := range all {
		r, err := relay.At(p.At, p.To, p.Rules)
		if err != nil {
			return err
		}
		relays = append(relays, r)
	}
	fmt.Println("relays")
	for in := bufio.NewScanner(os.Stdin); in.Scan(); {
		sum := int64(0)
		for _, r := range relays {
			_, _, hurt := r.Passed()
			sum += hurt
		}
		fmt.Println(sum)
	}
	os.Exit(0)
	return nil
}

// Datagrams are overtaken by 2 to 20 others, damaged so that the checksum of UDP fits, or come
// twice (F22, F23, F24): no answer is wrong, nothing runs twice, and calls continue at their rate. A
// relay in a namespace of its own does it.
//
//	a ═ 10.78.0.1 ── 10.78.0.2 ═ relays ═ 10.79.0.2 ── 10.79.0.1 ═ b
func TestRelayed(t *testing.T) {
	for name, rules := range map[string]relay.Rules{
		"reordered": {Delay: 0.05, Seed: 1},
		"damaged":   {Damage: 0.05, Seed: 2},
		"repeated":  {Repeat: 0.5, Seed: 3},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel() // it waits rather than computes
			s := &faultTest{world: newEmptyWorld(t, "udp")}
			s.a, s.b = s.newSide("a", "10.78.0.1"), s.newSide("b", "10.79.0.1")
			middle := s.newSide("r", "10.78.0.2")
			s.a.connect(middle)
			middle.dev, middle.addr = "vr2", "10.79.0.2"
			s.b.connect(middle)
			at := netip.MustParseAddrPort
			relays := middle.start("udp", 0, childConfig{Relays: []relaySpec{
				{at("10.78.0.2:9000"), at("10.79.0.1:9000"), rules},
				{at("10.78.0.2:9100"), at("10.79.0.1:9100"), relay.Rules{}},
				{at("10.79.0.2:9000"), at("10.78.0.1:9000"), rules},
			}})
			s.startNodes("udp", childConfig{})
			s.startLoad(fmt.Sprintf("%d+", rate), "udp://10.79.0.2:9000", "udp://10.78.0.2:9000", "udp://10.78.0.2:9100")
			pause(*length)
			hurt, err := strconv.Atoi(relays.command("hurt?"))
			require.NoError(t, err)
			t.Logf("%d datagrams were struck", hurt)
			require.Positive(t, hurt)
			near := s.requireHealthy()
			require.GreaterOrEqual(t, float64(near.Calls)/time.Since(s.begun).Seconds(), 200.0, "calls a second")
		})
	}
}

// TestTrainsAreLost checks a path that loses the datagrams that the system sends in trains, and
// nothing else, as some drivers do: after the first of them no more are made, and nothing is lost.
func TestTrainsAreLost(t *testing.T) {
	s := newFaultTest(t, "udp", childConfig{}, fmt.Sprintf("%d++", rate))
	s.setBothInputs("meta length > 2000 counter drop")
	pulls := func(n int) {
		from := s.near.readReports()[0].Pulls
		waitUntil(t, "pulls", func() bool { return s.near.readReports()[0].Pulls > from+n })
	}
	pulls(100)
	struck := s.a.countDropped()
	require.Positive(t, struck)
	t.Logf("%d trains were lost", struck)
	pulls(200)
	require.Equal(t, struck, s.a.countDropped(), "trains that were lost")
	s.requireHealthy()
}

// TestFlows checks eight flows that share a narrow link (F34): together they use most of it, and
// the slowest has at least a quarter of the fastest.
func TestFlows(t *testing.T) {
	const mbit, flows = 20, 8
	w := newWorld(t, "udp")
	source := w.b.start("udp", 9000, childConfig{})
	var sinks []*node
	for i := range flows {
		n := w.a.start("udp", 9001+i, childConfig{})
		n.command("load %s 1++", source.Addr)
		sinks = append(sinks, n)
	}
	for _, n := range sinks {
		waitUntil(t, "a pull", func() bool { return n.readReports()[0].Pulls > 0 })
	}
	w.b.requireOK(runTool("tc", "-n", w.b.ns, "qdisc", "add", "dev", w.b.dev, "root", "tbf", "rate", fmt.Sprintf("%dmbit", mbit),
		"burst", "16kb", "latency", "50ms"))
	pause(time.Second) // until their windows fit the link
	count := func() (all []int) {
		for _, n := range sinks {
			all = append(all, n.readReports()[0].Pulls)
		}
		return all
	}
	before, begun := count(), time.Now()
	pause(max(*length, 8*time.Second))
	after, took := count(), time.Since(begun)
	sum, least, most := 0, after[0]-before[0], 0
	for i := range after {
		n := after[i] - before[i]
		sum, least, most = sum+n, min(least, n), max(most, n)
	}
	used := float64(sum*piece*8) / took.Seconds() / (mbit * 1e6)
	t.Logf("%d flows use %.0f %% of the link; the slowest has moved %d pieces, the fastest %d", flows, 100*used, least, most)
	require.Greater(t, used, 0.6)
	require.Less(t, used, 1.1, "the link is not narrow")
	require.GreaterOrEqual(t, 4*least, most)
	for _, n := range sinks {
		r := n.readReports()[0]
		require.Zero(t, r.Wrong, r.LastWrong)
		require.Empty(t, r.Errors)
	}
}

// A copyTest is a file that qs serves at b, to be copied by a.
type copyTest struct {
	*world
	t              *testing.T
	tool, src, dst string
	flags          []string
	size           int64
}

// buildTool returns the path of a new qs.
func buildTool(t *testing.T) (tool string) {
	t.Helper()
	tool = filepath.Join(t.TempDir(), "qs")
	workspace, err := filepath.Abs("../../../../go.work")
	require.NoError(t, err)
	cmd := exec.Command("go", "build", "-o", tool, "../../../../cmd/qs")
	cmd.Env = append(os.Environ(), "GOWORK="+workspace) // the tool is a module of its own
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", out)
	return tool
}

func newCopyTest(t *testing.T, tool string, size int64, flags ...string) *copyTest {
	t.Helper()
	dir := t.TempDir()
	c := &copyTest{t: t, flags: flags, tool: tool, src: filepath.Join(dir, "root", "file"), dst: filepath.Join(dir, "copy"), size: size}
	require.NoError(t, os.Mkdir(filepath.Join(dir, "root"), 0o777))
	f, err := os.Create(c.src)
	require.NoError(t, err)
	_, err = io.CopyN(f, rand.NewChaCha8([32]byte{1}), c.size)
	require.NoError(t, err)
	require.NoError(t, f.Close())

	c.world = newWorld(t, "udp")
	serve := c.commandAt(c.b, "serve", "-root", filepath.Join(dir, "root"), "udp://"+addrB+":9000")
	out, err := serve.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, serve.Start())
	t.Cleanup(func() { _ = serve.Process.Kill(); _ = serve.Wait() })
	_, err = bufio.NewReader(out).ReadString('\n')
	require.NoError(t, err)
	return c
}

// commandAt is qs with the flags, at a side.
func (c *copyTest) commandAt(s *side, command string, args ...string) *exec.Cmd {
	return exec.Command("ip", slices.Concat([]string{"netns", "exec", s.ns, c.tool, command}, c.flags, args)...)
}

// start copies the file. The function that it returns waits for the end, when the copy is whole.
func (c *copyTest) start() (end func()) {
	c.t.Helper()
	cp := c.commandAt(c.a, "cp", "udp://"+addrB+":9000/file", c.dst)
	var output strings.Builder
	cp.Stdout, cp.Stderr = &output, &output
	begun := time.Now()
	require.NoError(c.t, cp.Start())
	return func() {
		c.t.Helper()
		require.NoError(c.t, cp.Wait(), "%s", &output)
		took := time.Since(begun)
		c.t.Logf("%d MiB in %v, %.0f MiB/s; %d and %d packets were struck", c.size>>20, took.Round(time.Millisecond),
			float64(c.size>>20)/took.Seconds(), c.a.countDropped(), c.b.countDropped())
		require.Equal(c.t, fileSum(c.t, c.src), fileSum(c.t, c.dst))
	}
}

func fileSum(t *testing.T, path string) [32]byte {
	t.Helper()
	f, err := os.Open(path)
	require.NoError(t, err)
	defer func() { _ = f.Close() }()
	h := sha256.New()
	_, err = io.Copy(h, f)
	require.NoError(t, err)
	return [32]byte(h.Sum(nil))
}

// TestCopy checks that a file arrives whole by qs cp although one packet in twenty is lost, with
// TLS and without.
func TestCopy(t *testing.T) {
	tool := buildTool(t)
	for name, flags := range map[string][]string{"plain": nil, "tls": tlsFlags(t)} {
		t.Run(name, func(t *testing.T) {
			t.Setenv("QS_UDP_TRUSTED", "1")
			c := newCopyTest(t, tool, long.Or[int64](64<<20, 1<<30), flags...)
			for _, s := range []*side{c.a, c.b} {
				s.nft("table inet fault {", "chain in {", "type filter hook input priority 0",
					"meta l4proto udp numgen random mod 100 < 5 counter drop", "}", "}")
			}
			c.start()()
			require.Positive(t, c.a.countDropped())
		})
	}
}

// tlsFlags are those of qs for TLS.
func tlsFlags(t *testing.T) []string {
	cert, key := testcert.Write(t)
	return []string{"-cert", cert, "-key", key, "-ca", cert, "-server-name", "127.0.0.1"}
}

// TestAddressChanges checks an origin whose address changes in the middle of a copy, with the old
// address removed: with TLS the transfer continues.
func TestAddressChanges(t *testing.T) {
	c := newCopyTest(t, buildTool(t), 64<<20, tlsFlags(t)...)
	c.a.requireOK(runTool("tc", "-n", c.b.ns, "qdisc", "add", "dev", c.b.dev, "root", "tbf", "rate", "300mbit", "burst", "128kb", "latency", "20ms"))
	c.a.nft("table inet fault {", "chain in {", "type filter hook input priority 0", "meta l4proto udp counter", "}", "}")
	end := c.start()
	for _, next := range []string{"10.77.0.3", "10.77.0.4"} {
		before := c.a.countDropped()
		waitUntil(t, "packets", func() bool { return c.a.countDropped() > before+100 })
		c.a.requireOK(runTool("ip", "-n", c.a.ns, "addr", "flush", "dev", c.a.dev))
		c.a.requireOK(runTool("ip", "-n", c.a.ns, "addr", "add", next+"/24", "dev", c.a.dev))
	}
	before := c.a.countDropped()
	end()
	require.Greater(t, c.a.countDropped(), before+1000, "it was over before the address changed")
}
