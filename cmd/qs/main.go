// Command qs measures, moves and shows:
//
//	qs perf            rates, latencies and bulk throughput between two processes
//	qs bench           a load test of a method of any program
//	qs ping            round trips to a target, one line each
//	qs cp              files and directories to or from a target, by bulk transfers that resume
//	qs serve           a target for these
//	qs rpcs            what RPCs a program serves
//	qs call            one call of any program, in JSON
//	qs top             the gauges of a program, refreshed
//	qs ger             what guaranteed envelopes cost, and what a program really needs
//	qs soak            a mixed load with faults, and an audit of every call
//	qs run             processes that find each other, on this machine
//	qs rendezvous      where processes on several machines find each other
//	qs mercury         calls to programs of C Mercury, measurements of both sides, and a gateway
//	qs info            plugins, addresses, limits, and what matters of the kernel
//
// "qs help COMMAND" tells the flags of one.
//
// The files, by command:
//
//	perf    perf.go, internal/bench: calls.go, bulk.go, target.go, ladder.go, mixed.go, idle.go, floor_*.go
//	bench   bench.go with describe.go, internal/load
//	ping    ping.go, pingstats.go
//	cp      cp.go, place.go, progress.go, internal/files
//	serve   serve.go with debug.go; internal/files for cp, internal/bench for perf
//	rpcs, call, top   call.go with describe.go, lend.go and sinkfile.go, internal/typed for types and JSON; rpcs.go; top.go
//	ger     ger.go
//	soak    soak.go, internal/soak: process.go, faults.go and relay.go, report.go; internal/ledger (load and audit)
//	run     run.go, runwait.go and runlines.go with group_*.go; rendezvous.go
//	mercury mercury.go
//	info    info*.go
//	all     network.go and tls.go (flags), client.go, internal/self (this program again), internal/show (texts of peers)
package main

import (
	"cmp"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"runtime"
	"runtime/debug"
	"strings"

	"github.com/quicksilver-rpc/quicksilver/cmd/qs/internal/bench"
	"github.com/quicksilver-rpc/quicksilver/cmd/qs/internal/show"
)

// A command is what the first argument names. run parses args, and returns nil, a usageError, or what went wrong.
type command struct {
	name, about string
	run         func(args []string, out io.Writer) error
}

var commands = []command{
	{"perf", "measure rates, latencies and bulk throughput", runPerf},
	{"bench", "load a method of a program, and measure its calls", runBench},
	{"ping", "measure round trips to a target, one by one", runPing},
	{"cp", "copy files to or from a target", runCp},
	{"serve", "be the target of the other commands", runServe},
	{"rpcs", "list the RPCs of a program", runRPCs},
	{"call", "call a method of a program, in JSON", runCall},
	{"top", "watch the gauges of a program", runTop},
	{"ger", "compute what guaranteed envelopes cost, or show what a program needs", runGer},
	{"soak", "load targets, break them, and audit what became of every call", runSoak},
	{"run", "start processes that find each other, and wait for them", runRun},
	{"rendezvous", "be where processes find each other", runRendezvous},
	{"mercury", "call, measure, or be measured by, programs of C Mercury", runMercury},
	{"info", "show plugins, addresses, limits and the kernel", runInfo},
	{"swarm", "", runSwarm},      // the other side of qs perf -op idle
	{"floor", "", bench.EchoTCP}, // and of -floor
	{"floor-unix", "", bench.EchoUnix},
	{"soaktarget", "", runSoakTarget},
	{"soakorigin", "", runSoakOrigin},
}

// interrupted runs when a command that was told to end has told so what it has under way. Tests replace it.
var interrupted = func() {}

// usageError is a command line that cannot be understood.
type usageError struct{ text string }

func (e usageError) Error() string { return e.text }

func main() { os.Exit(start(os.Args[1:], os.Stdout, os.Stderr)) }

// start runs a command line and returns the exit code: 0 for success, 1 when the command failed, 2 when it could not be
// understood.
func start(args []string, out, diag io.Writer) int {
	if len(args) == 2 && args[0] == "help" {
		args = []string{args[1], "-help"}
	}
	if len(args) == 0 {
		usage(diag)
		return 2
	}
	switch args[0] {
	case "help", "-h", "-help", "--help":
		if len(args) > 1 {
			fmt.Fprintf(diag, "qs help: %d arguments, want the name of a command\n", len(args)-1)
			return 2
		}
		usage(out)
		return 0
	case "version", "-version", "--version":
		fmt.Fprintln(out, version())
		return 0
	}
	for _, c := range commands {
		if c.name != args[0] {
			continue
		}
		err := c.run(args[1:], out)
		var bad usageError
		switch {
		case err == nil, errors.Is(err, flag.ErrHelp):
			return 0
		case errors.As(err, &bad):
			fmt.Fprintf(diag, "qs %s: %s\n", c.name, bad.text)
			return 2
		}
		fmt.Fprintf(diag, "qs %s: %s\n", c.name, show.Error(err))
		return 1
	}
	fmt.Fprintf(diag, "qs: there is no command %q\n", args[0])
	usage(diag)
	return 2
}

// version says which qs this is: of a release, or of a commit.
func version() string {
	text, commit := "(devel)", ""
	if info, ok := debug.ReadBuildInfo(); ok {
		text = cmp.Or(info.Main.Version, text)
		for _, s := range info.Settings {
			if s.Key == "vcs.revision" && text == "(devel)" {
				commit = " " + s.Value
			}
		}
	}
	return fmt.Sprintf("qs %s%s, %s %s/%s", text, commit, runtime.Version(), runtime.GOOS, runtime.GOARCH)
}

func usage(w io.Writer) {
	fmt.Fprintln(w, "usage: qs COMMAND [flags] [arguments]")
	fmt.Fprintln(w, "  version    show which qs this is")
	fmt.Fprintln(w, "  help       show this, or the flags of a command: qs help COMMAND")
	for _, c := range commands {
		if c.about != "" {
			fmt.Fprintf(w, "  %-10s %s\n", c.name, c.about)
		}
	}
}

// parse parses the flags of a command, which takes at least and at most so many arguments.
func parse(fs *flag.FlagSet, args []string, least, most int) error {
	fs.SetOutput(io.Discard)
	if err := fs.Parse(args); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			fs.SetOutput(os.Stdout)
			fmt.Printf("usage: qs %s\n", fs.Name())
			fs.PrintDefaults()
			return err
		}
		return usageError{err.Error()}
	}
	if n := fs.NArg(); n < least || n > most {
		line, _, _ := strings.Cut(fs.Name(), "\n\n")
		text := fmt.Sprintf("%d arguments; usage: qs %s", n, line)
		for _, arg := range fs.Args() {
			if name, _, _ := strings.Cut(strings.TrimLeft(arg, "-"), "="); strings.HasPrefix(arg, "-") && fs.Lookup(name) != nil {
				text = fmt.Sprintf("%s comes after an argument: flags come first; usage: qs %s", arg, line)
				break
			}
		}
		return usageError{text}
	}
	return nil
}
