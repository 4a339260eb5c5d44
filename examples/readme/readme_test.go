package main

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/internal/mutant"
)

// The tests of this package hold the README and the pages to what is there.

const root = "../.."

func readme(t *testing.T) string {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(root, "README.md"))
	require.NoError(t, err)
	return string(b)
}

// TestProgram: the program in the guide is the one that is built and run.
func TestProgram(t *testing.T) {
	guide, err := os.ReadFile(filepath.Join(root, "docs/GUIDE.md"))
	require.NoError(t, err)
	_, rest, ok := strings.Cut(string(guide), "```go\n")
	require.True(t, ok, "the guide shows no program")
	shown, _, _ := strings.Cut(rest, "```")
	built, err := os.ReadFile("main.go")
	require.NoError(t, err)
	require.Equal(t, string(built), shown)
}

var (
	proofs = regexp.MustCompile("`(\\.|[a-z/]+): (\\w+)(?:/(\\w+))?`")
	names  = regexp.MustCompile("`(na|hg|bulk|request)\\.([A-Z]\\w*)(?:\\.([A-Z]\\w*))?`")
	runs   = regexp.MustCompile(`go run \./(\S+[a-z])`)
)

// TestProofs: every test, and every rule of the conformance suite, that the pages name exists.
func TestProofs(t *testing.T) {
	for _, file := range []string{"docs/GUARANTEES.md", "docs/internals/REQUIREMENTS.md", "docs/LIMITS.md", "docs/internals/FAULTS.md"} {
		b, err := os.ReadFile(filepath.Join(root, file))
		require.NoError(t, err)
		found := proofs.FindAllStringSubmatch(string(b), -1)
		require.Greater(t, len(found), 40)
		for _, m := range found {
			dir, name, sub := m[1], m[2], m[3]
			files, want := "*_test.go", "func "+name+"("
			if dir == "na/natest" && !strings.HasPrefix(name, "Test") {
				files, want = "*.go", `name: "`+name+`"`
			}
			src := sources(t, dir, files)
			assert.True(t, strings.Contains(src, want), "%s, which %s names, is not there", m[0], file)
			if sub != "" {
				assert.True(t, strings.Contains(src, `"`+sub+`"`), "%s, which %s names, is not there", m[0], file)
			}
		}
		for table := range strings.SplitSeq(string(b), "\n\n") {
			head, rows, ok := strings.Cut(table, "shown by |\n|")
			if !ok || !strings.HasPrefix(head, "|") {
				continue
			}
			for i, row := range strings.Split(strings.TrimSpace(rows), "\n") {
				if i > 0 { // below the line of dashes
					assert.Regexp(t, proofs, row, "%s: a promise without a test", file)
				}
			}
		}
	}
}

// TestFaults: no row of the faults and no hazard is missing, each names a test with real processes and one in the simulator, or says why there is none, and each test of
// a hazard is one that has to fail with a mutant of its row, as each mutant of the row makes one of them fail.
func TestFaults(t *testing.T) {
	b, err := os.ReadFile(filepath.Join(root, "docs/internals/FAULTS.md"))
	require.NoError(t, err)
	rows := map[string][]string{}
	for line := range strings.Lines(string(b)) {
		cells := strings.Split(strings.Trim(strings.TrimSpace(line), "|"), " | ")
		for i := range cells {
			cells[i] = strings.TrimSpace(cells[i])
		}
		rows[cells[0]] = cells
	}
	for n := 1; n <= 86; n++ {
		row := rows[fmt.Sprintf("F%02d", n)]
		require.NotEmpty(t, row, "F%02d has no row", n)
		if strings.HasSuffix(row[2], "to come") {
			continue
		}
		require.Len(t, row, 5, "F%02d", n)
		assert.Regexp(t, proofs, row[3]+row[4], "F%02d has no test", n)
		for _, cell := range row[3:] { // real processes, and the simulator; or why not
			assert.True(t, proofs.MatchString(cell) || strings.HasSuffix(cell, " only"), "F%02d: %s", n, cell)
		}
	}
	caught := catchers()
	hazards := []string{"H3b"}
	for n := 1; n <= 17; n++ {
		hazards = append(hazards, fmt.Sprintf("H%d", n))
	}
	for _, name := range hazards {
		row := rows[name]
		require.Len(t, row, 4, name)
		var tests, fail []string
		for _, m := range proofs.FindAllStringSubmatch(row[2], -1) {
			assert.True(t, strings.HasPrefix(m[2], "Test"+name), "%s is called after another hazard than %s", m[2], name)
			tests = append(tests, m[1]+" "+m[2])
		}
		for bug := range strings.SplitSeq(row[3], ", ") {
			assert.NotEmpty(t, caught[bug], "no test is named for %s, the mutant of %s", bug, name)
			fail = append(fail, caught[bug]...)
		}
		assert.ElementsMatch(t, tests, fail, "the tests of %s, and those that its mutants make fail", name)
	}
}

