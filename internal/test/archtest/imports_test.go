package archtest

import (
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// An importRule says which packages of this module the non-test files of a package may import,
// besides those in its own folder and below.
type importRule struct {
	pkg string   // a pattern as for under
	own string   // the folder that counts as its own, if that is not pkg
	may []string // patterns
	std bool     // and nothing but the standard library from elsewhere

	tests bool // the rule is for test files, too
}

// importRules: the first that matches counts. A package without a rule is a problem, so that a new
// folder gets one.
var importRules = []importRule{
	{pkg: "na/natest/...", may: []string{"na", "na/carrier", "internal/...", "internal/test/leak"}},
	{pkg: "na/codes", std: true},
	{pkg: "na/carrier/streamnet", may: []string{"na/carrier", "na/codes", "internal/netconn"}, std: true},
	{pkg: "na/carrier/...", may: []string{"na/codes", "internal/frame", "internal/pool"}, std: true},
	{pkg: "na/...", may: []string{"na/carrier", "na/codes", "internal/..."}},
	{pkg: "hg/...", may: []string{"na", "na/codes", "internal/..."}},
	{pkg: "bulk/...", may: []string{"hg/...", "na", "internal/..."}},
	{pkg: "qs/qstest", may: []string{"qs", "internal/schema"}},
	{pkg: "qs/httpgate", may: []string{"qs", "hg", "hg/codec", "na", "internal/typed"}},
	{pkg: "qs/debug", may: []string{"qs", "hg", "hg/inspect", "internal/hghook"}},
	{pkg: "request/...", may: []string{"internal/loop"}, std: true},

	{pkg: "rendezvous/protocol/...", std: true},
	{pkg: "rendezvous/...", may: []string{"request"}, std: true},
	{pkg: "impi/...", may: []string{"rendezvous/..."}, std: true},

	{pkg: "mercury/internal/...", own: "mercury/internal/*", may: []string{"mercury/internal/..."}, std: true},
	{pkg: "mercury/gateway", may: []string{"qs", "hg", "hg/codec", "mercury", "mercury/proc"}},
	{pkg: "mercury/...", may: []string{"na/codes"}, std: true},

	{pkg: "plugins/all", may: []string{"plugins/..."}},
	{pkg: "plugins/internal/...", may: []string{"na/carrier", "na/codes", "internal/..."}},
	{pkg: "plugins/udp/internal/arq/...", may: []string{"internal/timeheap"}, std: true},
	{pkg: "plugins/...", own: "plugins/*", may: []string{"na/carrier", "na/codes", "plugins/internal/...", "internal/..."}},

	{pkg: "internal/test/leak", may: []string{"internal/fsmcheck"}, std: true},
	{pkg: "internal/test/mutant/planted", may: []string{"internal/test/mutant"}, std: true},
	{pkg: "internal/test/mutant", std: true},
	{pkg: "internal/frame", may: []string{"na/codes", "internal/slab", "internal/heldby"}, std: true},
	{pkg: "internal/heldby", std: true},
	{pkg: "internal/errtext", std: true},
	{pkg: "internal/executor", may: []string{"internal/loop"}, std: true},
	{pkg: "internal/framing", may: []string{"na/carrier", "na/codes", "internal/..."}, std: true},
	{pkg: "internal/fsmcheck", std: true},
	{pkg: "internal/test/archtest", std: true},
	{pkg: "internal/test/pathcost/calls", may: []string{"qs", "hg", "na", "plugins/all"}, std: true},
	{pkg: "internal/test/pathcost", std: true},
	{pkg: "internal/netroute", std: true},
	{pkg: "internal/happyeyeballs", std: true},
	{pkg: "internal/pieces", std: true},
	{pkg: "internal/test/testcert", std: true},
	{pkg: "internal/timeheap", std: true},
	{pkg: "internal/loop", may: []string{"internal/timeheap"}, std: true},
	{pkg: "internal/hghook", may: []string{"hg/inspect", "internal/loop", "na"}, std: true},
	{pkg: "internal/test/transports/...", may: []string{
		"na/...", "hg/...", "plugins/...", "internal/...", "na/natest", "internal/test/leak", "internal/test/testcert",
	}},
	{pkg: "internal/test/ledger", may: []string{"qs", "hg"}},
	{pkg: "internal/test/upgrade/...", may: []string{"qs", "hg", "na", "na/carrier", "plugins/...", "internal/..."}},
	{pkg: "internal/typed", may: []string{"qs", "internal/schema"}},
	{pkg: "internal/netconn", may: []string{"na/carrier", "na/codes", "internal/..."}, std: true},
	{pkg: "internal/...", own: "internal/*", may: []string{"internal/..."}},

	{pkg: "examples/na", may: []string{"na", "plugins/all", "internal/test/leak"}, tests: true},
	{pkg: "examples/...", may: []string{
		"qs/...", "qs/qstest", "hg/...", "bulk/...", "request/...", "rendezvous/...", "plugins/...", "mercury/...", "internal/test/leak", "internal/test/long", "internal/test/mutant", "internal/test/testcert",
	}, tests: true},
	{pkg: "qs", may: []string{"hg/...", "bulk", "na", "plugins/all", "plugins/tcp", "plugins/udp", "internal/errtext", "internal/executor", "internal/happyeyeballs", "internal/hghook", "internal/loglimit", "internal/pieces", "internal/schema"}},
	{pkg: "cmd/...", may: everything},
}

var everything = []string{"*"}

// testHelpers are for tests, and most bring package testing into what imports them. Only a rule
// that names one exactly allows it.
var testHelpers = []string{"na/natest", "qs/qstest", "internal/test/leak", "internal/test/transports", "internal/test/testcert", "internal/test/mutant/...", "internal/test/archtest"}

func findImports(t *tree) (found []problem) {
	seen := map[string]bool{}
	for _, f := range t.files {
		rule := ruleFor(f.pkg)
		if f.test && (rule == nil || !rule.tests) {
			continue
		}
		if rule == nil {
			if !seen[f.pkg] {
				found = append(found, t.at(f, f.Package, "package %s has no import rule", f.pkg))
			}
			seen[f.pkg] = true
			continue
		}
		for _, spec := range f.Imports {
			imp := importPath(spec)
			if !rule.allows(t.module, f.pkg, imp) {
				found = append(found, t.at(f, spec.Pos(), "imports %s, but %s", imp, rule))
			}
		}
	}
	return found
}

func ruleFor(pkg string) *importRule {
	for i := range importRules {
		if matchesPattern(pkg, importRules[i].pkg) {
			return &importRules[i]
		}
	}
	return nil
}

func (r *importRule) allows(module, pkg, imp string) bool {
	if imp == module {
		imp = module + "/."
	}
	local, ours := strings.CutPrefix(imp, module+"/")
	if !ours {
		host, _, _ := strings.Cut(imp, "/")
		return !r.std || !strings.Contains(host, ".")
	}
	for _, may := range r.may {
		if may == "*" || may == local {
			return true
		}
	}
	if matchesAnyPattern(local, testHelpers) {
		return false
	}
	return matchesPattern(local, r.ownFolder(pkg)) || matchesAnyPattern(local, r.may)
}

// ownFolder returns the pattern of the packages that pkg may always import.
func (r *importRule) ownFolder(pkg string) string {
	if r.own == "" {
		return strings.TrimSuffix(r.pkg, "/...") + "/..."
	}
	parts := strings.Split(pkg, "/") // own is folder/*
	return strings.Join(parts[:min(2, len(parts))], "/") + "/..."
}

func (r *importRule) String() string {
	what := "nothing of this module"
	if len(r.may) > 0 {
		what = strings.Join(r.may, ", ")
	}
	switch {
	case r.std && len(r.may) > 0:
		what += " and the standard library only"
	case r.std:
		what = "the standard library only"
	}
	return fmt.Sprintf("%s may import %s", r.pkg, what)
}

func imports(pkg string, paths ...string) string {
	var b strings.Builder
	fmt.Fprintf(&b, "package %s\n", pkg)
	for _, p := range paths {
		fmt.Fprintf(&b, "import _ %q\n", p)
	}
	return b.String()
}

const examplesMay = "examples/... may import qs/..., qs/qstest, hg/..., bulk/..., request/..., rendezvous/..., plugins/..., mercury/..., internal/test/leak, internal/test/long, internal/test/mutant, internal/test/testcert"

func TestImportsPointDown(t *testing.T) {
	const m = "example.org/m/"
	requireProblems(t, findImports, fakeTree{
		"na/a.go":                       imports("na", "fmt", "golang.org/x/sys/unix", m+"internal/cq"),
		"na/a_test.go":                  imports("na", m+"plugins/sim", m+"internal/test/leak"),
		"na/natest/a.go":                imports("natest", "testing", m+"na", m+"internal/test/leak"),
		"hg/a.go":                       imports("hg", m+"na", m+"hg/codec", m+"internal/cq"),
		"hg/codec/a.go":                 imports("codec", "github.com/vmihailenco/msgpack/v5"),
		"bulk/a.go":                     imports("bulk", m+"hg", m+"hg/codec", m+"na"),
		"request/a.go":                  imports("request", "context", "testing/synctest"),
		"request/a_test.go":             imports("request", "github.com/stretchr/testify/require"),
		"plugins/all/a.go":              imports("all", m+"plugins/tcp", m+"plugins/sim"),
		"na/carrier/a.go":               imports("carrier", m+"na/codes", m+"internal/frame"),
		"na/session.go":                 imports("na", m+"na/carrier", m+"na/codes", m+"internal/frame"),
		"internal/frame/a.go":           imports("frame", m+"na/codes"),
		"internal/framing/a.go":         imports("framing", m+"na/carrier", m+"internal/frame"),
		"plugins/internal/inet/a.go":    imports("inet", m+"na/carrier", m+"internal/cq"),
		"plugins/tcp/a.go":              imports("tcp", m+"na/carrier", m+"na/codes", m+"plugins/internal/inet", m+"plugins/tcp/internal/x"),
		"plugins/tcp/a_test.go":         imports("tcp", m+"na"),
		"internal/test/leak/a.go":       imports("leak", "testing"),
		"internal/test/transports/a.go": imports("transports", m+"na", m+"hg", m+"plugins/all", m+"internal/test/leak", m+"na/natest"),
		"internal/cq/a.go":              imports("cq", "sync"),
		"rendezvous/protocol/a.go":      imports("protocol", "crypto/hmac"),
		"rendezvous/a.go":               imports("rendezvous", "net", m+"rendezvous/protocol", m+"request"),
		"impi/a.go":                     imports("impi", m+"rendezvous", m+"rendezvous/protocol"),
		"examples/hello/a.go":           imports("main", m+"hg", m+"bulk", m+"plugins/all"),
		"examples/na/a.go":              imports("main", m+"na", m+"plugins/all"),
	})

	for _, c := range []struct{ file, imp, rule string }{
		{"na/a.go", "hg", "na/... may import na/carrier, na/codes, internal/..."},
		{"na/a.go", "na/natest", "na/... may import na/carrier, na/codes, internal/..."},
		{"na/a.go", "internal/test/leak", "na/... may import na/carrier, na/codes, internal/..."},
		{"na/a.go", "internal/test/mutant/planted", "na/... may import na/carrier, na/codes, internal/..."},
		{"na/natest/a.go", "hg", "na/natest/... may import na, na/carrier, internal/..., internal/test/leak"},
		{"hg/a.go", "bulk", "hg/... may import na, na/codes, internal/..."},
		{"hg/a.go", "plugins/tcp", "hg/... may import na, na/codes, internal/..."},
		{"hg/codec/a.go", "request", "hg/... may import na, na/codes, internal/..."},
		{"bulk/a.go", "request", "bulk/... may import hg/..., na, internal/..."},
		{"bulk/a.go", "plugins/all", "bulk/... may import hg/..., na, internal/..."},
		{"request/a.go", "internal/cq", "request/... may import internal/loop and the standard library only"},
		{"plugins/all/a.go", "hg", "plugins/all may import plugins/..."},
		{"na/carrier/a.go", "na", "na/carrier/... may import na/codes, internal/frame, internal/pool and the standard library only"},
		{"na/carrier/a.go", "internal/simhook", "na/carrier/... may import na/codes, internal/frame, internal/pool and the standard library only"},
		{"internal/frame/a.go", "na/carrier", "internal/frame may import na/codes, internal/slab, internal/heldby and the standard library only"},
		{"internal/framing/a.go", "na", "internal/framing may import na/carrier, na/codes, internal/... and the standard library only"},
		{"plugins/internal/inet/a.go", "na", "plugins/internal/... may import na/carrier, na/codes, internal/..."},
		{"plugins/internal/inet/a.go", "plugins/tcp", "plugins/internal/... may import na/carrier, na/codes, internal/..."},
		{"plugins/tcp/a.go", "na", "plugins/... may import na/carrier, na/codes, plugins/internal/..., internal/..."},
		{"plugins/tcp/a.go", "plugins/sim", "plugins/... may import na/carrier, na/codes, plugins/internal/..., internal/..."},
		{"plugins/tcp/a.go", "plugins/tcpx", "plugins/... may import na/carrier, na/codes, plugins/internal/..., internal/..."},
		{"plugins/tcp/internal/x/a.go", "hg", "plugins/... may import na/carrier, na/codes, plugins/internal/..., internal/..."},
		{"plugins/tcp/a.go", "plugins/all", "plugins/... may import na/carrier, na/codes, plugins/internal/..., internal/..."},
		{"internal/test/leak/a.go", "internal/cq", "internal/test/leak may import internal/fsmcheck and the standard library only"},
		{"rendezvous/protocol/a.go", "request", "rendezvous/protocol/... may import the standard library only"},
		{"rendezvous/a.go", "hg", "rendezvous/... may import request and the standard library only"},
		{"impi/a.go", "na", "impi/... may import rendezvous/... and the standard library only"},
		{"internal/test/archtest/a.go", "na", "internal/test/archtest may import the standard library only"},
		{"internal/test/transports/a.go", "bulk",
			"internal/test/transports/... may import na/..., hg/..., plugins/..., internal/..., na/natest, internal/test/leak, internal/test/testcert"},
		{"internal/cq/a.go", "na", "internal/... may import internal/..."},
		{"examples/hello/a.go", "na", examplesMay},
		{"examples/hello/a_test.go", "na", examplesMay},
		{"examples/na/a.go", "hg", "examples/na may import na, plugins/all, internal/test/leak"},
	} {
		t.Run(c.file+" "+c.imp, func(t *testing.T) {
			want := fmt.Sprintf("%s:2: imports %s%s, but %s", c.file, m, c.imp, c.rule)
			requireProblems(t, findImports, fakeTree{c.file: imports("p", m+c.imp)}, want)
		})
	}

	requireProblems(t, findImports, fakeTree{
		"request/a.go":  imports("request", "fmt", "github.com/stretchr/testify/require"),
		"hg/b.go":       imports("hg", "example.org/m"),
		"new/folder.go": imports("folder"),
		"new/other.go":  imports("folder"),
	},
		"hg/b.go:2: imports example.org/m, but hg/... may import na, na/codes, internal/...",
		"new/folder.go:1: package new has no import rule",
		"request/a.go:3: imports github.com/stretchr/testify/require, but request/... may import internal/loop and the standard library only",
	)
}

// namesOfNA finds what a Go block of a page takes from package na.
var namesOfNA = regexp.MustCompile(`\bna\.[A-Z]\w*|quicksilver/na"`)

// findNA returns what the code blocks of a page name of package na. A block without a language is
// Go, too, unless it is a picture.
func findNA(page string) (found []string) {
	for i, block := range strings.Split(page, "```") {
		if i%2 == 1 && !strings.ContainsAny(block, "═─►") {
			found = append(found, namesOfNA.FindAllString(block, -1)...)
		}
	}
	return found
}

func TestReadmeNeedsNoNA(t *testing.T) {
	page, err := os.ReadFile("../../../README.md")
	if err != nil {
		t.Fatal(err)
	}
	if got := findNA(string(page)); len(got) > 0 {
		t.Errorf("the code of README.md names %q: programs import hg", got)
	}
	page = []byte("na.Config\n```go\nx := na.Addr{}\n```\n`na.Op`\n```\nimport \"m/quicksilver/na\"\n```\n```\n ═ na.Endpoint\n```\n")
	if got := findNA(string(page)); !slices.Equal(got, []string{"na.Addr", `quicksilver/na"`}) {
		t.Errorf("found %q", got)
	}
}
