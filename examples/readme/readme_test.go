package main

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/internal/test/mutant"
)

// The tests of this package hold the README and the pages to what is there.

const root = "../.."

func readme(t *testing.T) string {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(root, "README.md"))
	require.NoError(t, err)
	return string(b)
}

var (
	// A test of a package: `hg.TestCall`, or `hg: TestCall`; a rule of the conformance suite: `na/natest.Envelopes`.
	proofs = regexp.MustCompile("`(?:(\\.|[a-z/]+): (\\w+)|([a-z/]+)\\.((?:Test|Fuzz|Benchmark)\\w+)|(na/natest)\\.(\\w+))(?:/(\\w+))?`")
	names  = regexp.MustCompile("`(na|hg|bulk|request|qs)\\.([A-Z]\\w*)(?:\\.([A-Z]\\w*))?`")
)

type proof struct{ text, dir, name, sub string }

// proofsIn returns the tests that a page names.
func proofsIn(text string) (found []proof) {
	for _, m := range proofs.FindAllStringSubmatch(text, -1) {
		found = append(found, proof{m[0], m[1] + m[3] + m[5], m[2] + m[4] + m[6], m[7]})
	}
	return found
}

// entry finds the entries of a list of things that are shown by tests: "- **F01, F02** text", lines of text behind it included.
var entry = regexp.MustCompile(`(?m)^- \*\*([^*]+)\*\*(.*(?:\n  .*)*)`)

// TestProofs checks that every test, and every rule of the conformance suite, that the pages name
// exists, and each entry names one.
func TestProofs(t *testing.T) {
	for _, file := range []string{"docs/GUARANTEES.md", "docs/internals/REQUIREMENTS.md", "docs/LIMITS.md", "docs/internals/FAULTS.md"} {
		b, err := os.ReadFile(filepath.Join(root, file))
		require.NoError(t, err)
		found := proofsIn(string(b))
		require.Greater(t, len(found), 40)
		for _, p := range found {
			files, want := "*_test.go", "func "+p.name+"("
			if p.dir == "na/natest" && !strings.HasPrefix(p.name, "Test") {
				files, want = "*.go", `name: "`+p.name+`"`
			}
			src := sources(t, p.dir, files)
			assert.True(t, strings.Contains(src, want), "%s, which %s names, is not there", p.text, file)
			if p.sub != "" {
				assert.True(t, strings.Contains(src, `"`+p.sub+`"`), "%s, which %s names, is not there", p.text, file)
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

// TestRequirements checks that every entry names a test, and none of what the older protocols
// require is missing.
func TestRequirements(t *testing.T) {
	b, err := os.ReadFile(filepath.Join(root, "docs/internals/REQUIREMENTS.md"))
	require.NoError(t, err)
	cases := map[int]bool{} // of udp
	for _, m := range entry.FindAllStringSubmatch(string(b), -1) {
		assert.Regexp(t, proofs, m[2], "%s: a requirement without a test", m[1])
		for _, m := range regexp.MustCompile(`U-T(\d+)(?:–U-T(\d+))?`).FindAllStringSubmatch(m[1], -1) {
			from, _ := strconv.Atoi(m[1])
			to, _ := strconv.Atoi(m[2])
			for n := from; n <= max(from, to); n++ {
				cases[n] = true
			}
		}
	}
	for n := 1; n <= 35; n++ {
		assert.True(t, cases[n], "no entry for U-T%d", n)
	}
	text := string(b)
	for _, dir := range []string{"impi", "impi/channel", "plugins/udp/internal/arq"} {
		text += sources(t, dir, "*_test.go") // their names have the numbers
	}
	have := map[string]bool{}
	for _, m := range regexp.MustCompile(`\b([CGLU])(\d+)(?:–[CGLU](\d+))?|func Test(C|U)0?(\d+)`).FindAllStringSubmatch(text, -1) {
		from, _ := strconv.Atoi(m[2] + m[5])
		to, _ := strconv.Atoi(m[3])
		for n := from; n <= max(from, to); n++ {
			have[fmt.Sprint(m[1], m[4], n)] = true
		}
	}
	for letter, last := range map[string]int{"C": 24, "G": 25, "L": 32, "U": 26} {
		for n := 1; n <= last; n++ {
			assert.True(t, have[fmt.Sprint(letter, n)], "no entry for %s%d", letter, n)
		}
	}
}

// everywhere are the packages whose tests run over every transport, the simulator's too.
var everywhere = []string{"hg", "bulk", "na/natest", "internal/test/archtest"}

// TestFaults checks that no fault and no hazard is missing. Each fault names a test with real
// processes and one in the simulator, or gives the reason why there is none. Each hazard has a
// planted bug, and each test that has to notice that is named after it.
func TestFaults(t *testing.T) {
	b, err := os.ReadFile(filepath.Join(root, "docs/internals/FAULTS.md"))
	require.NoError(t, err)
	entries := map[string]string{}
	for _, m := range entry.FindAllStringSubmatch(string(b), -1) {
		assert.Empty(t, entries[m[1]], "%s is there twice", m[1])
		entries[m[1]] = strings.Join(strings.Fields(m[2]), " ")
	}
	for n := 1; n <= 87; n++ {
		text := entries[fmt.Sprintf("F%02d", n)]
		assert.Regexp(t, proofs, text, "F%02d has no test", n)
		if real, simulated, both := strings.Cut(text, "; simulated "); both {
			assert.Regexp(t, proofs, real, "F%02d: no test with real processes", n)
			assert.Regexp(t, proofs, simulated, "F%02d: no test in the simulator", n)
		} else if !strings.HasSuffix(text, " only)") {
			for _, p := range proofsIn(text) {
				assert.Contains(t, everywhere, p.dir, "F%02d: %s does not run over every transport", n, p.text)
			}
		}
	}
	caught := mutantTests()
	hazards := []string{"H3b"}
	for n := 1; n <= 17; n++ {
		hazards = append(hazards, fmt.Sprintf("H%d", n))
	}
	for _, name := range hazards {
		assert.NotEmpty(t, entries[name], "%s has no entry", name)
		planted := 0
		for bug, tests := range caught {
			if !strings.HasPrefix(bug, strings.ToLower(name)+"-") {
				continue
			}
			planted++
			assert.NotEmpty(t, tests, "no test is named for %s", bug)
			for _, test := range tests {
				assert.Regexp(t, ` Test`+name+`([A-Z]|$)`, test, "the test of %s is called after another hazard", bug)
			}
		}
		assert.Positive(t, planted, "%s has no mutant", name)
	}
}

// mutantTests returns the tests that internal/test/mutant names for each mutant, as "package test".
func mutantTests() map[string][]string {
	found := map[string][]string{}
	for _, m := range mutant.All() {
		found[m.Name] = nil
		for _, c := range m.Catchers {
			test, _, _ := strings.Cut(c.Test, "/")
			found[m.Name] = append(found[m.Name], c.Pkg+" "+test)
		}
	}
	return found
}

// TestNames checks that every name of the API that a page for users gives is exported.
func TestNames(t *testing.T) {
	found := 0
	have := map[string]map[string]bool{}
	for page, text := range pages(t) {
		for _, m := range names.FindAllStringSubmatch(text, -1) {
			found++
			pkg, want := m[1], m[2]
			if m[3] != "" {
				want += "." + m[3]
			}
			if have[pkg] == nil {
				have[pkg] = exported(t, pkg)
			}
			assert.True(t, have[pkg][want], "%s names %s, which is not there", page, m[0])
		}
	}
	require.Greater(t, found, 60)
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
