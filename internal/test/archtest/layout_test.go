package archtest

import (
	"io/fs"
	"path"
	"slices"
	"strings"
	"testing"
)

// rootFolders and rootFiles are the listing of the root. A new package belongs in one of the
// folders: a visitor reads this list first.
var (
	rootFolders = []string{
		"bulk", "cmd", "contrib", "docs", "examples", "hg", "impi", "internal", "mercury", "na", "plugins", "qs", "rendezvous", "request", "testdata",
	}
	rootFiles = []string{
		"CHANGELOG.md", "CONTRIBUTING.md", "LICENSE", "README.md", "SECURITY.md", "go.mod", "go.sum", "go.work", "go.work.sum",
	}
)

// findLayout compares the root with the list. Names that begin with a dot configure tools and are
// left out.
func findLayout(t *tree) (found []problem) {
	entries, err := fs.ReadDir(t.fsys, ".")
	if err != nil {
		return []problem{{".", 0, err.Error()}}
	}
	seen := map[string]bool{}
	for _, e := range entries {
		name := e.Name()
		seen[name] = true
		switch {
		case name[0] == '.':
		case strings.HasSuffix(name, ".go"):
			found = append(found, problem{name, 0, "is a Go file in the root: the packages are in folders"})
		case e.IsDir() && !slices.Contains(rootFolders, name):
			found = append(found, problem{name, 0, "is a folder that the list of the root does not have"})
		case !e.IsDir() && !slices.Contains(rootFiles, name):
			found = append(found, problem{name, 0, "is a file that the list of the root does not have"})
		}
	}
	for _, name := range slices.Concat(rootFolders, rootFiles) {
		if !seen[name] {
			found = append(found, problem{name, 0, "is in the list of the root and not there"})
		}
	}
	return found
}

func TestLayout(t *testing.T) {
	whole := fakeTree{".ci/run": "", ".gitignore": ""}
	for _, name := range rootFolders {
		whole[name+"/a/doc.txt"] = ""
	}
	for _, name := range rootFiles {
		if name != "go.mod" {
			whole[name] = ""
		}
	}
	requireProblems(t, findLayout, whole)

	delete(whole, "LICENSE")
	delete(whole, "hg/a/doc.txt")
	whole["node.go"], whole["node_test.go"] = "package m", "package m"
	whole["util/a.go"], whole["NOTES.md"], whole["request"] = "package util", "", ""
	delete(whole, "request/a/doc.txt")
	requireProblems(t, findLayout, whole,
		"LICENSE:0: is in the list of the root and not there",
		"NOTES.md:0: is a file that the list of the root does not have",
		"hg:0: is in the list of the root and not there",
		"node.go:0: is a Go file in the root: the packages are in folders",
		"node_test.go:0: is a Go file in the root: the packages are in folders",
		"request:0: is a file that the list of the root does not have",
		"util:0: is a folder that the list of the root does not have",
	)
}

// importedByTests are the product packages that no other package of the product imports, and why
// each is product all the same. Programs, which nothing can import, need no reason.
var importedByTests = map[string]string{
	"na/natest":                "the conformance suite, which the author of a plugin calls",
	"na/carrier/streamnet":     "makes plugins of users' networks; examples/plugin, a module of its own, has one",
	"qs/qstest":                "helpers for users' tests",
	"plugins/sim":              "the simulator, which users open their nodes in",
	"impi/channel":             "connects IMPI agents in a user's program; its tests are its only caller here",
	"examples/simtest":         "an example to read: a service with its simulated test",
	"mercury/internal/golden":  "recordings that two packages of mercury test against, where internal/test could not see their types",
	"cmd/qs/internal/filetest": "helpers of the tool's tests: the tool is a module of its own, and internal/test imports nothing of it",
}

// testOnly reports whether a folder holds nothing but tests and their helpers, and is no product.
func testOnly(pkg string) bool { return matchesPattern(pkg, "internal/test/...") }

