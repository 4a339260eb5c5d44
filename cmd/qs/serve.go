package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"runtime/pprof"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/quicksilver-rpc/quicksilver/hg"
	"github.com/quicksilver-rpc/quicksilver/hg/codec"
	"github.com/quicksilver-rpc/quicksilver/na"
	_ "github.com/quicksilver-rpc/quicksilver/plugins/all"
)

// ready begins the line in which a target tells its address.
const ready = "listening at "

// network is what the flags of every command say about the network.
type network struct {
	transport string
	spin      time.Duration
	timeout   time.Duration
	busy      int
	profile   string
}

func (n *network) flags(fs *flag.FlagSet) {
	fs.DurationVar(&n.spin, "spin", 50*time.Microsecond, "`time` to poll before sleeping, while answers come fast; 0 for none")
	fs.DurationVar(&n.timeout, "peer-timeout", 5*time.Second, "`time` of silence after which a peer is given up")
	fs.StringVar(&n.profile, "cpuprofile", "", "`file` for a profile of this process; that of a target that is started gets .target added")
	fs.IntVar(&n.busy, "busy", 0, "`goroutines` that compute meanwhile, in each process")
}

// args are the flags that give another qs the same network.
func (n *network) args() []string {
	args := []string{"-spin", n.spin.String(), "-peer-timeout", n.timeout.String(), "-busy", strconv.Itoa(n.busy)}
	if n.profile != "" {
		args = append(args, "-cpuprofile", n.profile+".target")
	}
	return args
}

// config is that of every class of this program: bodies are bytes, and many requests may be outstanding.
func (n *network) config() hg.Config {
	spin := n.spin
	if spin == 0 {
		spin = -1
	}
	return hg.Config{Codec: codec.Raw, NA: na.Config{Envelopes: 256, PeerTimeout: n.timeout, Spin: spin}}
}

// startProfile begins the profile that was asked for; stop ends it.
func (n *network) startProfile() (stop func(), err error) {
	if n.profile == "" {
		return func() {}, nil
	}
	f, err := os.Create(n.profile)
	if err != nil {
		return nil, err
	}
	if err := pprof.StartCPUProfile(f); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return func() {
		pprof.StopCPUProfile()
		_ = f.Close()
	}, nil
}

// burden starts the busy goroutines.
func (n *network) burden() {
	for range n.busy {
		go func() {
			for x := uint64(1); ; x = x*6364136223846793005 + 1 {
				if x == 0 {
					runtime.Gosched()
				}
			}
		}()
	}
}

// runServe is a target until it is told to end by a signal, or by the end of its input if -child is set.
func runServe(args []string, out io.Writer) error {
	fs := flag.NewFlagSet("serve [flags] [ADDRESS]", flag.ContinueOnError)
	var n network
	n.flags(fs)
	child := fs.Bool("child", false, "end with the standard input")
	if err := parse(fs, args, 0, 1); err != nil {
		return err
	}
	addr := "tcp://127.0.0.1:0"
	if fs.NArg() == 1 {
		addr = fs.Arg(0)
	}
	class, err := hg.Open(addr, n.config())
	if err != nil {
		return err
	}
	if err := registerPerf(class); err != nil {
		return err
	}
	hctx, err := class.NewContext()
	if err != nil {
		return err
	}
	stopProfile, err := n.startProfile()
	if err != nil {
		return err
	}
	defer stopProfile()
	n.burden()
	fmt.Fprintln(out, ready+hctx.Self().String())
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if *child {
		var cancel context.CancelFunc
		ctx, cancel = context.WithCancel(ctx)
		go func() {
			_, _ = io.Copy(io.Discard, os.Stdin)
			cancel()
		}()
	}
	defer context.AfterFunc(ctx, func() { _ = class.Close() })()
	for hctx.Progress(-1) == nil {
		hctx.Trigger(0)
	}
	return nil
}

// child is a target in a process of its own.
type child struct {
	cmd   *exec.Cmd
	stdin io.WriteCloser
	addr  string
}

// startChild starts this program again as the target of n.
func startChild(n *network, listen string) (*child, error) {
	args := append([]string{"serve", "-child"}, n.args()...)
	return startSelf(append(args, listen)...)
}

// startSelf starts this program again, and waits until it tells its address.
func startSelf(args ...string) (*child, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	c := &child{cmd: exec.Command(self, args...)}
	c.cmd.Stderr = os.Stderr
	c.cmd.Env = append(os.Environ(), childEnv+"=1")
	if c.stdin, err = c.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	stdout, err := c.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := c.cmd.Start(); err != nil {
		return nil, fmt.Errorf("start the target: %w", err)
	}
	line, err := readLine(stdout)
	addr, ok := strings.CutPrefix(line, ready)
	if err != nil || !ok {
		c.stop()
		return nil, errors.Join(fmt.Errorf("the target did not start; it said %q", line), err)
	}
	c.addr = addr
	return c, nil
}

// childEnv marks the environment of a target that this program started; its tests start it again by their own binary.
const childEnv = "QUICKSILVER_QS_CHILD"

// readLine reads up to a newline, byte by byte: what follows stays in the pipe.
func readLine(r io.Reader) (string, error) {
	var line []byte
	var b [1]byte
	for len(line) < 1024 {
		if _, err := io.ReadFull(r, b[:]); err != nil {
			return string(line), err
		}
		if b[0] == '\n' {
			break
		}
		line = append(line, b[0])
	}
	return string(line), nil
}

// stop ends the target and waits for it.
func (c *child) stop() {
	_ = c.stdin.Close()
	kill := time.AfterFunc(2*time.Second, func() { _ = c.cmd.Process.Kill() })
	_ = c.cmd.Wait()
	kill.Stop()
}
