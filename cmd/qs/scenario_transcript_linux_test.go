package main

import (
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/hg"
)

// runOnTerminal runs a command on a terminal and returns its output and its exit code.
func runOnTerminal(t *testing.T, columns uint16, args ...string) (text string, code int) {
	t.Helper()
	screen, terminal := openTerminalColumns(t, columns)
	q := newQS(t, args...)
	q.cmd.Env = append(q.cmd.Env, "TERM=xterm")
	q.cmd.Stdin, q.cmd.Stdout, q.cmd.Stderr = terminal, terminal, terminal
	q.start()
	require.NoError(t, terminal.Close())
	shown, _ := io.ReadAll(screen) // ends with an error once the terminal is closed in all processes
	<-q.ended
	return strings.ReplaceAll(string(shown), "\r\n", "\n"), q.code
}

// transcript has the commands that a user types. % is a program with types, ! one with hostile
// texts.
var transcript = []string{
	"", "help", "help call", "cp -h", "run -help", "pign", "ping tcp://h:1 -cuont 3", "ping", "call here greet", "serve --write",
	"call tcp://127.0.0.1:1 greet", "call tcp://127.0.0.1:1 greet -json", "rpcs %", "call % shop/order null", "call % shop/order null -json",
	"call % shop/orders", "call % shop/count 3", "rpcs !", "call ! answers", "call ! fails", "call ! fails -json", "call ! raw -raw", "ger --peers 10", "__complete p",
	"__complete perf --api ", "help nosuch", "hlep", "ls", "completion tcsh", "bench -d 5 % shop/order", "bench --duration 5s % shop/order", "ping -x %",
	"health %", "health tcp://127.0.0.1:1", "rpcs % shop/two", "rpcs % file/open", "call % Shop/Order", "call % ping", "call %/shop/order x",
	"call % shop/order @nosuch", "call http://h:1 greet", "__complete call --met", "call % greet Ada", "call %",
}

// TestTranscript checks that the output of commands on terminals of 80 and 200 columns and to a
// pipe, with the exit codes, is in testdata/transcript-*.txt. No line is longer than the terminal,
// except those of errors and JSON, and no text of a server reaches the terminal unescaped.
func TestTranscript(t *testing.T) {
	t.Parallel()
	typed, hostile := startTypedTarget(t, true), startHostileTarget(t)
	for _, columns := range []uint16{80, 200, 0} {
		name := fmt.Sprint(columns)
		if columns == 0 {
			name = "piped"
		}
		var all strings.Builder
		for _, line := range transcript {
			if columns == 0 && strings.HasSuffix(line, "-raw") {
				continue // bytes go to a pipe as they are
			}
			args := strings.Fields(strings.NewReplacer("%", typed, "!", hostile).Replace(line))
			if strings.HasSuffix(line, " ") {
				args = append(args, "")
			}
			var text string
			var code int
			if columns == 0 {
				q := newQS(t, args...).start()
				<-q.ended
				text, code = q.out.String(), q.code
				if q.errors.Len() > 0 {
					text += "(standard error)\n" + q.errors.String()
				}
			} else {
				text, code = runOnTerminal(t, columns, args...)
			}
			for out := range strings.Lines(text) {
				for _, r := range out {
					require.True(t, r == '\n' || r == '\t' || r >= ' ' && r != 0x7f, "qs %s: %q", line, out)
				}
				if columns > 0 && code == 0 && !strings.HasPrefix(out, "{") {
					require.LessOrEqual(t, utf8.RuneCountInString(strings.TrimSuffix(out, "\n")), int(columns), "qs %s: %s", line, out)
				}
			}
			text = strings.NewReplacer(typed, "TYPED", hostile, "HOSTILE").Replace(text)
			text = tookText.ReplaceAllString(text, "after TIME")
			fmt.Fprintf(&all, "$ qs %s\n%s[exit code %d]\n\n", line, text, code)
		}
		file := filepath.Join("testdata", "transcript-"+name+".txt")
		if *update {
			require.NoError(t, os.WriteFile(file, []byte(all.String()), 0o666))
		}
		want, err := os.ReadFile(file)
		require.NoError(t, err)
		require.Equal(t, string(want), all.String(), "go test ./cmd/qs -run TestTranscript -update writes %s anew", file)
	}
}

var tookText = regexp.MustCompile(`after [0-9.]+[µnm]?s`)

// TestBytesOnTerminal checks that output that is no text goes to files and pipes, not to a
// terminal.
func TestBytesOnTerminal(t *testing.T) {
	t.Parallel()
	addr := startTarget(t, map[string]hg.Handler{"bytes": func(r hg.Request) error { return r.RespondRaw([]byte("a\x00\xff"), nil) }})
	text, code := runOnTerminal(t, 200, "call", "-raw", addr, "bytes", "x")
	require.Equal(t, "qs call: the output of bytes is 3 bytes of binary data; redirect it to a file or a pipe; the method ran\n", text)
	require.Equal(t, exitFailed, code)
	require.Equal(t, "a\x00\xff", run(t, 0, "call", "-raw", addr, "bytes", "x").out.String())
}

// TestBashCompletes checks that the script of qs completion bash completes commands, flags, values
// and methods in a shell without other completions.
func TestBashCompletes(t *testing.T) {
	t.Parallel()
	bash, err := exec.LookPath("bash")
	if err != nil {
		t.Skip("no bash")
	}
	addr := serve(t, "").addr
	script := filepath.Join(t.TempDir(), "qs.bash")
	writeFile(t, script, run(t, 0, "completion", "bash").out.Bytes())
	for line, want := range map[string]string{
		"qs pi": "ping", "qs ping --cou": "--count", "qs perf --api s": "sync", "qs perf --api=s": "sync", "qs help so": "soak",
		"qs mercury x rea": "read", "qs completion f": "fish", "qs call " + addr + " gre": "greet", "qs  pi|ng -c 3": "ping", "qs mercury x w": "write",
	} {
		before, behind, _ := strings.Cut(line, "|") // the cursor stands there
		// What bash does before it calls the function: it parts words, at : and = too.
		const complete = `source "$1"; qs() { QUICKSILVER_QS_CHILD=1 "$PROGRAM" "$@"; }
			compopt() { :; }
			eval "words=($(sed -E 's/[:=]+/ & /g' <<<"$2"))"
			COMP_WORDS=("${words[@]}"); COMP_CWORD=$((${#words[@]} - 1)); COMP_LINE="$2$3"; COMP_POINT=${#2}; COMP_TYPE=9
			unset words; __start_qs; printf '%s\n' "${COMPREPLY[@]}"`
		q := exec.Command(bash, "--norc", "--noprofile", "-c", complete, "bash", script, before, behind)
		q.Env = append(os.Environ(), "PROGRAM="+executable(t))
		out, err := q.CombinedOutput()
		require.NoError(t, err, "%s", out)
		require.Equal(t, want, strings.TrimSpace(string(out)), line)
	}
	for _, shell := range []string{"zsh", "fish"} {
		text := run(t, 0, "completion", shell).out.Bytes()
		require.Contains(t, string(text), "__complete")
		if path, err := exec.LookPath(shell); err == nil {
			file := filepath.Join(t.TempDir(), "qs."+shell)
			writeFile(t, file, text)
			out, err := exec.Command(path, "-n", file).CombinedOutput()
			require.NoError(t, err, "%s", out)
		}
	}
}
