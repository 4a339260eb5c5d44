package main

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// programArgs is the annotation of commands whose flags end at the first argument, because the arguments are another
// program's command line.
const programArgs = "program arguments"

var negativeNumber = regexp.MustCompile(`^-[0-9.]`)

// normalizeArgs rewrites a command line to the form that pflag parses: the command, its flags, "--", and its arguments.
//
//   - A long flag may have one dash, as in -timeout 3s, and a short one two. Earlier versions of qs, which had no short names, accepted this form.
//   - A negative number is an argument, not a flag.
//
// It also returns the command. For an unknown command it returns a usageError with a suggestion.
func normalizeArgs(root *cobra.Command, args []string) ([]string, *cobra.Command, error) {
	if len(args) > 0 && (args[0] == cobra.ShellCompRequestCmd || args[0] == cobra.ShellCompNoDescRequestCmd) {
		return args, root, nil
	}
	cmd := root
	var path, flags, rest []string
	for i := 0; i < len(args); i++ {
		switch arg := args[i]; {
		case arg == "--":
			rest = append(rest, args[i+1:]...)
			i = len(args)
		case arg == "-" || !strings.HasPrefix(arg, "-") || negativeNumber.MatchString(arg):
			if sub := findCommand(cmd, arg); sub != nil && len(rest) == 0 {
				cmd = sub
				path = append(path, arg)
				if cmd.DisableFlagParsing {
					return append(path, args[i+1:]...), cmd, nil
				}
				continue
			}
			if cmd == root {
				return nil, root, newUnknownCommandError(root, arg)
			}
			rest = append(rest, arg)
			if cmd.Annotations[programArgs] != "" {
				rest = append(rest, args[i+1:]...)
				i = len(args)
			}
		default:
			text, takesValue := normalizeFlag(cmd, arg)
			if takesValue && i+1 == len(args) {
				return nil, cmd, usageError{fmt.Sprintf("flag needs an argument: %s; usage: %s", text, cmd.UseLine())}
			}
			if takesValue {
				i++
				text += "=" + args[i]
			}
			flags = append(flags, text)
		}
	}
	out := append(path, flags...)
	if len(rest) > 0 {
		out = append(append(out, "--"), rest...)
	}
	return out, cmd, nil
}

func findCommand(cmd *cobra.Command, name string) *cobra.Command {
	commands := cmd.Commands()
	if i := slices.IndexFunc(commands, func(c *cobra.Command) bool { return c.Name() == name || c.HasAlias(name) }); i >= 0 {
		return commands[i]
	}
	return nil
}

// normalizeFlag returns arg with the number of dashes that pflag requires, and reports whether the next argument is the
// flag's value.
func normalizeFlag(cmd *cobra.Command, arg string) (text string, takesValue bool) {
	name, _, hasValue := strings.Cut(strings.TrimLeft(arg, "-"), "=")
	if f := cmd.Flag(name); f != nil && len(name) > 1 {
		return "--" + strings.TrimLeft(arg, "-"), !hasValue && f.NoOptDefVal == ""
	}
	if f := findShort(cmd, name); f != nil && (len(name) == 1 || !strings.HasPrefix(arg, "--")) {
		if len(name) > 1 && f.NoOptDefVal == "" && canBeValue(f, name[1:]) { // as in -c3
			return arg, false
		}
		if last := findShort(cmd, name[len(name)-1:]); len(name) == 1 || f.NoOptDefVal != "" && last != nil { // as in -jc 3
			return "-" + strings.TrimLeft(arg, "-"), !hasValue && last.NoOptDefVal == ""
		}
	}
	if len(name) > 1 { // unknown flag: report the whole name
		return "--" + strings.TrimLeft(arg, "-"), false
	}
	return arg, false
}

// canBeValue reports whether text, which directly follows the flag's short name, can be its value. Otherwise the text
// is the rest of a long name.
func canBeValue(f *pflag.Flag, text string) bool {
	return f.Value.Type() == "string" || strings.ContainsAny(text[:1], "0123456789.-=")
}

// findShort returns the flag of cmd whose short name is the first letter of name, or nil if there is none.
func findShort(cmd *cobra.Command, name string) *pflag.Flag {
	if name == "" {
		return nil
	}
	if f := cmd.Flags().ShorthandLookup(name[:1]); f != nil {
		return f
	}
	return cmd.InheritedFlags().ShorthandLookup(name[:1])
}

// newUnknownCommandError returns an error for name, which is not a subcommand of c. The error suggests similar names.
func newUnknownCommandError(c *cobra.Command, name string) error {
	var names, found []string
	for _, sub := range c.Commands() {
		if sub.Hidden {
			continue
		}
		names = append(names, sub.Name())
		if slices.Contains(sub.SuggestFor, strings.ToLower(name)) {
			found = append(found, sub.Name())
		}
	}
	if len(found) == 0 {
		found = similarNames(name, names)
	}
	help := "qs help lists the commands"
	if name == "ls" {
		help = "qs rpcs lists methods; qs cp copies files, and no command lists them"
	}
	if c.HasParent() {
		help = c.CommandPath() + " --help lists them"
	}
	return usageError{fmt.Sprintf("unknown command %q%s (%s)", name, suggestionText(found), help)}
}

