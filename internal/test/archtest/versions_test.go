package archtest

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// wireVersions are the constants behind the table of versions in WIRE.md, by what its first column says.
var wireVersions = map[string]struct{ file, name string }{
	"frames":                            {"plugins/internal/frame/frame.go", "Version"},
	"RPC headers":                       {"hg/header.go", "wireVersion"},
	"bulk handles":                      {"bulk/handle.go", "wireVersion"},
	"udp packets":                       {"plugins/udp/internal/arq/packet.go", "Version"},
	"udp packets of a handshake of TLS": {"plugins/udp/guard.go", "wireVersion"},
	"sm memory":                         {"plugins/sm/internal/ring/layout.go", "Version"},
}

// constant returns what a file says that a constant is, as it is written there.
func constant(t *testing.T, file, name string) string {
	t.Helper()
	b, err := os.ReadFile(filepath.Join("../../..", file))
	require.NoError(t, err)
	found := regexp.MustCompile(`(?m)^(?:const |\t)`+name+`\s+= (\S+)`).FindAllSubmatch(b, -1)
	require.Len(t, found, 1, "%s in %s", name, file)
	return string(found[0][1])
}

// TestVersions: the versions and the kinds of frames that WIRE.md names are those of the code.
func TestVersions(t *testing.T) {
	b, err := os.ReadFile("../../../docs/internals/WIRE.md")
	require.NoError(t, err)
	page := string(b)
	_, table, ok := strings.Cut(page, "|version|where|now|\n|---|---|---:|\n")
	require.True(t, ok, "the table of versions is gone")
	table, _, _ = strings.Cut(table, "\n\n")
	said := map[string]string{}
	for _, row := range strings.Split(table, "\n") {
		cells := strings.Split(row, "|")
		require.Len(t, cells, 5, row)
		said[cells[1]] = cells[3]
	}
	want := map[string]string{}
	for what, c := range wireVersions {
		want[what] = constant(t, c.file, c.name)
	}
	require.Equal(t, want, said)
	require.Contains(t, page, "|kind, flags|1 to "+constant(t, "plugins/internal/frame/frame.go", "maxKind")+";")
}
