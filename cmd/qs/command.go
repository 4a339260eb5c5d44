package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"runtime"
	"runtime/debug"
	"slices"
	"sync/atomic"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/quicksilver-rpc/quicksilver/cmd/qs/internal/bench"
	"github.com/quicksilver-rpc/quicksilver/cmd/qs/internal/show"
)

// An app is one run of the program. It holds the standard streams and the flags that all commands share.
//
// Each command is a method newNAME in NAME.go that returns a cobra.Command, and a line in newRoot. Its RunE prints
// results to stdout and notes to stderr, prints JSON if isJSON is set, and returns an error. A usageError means that
// the command line is wrong; exit.go derives the exit code from any other error.
type app struct {
	stdout, stderr io.Writer
	isJSON         bool

	isRunning bool        // the command line has been accepted
	gotSignal atomic.Bool // untilSignal has received a signal
}

// Command groups in the help output.
const (
	groupCall    = "call"
	groupInspect = "inspect"
	groupMeasure = "measure"
	groupRun     = "run"
	groupTool    = "tool"
)

// newRoot returns the root command with all subcommands.
func (a *app) newRoot() *cobra.Command {
	root := &cobra.Command{
		Use:   "qs",
		Short: "Call, inspect, measure and run programs of Quicksilver",
		Long: `Calls, inspects, measures and runs programs of Quicksilver.

ADDRESS is that of a program: tcp://HOST:PORT, udp://HOST:PORT or sm://NAME; HOST:PORT alone is that of tcp.`,
		Example: `  qs serve tcp://127.0.0.1:9000   # to try the others
  qs ping tcp://127.0.0.1:9000
  qs rpcs tcp://127.0.0.1:9000
  qs call tcp://127.0.0.1:9000 greet '"Ada"'`,
		Version:          newBuildReport().String(),
		SilenceErrors:    true,
		SilenceUsage:     true,
		PersistentPreRun: func(*cobra.Command, []string) { a.isRunning = true },
	}
	root.SetOut(a.stdout)
	root.SetErr(a.stderr)
	root.SetVersionTemplate("{{.Version}}\n")
	root.SetHelpFunc(func(c *cobra.Command, _ []string) { printHelp(c) })
	root.SetFlagErrorFunc(explainFlagError)
	root.PersistentFlags().BoolVarP(&a.isJSON, "json", "j", false, "print JSON, and errors as JSON to the standard error (see qs help json)")
	root.AddGroup(
		&cobra.Group{ID: groupCall, Title: "Call programs:"},
		&cobra.Group{ID: groupInspect, Title: "Look into programs:"},
		&cobra.Group{ID: groupMeasure, Title: "Measure and test:"},
		&cobra.Group{ID: groupRun, Title: "Run processes:"},
		&cobra.Group{ID: groupTool, Title: "About qs:"},
	)
	add := func(group string, commands ...*cobra.Command) {
		for _, c := range commands {
			c.GroupID = group
			root.AddCommand(c)
		}
	}
	add(groupCall, a.newCall(), a.newCp(), a.newMercury())
	add(groupInspect, a.newHealth(), a.newRPCs(), a.newSchema(), a.newTop(), a.newGer(), a.newInfo())
	add(groupMeasure, a.newPing(), a.newBench(), a.newPerf(), a.newSoak())
	add(groupRun, a.newServe(), a.newRun(), a.newRendezvous())
	add(groupTool, a.newVersion())
	root.AddCommand(
		a.newSwarm(),                                                                   // the peers of qs perf --op idle
		a.newHidden("floor", bench.EchoTCP), a.newHidden("floor-unix", bench.EchoUnix), // the echo servers of qs perf --floor
		a.newSoakTarget(), a.newSoakOrigin())
	root.SetHelpCommand(newHelp(root))
	root.InitDefaultHelpCmd()
	root.InitDefaultCompletionCmd()
	for _, c := range root.Commands() {
		c.InitDefaultHelpFlag()
		if c.Name() == "help" || c.Name() == "completion" {
			c.GroupID = groupTool
		}
		for _, sub := range c.Commands() {
			sub.InitDefaultHelpFlag()
		}
		if c.Name() == "completion" {
			adaptCompletion(c)
		}
	}
	root.InitDefaultHelpFlag()
	root.InitDefaultVersionFlag()
	return root
}

// newHidden returns a command that is not listed in the help and that only qs itself runs, in another process.
func (a *app) newHidden(name string, run func(args []string, out io.Writer) error) *cobra.Command {
	return &cobra.Command{Use: name, Hidden: true, DisableFlagParsing: true, RunE: func(_ *cobra.Command, args []string) error {
		return run(args, a.stdout)
	}}
}

