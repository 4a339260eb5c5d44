package archtest

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestSkips checks .ci/skips, without which a run of .ci/run fails late: each of its names is a
// test, and each test that the race detector leaves out (by oneAtATime) is named there.
func TestSkips(t *testing.T) {
	t.Parallel()
	b, err := os.ReadFile(filepath.Join("..", "..", "..", ".ci", "skips"))
	require.NoError(t, err)
	var listed []string
	for line := range strings.Lines(string(b)) {
		if fields := strings.Fields(line); len(fields) > 0 && fields[0] != "#" {
			require.Greater(t, len(fields), 1, "%s has no reason", fields[0])
			listed = append(listed, strings.SplitN(fields[0], "/", 2)[0])
		}
	}
	matches := func(pattern, name string) bool {
		ok, err := path.Match(pattern, name)
		require.NoError(t, err)
		return ok
	}
	used := make(map[string]bool)
	left := 0
	require.NoError(t, filepath.WalkDir(filepath.Join("..", "..", ".."), func(file string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || !strings.HasSuffix(file, "_test.go") {
			return err
		}
		f, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		for _, decl := range f.Decls {
			test, ok := decl.(*ast.FuncDecl)
			if !ok || !strings.HasPrefix(test.Name.Name, "Test") {
				continue
			}
			named := false
			for _, pattern := range listed {
				if matches(pattern, test.Name.Name) {
					used[pattern], named = true, true
				}
			}
			ast.Inspect(test, func(n ast.Node) bool {
				if call, ok := n.(*ast.CallExpr); ok {
					if name, ok := call.Fun.(*ast.Ident); ok && name.Name == "oneAtATime" {
						left++
						require.True(t, named, "%s is left out by the race detector, and .ci/skips does not name it", test.Name.Name)
					}
				}
				return true
			})
		}
		return nil
	}))
	require.Greater(t, left, 10)
	for _, pattern := range listed {
		require.True(t, used[pattern], ".ci/skips names %s, which is no test", pattern)
	}
}
