package main

import (
	"io"
	"strings"
	"unicode"

	"github.com/spf13/cobra"
)

const bashAbout = `Prints a script that has bash complete commands, flags, and the methods of a program behind its address. It needs no other package.

For this shell:

  source <(qs completion bash)

For every new one:

  echo 'source <(qs completion bash)' >> ~/.bashrc`

// bashWords replaces a function in cobra's completion script that depends on the bash-completion package. Like that
// package's _init_completion with the arguments -n =: that cobra passes, it sets the caller's variables words, cword,
// cur and prev. The replacement is needed because bash splits words at = and :, and would therefore split program
// addresses.
const bashWords = `
# Where the package bash-completion is loaded, __start_qs calls its _init_completion instead.
__qs_init_completion()
{
    local line=${COMP_LINE:0:COMP_POINT} blanks word i
    COMPREPLY=() words=()
    for ((i = 0; i <= COMP_CWORD; i++)); do
        blanks=${line%%[^ $'\t']*}
        line=${line#"$blanks"}
        word=${COMP_WORDS[i]}
        if ((i == COMP_CWORD)); then
            word=$line # up to the cursor
        fi
        line=${line#"$word"}
        if ((i > 0)) && [[ -z $blanks && ($word == [=:]* || ${COMP_WORDS[i-1]} == *[=:]) ]]; then
            words[${#words[@]}-1]+=$word
        else
            words+=("$word")
        fi
    done
    cword=$((${#words[@]} - 1))
    cur=${words[cword]}
    prev=
    if ((cword > 0)); then
        prev=${words[cword-1]}
    fi
}
`

// adaptCompletion changes cobra's completion command to reject unknown shells and to generate a bash script that
// depends on no other package.
func adaptCompletion(c *cobra.Command) {
	c.RunE = func(c *cobra.Command, args []string) error {
		if len(args) > 0 {
			return newUnknownCommandError(c, args[0])
		}
		return c.Help()
	}
	c.Args = cobra.ArbitraryArgs
	c.Short = "Print a script that completes commands in a shell"
	c.Long = "Prints a script for a shell, which then completes commands, flags, and the methods of a program behind its address.\n\nThe help of each shell, such as qs completion bash --help, says where the script goes."
	c.Example = "  source <(qs completion bash)"
	bash := findCommand(c, "bash")
	bash.Long = bashAbout
	printScript := bash.RunE
	bash.RunE = func(c *cobra.Command, args []string) error {
		if err := printScript(c, args); err != nil {
			return err
		}
		_, err := io.WriteString(c.OutOrStdout(), bashWords)
		return err
	}
}

// isPlainWord reports whether word contains no characters that a shell expands or splits. The bash script inserts the
// common prefix of several completions into the command line unquoted and evaluates the line at the next Tab. A name
// such as $(COMMAND) would therefore be executed.
func isPlainWord(word string) bool {
	if strings.HasPrefix(word, "-") {
		return false // a flag
	}
	for _, r := range word {
		if !unicode.IsLetter(r) && !unicode.IsDigit(r) && !strings.ContainsRune("-_./:@%+,", r) {
			return false
		}
	}
	return true
}
