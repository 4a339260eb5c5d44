package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"sync/atomic"
	"time"

	"github.com/spf13/cobra"

	"github.com/quicksilver-rpc/quicksilver/rendezvous"
	"github.com/quicksilver-rpc/quicksilver/rendezvous/protocol"
)

const runAbout = `Starts processes on this machine that find each other, and waits for all of them.

When one fails, unless --keep is set, the others are ended; when a signal arrives, it is passed on. After --grace nothing runs any more. A second SIGINT or SIGTERM kills at once. What a process leaves running in its process group when it exits is killed; what calls setsid or setpgid is out of reach. When the output of qs run cannot be written any more, as after | head -1, the processes are ended as by a signal. When qs run itself is killed (SIGKILL), Linux kills the processes that it has started with it, but not those that they have started.

Each line of their output is printed behind the rank of its process; with --json it is an object with the rank and the stream. The exit code is 0 when every process exited with 0, and otherwise 1; the errors say how each one ended.`

// A launch is the set of processes of one qs run.
type launch struct {
	app            *app
	program        []string
	grace, timeout time.Duration
	keep           bool
	env            []string
	cmds           []*exec.Cmd // by rank; nil after the process has exited
	processes      int
	lines          lineWriter
	exits          chan processExit
	isJoined       atomic.Bool // a process has connected to the server
}

// A processExit describes a process that has exited.
type processExit struct {
	rank int
	err  error
	left bool // other processes in its group were still running
}

func (a *app) newRun() *cobra.Command {
	l := &launch{app: a}
	c := &cobra.Command{
		Use: "run -n PROCESSES [flags] [--] PROGRAM [ARGUMENT...]", Short: "Start processes that find each other, and wait for them", Long: runAbout,
		Example: `  qs run -n 4 -- ./program --its-flag
  qs run -n 4 --json ./program > lines.json`,
		Args: wantArgs(1, 1<<20), Annotations: map[string]string{programArgs: "true"}, DisableFlagsInUseLine: true,
		RunE: func(_ *cobra.Command, args []string) error { return l.runProcesses(args) },
	}
	fs := c.Flags()
	fs.IntVarP(&l.processes, "processes", "n", 0, "how many `processes` to start")
	fs.DurationVar(&l.grace, "grace", 9*time.Second, "`time` for the others to end by themselves after a failure or a signal; 2s before its end, or halfway, they get SIGTERM, at its end they are killed")
	fs.BoolVar(&l.keep, "keep", false, "do not end the others when one fails")
	fs.DurationVarP(&l.timeout, "timeout", "t", time.Minute, "`time` within which all must join")
	return c
}

// runProcesses starts the processes and waits for all of them to exit.
func (l *launch) runProcesses(program []string) error {
	switch {
	case l.processes < 1:
		return usageError{"--processes is required"}
	case l.processes > protocol.MaxNative:
		return usageError{fmt.Sprintf("--processes is %d, want at most %d", l.processes, protocol.MaxNative)}
	case l.grace < 0:
		return usageError{"--grace is negative"}
	}
	l.program = program
	l.lines.json = l.app.isJSON
	l.lines.failed = make(chan error, 1)
	runtime.LockOSThread() // the kernel kills the processes when the thread that started them exits
	defer runtime.UnlockOSThread()
	defer catchBrokenPipe()()
	signals := make(chan os.Signal, 16)
	signal.Notify(signals, forwardedSignals...)
	defer signal.Stop(signals)

	ctx, stop := context.WithCancel(context.Background())
	served, err := l.serveRendezvous(ctx)
	if err != nil {
		stop()
		return err
	}
	defer func() {
		stop()
		<-served
	}()
	if err := l.startProcesses(); err != nil {
		return err
	}
	w := waitState{launch: l, left: l.processes}
	return w.waitAll(signals, served)
}

// serveRendezvous starts the rendezvous server. When the server stops, its error is sent to the
// returned channel.
func (l *launch) serveRendezvous(ctx context.Context) (<-chan error, error) {
	key, err := secretFromEnv()
	if err != nil {
		return nil, err
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	l.env = append(os.Environ(),
		fmt.Sprintf("%s=%d", rendezvous.EnvSize, l.processes),
		fmt.Sprintf("%s=%s", rendezvous.EnvAddr, listener.Addr()),
		fmt.Sprintf("%s=%x", rendezvous.EnvKey, key))
	served := make(chan error, 1)
	go func() {
		defer close(served)
		served <- rendezvous.Serve(ctx, listener, rendezvous.ServerConfig{
			Size: l.processes, Auth: protocol.Auth{Secret: key}, Startup: l.timeout,
			OnEvent: func(e protocol.Event) {
				if e.Kind == protocol.Joined {
					l.isJoined.Store(true)
				}
			},
		})
	}()
	return served, nil
}

// startProcesses starts the processes. If a process cannot be started, startProcesses kills those
// that it has already started.
func (l *launch) startProcesses() error {
	l.exits = make(chan processExit, l.processes)
	for rank := range l.processes {
		cmd := exec.Command(l.program[0], l.program[1:]...)
		cmd.Env = append(l.env[:len(l.env):len(l.env)], fmt.Sprintf("%s=%d", rendezvous.EnvRank, rank))
		out, diag := l.lines.newRankLines(rank, "stdout", l.app.stdout), l.lines.newRankLines(rank, "stderr", l.app.stderr)
		cmd.Stdout, cmd.Stderr = out, diag
		cmd.WaitDelay = outputDelay
		setProcessGroup(cmd)
		if err := cmd.Start(); err != nil {
			l.signalAll(os.Kill)
			for range l.cmds {
				<-l.exits
			}
			return err
		}
		l.cmds = append(l.cmds, cmd)
		go func() {
			err := cmd.Wait()
			left := killProcessGroup(cmd)
			if errors.Is(err, exec.ErrWaitDelay) { // child processes keep the output open
				err = nil
			}
			out.flushLast()
			diag.flushLast()
			l.exits <- processExit{rank, err, left}
		}()
	}
	return nil
}

// signalAll sends s to the process group of each running process.
func (l *launch) signalAll(s os.Signal) {
	for _, cmd := range l.cmds {
		if cmd != nil {
			signalProcessGroup(cmd, s)
		}
	}
}
