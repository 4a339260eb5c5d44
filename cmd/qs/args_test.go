package main

import (
	"strings"
	"testing"

	"github.com/spf13/pflag"
	"github.com/stretchr/testify/require"
)

// TestNormalize checks that a command line in any order, with one dash or two before long flags, is
// the same to pflag.
func TestNormalize(t *testing.T) {
	for line, want := range map[string]string{
		"ping tcp://h:1 -timeout 3s":     "ping --timeout=3s -- tcp://h:1",
		"ping --timeout 3s tcp://h:1":    "ping --timeout=3s -- tcp://h:1",
		"ping -timeout=3s tcp://h:1":     "ping --timeout=3s -- tcp://h:1",
		"ping -t 3s tcp://h:1 -json":     "ping -t=3s --json -- tcp://h:1",
		"-json ping tcp://h:1":           "ping --json -- tcp://h:1",
		"ping -json=false -c3 tcp://h:1": "ping --json=false -c3 -- tcp://h:1",
		"ping -jc 3 tcp://h:1":           "ping -jc=3 -- tcp://h:1",
		// no short flags: an unknown one
		"ping -tcount 3":                                   "ping --tcount -- 3",
		"ping -help":                                       "ping --help",
		"-version":                                         "--version",
		"top -n 1 tcp://h:1":                               "top -n=1 -- tcp://h:1",
		"top --n 1 tcp://h:1":                              "top -n=1 -- tcp://h:1",
		"soak -v -faults none":                             "soak -v --faults=none",
		"call tcp://h:1 m -5 -timeout 1s":                  "call --timeout=1s -- tcp://h:1 m -5",
		"call tcp://h:1 m -":                               "call -- tcp://h:1 m -",
		"call -meta -t=1 tcp://h:1 m":                      "call --meta=-t=1 -- tcp://h:1 m",
		"call -- tcp://h:1 m -raw":                         "call -- tcp://h:1 m -raw",
		"run -n 2 -keep -- prog -n 3":                      "run -n=2 --keep -- prog -n 3",
		"run -n 2 prog -keep -- x":                         "run -n=2 -- prog -keep -- x",
		"run -json -grace 1s run -json":                    "run --json --grace=1s -- run -json",
		"help ping":                                        "help -- ping",
		"completion bash -no-descriptions":                 "completion bash --no-descriptions",
		"floor 64 -50us":                                   "floor 64 -50us",
		"__complete ping -timeout 1":                       "__complete ping -timeout 1",
		"mercury -in i32 -out string ofi+tcp://h call x 1": "mercury --in=i32 --out=string -- ofi+tcp://h call x 1",
	} {
		got, _, err := normalizeArgs((&app{}).newRoot(), strings.Fields(line))
		require.NoError(t, err, line)
		require.Equal(t, want, strings.Join(got, " "), line)
	}
}

// TestOldFlags checks that every flag of every command may have one dash.
func TestOldFlags(t *testing.T) {
	root := (&app{}).newRoot()
	for _, c := range root.Commands() {
		c.Flags().VisitAll(func(f *pflag.Flag) {
			args := []string{c.Name(), "-" + f.Name}
			want := []string{c.Name(), "--" + f.Name}
			if f.NoOptDefVal == "" {
				args, want = append(args, "x"), []string{c.Name(), "--" + f.Name + "=x"}
			}
			got, _, err := normalizeArgs(root, args)
			require.NoError(t, err)
			if !c.DisableFlagParsing {
				require.Equal(t, want, got)
			}
		})
	}
}
