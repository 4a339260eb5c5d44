package main

import (
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/cobra/doc"
	"github.com/stretchr/testify/require"
)

//go:generate go test -run ^TestManPages$ . -man.dir=man

var manDir = flag.String("man.dir", "", "where TestManPages leaves the manual pages; none by default")

// TestManPages makes a manual page for each command, from its help. A release makes them by "go
// generate ./cmd/qs", in cmd/qs/man; the variable SOURCE_DATE_EPOCH sets their date.
func TestManPages(t *testing.T) {
	dir := *manDir
	if dir == "" {
		dir = t.TempDir()
	}
	require.NoError(t, os.MkdirAll(dir, 0o777))
	root := (&app{}).newRoot()
	root.DisableAutoGenTag = true
	root.Long += "\n\nExit codes:\n" + strings.ReplaceAll("\n"+exitCodes, "\n", "\n\t")
	header := doc.GenManHeader{Section: "1", Source: "Quicksilver", Manual: "Quicksilver"}
	require.NoError(t, doc.GenManTree(root, &header, dir))
	for _, c := range root.Commands() {
		name := filepath.Join(dir, "qs-"+c.Name()+".1")
		if c.Name() == "help" {
			continue // it is in qs.1
		}
		if c.Hidden {
			require.NoFileExists(t, name)
			continue
		}
		b, err := os.ReadFile(name)
		require.NoError(t, err)
		require.Contains(t, string(b), ".SH SYNOPSIS")
		if c.Name() != "completion" {
			require.Contains(t, string(b), ".SH EXAMPLE")
		}
		require.Contains(t, string(b), `\fB-j\fP, \fB--json\fP`)
	}
}
