package archtest

import (
	"fmt"
	"go/ast"
	"go/token"
	"io/fs"
	"regexp"
	"slices"
	"strings"
	"testing"
)

const wirePage = "docs/internals/WIRE.md"

// wireVersions are the constants behind the table of versions in WIRE.md, by its first column; says
// are the other places of the page that give the version, %s stands for it.
var wireVersions = map[string]struct {
	file, name string
	says       []string
}{
	"frames": {"internal/frame/release.go", "Version", nil},
	"RPC headers": {"hg/release.go", "wireVersion", []string{
		"**Request**, 24 bytes, then metadata and payload:\n\n|offset|bytes|field|meaning|\n|---:|---:|---|---|\n|0|1|version|%s|",
		"**Response**, 16 bytes, then metadata and payload:\n\n|offset|bytes|field|meaning|\n|---:|---:|---|---|\n|0|1|version|%s, that of the request|",
	}},
	"bulk handles": {"bulk/handle.go", "wireVersion", []string{
		"**Bulk handle**, a binary value in msgpack:\n\n|offset|bytes|field|meaning|\n|---:|---:|---|---|\n|0|1|version|%s|",
	}},
	"udp packets":                       {"plugins/udp/internal/arq/release.go", "Version", nil},
	"udp packets of a handshake of TLS": {"plugins/udp/guard.go", "wireVersion", []string{"|version %s, receiver's id"}},
	"sm memory":                         {"plugins/sm/internal/ring/release.go", "Version", nil},
}

// otherProtocols have versions of their own and are not in WIRE.md: C Mercury's, IMPI's, and that
// of the startup.
var otherProtocols = []string{"mercury/...", "impi/...", "rendezvous/..."}

// versionName matches a constant that is a version; those of release_next.go are of a release that
// tests play.
var versionName = regexp.MustCompile(`^([a-z]+)?[vV]ersion$`)

// constant returns the value of a constant of a file as it is written there.
func (f *file) constant(name string) (value string) {
	for _, decl := range f.Decls {
		group, ok := decl.(*ast.GenDecl)
		if !ok || group.Tok != token.CONST {
			continue
		}
		for _, spec := range group.Specs {
			names := spec.(*ast.ValueSpec)
			for i, n := range names.Names {
				if n.Name == name && i < len(names.Values) {
					if lit, ok := names.Values[i].(*ast.BasicLit); ok {
						value = lit.Value
					}
				}
			}
		}
	}
	return value
}

// findVersions compares the versions and the number of kinds in WIRE.md with the constants, in both
// directions: a constant that is called a version has a row.
func findVersions(t *tree) (found []problem) {
	b, err := fs.ReadFile(t.fsys, wirePage)
	if err != nil {
		return []problem{{wirePage, 0, err.Error()}}
	}
	page := string(b)
	report := func(format string, args ...any) {
		found = append(found, problem{wirePage, 0, fmt.Sprintf(format, args...)})
	}
	_, table, ok := strings.Cut(page, "|version|where|now|\n|---|---|---:|\n")
	if !ok {
		report("the table of versions is gone")
	}
	table, _, _ = strings.Cut(table, "\n\n")
	rows := map[string]string{}
	for row := range strings.Lines(table) {
		if cells := strings.Split(row, "|"); len(cells) == 5 {
			rows[cells[1]] = cells[3]
		}
	}
	for what, c := range wireVersions {
		i := slices.IndexFunc(t.files, func(f *file) bool { return f.path == c.file })
		if i < 0 || t.files[i].constant(c.name) == "" {
			report("%s has no constant %s, from which the version of %s is taken", c.file, c.name, what)
			continue
		}
		value := t.files[i].constant(c.name)
		if rows[what] != value {
			report("the version of %s is %q, in %s it is %s", what, rows[what], c.file, value)
		}
		for _, says := range c.says {
			if text := fmt.Sprintf(says, value); !strings.Contains(page, text) {
				report("the page does not say %q", text)
			}
		}
		delete(rows, what)
	}
	for what := range rows {
		report("the version of %s is not compared with the code", what)
	}
	for _, f := range t.files {
		if f.path == "internal/frame/frame.go" {
			if last := f.constant("maxKind"); !strings.Contains(page, "|kind, flags|1 to "+last+";") {
				report("the last kind is not %s", last)
			}
		}
		if f.test || matchesAnyPattern(f.pkg, otherProtocols) {
			continue
		}
		for _, decl := range f.Decls {
			group, ok := decl.(*ast.GenDecl)
			if !ok || group.Tok != token.CONST {
				continue
			}
			for _, spec := range group.Specs {
				for _, n := range spec.(*ast.ValueSpec).Names {
					if versionName.MatchString(n.Name) && !strings.HasSuffix(f.path, "/release_next.go") && !hasRow(f.path, n.Name) {
						found = append(found, t.at(f, n.Pos(), "%s has no row in the table of versions of WIRE.md", n.Name))
					}
				}
			}
		}
	}
	return found
}

