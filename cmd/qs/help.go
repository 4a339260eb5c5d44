package main

import (
	"fmt"
	"io"
	"os"
	"regexp"
	"slices"
	"strings"

	"github.com/jedib0t/go-pretty/v6/text"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"golang.org/x/term"
)

// connectionFlag is the annotation of the flags that most commands share. The help lists these flags last.
const connectionFlag = "connection"

// maxHelpWidth is the maximum line length of the help, even on a wider terminal.
const maxHelpWidth = 100

// terminalWidth returns the width of the terminal w in columns, and reports whether w is a terminal. If the width is
// unknown, it returns 80.
func terminalWidth(w io.Writer) (width int, ok bool) {
	f, isFile := underlyingFile(w)
	if !isFile || !term.IsTerminal(int(f.Fd())) {
		return 80, false
	}
	if width, _, err := term.GetSize(int(f.Fd())); err == nil && width > 0 {
		return width, true
	}
	return 80, true
}

// underlyingFile returns the file that w writes to, if any.
func underlyingFile(w io.Writer) (*os.File, bool) {
	if o, ok := w.(*output); ok {
		w = o.to
	}
	f, ok := w.(*os.File)
	return f, ok
}

// isTerminal reports whether w is a terminal that supports cursor movement.
func isTerminal(w io.Writer) bool {
	_, ok := terminalWidth(w)
	return ok && os.Getenv("TERM") != "dumb"
}

// printHelp prints a command's help, wrapped to the terminal's width.
func printHelp(c *cobra.Command) {
	w := c.OutOrStdout()
	width, _ := terminalWidth(w)
	width = min(width, maxHelpWidth)
	about := c.Long
	if about == "" {
		about = c.Short
	}
	fmt.Fprintf(w, "%s\n\nUsage:\n", wrapText(about, width))
	if c.Runnable() {
		fmt.Fprintf(w, "  %s\n", c.UseLine())
	}
	if c.HasAvailableSubCommands() {
		fmt.Fprintf(w, "  %s COMMAND\n", c.CommandPath())
	}
	if c.Example != "" {
		fmt.Fprintf(w, "\nExamples:\n%s\n", c.Example)
	}
	printCommands(w, c)
	var own, connection, global pflag.FlagSet
	c.LocalFlags().VisitAll(func(f *pflag.Flag) {
		if f.Annotations[connectionFlag] != nil {
			connection.AddFlag(f)
		} else if c.Root() == c || c.InheritedFlags().Lookup(f.Name) == nil {
			own.AddFlag(f)
		}
	})
	c.InheritedFlags().VisitAll(global.AddFlag)
	for _, section := range []struct {
		title string
		flags *pflag.FlagSet
	}{{"Flags", &own}, {"Flags of all commands", &global}} {
		if usages := section.flags.FlagUsagesWrapped(width); usages != "" {
			fmt.Fprintf(w, "\n%s:\n%s", section.title, usages)
		}
	}
	var names []string
	connection.VisitAll(func(f *pflag.Flag) { names = append(names, "--"+f.Name) })
	if len(names) > 0 {
		fmt.Fprintf(w, "\n%s\n", wrapText("Flags of the connection ("+connectionTopic+"): "+strings.Join(names, ", "), width))
	}
	if !c.HasParent() {
		fmt.Fprintf(w, "\nExit codes:\n%s\n\nqs help COMMAND shows the flags and examples of a command.\n", exitCodes)
	}
}

// A jsonOutput describes a command's JSON output.
type jsonOutput struct {
	command string
	what    string
	defs    []string // names in $defs of docs/qs.schema.json; empty if a method or another program determines the JSON
}

var jsonOutputs = []jsonOutput{
	{"bench", "the result, at the end", []string{"bench"}},
	{"call", "the output of the method, without --json too; a stream: an item on each line", nil},
	{"cp", "what was copied, at the end; to the standard error if DESTINATION is -", []string{"cp"}},
	{"ger", "the memory; with ADDRESS an array, an element for each context", []string{"ger", "ger-address"}},
	{"health", "whether the program is ready", []string{"health"}},
	{"info", "facts by name; null where unknown", []string{"info"}},
	{"mercury", "ping, rate, read and write: the result; serve and gateway: the address; call: an array of the output", []string{"mercury-ping", "mercury-rate", "mercury-serve"}},
	{"perf", "an array of results; with --op one object, or with cores an array", []string{"perf", "perf-table", "perf-mixed", "perf-idle", "perf-cores"}},
	{"ping", "the statistics, at the end", []string{"ping"}},
	{"rendezvous", "the environment, when it listens", []string{"rendezvous"}},
	{"rpcs", "an array of the methods", []string{"rpcs"}},
	{"run", "a line for each line of a process", []string{"run"}},
	{"schema", "an array of the methods", []string{"schema"}},
	{"serve", "the address, when it listens", []string{"serve"}},
	{"soak", "the report, at the end", []string{"soak"}},
	{"top", "a line for each report", []string{"top"}},
	{"version", "the version", []string{"version"}},
	{"error", "of any command, on the standard error: kind, exit_code, message, and of calls code and fate", []string{"error"}},
	{"note", "of any command, on the standard error: what is no error", []string{"note"}},
}

