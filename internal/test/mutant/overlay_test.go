package mutant

import (
	"flag"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

const root = "../../.."

var keep = flag.String("mutant.keep", "", "the folder where TestOverlay leaves the overlay, for go test -overlay")

// TestOverlay checks that every anchor occurs once, and the result compiles.
func TestOverlay(t *testing.T) {
	dir := *keep
	if dir == "" {
		dir = t.TempDir()
	}
	require.NoError(t, os.MkdirAll(dir, 0o777))
	overlay, err := Overlay(root, dir)
	require.NoError(t, err)

	pkgs := map[string]bool{}
	for _, m := range append(All(), Mutant{Edits: harnessEdits}) {
		for _, e := range m.Edits {
			pkgs["./"+path.Dir(e.File)] = true
		}
	}
	cmd := exec.Command("go", "build", "-overlay", overlay)
	for pkg := range pkgs {
		cmd.Args = append(cmd.Args, pkg)
	}
	cmd.Dir = root
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", out)
}

// TestTable checks that each mutant has a name of its own, can be turned on and off, and the tests
// that catch it exist.
func TestTable(t *testing.T) {
	tests := testsOf(t)
	names := map[string]bool{}
	for _, m := range All() {
		require.Regexp(t, `^[a-z0-9]+(-[a-z0-9]+)*$`, m.Name)
		require.False(t, names[m.Name], "%s is there twice", m.Name)
		names[m.Name] = true
		require.NotEmpty(t, m.Edits, m.Name)
		for _, e := range m.Edits {
			require.Contains(t, e.With, "planted()", m.Name)
		}
		for _, c := range m.Catchers {
			test, _, _ := strings.Cut(c.Test, "/")
			require.True(t, tests[c.Pkg+" "+test], "%s: there is no test %v", m.Name, c)
			_, err := regexp.Compile(c.Says)
			require.NoError(t, err, m.Name)
		}
	}
}

// TestPatch checks that pieces that overlap, or leave text that is not Go, are an error.
func TestPatch(t *testing.T) {
	const text = "package p\n\nfunc f() int { return 1 }\n"
	b, err := applyEdits(text, []replacement{{33, 34, "3", "b"}, {26, 32, `if planted.Is("a") { return 2 }; return`, "a"}})
	require.NoError(t, err)
	require.Equal(t, `package p

import "github.com/quicksilver-rpc/quicksilver/internal/test/mutant/planted"

func f() int {
	if planted.Is("a") {
		return 2
	}
	return 3
}
`, string(b))
	_, err = applyEdits(text, []replacement{{26, 34, "return 2", "a"}, {33, 34, "3", "b"}})
	require.EqualError(t, err, "a and b change the same lines")
	_, err = applyEdits(text, []replacement{{33, 34, "(", "a"}})
	require.Error(t, err)
}

// testsOf returns every test, as "package name". It reads all of the code: what go test has cached
// is tested anew when any of it has changed.
func testsOf(t *testing.T) map[string]bool {
	t.Helper()
	found := map[string]bool{}
	test := regexp.MustCompile(`(?m)^func (Test\w+)\(`)
	require.NoError(t, fs.WalkDir(os.DirFS(root), ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || path.Ext(name) != ".go" {
			return err
		}
		b, err := os.ReadFile(root + "/" + name)
		for _, m := range test.FindAllSubmatch(b, -1) {
			found[fmt.Sprintf("%s %s", path.Dir(name), m[1])] = true
		}
		return err
	}))
	return found
}