// findUnused: a product package that only tests import belongs under internal/test.
func findUnused(t *tree) (found []problem) {
	first, used := map[string]*file{}, map[string]bool{}
	for _, f := range t.files {
		if f.test || testOnly(f.pkg) {
			continue
		}
		if path.Base(f.path) != "doc.go" && first[f.pkg] == nil {
			first[f.pkg] = f
		}
		for _, spec := range f.Imports {
			used[strings.TrimPrefix(importPath(spec), t.module+"/")] = true
		}
	}
	for pkg, f := range first {
		if used[pkg] && importedByTests[pkg] != "" {
			found = append(found, t.at(f, f.Package, "package %s is imported and has a reason in importedByTests, which it does not need", pkg))
		}
		if f.Name.Name != "main" && !used[pkg] && importedByTests[pkg] == "" {
			found = append(found, t.at(f, f.Package, "nothing but tests imports package %s: it belongs under internal/test, or has a reason in importedByTests", pkg))
		}
	}
	return found
}

func TestUnused(t *testing.T) {
	const m = "example.org/m/"
	requireProblems(t, findUnused, fakeTree{
		"cmd/x/main.go":           imports("main", m+"hg", m+"internal/used"),
		"hg/hg.go":                imports("hg", "fmt"),
		"hg/hg_test.go":           imports("hg", m+"internal/fake", m+"internal/test/leak"),
		"internal/used/a.go":      "package used",
		"internal/fake/doc.go":    "// Package fake is a helper.\npackage fake",
		"internal/fake/a.go":      "package fake",
		"internal/none/a.go":      "package none",
		"internal/test/leak/a.go": imports("leak", m+"internal/none"),
		"impi/channel/a.go":       "package channel",
		"impi/a.go":               imports("impi", m+"impi/channel"),
		"cmd/y/main.go":           imports("main", m+"impi"),
		"only/doc.go":             "package only",
		"only/a_test.go":          "package only",
		"na/natest/a.go":          "package natest",
	},
		"impi/channel/a.go:1: package impi/channel is imported and has a reason in importedByTests, which it does not need",
		"internal/fake/a.go:1: nothing but tests imports package internal/fake: it belongs under internal/test, or has a reason in importedByTests",
		"internal/none/a.go:1: nothing but tests imports package internal/none: it belongs under internal/test, or has a reason in importedByTests",
	)
}

// findHelpers: the packages under internal/test may do what no product may, such as exit the
// process, plant bugs and dial strangers. So they are linked into tests only. Two packages outside
// of internal/test are tests in all but the file name: natest, a suite whose callers are tests, and
// the load of `qs soak`, which checks its calls with the ledger that the random tests check theirs
// with.
func findHelpers(t *tree) (found []problem) {
	for _, f := range t.files {
		if f.test || testOnly(f.pkg) || matchesAnyPattern(f.pkg, []string{"na/natest", "cmd/qs/internal/soak"}) {
			continue
		}
		for _, spec := range f.Imports {
			if local, ours := strings.CutPrefix(importPath(spec), t.module+"/"); ours && testOnly(local) {
				found = append(found, t.at(f, spec.Pos(), "imports %s, which is for tests", local))
			}
		}
	}
	return found
}

func TestHelpers(t *testing.T) {
	const m = "example.org/m/"
	requireProblems(t, findHelpers, fakeTree{
		"hg/a_test.go":              imports("hg", m+"internal/test/leak"),
		"hg/a.go":                   imports("hg", m+"internal/testing", m+"internal/test/long"),
		"internal/test/a/a.go":      imports("a", m+"internal/test/leak"),
		"na/natest/a.go":            imports("natest", m+"internal/test/leak"),
		"cmd/qs/internal/soak/a.go": imports("soak", m+"internal/test/ledger"),
		"cmd/qs/a.go":               imports("main", m+"internal/test/ledger"),
		"examples/x/main.go":        imports("main", m+"internal/test/testcert/x"),
	},
		"cmd/qs/a.go:2: imports internal/test/ledger, which is for tests",
		"examples/x/main.go:2: imports internal/test/testcert/x, which is for tests",
		"hg/a.go:3: imports internal/test/long, which is for tests",
	)
}
