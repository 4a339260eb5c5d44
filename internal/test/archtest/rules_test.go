package archtest

import (
	"go/ast"
	"go/token"
	"path"
	"regexp"
	"strings"
	"testing"
)

// findComments: a library package describes itself in doc.go, a program in any of its files.
func findComments(t *tree) (found []problem) {
	first, described := map[string]*file{}, map[string]bool{}
	for _, f := range t.files {
		if f.test {
			continue
		}
		if first[f.pkg] == nil {
			first[f.pkg] = f
		}
		text := f.Doc.Text()
		if f.Name.Name == "main" {
			described[f.pkg] = described[f.pkg] || text != ""
		} else if path.Base(f.path) == "doc.go" && strings.HasPrefix(text, "Package "+f.Name.Name+" ") {
			described[f.pkg] = true
		}
	}
	for pkg, f := range first {
		switch {
		case described[pkg]:
		case f.Name.Name == "main":
			found = append(found, t.at(f, f.Package, "the program has no package comment"))
		default:
			found = append(found, t.at(f, f.Package, "package %s has no doc.go that begins with \"Package %[1]s\"", f.Name.Name))
		}
	}
	return found
}

func TestComments(t *testing.T) {
	requireProblems(t, findComments, fakeTree{
		"a/doc.go":      "// Package a is good.\npackage a",
		"a/a.go":        "package a",
		"b/b.go":        "// Package b says it in the wrong file.\npackage b",
		"c/doc.go":      "package c",
		"d/doc.go":      "// Says something else.\npackage d",
		"e/doc.go":      "// Package e is good.\n\n// But this is not the comment.\n\npackage e",
		"f/f_test.go":   "package f",
		"cmd/x/main.go": "// Command x is good.\npackage main",
		"cmd/x/more.go": "package main",
		"cmd/y/main.go": "package main",
		"doc.go":        "// Package m is good.\npackage m",
		"a/a_test.go":   "package a_test",
	},
		`b/b.go:2: package b has no doc.go that begins with "Package b"`,
		`c/doc.go:1: package c has no doc.go that begins with "Package c"`,
		`cmd/y/main.go:1: the program has no package comment`,
		`d/doc.go:2: package d has no doc.go that begins with "Package d"`,
		`e/doc.go:5: package e has no doc.go that begins with "Package e"`,
	)
}

// findSleep: a test that sleeps is slow on a fast machine and fails on a slow one. A receive from
// time.After that is a statement sleeps by another name. How long a fault lasts is the argument of
// a function pause, which has a timer.
func findSleep(t *tree) (found []problem) {
	for _, f := range t.files {
		if !f.test {
			continue
		}
		found = append(found, t.uses(f, "time", "Sleep")...)
		var bound ast.Stmt // of a select: what else it waits for
		ast.Inspect(f.File, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.CommClause:
				bound = n.Comm
			case *ast.ExprStmt:
				if n != bound && isSleep(n.X) {
					found = append(found, t.at(f, n.Pos(), "sleeps by time.After"))
				}
			}
			return true
		})
	}
	return found
}

// isSleep reports whether e is <-time.After(d).
func isSleep(e ast.Expr) bool {
	recv, ok := e.(*ast.UnaryExpr)
	if !ok || recv.Op != token.ARROW {
		return false
	}
	call, ok := recv.X.(*ast.CallExpr)
	if !ok {
		return false
	}
	fun, ok := call.Fun.(*ast.SelectorExpr)
	return ok && fun.Sel.Name == "After"
}

func TestSleep(t *testing.T) {
	requireProblems(t, findSleep, fakeTree{
		"a/a.go":      "package a\nimport \"time\"\nfunc f() { time.Sleep(1) }",
		"a/a_test.go": "package a\nimport \"time\"\nfunc g() {\n\ttime.Sleep(1)\n}",
		"b/b_test.go": "package b\nimport clock \"time\"\nvar wait = clock.Sleep",
		"c/c_test.go": "package c\nimport . \"time\"\nfunc g() { Sleep(1) }",
		"e/e_test.go": "package e\nimport \"time\"\nfunc g() {\n\t<-time.After(1)\n\tselect {\n\tcase <-time.After(1):\n\t}\n}",
		"d/d_test.go": "package d\nimport \"example.org/time\"\nimport t \"time\"\nvar _ = \"time.Sleep\"\nvar x, y = time.Sleep, t.Now",
	},
		"a/a_test.go:4: uses time.Sleep",
		"b/b_test.go:3: uses time.Sleep",
		"c/c_test.go:2: imports time with a dot, which hides its use",
		"e/e_test.go:4: sleeps by time.After",
	)
}

