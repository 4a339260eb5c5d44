//go:build linux

package netns

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/internal/test/leak"
)

const (
	wantEnv  = "QUICKSILVER_NETNS"
	childEnv = "QUICKSILVER_NETNS_CHILD"

	addrA, addrB = "10.77.0.1", "10.77.0.2"
	patience     = time.Minute
)

// TestMain runs the test binary as a child when it was started as one, and nothing when nobody
// asked for these tests.
func TestMain(m *testing.M) {
	if text := os.Getenv(childEnv); text != "" {
		var s childConfig
		err := json.Unmarshal([]byte(text), &s)
		switch {
		case err != nil:
		case len(s.Relays) > 0:
			err = runRelays(s.Relays)
		default:
			err = runProgram(s)
		}
		fmt.Fprintln(os.Stderr, "child:", err)
		os.Exit(1)
	}
	if os.Getenv(wantEnv) != "1" {
		fmt.Println("not asked for: " + wantEnv + "=1 runs the tests in network namespaces")
		os.Exit(0)
	}
	if err := checkPrivileges(); err != nil {
		fmt.Println("network namespaces cannot be had:", err)
		os.Exit(1)
	}
	leak.Main(m)
}

// checkPrivileges returns why this machine cannot run the tests, and removes the namespaces that
// killed tests have left.
func checkPrivileges() error {
	if os.Geteuid() != 0 {
		return fmt.Errorf("this is user %d, not root", os.Geteuid())
	}
	for _, tool := range []string{"ip", "nft", "tc"} {
		if _, err := exec.LookPath(tool); err != nil {
			return err
		}
	}
	out, err := runTool("ip", "netns", "list")
	if err != nil {
		return err
	}
	for _, line := range strings.Split(out, "\n") {
		var pid, n int
		var side string
		if _, err := fmt.Sscanf(line, "qs%d-%d-%s", &pid, &n, &side); err == nil && syscall.Kill(pid, 0) == syscall.ESRCH {
			_, _ = runTool("ip", "netns", "del", strings.Fields(line)[0])
		}
	}
	return nil
}

func runTool(name string, args ...string) (string, error) {
	out, err := exec.Command(name, args...).CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("%s %s: %w: %s", name, strings.Join(args, " "), err, out)
	}
	return string(out), nil
}

// A world is two namespaces with a cable.
type world struct {
	t      *testing.T
	scheme string
	n      int // of the worlds of this process
	a, b   *side
}

// A side is one namespace.
type side struct {
	t    *testing.T
	port string // "tcp", or "udp", as rules name the protocol of a port
	ns   string
	dev  string
	addr string
	hit  int // packets that rules counted which are gone
}

var worlds atomic.Int32

// newWorld makes a world, and removes it at the end of the test.
func newWorld(t *testing.T, scheme string) *world {
	t.Helper()
	w := newEmptyWorld(t, scheme)
	w.a, w.b = w.newSide("a", addrA), w.newSide("b", addrB)
	w.a.connect(w.b)
	return w
}

func newEmptyWorld(t *testing.T, scheme string) *world {
	return &world{t: t, scheme: scheme, n: int(worlds.Add(1))}
}

// newSide makes a namespace.
func (w *world) newSide(name, addr string) *side {
	w.t.Helper()
	s := &side{t: w.t, port: w.scheme, ns: fmt.Sprintf("qs%d-%d-%s", os.Getpid(), w.n, name), dev: "v" + name, addr: addr}
	s.requireOK(runTool("ip", "netns", "add", s.ns))
	w.t.Cleanup(func() { s.requireOK(runTool("ip", "netns", "del", s.ns)) })
	s.requireOK(runTool("ip", "-n", s.ns, "link", "set", "lo", "up"))
	// At 20 % loss TCP's timeout, which doubles with each loss in a row, can exceed the patience of a
	// test. Linux before 6.15 has no limit to set.
	_, _ = runTool("ip", "netns", "exec", s.ns, "sysctl", "-qw", "net.ipv4.tcp_rto_max_ms=2000")
	return s
}

// connect lays a cable between two sides.
func (s *side) connect(to *side) {
	s.t.Helper()
	s.requireOK(runTool("ip", "link", "add", s.dev, "netns", s.ns, "type", "veth", "peer", "name", to.dev, "netns", to.ns))
	for _, end := range []*side{s, to} {
		s.requireOK(runTool("ip", "-n", end.ns, "addr", "add", end.addr+"/24", "dev", end.dev))
		s.requireOK(runTool("ip", "-n", end.ns, "link", "set", end.dev, "up"))
	}
}

func (s *side) requireOK(_ string, err error) {
	s.t.Helper()
	require.NoError(s.t, err)
}

