// Command demo shows Quicksilver at work between two processes, in one command:
//
//	go run ./examples/demo [-transport udp|sm|auto] [file]
//
// It starts itself again as the target, goes through the steps below as the origin, and ends with a table of them. The
// file is what the target pulls; without one it is the program's own binary, repeated to at least 64 MiB.
//
//	origin (this process)                         target (the same program again)
//	calls      16 handles, callbacks ◄────────►   squares numbers
//	pull       file in memory ◄═══════ pulls ══   hashes it
//	           progress bar ◄──────── one-way ─   tells how far it is
//	stop       file in memory ◄═══ pulls, then cancels its pull in the middle
//	cancel     Forward ───────────────────────►   keeps the handle, does not answer
//	           500 ms … Cancel, Trigger: canceled
//	           Forward, the same handle ──────►   answers both: the first answer is too late and dropped
//	kill       Forward ───────────────────────►   keeps the handle … killed
//	           peer lost: callback and OnFault
//
// The exit code is 0 only if every step did what it should.
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
	// limit bounds the whole program. Every wait ends then.
	limit = 60 * time.Second
	// hardLimit is for one that does not: that is a bug, and the stacks are printed.
	hardLimit = limit + 5*time.Second
	// targetEnv tells the program that it is the target, and of which transport.
	targetEnv = "QUICKSILVER_DEMO_TARGET"
)

func main() { os.Exit(start()) }

// start is main, but returns.
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

// bark ends the program from outside. The target goes too: its stdin closes.
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

// run starts the target, goes through the steps, and leaves no process behind.
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
			err = context.Cause(ctx) // what followed from it does not matter
		}
		if err != nil {
			return fmt.Errorf("step %q went wrong after %v: %w", s.name, time.Since(begun).Round(time.Millisecond), err)
		}
		steps.add(s.name, result, time.Since(begun))
	}
	return steps.print(os.Stdout)
}