// pure packages are protocol: the same input gives the same output, which is what lets a seed replay.
var pure = []string{"hg/...", "bulk/...", "request/...", "internal/frame/...", "internal/framing/...",
	"rendezvous/protocol/...", "impi", "internal/happyeyeballs", "plugins/udp/internal/arq/..."}

// pureNA are the files of package na that are protocol, by how their names begin: sessions, what
// they carry, and operations under way.
var pureNA = regexp.MustCompile(`^(body|data|endpoint|envelope|list|loopback|mem|message_place|op|room|route|second_transport|session|timer)[._]`)

// isPure: besides these packages, the files of pureNA.
func isPure(f *file) bool {
	return matchesAnyPattern(f.pkg, pure) || f.pkg == "na" && pureNA.MatchString(path.Base(f.path))
}

var clockNames = []string{"Now", "Since", "Until", "After", "AfterFunc", "NewTimer", "NewTicker", "Sleep", "Tick"}

// findImpurity: no goroutine, no clock, no random source of their own.
func findImpurity(t *tree) (found []problem) {
	for _, f := range t.files {
		if f.test || !isPure(f) {
			continue
		}
		found = append(found, t.uses(f, "time", clockNames...)...)
		for _, spec := range f.Imports {
			switch imp := importPath(spec); imp {
			case "math/rand", "math/rand/v2", "crypto/rand":
				found = append(found, t.at(f, spec.Pos(), "imports %s", imp))
			}
		}
		ast.Inspect(f.File, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.GoStmt:
				found = append(found, t.at(f, n.Pos(), "starts a goroutine"))
			case *ast.CallExpr: // sync.WaitGroup and its like
				if sel, ok := n.Fun.(*ast.SelectorExpr); ok && sel.Sel.Name == "Go" {
					found = append(found, t.at(f, n.Pos(), "starts a goroutine by a method Go"))
				}
			}
			return true
		})
	}
	return found
}

func TestImpurity(t *testing.T) {
	body := `package p
import "time"
import "math/rand"
import "math/rand/v2"
import "crypto/rand"
func f(wg *sync.WaitGroup) {
	go f(nil)
	wg.Go(nil)
	_ = time.Now
	time.AfterFunc(time.Second, f)
	_ = time.Until(x)
}
`
	all := func(file string) []string {
		return []string{
			file + ":3: imports math/rand",
			file + ":4: imports math/rand/v2",
			file + ":5: imports crypto/rand",
			file + ":7: starts a goroutine",
			file + ":8: starts a goroutine by a method Go",
			file + ":9: uses time.Now",
			file + ":10: uses time.AfterFunc",
			file + ":11: uses time.Until",
		}
	}
	for _, name := range []string{
		"hg/a.go", "hg/codec/a.go", "bulk/a.go", "request/a.go", "na/session.go", "na/data_sink.go", "internal/frame/a.go",
		"internal/framing/a.go", "rendezvous/protocol/a.go", "impi/a.go",
	} {
		requireProblems(t, findImpurity, fakeTree{name: body}, all(name)...)
	}
	requireProblems(t, findImpurity, fakeTree{
		"na/a.go": body, "plugins/tcp/a.go": body, "hg/a_test.go": body, "hgx/a.go": body, "na/options.go": body, "na/carrier/session.go": body,
		"rendezvous/a.go": body, "impi/channel/a.go": body,
		"hg/ok.go": "package hg\nimport \"time\"\nfunc f(now time.Time) time.Duration { return now.Sub(now) }",
	})
	for _, name := range clockNames {
		requireProblems(t, findImpurity, fakeTree{"hg/a.go": "package hg\nimport \"time\"\nvar _ = time." + name}, "hg/a.go:3: uses time."+name)
	}
}

// findLeaks: the tests of every package end with a look at what they left behind. Those of leak
// call it by its short name.
func findLeaks(t *tree) (found []problem) {
	first, looks := map[string]*file{}, map[string]bool{"internal/test/leak": true}
	for _, f := range t.files {
		if !f.test {
			continue
		}
		if first[f.pkg] == nil {
			first[f.pkg] = f
		}
		for _, decl := range f.Decls {
			fun, ok := decl.(*ast.FuncDecl)
			if ok && fun.Name.Name == "TestMain" && len(t.uses(f, t.module+"/internal/test/leak", "Main")) > 0 {
				looks[f.pkg] = true
			}
		}
	}
	for pkg, f := range first {
		if !looks[pkg] {
			found = append(found, t.at(f, f.Package, "the tests of package %s have no TestMain that calls leak.Main", f.Name.Name))
		}
	}
	return found
}

