//go:build unix

package kernel

import (
	"bufio"
	"context"
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"io"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/bulk"
	"github.com/quicksilver-rpc/quicksilver/hg"
	"github.com/quicksilver-rpc/quicksilver/na"
	_ "github.com/quicksilver-rpc/quicksilver/plugins/tcp"
)

const childEnv = "QUICKSILVER_TEST_CHILD"

// TestMain runs the test binary as a child when it was started as one.
func TestMain(m *testing.M) {
	if role := os.Getenv(childEnv); role != "" {
		if err := roles[role](); err != nil {
			fmt.Fprintln(os.Stderr, "child:", err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// roles are what a child may be.
var roles = map[string]func() error{"target": child}

// exposed is what the child gives away: a region to be pulled.
type exposed struct {
	Region *bulk.Handle
	Sum    uint64
}

const regionSize = 1 << 30

// child is a target: it echoes, and owns a large region. It ends when its standard input does.
func child() error {
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		os.Exit(0)
	}()
	cls, err := hg.Open("tcp://127.0.0.1:0", hg.Config{})
	if err != nil {
		return err
	}
	hctx, err := cls.NewContext()
	if err != nil {
		return err
	}
	if _, err := cls.Register("echo", func(h *hg.Handle) error {
		in, err := h.InputRaw()
		if err != nil {
			return err
		}
		return h.RespondRaw(in, nil)
	}); err != nil {
		return err
	}
	if _, err := cls.Register("expose", func(h *hg.Handle) error {
		region := make([]byte, regionSize)
		fill(region)
		b, err := bulk.Create(hctx, bulk.ReadOnly, region)
		if err != nil {
			return err
		}
		return h.Respond(&exposed{b, sum(region)}, nil)
	}); err != nil {
		return err
	}
	fmt.Println(cls.Addr())
	for {
		hctx.Trigger(0)
		if err := hctx.Progress(-1); na.CodeOf(err) == na.ErrClosed {
			return nil
		}
	}
}

// fill writes bytes that depend on their position: a block of noise again and again, each with its number in front.
func fill(b []byte) {
	block := make([]byte, 64<<10)
	x := uint64(88172645463325252)
	for i := 0; i < len(block); i += 8 {
		x ^= x << 13
		x ^= x >> 7
		x ^= x << 17
		binary.LittleEndian.PutUint64(block[i:], x)
	}
	for i := 0; i < len(b); i += len(block) {
		binary.LittleEndian.PutUint64(block, uint64(i))
		copy(b[i:], block)
	}
}

func sum(b []byte) uint64 { return uint64(crc32.Checksum(b, crc32.MakeTable(crc32.Castagnoli))) }

// process is a child.
type process struct {
	t    *testing.T
	cmd  *exec.Cmd
	in   io.Writer
	out  *bufio.Reader
	Addr string
}

func startChild(t *testing.T) *process { return startRole(t, "target") }

func startRole(t *testing.T, role string, env ...string) *process {
	t.Helper()
	cmd := exec.Command(os.Args[0], "-test.run=^$")
	cmd.Env = append(append(os.Environ(), childEnv+"="+role), env...)
	cmd.Stderr = os.Stderr
	stdin, err := cmd.StdinPipe()
	require.NoError(t, err)
	stdout, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	p := &process{t: t, cmd: cmd, in: stdin, out: bufio.NewReader(stdout)}
	t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGCONT)
		_ = cmd.Process.Kill()
		_ = stdin.Close()
		_ = cmd.Wait()
	})
	p.Addr = p.line()
	return p
}

// line is the next that the child says.
func (p *process) line() string {
	p.t.Helper()
	line, err := p.out.ReadString('\n')
	require.NoError(p.t, err)
	return strings.TrimSpace(line)
}

func (p *process) signal(s syscall.Signal) {
	p.t.Helper()
	require.NoError(p.t, p.cmd.Process.Signal(s))
}

// stop sends SIGSTOP and returns when the kernel says that the child is stopped.
func (p *process) stop() {
	p.t.Helper()
	p.signal(syscall.SIGSTOP)
	var ws syscall.WaitStatus
	_, err := syscall.Wait4(p.cmd.Process.Pid, &ws, syscall.WUNTRACED, nil)
	require.NoError(p.t, err)
	require.True(p.t, ws.Stopped(), "child: %v", ws)
}

// origin is this process's side.
type origin struct {
	t    *testing.T
	cls  *hg.Class
	hctx *hg.Context
	peer na.Addr
}

func newOrigin(t *testing.T, p *process) *origin { return newOriginWith(t, p, hg.Config{}) }

func newOriginWith(t *testing.T, p *process, cfg hg.Config) *origin {
	t.Helper()
	cls, err := hg.Open("tcp://", cfg)
	require.NoError(t, err)
	hctx, err := cls.NewContext()
	require.NoError(t, err)
	for _, name := range []string{"echo", "expose"} {
		_, err = cls.Register(name, nil)
		require.NoError(t, err)
	}
	peer, err := na.ParseAddr(p.Addr)
	require.NoError(t, err)
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		require.NoError(t, cls.Shutdown(ctx))
	})
	return &origin{t, cls, hctx, peer}
}

func (o *origin) handle(name string) *hg.Handle {
	o.t.Helper()
	h, err := o.hctx.Create(o.peer, hg.HashName(name))
	require.NoError(o.t, err)
	return h
}

func (o *origin) until(done func() bool) {
	o.t.Helper()
	for end := time.Now().Add(time.Minute); !done(); {
		o.hctx.Trigger(0)
		if done() {
			return
		}
		_ = o.hctx.Progress(10 * time.Millisecond)
		if time.Now().After(end) {
			o.t.Fatalf("nothing happened for a minute: %+v", o.hctx.Stats())
		}
	}
}

func (o *origin) call(h *hg.Handle, in any) error {
	o.t.Helper()
	calls := 0
	var got error
	require.NoError(o.t, h.Forward(in, func(_ *hg.Handle, err error) { calls++; got = err }))
	o.until(func() bool { return calls > 0 })
	return got
}