// otherFlags maps flag names of other tools to the corresponding flag names of qs.
var otherFlags = map[string]string{"duration": "time", "requests": "count", "connect-timeout": "timeout", "deadline": "timeout", "header": "meta", "metadata": "meta"}

// commandHints maps a command with a flag of another tool to a text that describes the equivalent in qs.
var commandHints = map[string]string{
	"call -d": "JSON is the argument behind METHOD, without a flag", "call --data": "JSON is the argument behind METHOD, without a flag",
	"bench -z": "the time of the run is -d", "bench -r": "the rate is -q or --rate, and input that is no JSON is --raw",
	"soak --kill": "faults are --faults kill,stop", "cp -a": "directories, modes and times are always copied", "cp -p": "modes and times are always copied",
	"serve --port": "the address is an argument: qs serve 127.0.0.1:PORT",
	"serve -p":     "the address is an argument: qs serve 127.0.0.1:PORT", "serve --listen": "the address is an argument: qs serve 127.0.0.1:PORT",
}

// explainFlagError adds a suggestion of a known flag to an unknown-flag error.
func explainFlagError(cmd *cobra.Command, err error) error {
	if unknown, ok := errors.AsType[*pflag.NotExistError](err); ok {
		name := unknown.GetSpecifiedName()
		dashes := "--"
		if len(name) == 1 {
			dashes = "-"
		}
		if hint := commandHints[cmd.Name()+" "+dashes+name]; hint != "" {
			return usageError{fmt.Sprintf("%s %s has no flag %s%s: %s", cmd.Root().Name(), cmd.Name(), dashes, name, hint)}
		}
		var names, found []string
		cmd.Flags().VisitAll(func(f *pflag.Flag) {
			if !f.Hidden {
				names = append(names, f.Name)
			}
		})
		if other := otherFlags[name]; other != "" && cmd.Flag(other) != nil {
			found = []string{other}
		} else if len(name) > 1 {
			found = similarNames(name, names)
		}
		for i := range found {
			found[i] = "--" + found[i]
		}
		return usageError{fmt.Sprintf("%v%s (%s --help lists the flags)", err, suggestionText(found), cmd.CommandPath())}
	}
	if invalid, ok := errors.AsType[*pflag.InvalidValueError](err); ok {
		f, value := invalid.GetFlag(), invalid.GetValue()
		_, noNumber := strconv.ParseFloat(value, 64)
		switch kind := f.Value.Type(); {
		case kind == "duration" && noNumber == nil:
			return usageError{fmt.Sprintf("--%s is %s without a unit: write %[2]sms or %[2]ss", f.Name, value)}
		case kind == "duration":
			return usageError{fmt.Sprintf("--%s is %q, want a time such as 200ms or 5s", f.Name, value)}
		case kind == "float64":
			return usageError{fmt.Sprintf("--%s is %q, want a number such as 2000 or 0.5", f.Name, value)}
		case strings.HasPrefix(kind, "int"):
			return usageError{fmt.Sprintf("--%s is %q, want a whole number such as 2000", f.Name, value)}
		}
	}
	return usageError{err.Error()}
}

func suggestionText(names []string) string {
	if len(names) == 0 {
		return ""
	}
	return "; did you mean " + strings.Join(names, " or ") + "?"
}

// mostSimilar is the maximum number of names that similarNames returns.
const mostSimilar = 3

// similarNames returns the names that the user most likely meant by typed. These are the names that have typed as a
// prefix or suffix. If there are none, they are the names with the smallest edit distance.
func similarNames(typed string, names []string) (found []string) {
	lower := strings.ToLower(typed)
	least := max(1, len(typed)/3) // maximum number of wrong letters
	for _, name := range names {
		if n := strings.ToLower(name); strings.HasSuffix(n, "/"+lower) || len(lower) > 1 && strings.HasPrefix(n, lower) {
			found, least = append(found, name), -1
		}
	}
	for _, name := range names {
		n := editDistance(lower, strings.ToLower(name))
		if n < least {
			found, least = nil, n
		}
		if n == least {
			found = append(found, name)
		}
	}
	return found[:min(len(found), mostSimilar)]
}

// editDistance returns the number of insertions, deletions, substitutions and swaps of adjacent letters that turn a
// into b.
func editDistance(a, b string) int {
	var before, last []int
	this := make([]int, len(b)+1)
	for j := range this {
		this[j] = j
	}
	for i := range len(a) {
		before, last, this = last, this, make([]int, len(b)+1)
		this[0] = i + 1
		for j := range len(b) {
			other := 1
			if a[i] == b[j] {
				other = 0
			}
			this[j+1] = min(last[j+1]+1, this[j]+1, last[j]+other)
			if i > 0 && j > 0 && a[i] == b[j-1] && a[i-1] == b[j] {
				this[j+1] = min(this[j+1], before[j-1]+1)
			}
		}
	}
	return this[len(b)]
}
