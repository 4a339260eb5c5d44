package mutant

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// The two lists name the same mutants, each has a name that follows from its identifier, and each is planted somewhere.
func TestLists(t *testing.T) {
	constants, planted := map[string]bool{}, map[string]bool{}
	names := map[string]bool{}
	for file, found := range map[string]map[string]bool{"off.go": constants, "on.go": planted} {
		f, err := parser.ParseFile(token.NewFileSet(), file, nil, 0)
		require.NoError(t, err)
		ast.Inspect(f, func(n ast.Node) bool {
			spec, ok := n.(*ast.ValueSpec)
			if !ok || len(spec.Values) == 0 {
				return true
			}
			id := spec.Names[0].Name
			switch v := spec.Values[0].(type) {
			case *ast.Ident:
				found[id] = v.Name == "false"
			case *ast.CallExpr:
				found[id] = true
				name, _ := strconv.Unquote(v.Args[0].(*ast.BasicLit).Value)
				require.Equal(t, strings.ToLower(id), strings.ReplaceAll(name, "-", ""), "name of %s", id)
				require.False(t, names[name], "%s is there twice", name)
				names[name] = true
			}
			return true
		})
	}
	for _, id := range []string{"Planted", "Blind"} {
		delete(constants, id)
		delete(planted, id)
	}
	require.Equal(t, constants, planted)
	require.Len(t, names, len(planted))

	used := map[string]int{}
	root := os.DirFS("../..")
	require.NoError(t, fs.WalkDir(root, ".", func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && path == "internal/mutant", d.IsDir() && path != "." && strings.HasPrefix(d.Name(), "."):
			return fs.SkipDir
		case filepath.Ext(path) != ".go" || strings.HasSuffix(path, "_test.go"):
			return nil
		}
		text, err := fs.ReadFile(root, path)
		for id := range planted {
			for rest := string(text); ; used[id]++ {
				_, after, ok := strings.Cut(rest, "mutant."+id)
				if !ok {
					break
				}
				rest = after
			}
		}
		return err
	}))
	for id := range planted {
		require.Positive(t, used[id], "%s is planted nowhere", id)
		require.LessOrEqual(t, used[id], 2, "%s is planted all over the place", id)
	}
}
