// Command demo shows Quicksilver working between two processes, in one command:
//
//	go run ./examples/demo [-transport udp|sm|auto] [file]
//
// It starts itself again as the target, performs the steps below as the origin, and finally prints a table of them. The
// target pulls the file. The default is the program's own binary, repeated to at least 64 MiB.
//
//	origin (this process)                         target (the same program again)
//	calls      16 handles, callbacks ◄────────►   squares numbers
//	pull       file in memory ◄═══════ pulls ══   hashes it
//	           progress bar ◄──────── one-way ─   reports progress
//	stop       file in memory ◄═══ pulls, then cancels its pull in the middle
//	cancel     Forward ───────────────────────►   keeps the handle, does not answer
//	           500 ms … Cancel, Trigger: canceled
//	           Forward, the same handle ──────►   answers both: the first answer is too late and dropped
//	kill       Forward ───────────────────────►   keeps the handle … killed
//	           peer lost: callback and OnFault
//
// The exit code is 0 only if every step succeeded.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"runtime/pprof"
	"time"
)

const (
	// limit is the time limit of the whole program, after which every wait ends.
	limit = 60 * time.Second
	// hardLimit is the time after which a wait that did not end, which is a bug, terminates the program and prints all
	// stacks.
	hardLimit = limit + 5*time.Second
	// targetEnv is the environment variable that makes the program run as the target. Its value is the transport.
	targetEnv = "QUICKSILVER_DEMO_TARGET"
)

func main() { os.Exit(start()) }

// start implements main and returns the exit code.
func start() int {
	if os.Getenv(targetEnv) != "" {
		return report("demo target", runTarget(os.Getenv(targetEnv)))
	}
	transport := flag.String("transport", "tcp", "`scheme` of the addresses; auto: tcp, with sm beside it, which the two take")
	flag.Usage = func() {
		fmt.Fprintln(os.Stderr, "usage: demo [-transport scheme] [file]")
	}
	flag.Parse()
	if flag.NArg() > 1 {
		flag.Usage()
		return 2
	}
	watchdog := time.AfterFunc(hardLimit, bark)
	defer watchdog.Stop()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	ctx, cancel := context.WithTimeoutCause(ctx, limit, fmt.Errorf("the demo took longer than %v", limit))
	defer cancel()
	return report("demo", run(ctx, *transport, flag.Arg(0)))
}

// bark prints all stacks and terminates the program. The target exits as well, because its stdin is closed.
func bark() {
	fmt.Fprintf(os.Stderr, "demo: nothing has stopped it for %v; this is what it does:\n", hardLimit)
	_ = pprof.Lookup("goroutine").WriteTo(os.Stderr, 1)
	os.Exit(1)
}

func report(who string, err error) int {
	if err == nil {
		return 0
	}
	fmt.Fprintf(os.Stderr, "%s: %v\n", who, err)
	return 1
}

// run starts the target and performs the steps. It leaves no process behind.
func run(ctx context.Context, transport, file string) error {
	data, err := load(file)
	if err != nil {
		return err
	}
	var steps table
	begun := time.Now()
	child, err := startChild(ctx, transport)
	if err != nil {
		return err
	}
	defer child.kill()
	where := fmt.Sprintf("the target is process %d at %s", child.pid(), child.addr)
	steps.add("start", where, time.Since(begun))
	fmt.Println("start: " + where)

	o, err := newOrigin(ctx, child, data, os.Stdout)
	if err != nil {
		return err
	}
	for _, s := range []struct {
		name string
		run  func() (result string, err error)
	}{
		{"calls", o.calls},
		{"pull", o.pull},
		{"stop", o.stopPull},
		{"cancel", o.cancel},
		{"kill", o.kill},
		{"end", o.end},
	} {
		begun := time.Now()
		result, err := s.run()
		if ctx.Err() != nil {
			err = context.Cause(ctx) // errors that resulted from it are not relevant
		}
		if err != nil {
			return fmt.Errorf("step %q went wrong after %v: %w", s.name, time.Since(begun).Round(time.Millisecond), err)
		}
		steps.add(s.name, result, time.Since(begun))
	}
	return steps.print(os.Stdout)
}