// wantArgs returns a function that checks that a command has at least least and at most most arguments.
func wantArgs(least, most int) cobra.PositionalArgs {
	return func(c *cobra.Command, args []string) error {
		if n := len(args); n < least || n > most {
			return usageError{fmt.Sprintf("%s; usage: %s", countText(n, "argument"), c.UseLine())}
		}
		return nil
	}
}

// wantMethod returns an error unless args has the form ADDRESS METHOD [JSON].
func wantMethod(c *cobra.Command, args []string) error {
	if len(args) == 1 && isAddress(args[0]) {
		return usageError{fmt.Sprintf("METHOD is missing (qs rpcs %s lists them)", args[0])}
	}
	return wantArgs(2, 3)(c, args)
}

// countText returns a number followed by its noun, such as "1 file" or "2 files".
func countText(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return fmt.Sprintf("%d %ss", n, noun)
}

// registerChoices registers values for shell completion of the named flag.
func registerChoices(c *cobra.Command, flag string, values ...string) {
	err := c.RegisterFlagCompletionFunc(flag, cobra.FixedCompletions(values, cobra.ShellCompDirectiveNoFileComp))
	if err != nil {
		panic(err)
	}
}

// printResult prints v as JSON if --json is set, and calls print otherwise.
func (a *app) printResult(v any, print func(out io.Writer)) error {
	if a.isJSON {
		return show.JSON(a.stdout, v)
	}
	print(a.stdout)
	return nil
}

// A noteReport is the JSON form of a note, which is printed to standard error.
type noteReport struct {
	Note string `json:"note"`
}

// printNote prints a note for the user to standard error.
func (a *app) printNote(command, text string) {
	if a.isJSON {
		_ = show.JSON(a.stderr, noteReport{text})
		return
	}
	fmt.Fprintf(a.stderr, "qs %s: %s\n", command, show.Text(text))
}

// dataWriter returns a writer for data received from a peer, and a function that flushes it. If standard output is a
// terminal, the writer escapes control sequences; otherwise it writes the data unchanged.
func (a *app) dataWriter() (out io.Writer, flush func() error) {
	if _, onTerminal := terminalWidth(a.stdout); onTerminal {
		w := show.NewWriter(a.stdout)
		return w, w.Flush
	}
	return a.stdout, func() error { return nil }
}

// errInterrupted is the cancellation cause of a context that was canceled by a signal.
var errInterrupted = errors.New("interrupted")

// onInterrupted is called after an interrupted command has notified its peers. Tests replace it.
var onInterrupted = func() {}

// untilSignal returns a context that is canceled when SIGINT or SIGTERM is received, with errInterrupted as its cause.
// A second signal terminates the process. The caller must call stop to release resources.
func (a *app) untilSignal() (ctx context.Context, stop func()) {
	ctx, cancel := context.WithCancelCause(context.Background())
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		select {
		case <-signals:
			signal.Stop(signals)
			a.gotSignal.Store(true)
			cancel(errInterrupted)
			onInterrupted()
		case <-ctx.Done():
		}
	}()
	return ctx, func() {
		signal.Stop(signals)
		cancel(nil)
		<-ended
	}
}

// A buildReport is the JSON form of this program's version.
type buildReport struct {
	Version  string `json:"version"`
	Commit   string `json:"commit,omitempty"`
	Go       string `json:"go"`
	Platform string `json:"platform"`
}

func newBuildReport() buildReport {
	b := buildReport{Version: "(devel)", Go: runtime.Version(), Platform: runtime.GOOS + "/" + runtime.GOARCH}
	if info, ok := debug.ReadBuildInfo(); ok {
		b.Version = cmp.Or(info.Main.Version, b.Version)
		if i := slices.IndexFunc(info.Settings, func(s debug.BuildSetting) bool { return s.Key == "vcs.revision" }); i >= 0 {
			b.Commit = info.Settings[i].Value
		}
	}
	return b
}

func (b buildReport) String() string {
	commit := ""
	if b.Version == "(devel)" && b.Commit != "" {
		commit = " " + b.Commit
	}
	return fmt.Sprintf("qs %s%s, %s %s", b.Version, commit, b.Go, b.Platform)
}

func (a *app) newVersion() *cobra.Command {
	return &cobra.Command{
		Use: "version", Short: "Print the version of qs", Args: wantArgs(0, 0), ValidArgsFunction: cobra.NoFileCompletions,
		Long: "Prints the version of qs, the release of Go that has built it, and its platform.",
		Example: `  qs version
  qs version --json`,
		RunE: func(*cobra.Command, []string) error {
			b := newBuildReport()
			return a.printResult(b, func(out io.Writer) { fmt.Fprintln(out, b) })
		},
	}
}
