//go:build unix

package proctest

import (
	"bufio"
	"context"
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/bulk"
	"github.com/quicksilver-rpc/quicksilver/hg"
	"github.com/quicksilver-rpc/quicksilver/internal/raceflag"
	"github.com/quicksilver-rpc/quicksilver/internal/test/leak"
	"github.com/quicksilver-rpc/quicksilver/internal/test/long"
	"github.com/quicksilver-rpc/quicksilver/na"
	_ "github.com/quicksilver-rpc/quicksilver/plugins/sm"
	_ "github.com/quicksilver-rpc/quicksilver/plugins/tcp"
	_ "github.com/quicksilver-rpc/quicksilver/plugins/udp"
)

const (
	childEnv  = "QUICKSILVER_TEST_CHILD"
	listenEnv = "QUICKSILVER_TEST_LISTEN" // where a child listens
)

// TestMain runs the test binary as a child when it was started as one.
func TestMain(m *testing.M) {
	if role := os.Getenv(childEnv); role != "" {
		if err := roles[role](); err != nil {
			fmt.Fprintln(os.Stderr, "child:", err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	leak.Parallel = 16 // what they wait for is done by other processes
	leak.Main(m)
}

// roles are what a child may be.
var roles = map[string]func() error{"target": runTarget}

// exposedRegion is what the child gives away: a region to be pulled.
type exposedRegion struct {
	Region *bulk.Handle
	Sum    uint64
}

var regionSize = long.Or(64<<20, 1<<30)

func init() {
	if raceflag.Enabled { // which looks at every byte that the tests look at
		regionSize = 64 << 20
	}
}

// runTarget is a target: it echoes, holds requests, pulls, and owns memory. It ends when its
// standard input does.
func runTarget() error { return serveTarget(hg.Config{}) }

func serveTarget(cfg hg.Config) error {
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		os.Exit(0)
	}()
	cls, err := hg.Open(os.Getenv(listenEnv), cfg)
	if err != nil {
		return err
	}
	hctx, err := cls.NewContext()
	if err != nil {
		return err
	}
	for name, handler := range newHandlers(hctx) {
		if _, err := cls.Register(name, handler); err != nil {
			return err
		}
	}
	fmt.Println(cls.Addr())
	return serve(hctx)
}

// serve drives a context until it is closed.
func serve(hctx *hg.Context) error {
	for {
		hctx.Trigger(0)
		if err := hctx.Progress(-1); na.CodeOf(err) == na.ErrClosed {
			return nil
		}
	}
}

func handleEcho(h hg.Request) error {
	in, err := h.InputRaw()
	if err != nil {
		return err
	}
	return h.RespondRaw(in, nil)
}

// newHandlers are what a target does.
func newHandlers(hctx *hg.Context) map[string]hg.Handler {
	var held []hg.Request
	expose := func(size int) hg.Handler {
		return func(h hg.Request) error {
			region := make([]byte, size)
			fillPattern(region)
			b, err := bulk.Create(hctx, bulk.Options{Access: bulk.ReadOnly}, region)
			if err != nil {
				return err
			}
			return h.Respond(&exposedRegion{b, checksum(region)}, nil)
		}
	}
	return map[string]hg.Handler{
		"echo":   handleEcho,
		"expose": expose(regionSize),
		"lend":   expose(1 << 20),
		"answer": func(h hg.Request) error { // prints a line when the answer has left
			return h.RespondRaw(nil, func(hg.Request, error) { fmt.Println("answered") })
		},
		"hold": func(h hg.Request) error { // answers when it is released
			_ = h.Detach()
			held = append(held, h)
			fmt.Println("began")
			return nil
		},
		"release": func(h hg.Request) error {
			for _, h := range held {
				_ = h.RespondRaw(nil, nil) // the origin may be gone
			}
			held = nil
			return h.RespondRaw(nil, nil)
		},
		"pull": func(h hg.Request) error { // stops itself in the middle
			var in pullArgs
			if err := h.Input(&in); err != nil {
				return err
			}
			_ = h.Detach()
			return handlePull(h, &in, func(*bulk.Op) {
				_ = syscall.Kill(os.Getpid(), syscall.SIGSTOP)
				select {} // the process may run on for a moment, this transfer must not
			}, nil)
		},
	}
}

// pullArgs requests a pull of Region, during which something happens when Point bytes have been
// moved.
type pullArgs struct {
	Region      *bulk.Handle
	Size, Point int64
}

// handlePull pulls the region that the origin of h has requested, and answers. It calls point once,
// in the middle, and done at the end; done may be nil.
func handlePull(h hg.Request, in *pullArgs, point func(*bulk.Op), done bulk.DoneFunc) error {
	local, err := bulk.Create(h.HG(), bulk.Options{Access: bulk.LocalOnly}, make([]byte, in.Size))
	if err != nil {
		return err
	}
	_, err = bulk.Transfer(h.HG(), bulk.Spec{
		Dir: bulk.Pull, Peer: h.Peer(), Remote: in.Region, Local: local, Size: in.Size,
		Chunk: max(in.Size/400, 4<<10), Window: 1, // little is under way
		OnProgress: func(op *bulk.Op, moved int64) {
			if moved >= in.Point && point != nil {
				point(op)
				point = nil
			}
		},
	}, func(op *bulk.Op, err error) {
		if done != nil {
			done(op, err)
		}
		_ = h.RespondRaw(nil, nil) // the origin may be gone
		_ = local.Close()
	})
	return err
}

// fillPattern writes bytes that depend on their position: a block of noise again and again, each
// with its number in front.
func fillPattern(b []byte) {
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

// checksum goes over b piece by piece: one call for all of it could not be preempted, and nobody
// would answer for the process meanwhile.
func checksum(b []byte) (crc uint64) {
	table := crc32.MakeTable(crc32.Castagnoli)
	for piece := range slices.Chunk(b, 1<<20) {
		crc = uint64(crc32.Update(uint32(crc), table, piece))
	}
	return crc
}

// process is a child.
type process struct {
	t    *testing.T
	cmd  *exec.Cmd
	in   io.WriteCloser
	out  *bufio.Reader
	Addr string
}

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
	p.Addr = p.readLine()
	return p
}

// readLine returns the next line of the child.
func (p *process) readLine() string {
	p.t.Helper()
	line, err := p.out.ReadString('\n')
	require.NoError(p.t, err)
	return strings.TrimSpace(line)
}

func (p *process) signal(s syscall.Signal) {
	p.t.Helper()
	require.NoError(p.t, p.cmd.Process.Signal(s))
}

// stop sends SIGSTOP and returns when the kernel reports that the child is stopped.
func (p *process) stop() {
	p.t.Helper()
	p.signal(syscall.SIGSTOP)
	p.waitStopped()
}

// waitStopped returns when the child is stopped.
func (p *process) waitStopped() {
	p.t.Helper()
	var ws syscall.WaitStatus
	for {
		_, err := syscall.Wait4(p.cmd.Process.Pid, &ws, syscall.WUNTRACED, nil)
		if err != syscall.EINTR {
			require.NoError(p.t, err)
			break
		}
	}
	require.True(p.t, ws.Stopped(), "child: %v", ws)
}

// kill sends SIGKILL and returns when the child is dead.
func (p *process) kill() {
	p.t.Helper()
	p.signal(syscall.SIGKILL)
	_ = p.cmd.Wait()
}

// origin is this process's side.
type origin struct {
	t    *testing.T
	cls  *hg.Class
	hctx *hg.Context
	peer na.Addr
	by   *bystander // may be nil
}

// openAt opens a class of this process, with what it does as a target.
func openAt(t *testing.T, addr string, cfg hg.Config, does map[string]hg.Handler) *origin {
	t.Helper()
	cls, err := hg.Open(addr, cfg)
	require.NoError(t, err)
	hctx, err := cls.NewContext()
	require.NoError(t, err)
	for name := range newHandlers(nil) {
		_, err = cls.Register(name, does[name])
		require.NoError(t, err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		require.NoError(t, cls.Shutdown(ctx))
	})
	return &origin{t: t, cls: cls, hctx: hctx}
}

// connect makes the next handles of o call p.
func (o *origin) connect(p *process) {
	o.t.Helper()
	peer, err := na.ParseAddr(p.Addr)
	require.NoError(o.t, err)
	o.peer = peer
}

func (o *origin) newHandle(name string) *hg.Handle {
	o.t.Helper()
	h, err := o.hctx.Create(o.peer, hg.HashName(name))
	require.NoError(o.t, err)
	return h
}

func (o *origin) driveUntil(done func() bool) {
	o.t.Helper()
	for end := time.Now().Add(time.Minute); !done(); {
		o.by.call()
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

// drive drives for d.
func (o *origin) drive(d time.Duration) {
	o.t.Helper()
	end := time.Now().Add(d)
	o.driveUntil(func() bool { return !time.Now().Before(end) })
}

func (o *origin) call(h *hg.Handle, in any) error {
	o.t.Helper()
	c := o.forward(h, in)
	o.driveUntil(func() bool { return c.ended > 0 })
	return c.err
}

// outcome is what became of a call.
type outcome struct {
	ended int
	err   error
	at    time.Time
}

// forward begins a call.
func (o *origin) forward(h *hg.Handle, in any) *outcome {
	o.t.Helper()
	c := &outcome{}
	require.NoError(o.t, h.Forward(in, func(_ *hg.Handle, err error) {
		c.ended++
		c.err, c.at = err, time.Now()
	}))
	return c
}
