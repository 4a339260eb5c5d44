//go:build linux

package upgrade_test

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/internal/test/freeport"
	"github.com/quicksilver-rpc/quicksilver/internal/test/long"
	"github.com/quicksilver-rpc/quicksilver/internal/test/testcert"
	"github.com/quicksilver-rpc/quicksilver/internal/test/upgrade"
)

const (
	root     = "../../.."
	patience = 30 * time.Second // for short waits
)

// The releases, whose nodes are built on first use.
type release string

const (
	before release = "before" // the commit in testdata/wire/OLD
	today  release = "today"
	next   release = "next" // of the tag quicksilver_next
)

// builds is the programs of the releases.
type builds struct {
	dir   string
	nodes map[release]string
}

// node returns the program of a release.
func (b *builds) node(t *testing.T, r release) string {
	t.Helper()
	if path, ok := b.nodes[r]; ok {
		return path
	}
	src := root
	if r == before {
		src = b.checkout(t)
	}
	path := filepath.Join(b.dir, string(r))
	// The paths of the source are left out, so that what the releases have in common is compiled once.
	args := []string{"build", "-trimpath", "-buildvcs=false", "-ldflags=-w", "-o", path}
	if r == next {
		args = append(args, "-tags", "quicksilver_next")
	}
	cmd := exec.Command("go", append(args, "./internal/test/upgrade/node")...)
	cmd.Dir, cmd.Env = src, append(os.Environ(), "GOWORK=off", "GOFLAGS=")
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", out)
	b.nodes[r] = path
	return path
}

// watchSources looks at all files that the nodes are built of, so that go test does not take the
// result of others for theirs.
func watchSources(t *testing.T) {
	t.Helper()
	require.NoError(t, filepath.WalkDir(root, func(path string, d os.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && strings.HasPrefix(d.Name(), ".") && path != root:
			return filepath.SkipDir
		case filepath.Ext(path) == ".go" && !strings.HasSuffix(path, "_test.go"):
			_, err = os.Stat(path)
		}
		return err
	}))
}

// previousRelease returns the commit of the release before. why is not empty if it cannot be built here.
func previousRelease(t *testing.T) (commit, why string) {
	t.Helper()
	name, err := os.ReadFile(root + "/testdata/wire/OLD")
	require.NoError(t, err)
	revision := strings.TrimSpace(string(name))
	out, err := git("rev-parse", "--verify", "--quiet", revision)
	if err != nil {
		return "", fmt.Sprintf("there is no git here, or its history does not reach to %q", revision)
	}
	return strings.TrimSpace(string(out)), ""
}

func git(args ...string) ([]byte, error) {
	return exec.Command("git", append([]string{"-C", root, "-c", "safe.directory=*"}, args...)...).Output()
}

// checkout returns a directory with the source of the release before.
func (b *builds) checkout(t *testing.T) string {
	t.Helper()
	commit, why := previousRelease(t)
	if why != "" {
		t.Skip(why)
	}
	tree, err := git("archive", "--format=tar", commit)
	require.NoError(t, err)
	dir := filepath.Join(b.dir, "source")
	require.NoError(t, os.MkdirAll(dir, 0o755))
	cmd := exec.Command("tar", "-x", "-C", dir)
	cmd.Stdin = bytes.NewReader(tree)
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", out)
	return dir
}

// A member is one of the three places of a cluster; processes of one release after another have it.
type member struct {
	*cluster
	listen string
	peers  string
	p      *process
}

// A process is one life of a member.
type process struct {
	of    release
	cmd   *exec.Cmd
	in    io.WriteCloser
	lines chan string // closed at its end
	errs  *bytes.Buffer
}

// A cluster is three members.
type cluster struct {
	*testing.T
	*builds
	cert, key string
	members   []*member
	started   int
	reports   []upgrade.Report // of the processes that have ended
	of        []release        // of them
}

// start starts a process of a release.
func (m *member) start(of release) {
	m.Helper()
	m.started++
	cmd := exec.Command(m.node(m.T, of), "-listen", m.listen, "-peers", m.peers, "-first", fmt.Sprint(m.started*1_000_000_000), "-cert", m.cert, "-key", m.key)
	p := &process{of: of, cmd: cmd, lines: make(chan string, 16), errs: &bytes.Buffer{}}
	cmd.Stderr = p.errs
	var err error
	p.in, err = cmd.StdinPipe()
	require.NoError(m, err)
	out, err := cmd.StdoutPipe()
	require.NoError(m, err)
	require.NoError(m, cmd.Start())
	go func() {
		defer close(p.lines)
		lines := bufio.NewScanner(out)
		for lines.Buffer(nil, 64<<20); lines.Scan(); { // a report has every add
			p.lines <- lines.Text()
		}
	}()
	m.p = p
	m.waitForLine("listens")
}

// writeLine writes a line to the process.
func (m *member) writeLine(line string) {
	_, err := io.WriteString(m.p.in, line+"\n")
	require.NoError(m, err)
}

// waitForLine waits for a line of the process.
func (m *member) waitForLine(line string) {
	m.Helper()
	require.Equal(m, line, m.nextLine(line))
}

// nextLine returns the next line of the process.
func (m *member) nextLine(what string) string {
	m.Helper()
	timer := time.NewTimer(patience)
	defer timer.Stop()
	select {
	case line, ok := <-m.p.lines:
		require.True(m, ok, "the process of release %s has ended: %s", m.p.of, m.p.errs)
		if why, failed := strings.CutPrefix(line, "failed: "); failed {
			m.Fatalf("rule \"no idempotent call fails, and no answer is wrong\" is broken at a process of release %s: %s", m.p.of, why)
		}
		return line
	case <-timer.C:
		m.Fatalf("rule \"releases that follow one another talk\" is broken: the process of release %s at %s does not print %q: %s", m.p.of, m.listen, what, m.p.errs)
		return ""
	}
}

