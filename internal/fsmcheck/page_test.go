package fsmcheck_test

import (
	"flag"
	"fmt"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	_ "github.com/quicksilver-rpc/quicksilver/bulk"
	_ "github.com/quicksilver-rpc/quicksilver/hg"
	"github.com/quicksilver-rpc/quicksilver/internal/fsmcheck"
)

var update = flag.Bool("update", false, "rewrite the tables that docs/internals/STATES.md shows")

const page = "../../docs/internals/STATES.md"

// shown finds a table in the page: <!-- table NAME --> ... <!-- end -->.
var shown = regexp.MustCompile(`(?s)<!-- table ([a-z]+) -->\n(.*?)<!-- end -->`)

// TestPage compares the tables that docs/internals/STATES.md shows with those that the code goes by.
func TestPage(t *testing.T) {
	text, err := os.ReadFile(page)
	require.NoError(t, err)
	write := *update || os.Getenv("QUICKSILVER_UPDATE") != ""
	tables := map[string]string{}
	for _, m := range fsmcheck.All() {
		tables[m.Name()] = table(m)
	}
	fresh := shown.ReplaceAllStringFunc(string(text), func(block string) string {
		m := shown.FindStringSubmatch(block)
		want, ok := tables[m[1]]
		require.True(t, ok, "the page shows %q, which is no machine", m[1])
		delete(tables, m[1])
		if !write {
			require.Equal(t, want, m[2], "the table of %s; write it anew with -update", m[1])
		}
		return fmt.Sprintf("<!-- table %s -->\n%s<!-- end -->", m[1], want)
	})
	require.Empty(t, tables, "machines that the page does not show")
	if write && fresh != string(text) {
		require.NoError(t, os.WriteFile(page, []byte(fresh), 0o644))
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
