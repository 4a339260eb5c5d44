package archtest

import (
	"cmp"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/fstest"
)

// A tree is the Go source of one module.
type tree struct {
	fsys   fs.FS
	module string
	fset   *token.FileSet
	files  []*file
}

type file struct {
	*ast.File
	path string // from the root of the module, with slashes
	pkg  string // its folder; "." is the root
	text string
	test bool
}

// A problem is one place where a rule is broken.
type problem struct {
	path string
	line int
	text string
}

func (p problem) String() string { return fmt.Sprintf("%s:%d: %s", p.path, p.line, p.text) }

// at makes a problem of a place in f.
func (t *tree) at(f *file, pos token.Pos, format string, args ...any) problem {
	return problem{f.path, t.fset.Position(pos).Line, fmt.Sprintf(format, args...)}
}

// loadTree parses every Go file of the module at the root of fsys, and of the tool's, which keeps the
// same rules. It leaves out what the go command does not build either.
func loadTree(fsys fs.FS) (*tree, error) {
	mod, err := fs.ReadFile(fsys, "go.mod")
	if err != nil {
		return nil, err
	}
	line, _, _ := strings.Cut(string(mod), "\n")
	t := &tree{fsys: fsys, module: strings.TrimSpace(strings.TrimPrefix(line, "module ")), fset: token.NewFileSet()}
	err = fs.WalkDir(fsys, ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		base := path.Base(name)
		if name != "." && (base[0] == '.' || base[0] == '_' || d.IsDir() && base == "testdata") {
			if d.IsDir() {
				return fs.SkipDir
			}
			return nil
		}
		if d.IsDir() {
			if _, err := fs.Stat(fsys, path.Join(name, "go.mod")); err == nil && name != "." && name != "cmd/qs" {
				return fs.SkipDir // another module
			}
			return nil
		}
		if !strings.HasSuffix(base, ".go") {
			return nil
		}
		return t.parse(fsys, name)
	})
	return t, err
}

func (t *tree) parse(fsys fs.FS, name string) error {
	src, err := fs.ReadFile(fsys, name)
	if err != nil {
		return err
	}
	parsed, err := parser.ParseFile(t.fset, name, src, parser.ParseComments|parser.SkipObjectResolution)
	if err != nil {
		return err
	}
	t.files = append(t.files, &file{
		File: parsed, path: name, pkg: path.Dir(name), text: string(src), test: strings.HasSuffix(name, "_test.go"),
	})
	return nil
}

// importPath returns what an import names.
func importPath(spec *ast.ImportSpec) string {
	p, _ := strconv.Unquote(spec.Path.Value)
	return p
}

// uses reports each mention in f of one of the names from the standard package pkg.
func (t *tree) uses(f *file, pkg string, names ...string) (found []problem) {
	for _, spec := range f.Imports {
		if importPath(spec) != pkg {
			continue
		}
		local := path.Base(pkg)
		if spec.Name != nil {
			local = spec.Name.Name
		}
		if local == "." {
			found = append(found, t.at(f, spec.Pos(), "imports %s with a dot, which hides its use", pkg))
			continue
		}
		ast.Inspect(f.File, func(n ast.Node) bool {
			sel, ok := n.(*ast.SelectorExpr)
			if !ok {
				return true
			}
			if x, ok := sel.X.(*ast.Ident); ok && x.Name == local && slices.Contains(names, sel.Sel.Name) {
				found = append(found, t.at(f, sel.Pos(), "uses %s.%s", pkg, sel.Sel.Name))
			}
			return true
		})
	}
	return found
}

// matchesPattern reports whether a package path matches a pattern: an exact path, or a path and "/..." for
// it and all below.
func matchesPattern(pkg, pattern string) bool {
	if prefix, ok := strings.CutSuffix(pattern, "/..."); ok {
		return pkg == prefix || strings.HasPrefix(pkg, prefix+"/")
	}
	return pkg == pattern
}

func matchesAnyPattern(pkg string, patterns []string) bool {
	return slices.ContainsFunc(patterns, func(p string) bool { return matchesPattern(pkg, p) })
}

type check struct {
	name string
	find func(*tree) []problem
}

var checks = []check{
	{"imports", findImports},
	{"comments", findComments},
	{"sleep", findSleep},
	{"purity", findImpurity},
	{"leaks", findLeaks},
	{"leftovers", findLeftovers},
	{"unsafe", findUnsafe},
	{"layout", findLayout},
	{"unused", findUnused},
	{"helpers", findHelpers},
	{"versions", findVersions},
	{"twins", findTwins},
}

func sorted(ps []problem) []problem {
	slices.SortFunc(ps, func(a, b problem) int {
		return cmp.Or(cmp.Compare(a.path, b.path), cmp.Compare(a.line, b.line), cmp.Compare(a.text, b.text))
	})
	return ps
}

func TestTree(t *testing.T) {
	tr, err := loadTree(os.DirFS("../../.."))
	if err != nil {
		t.Fatal(err)
	}
	if len(tr.files) < 10 {
		t.Fatalf("got %d files, want the whole tree", len(tr.files))
	}
	for _, c := range checks {
		t.Run(c.name, func(t *testing.T) {
			for _, p := range sorted(c.find(tr)) {
				t.Error(p)
			}
		})
	}
}

// A fakeTree tree maps file names to their text.
type fakeTree map[string]string

func (m fakeTree) load(t *testing.T) *tree {
	t.Helper()
	fsys := fstest.MapFS{"go.mod": {Data: []byte("module example.org/m\n\ngo 1.26\n")}}
	for name, text := range m {
		fsys[name] = &fstest.MapFile{Data: []byte(text)}
	}
	tr, err := loadTree(fsys)
	if err != nil {
		t.Fatal(err)
	}
	return tr
}

// requireProblems runs a check on a made-up tree.
func requireProblems(t *testing.T, find func(*tree) []problem, m fakeTree, want ...string) {
	t.Helper()
	var got []string
	for _, p := range sorted(find(m.load(t))) {
		got = append(got, p.String())
	}
	if !slices.Equal(got, want) {
		t.Errorf("got problems\n\t%s\nwant\n\t%s", strings.Join(got, "\n\t"), strings.Join(want, "\n\t"))
	}
}

func TestLoad(t *testing.T) {
	tr := fakeTree{
		"a.go": "package m", "x/b.go": "package x", "x/b_test.go": "package x", "x/testdata/c.go": "not Go",
		"_x/d.go": "not Go", ".x/e.go": "not Go", "x/_f.go": "not Go", "other/go.mod": "module o", "other/g.go": "not Go",
		"x/notes.txt": "TEXT",
	}.load(t)
	var got []string
	for _, f := range tr.files {
		got = append(got, fmt.Sprint(f.pkg, " ", f.path, " ", f.test))
	}
	want := []string{". a.go false", "x x/b.go false", "x x/b_test.go true"}
	if !slices.Equal(got, want) || tr.module != "example.org/m" {
		t.Errorf("got module %s, files %q, want %q", tr.module, got, want)
	}
	if _, err := loadTree(fstest.MapFS{"go.mod": {}, "a.go": {Data: []byte("package")}}); err == nil {
		t.Error("a file that does not parse went unnoticed")
	}
}