// catchers returns the tests that internal/mutant names for each mutant, as "package test".
func catchers() map[string][]string {
	found := map[string][]string{}
	for _, m := range mutant.All() {
		for _, c := range m.Catchers {
			test, _, _ := strings.Cut(c.Test, "/")
			found[m.Name] = append(found[m.Name], c.Pkg+" "+test)
		}
	}
	return found
}

// TestNames: every name of the API that the README and the guide give is exported.
func TestNames(t *testing.T) {
	guide, err := os.ReadFile(filepath.Join(root, "docs/GUIDE.md"))
	require.NoError(t, err)
	found := names.FindAllStringSubmatch(readme(t)+string(guide), -1)
	require.Greater(t, len(found), 20)
	have := map[string]map[string]bool{}
	for _, m := range found {
		pkg, want := m[1], m[2]
		if m[3] != "" {
			want += "." + m[3]
		}
		if have[pkg] == nil {
			have[pkg] = exported(t, pkg)
		}
		assert.True(t, have[pkg][want], "%s, which a page names, is not there", m[0])
	}
}

// TestPlaces: the programs that the README runs are there. Links are a matter of internal/archtest.
func TestPlaces(t *testing.T) {
	for _, m := range runs.FindAllStringSubmatch(readme(t), -1) {
		_, err := os.Stat(filepath.Join(root, m[1]))
		assert.NoError(t, err, m[0])
	}
}

// sources returns the text of the files of a package that match.
func sources(t *testing.T, dir, pattern string) string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(root, dir, pattern))
	require.NoError(t, err)
	var b strings.Builder
	for _, f := range files {
		text, err := os.ReadFile(f)
		require.NoError(t, err)
		b.Write(text)
	}
	return b.String()
}

// exported returns the names that a package declares, methods and fields as "Type.Name".
func exported(t *testing.T, dir string) map[string]bool {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(root, dir, "*.go"))
	require.NoError(t, err)
	found := map[string]bool{}
	for _, f := range files {
		parsed, err := parser.ParseFile(token.NewFileSet(), f, nil, parser.SkipObjectResolution)
		require.NoError(t, err)
		for _, d := range parsed.Decls {
			switch d := d.(type) {
			case *ast.FuncDecl:
				found[receiver(d)+d.Name.Name] = true
			case *ast.GenDecl:
				for _, s := range d.Specs {
					switch s := s.(type) {
					case *ast.ValueSpec:
						for _, n := range s.Names {
							found[n.Name] = true
						}
					case *ast.TypeSpec:
						found[s.Name.Name] = true
						if st, ok := s.Type.(*ast.StructType); ok {
							for _, f := range st.Fields.List {
								for _, n := range f.Names {
									found[s.Name.Name+"."+n.Name] = true
								}
							}
						}
					}
				}
			}
		}
	}
	return found
}

// receiver returns "Type." for a method and nothing for a function.
func receiver(d *ast.FuncDecl) string {
	if d.Recv == nil {
		return ""
	}
	e := d.Recv.List[0].Type
	if star, ok := e.(*ast.StarExpr); ok {
		e = star.X
	}
	if id, ok := e.(*ast.Ident); ok {
		return id.Name + "."
	}
	return ""
}