// stopCalls has the process call no more.
func (m *member) stopCalls() {
	m.Helper()
	m.writeLine("stop")
	for m.nextLine("stopped") != "stopped" { // "works" may have arrived meanwhile
	}
}

// end ends the process, which is quiet, in good order, and takes its report.
func (m *member) end() {
	m.Helper()
	require.NoError(m, m.p.in.Close())
	line := m.nextLine("its report")
	var r upgrade.Report
	require.NoError(m, json.Unmarshal([]byte(line), &r), "%s", line)
	require.NoError(m, m.p.cmd.Wait(), "%s", m.p.errs)
	m.reports, m.of = append(m.reports, r), append(m.of, m.p.of)
	m.p = nil
}

// replace has a process of another release take the place of the one that is there, while the
// others continue.
func (m *member) replace(of release) {
	m.Helper()
	m.stopCalls()
	m.end()
	m.start(of)
	m.writeLine("go")
	m.waitForLine("works")
	for _, other := range m.members {
		if other != m {
			other.writeLine("mark")
			other.waitForLine("works")
		}
	}
}

// check compares what all processes have reported.
func (c *cluster) check() {
	c.Helper()
	ran := map[uint64]int{}
	for i, r := range c.reports {
		if r.Failed > 0 {
			c.Errorf("rule \"no idempotent call fails, and no answer is wrong\" is broken: a process of release %s has had %d failures: %q", c.of[i], r.Failed, r.Failures)
		}
		for _, id := range r.Ran {
			ran[id]++
		}
	}
	later := map[string]int64{}
	for i, r := range c.reports {
		for what, n := range r.Later {
			later[what] += n
		}
		require.Positive(c, r.Calls, "a process of release %s has made no call", c.of[i])
		for id, fate := range r.Adds {
			least, most := 0, 1
			switch fate {
			case "ok", "ran":
				least = 1
			case "did not run":
				most = 0
			case "may have run":
			default:
				c.Errorf("a fate %q", fate)
			}
			if n := ran[id]; n < least || n > most {
				c.Errorf("rule \"no fate is wrong\" is broken: add %d of a process of release %s, whose fate is %q, has run %d times", id, c.of[i], fate, n)
			}
		}
	}
	if slices.Contains(c.of, next) {
		for _, what := range []string{"labels", "notes", "asks", "flags", "fields", "handles"} {
			if later[what] == 0 {
				c.Errorf("rule \"what a release brings is used between two processes that have it\" is broken: no new %s have arrived", what)
			}
		}
	}
}

// layouts are the addresses of the members, by transport.
var layouts = []struct {
	name   string
	secure bool
	listen func(t *testing.T, i int) string
}{
	{"tcp", false, func(t *testing.T, _ int) string { return "tcp://" + freeport.Addr(t) }},
	{"udp-tls", true, func(t *testing.T, _ int) string { return "udp://" + freeport.Addr(t) }},
	{"sm", false, func(_ *testing.T, i int) string { return fmt.Sprintf("sm://upgrade-%d-%d", os.Getpid(), i) }},
	{"tcp-sm", false, func(t *testing.T, _ int) string { return "tcp://" + freeport.Addr(t) + ",sm://" }},
}

// newCluster starts three processes of a release, which call each other from then on.
func newCluster(t *testing.T, b *builds, layout int, of release) *cluster {
	l := layouts[layout]
	c := &cluster{T: t, builds: b}
	if l.secure {
		c.cert, c.key = testcert.Write(t)
	}
	for i := range 3 {
		c.members = append(c.members, &member{cluster: c, listen: l.listen(t, i)})
	}
	t.Cleanup(func() { // of a test that has failed
		for _, m := range c.members {
			if m.p != nil {
				_ = m.p.cmd.Process.Kill()
				_ = m.p.cmd.Wait()
			}
		}
	})
	for i, m := range c.members {
		var peers []string
		for k, other := range c.members {
			if k != i {
				first, _, _ := strings.Cut(other.listen, ",")
				peers = append(peers, first)
			}
		}
		m.peers = strings.Join(peers, " ")
		m.start(of)
	}
	for _, m := range c.members {
		m.writeLine("go")
	}
	for _, m := range c.members {
		m.waitForLine("works")
	}
	return c
}

// stop ends the cluster, and checks what its processes have seen.
func (c *cluster) stop() {
	c.Helper()
	for _, m := range c.members {
		m.stopCalls()
	}
	for _, m := range c.members {
		m.end()
	}
	c.check()
}

// TestRollingUpgrade checks three processes under load that are replaced one by one by those of
// another release, and back. No idempotent call fails, no fate is wrong, and streams are complete
// or end with an error. Processes of the next release use its additions.
func TestRollingUpgrade(t *testing.T) {
	watchSources(t)
	b := &builds{dir: t.TempDir(), nodes: map[release]string{}}
	pairs := long.Or([][2]release{{before, next}}, [][2]release{{before, today}, {today, next}, {before, next}, {next, before}})
	if _, why := previousRelease(t); why != "" {
		pairs = append(pairs, [2]release{today, next})
	}
	for _, pair := range pairs {
		t.Run(string(pair[0])+"-"+string(pair[1]), func(t *testing.T) {
			for _, r := range pair {
				b.node(t, r)
			}
			for layout, l := range layouts {
				t.Run(l.name, func(t *testing.T) {
					t.Parallel()
					c := newCluster(t, b, layout, pair[0])
					for _, m := range c.members {
						m.replace(pair[1])
					}
					for _, m := range c.members[:long.Or(1, 3)] {
						m.replace(pair[0])
					}
					c.stop()
				})
			}
		})
	}
}
