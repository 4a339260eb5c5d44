package qs_test

import (
	"go/ast"
	"go/doc"
	"go/parser"
	"go/token"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestIndex checks that the list that "go doc" prints of this package fits a screen, and everything
// in it is explained.
func TestIndex(t *testing.T) {
	t.Parallel()
	entries, err := os.ReadDir(".")
	require.NoError(t, err)
	fset := token.NewFileSet()
	var files []*ast.File
	for _, e := range entries {
		if strings.HasSuffix(e.Name(), ".go") && !strings.HasSuffix(e.Name(), "_test.go") {
			f, err := parser.ParseFile(fset, e.Name(), nil, parser.ParseComments)
			require.NoError(t, err)
			files = append(files, f)
		}
	}
	pkg, err := doc.NewFromFiles(fset, files, "github.com/quicksilver-rpc/quicksilver")
	require.NoError(t, err)
	lines := 0
	explained := func(name, text string) {
		lines++
		require.NotEmpty(t, text, "%s is not explained", name)
	}
	for _, v := range append(pkg.Consts, pkg.Vars...) {
		explained(strings.Join(v.Names, " "), v.Doc)
	}
	for _, f := range pkg.Funcs {
		explained(f.Name, f.Doc)
	}
	for _, ty := range pkg.Types {
		lines++ // the doc of those of package hg is on their group
		for _, f := range ty.Funcs {
			explained(f.Name, f.Doc)
		}
		for _, m := range ty.Methods {
			require.NotEmpty(t, m.Doc, "%s.%s is not explained", ty.Name, m.Name)
		}
	}
	require.LessOrEqual(t, lines, 72, "lines of the index of go doc")
	require.Greater(t, lines, 30)
}
