package main

import (
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

var (
	// shellBlock finds a block of commands, and inlineCommand a command in a sentence.
	shellBlock    = regexp.MustCompile("(?s)\n```(?:sh|bash|console)?\n(.*?)\n```")
	inlineCommand = regexp.MustCompile("`(qs [a-z][^`\n]*)`")
)

// TestPages checks that the commands of qs that the pages show have the flags and the numbers of
// arguments that qs takes.
func TestPages(t *testing.T) {
	t.Parallel()
	shown := 0
	for _, pattern := range []string{"*.md", "docs/*.md", "docs/guide/*.md", "examples/*.md", "contrib/*/README.md", "contrib/*/examples/*/README.md"} {
		files, err := filepath.Glob(filepath.Join("../..", filepath.FromSlash(pattern)))
		require.NoError(t, err)
		for _, file := range files {
			if filepath.Base(file) == "CHANGELOG.md" { // of the past
				continue
			}
			text, err := os.ReadFile(file)
			require.NoError(t, err)
			for _, block := range shellBlock.FindAllStringSubmatch(string(text), -1) {
				for line := range strings.Lines(strings.ReplaceAll(block[1], "\\\n", " ")) {
					if line = strings.TrimPrefix(line, "$ "); strings.HasPrefix(line, "qs ") {
						shown++
						assert.NoError(t, parseLine(line, true), "%s shows %s", file, line)
					}
				}
			}
			for _, m := range inlineCommand.FindAllStringSubmatch(string(text), -1) {
				shown++
				assert.NoError(t, parseLine(m[1], false), "%s shows %s", file, m[1])
			}
		}
	}
	require.Greater(t, shown, 60)
}

// parseLine parses a line of a shell that runs qs, without running it. The arguments of a whole one are counted; a sentence may name the
// command only.
func parseLine(line string, whole bool) error {
	words := splitWords(line)[1:]
	a := &app{stdout: io.Discard, stderr: io.Discard}
	normal, cmd, err := normalizeArgs(a.newRoot(), words)
	if err != nil && !whole && strings.Contains(err.Error(), "flag needs an argument") {
		return nil // the flag is there
	}
	if err != nil {
		return err
	}
	_, flags, err := cmd.Root().Find(normal)
	if err != nil || cmd.DisableFlagParsing {
		return err
	}
	if err := cmd.ParseFlags(flags); err != nil {
		return err
	}
	if args := cmd.Flags().Args(); (whole || len(args) > 1) && cmd.Args != nil {
		return cmd.Args(cmd, args)
	}
	return nil
}

// splitWords splits a line as a shell does, as far as pages need it: single quotes, comments, and redirections, with which it ends.
func splitWords(line string) (words []string) {
	word, quoted, open := "", false, false
	for _, r := range line + " " {
		switch {
		case r == '\'':
			quoted, open = !quoted, true
		case quoted:
			word += string(r)
		case r == ' ' || r == '\n':
			if word != "" || open {
				words = append(words, word)
			}
			word, open = "", false
		case word == "" && strings.ContainsRune("#><|&", r):
			return words
		default:
			word += string(r)
		}
	}
	return words
}

// TestWrongPages checks that a command line that qs would refuse fails the test of the pages.
func TestWrongPages(t *testing.T) {
	require.Equal(t, []string{"qs", "call", "A", "greet", `"Ada" b`, ""}, splitWords(`qs call A greet '"Ada" b' '' >out # why`))
	for line, want := range map[string]string{
		"qs pign A":              "pign",
		"qs ping --cuont 1 A":    "cuont",
		"qs ping --count x A":    "count",
		"qs health":              "argument",
		"qs call A greet 1 more": "argument",
	} {
		require.ErrorContains(t, parseLine(line, true), want)
	}
	require.NoError(t, parseLine("qs health", false))
}
