// Command qs measures Quicksilver programs, calls them, copies files between them, and displays their state. Run "qs
// help" for the list of commands.
//
// The files that implement each command are:
//
//	perf    perf.go, internal/bench: calls.go, bulk.go, target.go, ladder.go, mixed.go, idle.go, floor_*.go
//	bench   bench.go, internal/load
//	ping    ping.go, pingstats.go
//	cp      cp.go, place.go, progress.go, internal/files
//	serve   serve.go with debug.go; internal/files for cp, internal/bench for perf
//	health  health.go
//	rpcs, call, top   call.go with describe.go, lend.go and sinkfile.go; internal/typed of the module (types and JSON); rpcs.go; top.go with topreport.go and topview.go
//	ger     ger.go, gauges.go
//	soak    soak.go, internal/soak: process.go, faults.go and relay.go, report.go; internal/ledger (load and audit)
//	run     run.go, runwait.go and runlines.go with group_*.go; rendezvous.go
//	mercury mercury.go
//	info    info*.go
//	all     command.go (the commands and what they share), output.go (standard output), help.go, completion.go, args.go (command lines of earlier versions), exit.go (errors and exit codes), table.go, status.go,
//	        network.go and tls.go (flags), client.go, internal/self (other processes of this program), internal/show (text from peers)
package main

import (
	"fmt"
	"io"
	"os"
	"slices"

	"github.com/spf13/cobra"
)

func main() { os.Exit(start(os.Args[1:], os.Stdout, os.Stderr)) }

// start runs the command line args and returns the exit code.
func start(args []string, out, diag io.Writer) int {
	written := &output{to: out}
	a := &app{stdout: written, stderr: diag}
	root := a.newRoot()
	if len(args) == 0 {
		root.SetOut(diag)
		_ = root.Help()
		return exitUsage
	}
	if len(args) > 0 && args[0] == cobra.ShellCompRequestCmd {
		unquoteUsages(root)
	}
	a.isJSON = slices.ContainsFunc(args, isJSONFlag) // for errors that occur before the flags are parsed
	normal, cmd, err := normalizeArgs(root, args)
	if err != nil {
		return a.reportError(cmd, err)
	}
	root.SetArgs(normal)
	cmd, err = root.ExecuteC()
	if err != nil && !a.isRunning { // cobra and pflag report invalid command lines as plain errors
		err = usageError{err.Error()}
	}
	if err == nil && written.failure() != nil {
		err = failedError{fmt.Errorf("write the output: %w", written.failure())}
	}
	return a.reportError(cmd, err)
}

func isJSONFlag(arg string) bool { return arg == "--json" || arg == "-json" || arg == "-j" }