func hasRow(file, name string) bool {
	for _, c := range wireVersions {
		if c.file == file && c.name == name {
			return true
		}
	}
	return false
}

func TestVersions(t *testing.T) {
	page := "|version|where|now|\n|---|---|---:|\n|frames|x|4|\n|RPC headers|x|2|\n|bulk handles|x|3|\n|udp packets|x|1|\n" +
		"|udp packets of a handshake of TLS|x|0x51530001|\n|sm memory|x|3|\n\n|kind, flags|1 to 19;\n"
	for _, c := range wireVersions {
		value := map[string]string{
			"hg/release.go": "2", "bulk/handle.go": "3", "plugins/udp/internal/arq/release.go": "1",
			"plugins/udp/guard.go": "0x51530001", "plugins/sm/internal/ring/release.go": "3",
		}[c.file]
		for _, says := range c.says {
			page += fmt.Sprintf(says, value) + "\n"
		}
	}
	whole := fakeTree{
		wirePage:                              page,
		"internal/frame/release.go":           "package frame\nconst Version = 4",
		"internal/frame/frame.go":             "package frame\nconst (\n\tkind = 1\n\tmaxKind = 19\n)",
		"hg/release.go":                       "package hg\nconst (\n\twireVersion = 2\n)",
		"bulk/handle.go":                      "package bulk\nconst wireVersion = 3",
		"plugins/udp/internal/arq/release.go": "package arq\nconst Version = 1",
		"plugins/udp/guard.go":                "package udp\nconst wireVersion = 0x51530001",
		"plugins/sm/internal/ring/release.go": "package ring\nconst Version = 3",
		"mercury/a.go":                        "package mercury\nconst headerVersion = 9",
	}
	requireProblems(t, findVersions, whole)

	whole["internal/frame/release.go"] = "package frame\nconst Version = 5"
	whole["internal/frame/frame.go"] = "package frame\nconst maxKind = 20"
	whole["hg/release_next.go"] = "package hg\nconst wireVersion = 99"
	whole["plugins/sm/internal/ring/release.go"] = "package ring"
	whole["bulk/handle.go"] = "package bulk\nconst wireVersion = 2"
	whole["qs/lend_pump.go"] = "package qs\n\nconst ringVersion = 1"
	whole[wirePage] = strings.Replace(page, "|frames|x|4|\n", "|frames|x|4|\n|dust|x|7|\n", 1)
	requireProblems(t, findVersions, whole,
		`docs/internals/WIRE.md:0: plugins/sm/internal/ring/release.go has no constant Version, from which the version of sm memory is taken`,
		`docs/internals/WIRE.md:0: the last kind is not 20`,
		`docs/internals/WIRE.md:0: the page does not say "**Bulk handle**, a binary value in msgpack:\n\n|offset|bytes|field|meaning|\n|---:|---:|---|---|\n|0|1|version|2|"`,
		`docs/internals/WIRE.md:0: the version of bulk handles is "3", in bulk/handle.go it is 2`,
		`docs/internals/WIRE.md:0: the version of dust is not compared with the code`,
		`docs/internals/WIRE.md:0: the version of frames is "4", in internal/frame/release.go it is 5`,
		`docs/internals/WIRE.md:0: the version of sm memory is not compared with the code`,
		`qs/lend_pump.go:3: ringVersion has no row in the table of versions of WIRE.md`,
	)

	delete(whole, wirePage)
	if got := findVersions(whole.load(t)); len(got) != 1 {
		t.Errorf("got %v, want one problem: the page is not there", got)
	}
}