func TestLeaks(t *testing.T) {
	leak := "import \"example.org/m/internal/test/leak\"\n"
	requireProblems(t, findLeaks, fakeTree{
		"a/a.go":                          "package a",
		"b/a_test.go":                     "package b",
		"b/b_test.go":                     "package b\n" + leak + "func TestMain(m *testing.M) { leak.Main(m) }",
		"c/c_test.go":                     "package c\nfunc TestMain(m *testing.M) { os.Exit(m.Run()) }",
		"d/d_test.go":                     "package d\n" + leak + "func TestX(t *testing.T) { leak.Main(nil) }",
		"e/e_test.go":                     "package e\n" + leak + "func TestMain(m *testing.M) { leak.Check(nil) }",
		"internal/test/leak/leak_test.go": "package leak",
	},
		"c/c_test.go:1: the tests of package c have no TestMain that calls leak.Main",
		"d/d_test.go:1: the tests of package d have no TestMain that calls leak.Main",
		"e/e_test.go:1: the tests of package e have no TestMain that calls leak.Main",
	)
}

// leftover matches the words by which people mark unfinished work. They are put together here so
// that this file has none.
var leftover = regexp.MustCompile(`\b(` + strings.Join([]string{"TO" + "DO", "FIX" + "ME", "X" + "XX", "HA" + "CK"}, "|") + `)\b`)

func findLeftovers(t *tree) (found []problem) {
	for _, f := range t.files {
		for i, line := range strings.Split(f.text, "\n") {
			if word := leftover.FindString(line); word != "" {
				found = append(found, problem{f.path, i + 1, "is marked " + word})
			}
		}
	}
	return found
}

func TestLeftovers(t *testing.T) {
	a, b, c, d := "TO"+"DO", "FIX"+"ME", "X"+"XX", "HA"+"CK"
	requireProblems(t, findLeftovers, fakeTree{
		"a.go":      "package m\n\n// " + a + "(me): finish\nvar x = 1 // " + b,
		"a_test.go": "package m\n/*\n" + c + "\n*/\n// " + d + ": works",
		"b.go":      "package m\nvar mastodonX, " + a + "s = \"" + c + "X\", 1",
	},
		"a.go:3: is marked "+a,
		"a.go:4: is marked "+b,
		"a_test.go:3: is marked "+c,
		"a_test.go:5: is marked "+d,
	)
}

// findUnsafe: memory is touched without the compiler's help only where it must be.
func findUnsafe(t *tree) (found []problem) {
	for _, f := range t.files {
		for _, spec := range f.Imports {
			switch imp := importPath(spec); {
			case imp == "C":
				found = append(found, t.at(f, spec.Pos(), "imports C"))
			case imp == "unsafe" && !mayBeUnsafe(f):
				found = append(found, t.at(f, spec.Pos(), "imports unsafe"))
			}
		}
	}
	return found
}

func mayBeUnsafe(f *file) bool {
	if matchesPattern(f.pkg, "plugins/sm/...") || matchesPattern(f.pkg, "internal/pool/...") {
		return true
	}
	name := strings.TrimSuffix(strings.TrimSuffix(f.path, ".go"), "_test")
	return (matchesPattern(f.pkg, "na/...") || matchesPattern(f.pkg, "plugins/tcp/...") || matchesPattern(f.pkg, "plugins/udp/...")) && strings.HasSuffix(name, "_linux")
}

func TestUnsafe(t *testing.T) {
	body := imports("p", "unsafe")
	requireProblems(t, findUnsafe, fakeTree{
		"plugins/sm/a.go": body, "na/epoll_linux.go": body, "na/epoll_linux_test.go": body, "plugins/tcp/conn_linux.go": body,
		"na/a.go": body, "na/a_test.go": body, "hg/a_linux.go": body, "plugins/udp/a_linux.go": body, "plugins/udp/a.go": body, "plugins/smx/a.go": body,
		"na/c.go": imports("p", "fmt", "C"),
	},
		"hg/a_linux.go:2: imports unsafe",
		"na/a.go:2: imports unsafe",
		"na/a_test.go:2: imports unsafe",
		"na/c.go:3: imports C",
		"plugins/smx/a.go:2: imports unsafe",
		"plugins/udp/a.go:2: imports unsafe",
	)
}
