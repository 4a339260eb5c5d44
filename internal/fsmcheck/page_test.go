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

Generated from hg/states.go and bulk/states.go by go test ./internal/fsmcheck -update. STATES.md in docs/internals draws them.

A row is an event, a column the state in which it happens, a cell the states that may follow. "=" is the same state. A code: the event
is refused with that error. Empty: the event cannot happen in that state. "†" needs two goroutines in Trigger.
`

// TestPage compares TABLES.md with the tables that the code goes by.
func TestPage(t *testing.T) {
	want := about
	for _, m := range fsmcheck.All() {
		want += fmt.Sprintf("\n## %s\n\n%s", m.Name(), table(m))
	}
	if *update || os.Getenv("QUICKSILVER_UPDATE") != "" {
		require.NoError(t, os.WriteFile("TABLES.md", []byte(want), 0o644))
	}
	got, err := os.ReadFile("TABLES.md")
	require.NoError(t, err)
	require.Equal(t, want, string(got), "go test ./internal/fsmcheck -update writes it anew")
}

// TestDrawings: every state of every machine is in docs/internals/STATES.md.
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

// table is a machine in markdown: a row for each event, a column for each state.
func table(m *fsmcheck.Machine) string {
	rows := map[string]map[string]string{}
	var events []string
	for _, c := range m.Cells() {
		if rows[c.Event] == nil {
			rows[c.Event] = map[string]string{}
			events = append(events, c.Event)
		}
		text := strings.Join(c.To, ", ")
		switch {
		case c.Refused != "":
			text = c.Refused
		case text == c.State:
			text = "="
		}
		if c.Race {
			text += " †"
		}
		rows[c.Event][c.State] = text
	}
	var b strings.Builder
	fmt.Fprintf(&b, "| | %s |\n|---|%s\n", strings.Join(m.States(), " | "), strings.Repeat("---|", len(m.States())))
	for _, e := range events {
		fmt.Fprintf(&b, "| %s |", e)
		for _, s := range m.States() {
			fmt.Fprintf(&b, " %s |", rows[e][s])
		}
		b.WriteString("\n")
	}
	return b.String()
}
