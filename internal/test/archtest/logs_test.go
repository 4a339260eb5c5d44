package archtest

import (
	"go/ast"
	"go/token"
	"io/fs"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/stretchr/testify/require"
)

// TestLogMessages checks that the section Logs of docs/OPERATIONS.md lists exactly the messages
// that the library logs.
func TestLogMessages(t *testing.T) {
	t.Parallel()
	tr, err := loadTree(os.DirFS("../../.."))
	require.NoError(t, err)
	got, err := findUnlistedLogs(tr)
	require.NoError(t, err)
	require.Empty(t, got)
}

func TestFindUnlistedLogs(t *testing.T) {
	tr, err := loadTree(fstest.MapFS{
		"go.mod":             {Data: []byte("module m\n")},
		"docs/OPERATIONS.md": {Data: []byte("# Page\n\n## Logs\n\n|message|what to do|\n|---|---|\n|one thing|x|\n|prefix another|x|\n|gone|x|\n\n## Next\n\n|other|y|\n")},
		"hg/hg.go": {Data: []byte("package hg\nfunc f() {\n\tlog.Warn(\"one thing\", \"k\", 1)\n\tlog.Error(prefix+\"another\")\n" +
			"\tlog.Warn(\"missing\")\n\tt.Error(err)\n}\n")},
		"examples/e/e.go": {Data: []byte("package main\nfunc f() { log.Warn(\"not of the library\") }\n")},
	})
	require.NoError(t, err)
	got, err := findUnlistedLogs(tr)
	require.NoError(t, err)
	require.Equal(t, []string{`docs/OPERATIONS.md lists "gone", which is not logged`, `hg/hg.go:5: docs/OPERATIONS.md does not list "missing"`}, got)
}

// findUnlistedLogs compares the log messages in the product's packages with the section Logs of
// docs/OPERATIONS.md and returns the differences, sorted. A message that is assembled from several
// parts is represented by its longest constant part.
func findUnlistedLogs(t *tree) (found []string, err error) {
	page, err := fs.ReadFile(t.fsys, "docs/OPERATIONS.md")
	if err != nil {
		return nil, err
	}
	_, section, _ := strings.Cut(string(page), "\n## Logs\n")
	section, _, _ = strings.Cut(section, "\n## ")
	listed := map[string]bool{} // whether it has been found in the code
	for line := range strings.Lines(section) {
		if cells := strings.Split(line, "|"); len(cells) > 2 && cells[1] != "message" && cells[1] != "---" {
			listed[cells[1]] = false
		}
	}
	for _, f := range t.files {
		if f.test || !matchesAnyPattern(f.pkg, []string{"na/...", "hg/...", "bulk/...", "request/...", "qs/...", "rendezvous/...", "impi/...", "plugins/...", "internal/..."}) ||
			matchesAnyPattern(f.pkg, []string{"na/natest/...", "internal/test/...", "plugins/sim/ledger/..."}) {
			continue
		}
		ast.Inspect(f.File, func(n ast.Node) bool {
			message := loggedMessage(n)
			if message == "" {
				return true
			}
			for m := range listed {
				if strings.Contains(m, message) {
					listed[m] = true
					return true
				}
			}
			found = append(found, t.at(f, n.Pos(), "docs/OPERATIONS.md does not list %q", message).String())
			return true
		})
	}
	for m, ok := range listed {
		if !ok {
			found = append(found, "docs/OPERATIONS.md lists "+strconv.Quote(m)+", which is not logged")
		}
	}
	slices.Sort(found)
	return found, nil
}

// loggedMessage returns the longest constant part of the message if n is a call of a method of a
// slog.Logger, and "" otherwise.
func loggedMessage(n ast.Node) (message string) {
	call, ok := n.(*ast.CallExpr)
	if !ok || len(call.Args) == 0 {
		return ""
	}
	method, ok := call.Fun.(*ast.SelectorExpr)
	if !ok || !slices.Contains([]string{"Debug", "Info", "Warn", "Error"}, method.Sel.Name) {
		return ""
	}
	ast.Inspect(call.Args[0], func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.BinaryExpr, *ast.ParenExpr:
			return true
		case *ast.BasicLit:
			if s, err := strconv.Unquote(n.Value); n.Kind == token.STRING && err == nil && len(s) > len(message) {
				message = s
			}
		}
		return false
	})
	return message
}
