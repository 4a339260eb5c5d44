package sm_test

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/hg"
	"github.com/quicksilver-rpc/quicksilver/na"
	"github.com/quicksilver-rpc/quicksilver/plugins/sm"
	"github.com/quicksilver-rpc/quicksilver/plugins/sm/internal/ring"
)

// The commands of a child.
const (
	dirEnv  = "QUICKSILVER_SM_DIR"
	peerEnv = "QUICKSILVER_SM_PEER"
	dieEnv  = "QUICKSILVER_SM_DIE" // "point times": it kills itself when it is at that point so many times
)

func init() {
	roles["poor target"] = func() error { return withoutSharedMemory(roles["target"]) }
	roles["target"] = runTarget
	roles["origin"] = runCaller
}

// noTimeoutConfig is a configuration without timeouts of silent peers: only the end of a session reports
// their exit.
func noTimeoutConfig(dir string) hg.Config {
	return hg.Config{NA: na.Config{PeerTimeout: time.Hour, ConnectTimeout: 10 * time.Second, Plugins: []na.Plugin{sm.New(sm.Options{Dir: dir})}}}
}

// exitWithStdin ends the process with its standard input, and at the commanded point.
func exitWithStdin() {
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		os.Exit(0)
	}()
	var point, times int
	if n, _ := fmt.Sscan(os.Getenv(dieEnv), &point, &times); n == 2 {
		ring.Step = func(p ring.Point) {
			if int(p) == point {
				if times--; times <= 0 {
					_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
					select {}
				}
			}
		}
	}
}

// withoutSharedMemory runs f in a process that can have no shared memory.
func withoutSharedMemory(f func() error) error {
	signal.Ignore(syscall.SIGXFSZ)
	if err := syscall.Setrlimit(syscall.RLIMIT_FSIZE, &syscall.Rlimit{Cur: 64 << 10, Max: 64 << 10}); err != nil {
		return err
	}
	return f()
}

func echo(in hg.Request) error {
	b, err := in.InputRaw()
	if err != nil {
		return err
	}
	return in.RespondRaw(b, nil)
}

// open opens a class at addr, whose calls of "echo" handler serves, with a context.
func open(addr string, cfg hg.Config, handler hg.Handler) (*hg.Context, error) {
	cls, err := hg.Open(addr, cfg)
	if err != nil {
		return nil, err
	}
	if _, err := cls.Register("echo", handler); err != nil {
		return nil, err
	}
	return cls.NewContext()
}

// openChild opens a class in a child, and prints its address.
func openChild(addr string, handler hg.Handler) (*hg.Context, error) {
	exitWithStdin()
	hctx, err := open(addr, noTimeoutConfig(os.Getenv(dirEnv)), handler)
	if err == nil {
		fmt.Println(hctx.Class().Addr())
	}
	return hctx, err
}

// runTarget echoes.
func runTarget() error {
	hctx, err := openChild("sm://*", echo)
	for err == nil {
		hctx.Trigger(0)
		if na.CodeOf(hctx.Progress(-1)) == na.ErrClosed {
			return nil
		}
	}
	return err
}

// startLoad calls the process that has started this one, n calls at a time.
func startLoad(n int) (*load, error) {
	hctx, err := openChild("sm://", nil)
	if err != nil {
		return nil, err
	}
	to, err := na.ParseAddr(os.Getenv(peerEnv))
	if err != nil {
		return nil, err
	}
	return newLoad(hctx, to, n), nil
}

// runCaller calls without end.
func runCaller() error {
	l, err := startLoad(8)
	for err == nil {
		l.hctx.Trigger(0)
		err = l.failed
		_ = l.hctx.Progress(-1)
	}
	return err
}

// A load is calls to a peer, of several sizes, each followed by the next until one fails.
type load struct {
	hctx    *hg.Context
	to      na.Addr
	handles []*hg.Handle
	flying  int
	right   int
	wrong   int
	failed  error // the first
	stop    bool
}

// loadSizes go inline, by the ring, by slots, and by blocks.
var loadSizes = []int{64, 2000, 20_000, 100_000, 5000}