const jsonTopic = "Each value is one line of JSON; names are in snake_case, with the unit at the end. docs/qs.schema.json of Quicksilver is a JSON Schema, with these names in $defs."

// printJSONTopic prints a description of the JSON output of each command.
func printJSONTopic(w io.Writer) {
	width, _ := terminalWidth(w)
	fmt.Fprintf(w, "%s\n\n", wrapText(jsonTopic, min(width, maxHelpWidth)))
	t := newTable("command", "prints", "in the schema")
	for _, o := range jsonOutputs {
		t.addRow(o.command, o.what, strings.Join(o.defs, ", "))
	}
	t.print(w)
}

// connectionTopic is the command that displays the help about connection flags. The help of each command refers to it.
const connectionTopic = "qs help connection"

// printConnection prints the flags that all connecting commands share.
func printConnection(w io.Writer) {
	width, _ := terminalWidth(w)
	width = min(width, maxHelpWidth)
	var n network
	var fs pflag.FlagSet
	n.peerFlags(&fs)
	about := "Flags of the connection: commands that connect to a program, or serve one, have them."
	fmt.Fprintf(w, "%s\n\n%s", wrapText(about, width), fs.FlagUsagesWrapped(width))
}

// unquoteUsages removes the quotes around value names from the usage text of all flags, because shell completion shows
// the text unchanged.
func unquoteUsages(c *cobra.Command) {
	unquote := func(f *pflag.Flag) { _, f.Usage = pflag.UnquoteUsage(f) }
	c.Flags().VisitAll(unquote)
	c.PersistentFlags().VisitAll(unquote)
	for _, sub := range c.Commands() {
		unquoteUsages(sub)
	}
}

// printCommands lists the subcommands of c, grouped by purpose.
func printCommands(w io.Writer, c *cobra.Command) {
	list := func(title, group string) {
		for _, sub := range c.Commands() {
			if sub.GroupID == group && (sub.IsAvailableCommand() || sub.Name() == "help") {
				if title != "" {
					fmt.Fprintf(w, "\n%s\n", title)
				}
				title = ""
				fmt.Fprintf(w, "  %-11s %s\n", sub.Name(), sub.Short)
			}
		}
	}
	for _, g := range c.Groups() {
		list(g.Title, g.ID)
	}
	if len(c.Groups()) == 0 {
		list("Commands:", "")
	}
}

// linePadding matches the trailing spaces that remain after wrapping.
var linePadding = regexp.MustCompile(`(?m) +$`)

// wrapText wraps about at the given width. It does not wrap lines that begin with a space.
func wrapText(about string, width int) string {
	paragraphs := strings.Split(about, "\n\n")
	for i, p := range paragraphs {
		if !strings.HasPrefix(p, " ") {
			paragraphs[i] = linePadding.ReplaceAllString(text.WrapSoft(strings.ReplaceAll(p, "\n", " "), width), "")
		}
	}
	return strings.Join(paragraphs, "\n\n")
}

// newHelp returns the help command.
func newHelp(root *cobra.Command) *cobra.Command {
	return &cobra.Command{
		Use: "help [COMMAND...]", Short: "Show the help of commands", GroupID: groupTool,
		Long:    "Shows the help of commands, or of qs. Two topics are no commands: connection shows the flags of those that connect, and json what each command prints with --json.",
		Example: "  qs help call\n  qs help rpcs call\n  qs help connection\n  qs help json",
		ValidArgsFunction: func(_ *cobra.Command, args []string, _ string) (names []cobra.Completion, _ cobra.ShellCompDirective) {
			for _, c := range root.Commands() {
				if c.IsAvailableCommand() && !slices.Contains(args, c.Name()) {
					names = append(names, cobra.CompletionWithDesc(c.Name(), c.Short))
				}
			}
			return names, cobra.ShellCompDirectiveNoFileComp
		},
		Args: cobra.ArbitraryArgs,
		RunE: func(_ *cobra.Command, args []string) error {
			if slices.Equal(args, []string{"connection"}) {
				printConnection(root.OutOrStdout())
				return nil
			}
			if slices.Equal(args, []string{"json"}) {
				printJSONTopic(root.OutOrStdout())
				return nil
			}
			asked, cmd := []*cobra.Command{}, root
			for _, name := range args {
				sub := findCommand(cmd, name)
				if sub == nil {
					sub = findCommand(root, name)
				} else if cmd != root {
					asked = asked[:len(asked)-1] // as in completion bash
				}
				if sub == nil {
					return newUnknownCommandError(cmd, name)
				}
				asked, cmd = append(asked, sub), sub
			}
			if len(asked) == 0 {
				return root.Help()
			}
			for i, c := range asked {
				if i > 0 {
					fmt.Fprintln(root.OutOrStdout())
				}
				if err := c.Help(); err != nil {
					return err
				}
			}
			return nil
		},
	}
}
