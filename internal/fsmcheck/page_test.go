package fsmcheck_test

import (
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	_ "github.com/quicksilver-rpc/quicksilver/bulk"
	_ "github.com/quicksilver-rpc/quicksilver/hg"
	"github.com/quicksilver-rpc/quicksilver/internal/fsmcheck"
)

var update = flag.Bool("update", false, "write TABLES.md anew")

const about = `# Tables of the state machines

Generated from the code of hg and bulk by go test ./internal/fsmcheck -update. STATES.md in docs/internals draws them.
`

// TestPage compares TABLES.md with the tables that the code goes by.
func TestPage(t *testing.T) {
	want := about
	for _, m := range fsmcheck.All() {
		want += fmt.Sprintf("\n## %s\n\n%s", m.Name(), machineTable(m))
	}
	if *update || os.Getenv("QUICKSILVER_UPDATE") != "" {
		require.NoError(t, os.WriteFile("TABLES.md", []byte(want), 0o644))
	}
	got, err := os.ReadFile("TABLES.md")
	require.NoError(t, err)
	require.Equal(t, want, string(got), "go test ./internal/fsmcheck -update writes it anew")
}

// TestDrawings checks that every state of every machine is in docs/internals/STATES.md.
func TestDrawings(t *testing.T) {
	text, err := os.ReadFile("../../docs/internals/STATES.md")
	require.NoError(t, err)
	for _, m := range fsmcheck.All() {
		_, section, ok := strings.Cut(string(text), "\n## A "+m.Name()+"\n")
		require.True(t, ok, "no section for a %s", m.Name())
		section, _, _ = strings.Cut(section, "\n## ")
		for _, state := range m.States() {
			require.Regexp(t, `\b`+state+`\b`, section, "the drawing of a %s", m.Name())
		}
	}
}

// machineTable is a machine in markdown: a row for each state.
func machineTable(m *fsmcheck.Machine) string {
	follow := map[string][]string{}
	for _, s := range m.Steps() {
		follow[s.From] = append(follow[s.From], s.To)
	}
	var b strings.Builder
	b.WriteString("| state | may be followed by |\n|---|---|\n")
	for _, s := range m.States() {
		fmt.Fprintf(&b, "| %s | %s |\n", s, strings.Join(follow[s], ", "))
	}
	return b.String()
}