func newLoad(hctx *hg.Context, to na.Addr, n int) *load {
	l := &load{hctx: hctx, to: to}
	for i := range n {
		h, err := hctx.Create(to, hg.HashName("echo"))
		if err != nil {
			l.failed = err
			break
		}
		l.handles = append(l.handles, h)
		in := bytes.Repeat([]byte{byte(i + 1)}, loadSizes[i%len(loadSizes)])
		var next func()
		ended := func(h *hg.Handle, err error) {
			l.flying--
			if err == nil {
				if out, oerr := h.OutputRaw(); oerr != nil || !bytes.Equal(out, in) {
					err = fmt.Errorf("an answer of %d bytes is not what was sent: %v", len(out), oerr)
				}
			}
			if err != nil {
				l.wrong++
				if l.failed == nil {
					l.failed = err
				}
				return
			}
			l.right++
			next()
		}
		next = func() {
			if l.stop {
				return
			}
			if err := h.ForwardRaw(in, ended); err != nil {
				l.wrong++
				if l.failed == nil {
					l.failed = err
				}
				return
			}
			l.flying++
		}
		next()
	}
	return l
}

func (l *load) close() {
	for _, h := range l.handles {
		_ = h.Close()
	}
}

// A parent is this process: it calls, and is called.
type parent struct {
	t     *testing.T
	dir   string
	cls   *hg.Class
	hctx  *hg.Context
	serve int // requests
}

// newParent returns one with a budget for the messages of peers; 0 is the default.
func newParent(t *testing.T, budget int64) *parent {
	s := &parent{t: t, dir: listener(t)}
	cfg := noTimeoutConfig(s.dir)
	cfg.NA.Budget = budget
	var err error
	s.hctx, err = open("sm://*", cfg, func(in hg.Request) error { s.serve++; return echo(in) })
	require.NoError(t, err)
	s.cls = s.hctx.Class()
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		require.NoError(t, s.cls.Shutdown(ctx))
	})
	return s
}

func (s *parent) until(what string, done func() bool) {
	s.t.Helper()
	for end := time.Now().Add(time.Minute); !done(); {
		s.hctx.Trigger(0)
		if done() {
			return
		}
		_ = s.hctx.Progress(5 * time.Millisecond)
		if time.Now().After(end) {
			s.t.Fatalf("%s: not within a minute: %+v", what, s.hctx.Stats())
		}
	}
}

// A process is a child.
type process struct {
	t    *testing.T
	cmd  *exec.Cmd
	in   io.Closer
	out  *bufio.Reader
	addr na.Addr
	done chan time.Time // when it exited
	at   time.Time      // that, once it was taken from done
}

// start starts a child.
func (s *parent) start(role string, env ...string) *process {
	s.t.Helper()
	cmd := exec.Command(os.Args[0], "-test.run=^$")
	cmd.Env = append(append(os.Environ(), roleEnv+"="+role, dirEnv+"="+s.dir, peerEnv+"="+s.cls.Addr().String()), env...)
	if !strings.HasPrefix(role, "vandal") { // its error at the end does not matter
		cmd.Stderr = os.Stderr
	}
	in, err := cmd.StdinPipe()
	require.NoError(s.t, err)
	out, err := cmd.StdoutPipe()
	require.NoError(s.t, err)
	require.NoError(s.t, cmd.Start())
	p := &process{t: s.t, cmd: cmd, in: in, out: bufio.NewReader(out), done: make(chan time.Time, 1)}
	p.addr, err = na.ParseAddr(p.line())
	require.NoError(s.t, err)
	go func() {
		_ = cmd.Wait()
		p.done <- time.Now()
	}()
	return p
}

// line returns the next line that the process prints.
func (p *process) line() string {
	text, err := p.out.ReadString('\n')
	require.NoError(p.t, err)
	return strings.TrimSpace(text)
}

func (p *process) kill() { _ = p.cmd.Process.Kill() }

// hasExited reports whether the process has exited.
func (p *process) hasExited() bool {
	select {
	case p.at = <-p.done:
	default:
	}
	return !p.at.IsZero()
}

// waitExited waits until the process has exited, and returns the time of that.
func (p *process) waitExited() time.Time {
	p.t.Helper()
	defer p.in.Close()
	if p.hasExited() {
		return p.at
	}
	select {
	case p.at = <-p.done:
		return p.at
	case <-time.After(30 * time.Second):
		p.kill()
		p.t.Fatal("the child has not exited")
		return time.Time{}
	}
}
