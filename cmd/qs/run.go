package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"sync"
	"sync/atomic"
	"time"

	"github.com/quicksilver-rpc/quicksilver/rendezvous"
	"github.com/quicksilver-rpc/quicksilver/rendezvous/protocol"
)

// killAfter is how long processes have between being told to end and being killed.
const killAfter = 2 * time.Second

// A launch is the processes of one qs run.
type launch struct {
	program        []string
	grace, timeout time.Duration
	env            []string
	cmds           []*exec.Cmd // by rank; nil: has ended
	out            io.Writer
	lines          lines
	exits          chan exit
	joined         atomic.Bool // somebody uses the server
}

// An exit is the end of one process.
type exit struct {
	rank int
	err  error
}

// runRun starts processes that find each other, and waits for all of them.
func runRun(args []string, out io.Writer) error {
	var (
		n int
		l launch
	)
	fs := flag.NewFlagSet("run [flags] -- PROGRAM [arguments]", flag.ContinueOnError)
	fs.IntVar(&n, "n", 0, "how many `processes` to start")
	fs.DurationVar(&l.grace, "grace", 7*time.Second, "`time` that the others have to end by themselves when one has failed")
	fs.DurationVar(&l.timeout, "timeout", time.Minute, "`time` until all have to have joined")
	if err := parse(fs, args, 1, 1<<20); err != nil {
		return err
	}
	if n < 1 {
		return usageError{"-n says how many processes to start"}
	}
	l.program = fs.Args()
	l.out = out
	signals := make(chan os.Signal, 16)
	signal.Notify(signals, passed...)
	defer signal.Stop(signals)

	ctx, stop := context.WithCancel(context.Background())
	served, err := l.serve(ctx, n)
	if err != nil {
		stop()
		return err
	}
	defer func() {
		stop()
		<-served
	}()
	if err := l.start(n); err != nil {
		return err
	}
	return l.wait(signals, served)
}

// serve begins to serve the processes; the channel yields how it ended.
func (l *launch) serve(ctx context.Context, n int) (<-chan error, error) {
	key, err := secretFromEnv()
	if err != nil {
		return nil, err
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	l.env = append(os.Environ(),
		fmt.Sprintf("%s=%d", rendezvous.EnvSize, n),
		fmt.Sprintf("%s=%s", rendezvous.EnvAddr, listener.Addr()),
		fmt.Sprintf("%s=%x", rendezvous.EnvKey, key))
	served := make(chan error, 1)
	go func() {
		defer close(served)
		served <- rendezvous.Serve(ctx, listener, rendezvous.ServerConfig{
			Size: n, Auth: protocol.Auth{Secret: key}, Startup: l.timeout,
			OnEvent: func(e protocol.Event) {
				if e.Kind == protocol.Joined {
					l.joined.Store(true)
				}
			},
		})
	}()
	return served, nil
}

// start starts the processes; if one cannot be started, those before it are killed.
func (l *launch) start(n int) error {
	l.exits = make(chan exit, n)
	for rank := range n {
		cmd := exec.Command(l.program[0], l.program[1:]...)
		cmd.Env = append(l.env[:len(l.env):len(l.env)], fmt.Sprintf("%s=%d", rendezvous.EnvRank, rank))
		out, diag := l.lines.of(rank, l.out), l.lines.of(rank, os.Stderr)
		cmd.Stdout, cmd.Stderr = out, diag
		cmd.WaitDelay = killAfter // for the output of grandchildren
		ownGroup(cmd)
		if err := cmd.Start(); err != nil {
			l.signal(os.Kill)
			for range l.cmds {
				<-l.exits
			}
			return err
		}
		l.cmds = append(l.cmds, cmd)
		go func() {
			err := cmd.Wait()
			out.end()
			diag.end()
			l.exits <- exit{rank, err}
		}()
	}
	return nil
}

// wait returns when all processes have ended: nil, or what the first that failed has ended with.
func (l *launch) wait(signals <-chan os.Signal, served <-chan error) (failed error) {
	var ending <-chan time.Time
	next := os.Signal(terminate)
	fail := func(err error) {
		if failed == nil {
			failed, ending = err, time.After(l.grace)
		}
	}
	for left := len(l.cmds); left > 0; {
		select {
		case e := <-l.exits:
			left--
			l.cmds[e.rank] = nil
			if e.err != nil {
				fmt.Fprintf(os.Stderr, "qs run: rank %d: %v\n", e.rank, e.err)
				fail(fmt.Errorf("rank %d: %w", e.rank, e.err))
			}
		case s := <-signals:
			l.signal(s)
		case err := <-served:
			served = nil
			var missing *protocol.MissingError
			if errors.As(err, &missing) && l.joined.Load() {
				fmt.Fprintln(os.Stderr, "qs run:", err)
				fail(err)
			}
		case <-ending:
			l.signal(next)
			next, ending = os.Kill, time.After(killAfter)
		}
	}
	return failed
}

// signal sends s to all processes that run, and to those that they have started.
func (l *launch) signal(s os.Signal) {
	for _, cmd := range l.cmds {
		if cmd != nil {
			signalGroup(cmd, s)
		}
	}
}

// lines keeps the lines of several processes whole.
type lines struct{ mu sync.Mutex }

func (l *lines) of(rank int, out io.Writer) *rankLines {
	return &rankLines{all: l, out: out, prefix: fmt.Sprintf("[%d] ", rank)}
}

// maxLine is how much of a line without an end is kept.
const maxLine = 64 << 10

// rankLines is one stream of one process. Its lines are written behind the rank that they come from.
type rankLines struct {
	all    *lines
	out    io.Writer
	prefix string
	rest   []byte // of a line that has not ended
}

func (r *rankLines) Write(b []byte) (int, error) {
	for _, c := range b {
		if c != '\n' {
			r.rest = append(r.rest, c)
		}
		if c == '\n' || len(r.rest) == maxLine {
			if err := r.write(); err != nil {
				return 0, err
			}
		}
	}
	return len(b), nil
}

func (r *rankLines) write() error {
	r.all.mu.Lock()
	defer r.all.mu.Unlock()
	_, err := fmt.Fprintf(r.out, "%s%s\n", r.prefix, r.rest)
	r.rest = r.rest[:0]
	return err
}

// end writes a last line that has no end.
func (r *rankLines) end() {
	if len(r.rest) > 0 {
		_ = r.write()
	}
}
