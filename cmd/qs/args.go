package main

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// programArgs is the annotation of a command whose arguments end its flags: they are the command line of another program.
const programArgs = "program arguments"

var negativeNumber = regexp.MustCompile(`^-[0-9.]`)

// normalize rewrites a command line to the form that pflag reads: the command, its flags, "--" and its arguments.
//
//   - A long flag may have one dash, as in -timeout 3s, and a short one two. This is how flags were written before they had short names.
//   - A negative number is an argument, not a flag.
//
// It returns the command, too. An unknown command is a usageError with a suggestion.
func normalize(root *cobra.Command, args []string) ([]string, *cobra.Command, error) {
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
				return nil, root, unknownCommand(root, arg)
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

// normalizeFlag returns a flag with as many dashes as pflag wants, and whether its value is the next argument.
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
	if len(name) > 1 { // unknown: the error is about its whole name
		return "--" + strings.TrimLeft(arg, "-"), false
	}
	return arg, false
}

// canBeValue reports whether text behind the short name of a flag is its value, rather than the rest of a long name.
func canBeValue(f *pflag.Flag, text string) bool {
	return f.Value.Type() == "string" || strings.ContainsAny(text[:1], "0123456789.-=")
}

// findShort returns the flag with a short name that begins name.
func findShort(cmd *cobra.Command, name string) *pflag.Flag {
	if name == "" {
		return nil
	}
	if f := cmd.Flags().ShorthandLookup(name[:1]); f != nil {
		return f
	}
	return cmd.InheritedFlags().ShorthandLookup(name[:1])
}

// unknownCommand is the error for a name that is no command.
func unknownCommand(root *cobra.Command, name string) error {
	return usageError{fmt.Sprintf("there is no command %q%s (qs help lists the commands)", name, suggest(root.SuggestionsFor(name)))}
}

// explainFlagError adds to the error for an unknown flag those with a similar name.
func explainFlagError(cmd *cobra.Command, err error) error {
	if unknown, ok := errors.AsType[*pflag.NotExistError](err); ok && len(unknown.GetSpecifiedName()) > 1 {
		names := &cobra.Command{SuggestionsMinimumDistance: 2} // cobra compares names of commands only
		cmd.Flags().VisitAll(func(f *pflag.Flag) {
			if !f.Hidden {
				names.AddCommand(&cobra.Command{Use: f.Name, Run: func(*cobra.Command, []string) {}})
			}
		})
		found := names.SuggestionsFor(unknown.GetSpecifiedName())
		for i := range found {
			found[i] = "--" + found[i]
		}
		return usageError{fmt.Sprintf("%v%s (%s --help lists the flags)", err, suggest(found), cmd.CommandPath())}
	}
	return usageError{err.Error()}
}

func suggest(names []string) string {
	if len(names) == 0 {
		return ""
	}
	return "; did you mean " + strings.Join(names, " or ") + "?"
}