// nft loads rules; one statement in a line.
func (s *side) nft(lines ...string) {
	s.t.Helper()
	cmd := exec.Command("ip", "netns", "exec", s.ns, "nft", "-f", "-")
	cmd.Stdin = strings.NewReader(strings.Join(lines, "\n") + "\n")
	out, err := cmd.CombinedOutput()
	require.NoError(s.t, err, "%s\n%s", strings.Join(lines, "\n"), out)
}

// rules has a statement over packets from or for port 9000; over udp, which has no other port at a,
// from and for it.
func (s *side) rules(statement string) string {
	if s.port == "udp" {
		return "udp sport 9000 udp dport 9000 " + statement
	}
	return "tcp dport 9000 " + statement + "\ntcp sport 9000 " + statement
}

// input sets a verdict, in the syntax of nft, for packets that arrive here from or for port 9000.
// The word counter stands before what it does.
func (s *side) input(verdict string) {
	s.t.Helper()
	s.nft("table inet fault {", "chain in {", "type filter hook input priority 0", s.rules(verdict), "}", "}")
}

// hook has a statement over what passes a hook of the device, from or for port 9000.
func (s *side) hook(hook, statement string) {
	s.t.Helper()
	s.nft("table netdev fault {", "chain c {", `type filter hook `+hook+` device "`+s.dev+`" priority 0`,
		s.rules(statement), "}", "}")
}

// heal removes all rules of both sides.
func (w *world) heal() {
	w.t.Helper()
	for _, s := range []*side{w.a, w.b} {
		s.hit = s.countDropped()
		s.nft("flush ruleset")
	}
}

var packets = regexp.MustCompile(`counter packets (\d+)`)

// countDropped returns how many packets the rules of this side have affected so far.
func (s *side) countDropped() int {
	s.t.Helper()
	out, err := runTool("ip", "netns", "exec", s.ns, "nft", "list", "ruleset")
	require.NoError(s.t, err)
	all := s.hit
	for _, m := range packets.FindAllStringSubmatch(out, -1) {
		n, err := strconv.Atoi(m[1])
		require.NoError(s.t, err)
		all += n
	}
	return all
}

// setBothInputs has a verdict over what arrives at either side.
func (w *world) setBothInputs(verdict string) {
	w.t.Helper()
	w.a.input(verdict)
	w.b.input(verdict)
}

// A node is a child in a namespace.
type node struct {
	t    *testing.T
	cmd  *exec.Cmd
	in   io.WriteCloser
	out  *bufio.Reader
	Addr string
}

// start runs a child that listens on a port of s.
func (s *side) start(scheme string, port int, set childConfig) *node {
	s.t.Helper()
	set.Listen = fmt.Sprintf("%s://%s:%d", scheme, s.addr, port)
	text, err := json.Marshal(set)
	require.NoError(s.t, err)
	cmd := exec.Command("ip", "netns", "exec", s.ns, os.Args[0], "-test.run=^$")
	cmd.Env = append(os.Environ(), childEnv+"="+string(text))
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	require.NoError(s.t, err)
	out, err := cmd.StdoutPipe()
	require.NoError(s.t, err)
	require.NoError(s.t, cmd.Start())
	n := &node{t: s.t, cmd: cmd, in: in, out: bufio.NewReader(out)}
	s.t.Cleanup(n.kill)
	n.Addr = n.readLine()
	return n
}

// kill ends the child at once; it may have ended.
func (n *node) kill() {
	_ = n.cmd.Process.Kill()
	_ = n.in.Close()
	_ = n.cmd.Wait()
}

func (n *node) readLine() string {
	n.t.Helper()
	line, err := n.out.ReadString('\n')
	require.NoError(n.t, err)
	return strings.TrimSpace(line)
}

// command sends a command to the node and returns the answer.
func (n *node) command(format string, args ...any) string {
	n.t.Helper()
	_, err := fmt.Fprintf(n.in, format+"\n", args...)
	require.NoError(n.t, err)
	return n.readLine()
}

// readReports requests the state of all loads.
func (n *node) readReports() (all []report) {
	n.t.Helper()
	require.NoError(n.t, json.Unmarshal([]byte(n.command("report")), &all))
	return all
}

// pause lets the world run for d.
func pause(d time.Duration) {
	timer := time.NewTimer(d)
	<-timer.C
}

// waitUntil calls done until it reports true.
func waitUntil(t *testing.T, what string, done func() bool) {
	t.Helper()
	for end := time.Now().Add(patience); !done(); pause(20 * time.Millisecond) {
		require.True(t, time.Now().Before(end), "waited too long for: %s", what)
	}
}
