package archtest

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path"
	"regexp"
	"slices"
	"strings"
	"testing"
	"testing/fstest"
	"unicode"
)

var (
	mdCode    = regexp.MustCompile("(?s)```.*?```|`[^`\n]*`")
	mdLink    = regexp.MustCompile(`\]\(([^)\s"]+)\)|\b(?:src|href)="([^"]+)"`)
	mdHeading = regexp.MustCompile(`(?m)^#+ +(.+)$`)
	mdID      = regexp.MustCompile(`\b(?:id|name)="([^"]+)"`)
)

// A page is a Markdown file: the places that it links to, and those in it that a link can name.
type page struct {
	links   []problem // path and line of the link; its target as the text
	anchors []string
}

func readPage(name, text string) *page {
	p := &page{}
	fences := regexp.MustCompile("(?s)```.*?```")
	for _, m := range mdHeading.FindAllStringSubmatch(fences.ReplaceAllString(text, ""), -1) {
		p.anchors = append(p.anchors, anchor(m[1]))
	}
	blank := func(code string) string { return strings.Repeat("\n", strings.Count(code, "\n")) }
	text = mdCode.ReplaceAllStringFunc(text, blank)
	for _, m := range mdID.FindAllStringSubmatch(text, -1) {
		p.anchors = append(p.anchors, m[1])
	}
	for _, m := range mdLink.FindAllStringSubmatchIndex(text, -1) {
		from, to := m[2], m[3]
		if from < 0 {
			from, to = m[4], m[5]
		}
		p.links = append(p.links, problem{name, 1 + strings.Count(text[:from], "\n"), text[from:to]})
	}
	return p
}

// anchor returns the name that a heading has in a link.
func anchor(heading string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case r == ' ':
			return '-'
		case r == '-' || r == '_' || unicode.IsLetter(r) || unicode.IsDigit(r):
			return unicode.ToLower(r)
		}
		return -1
	}, strings.TrimSpace(heading))
}

// findDeadLinks reports the links of the Markdown files that lead to no file of the tree, or to no heading of that file.
func findDeadLinks(fsys fs.FS) (found []problem, links int, err error) {
	pages := map[string]*page{}
	err = fs.WalkDir(fsys, ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && name != "." && (path.Base(name)[0] == '.' || path.Base(name) == "testdata") {
			return fs.SkipDir
		}
		if path.Ext(name) != ".md" {
			return nil
		}
		text, err := fs.ReadFile(fsys, name)
		pages[name] = readPage(name, string(text))
		return err
	})
	for name, p := range pages {
		for _, l := range p.links {
			if strings.Contains(l.text, "://") || strings.HasPrefix(l.text, "mailto:") {
				continue
			}
			links++
			file, at, _ := strings.Cut(l.text, "#")
			to := name
			if file != "" {
				to = path.Join(path.Dir(name), file)
			}
			if _, err := fs.Stat(fsys, to); err != nil {
				found = append(found, problem{name, l.line, "links to " + l.text + ", which is not there"})
			} else if at != "" && pages[to] != nil && !slices.Contains(pages[to].anchors, at) {
				found = append(found, problem{name, l.line, "links to " + l.text + ", but " + to + " has no such heading"})
			}
		}
	}
	return sorted(found), links, err
}

func TestLinks(t *testing.T) {
	found, links, err := findDeadLinks(os.DirFS("../../.."))
	if err != nil {
		t.Fatal(err)
	}
	if links < 50 {
		t.Errorf("got %d links, want those of all pages", links)
	}
	for _, p := range found {
		t.Error(p)
	}
}

func TestDeadLinks(t *testing.T) {
	found, links, err := findDeadLinks(fstest.MapFS{
		"README.md": {Data: []byte("[a](docs/A.md) [b](docs/B.md)\n\n```\n[c](c.md)\n```\n[d](docs/A.md#the-1-way)\n`[e](e.md)` [f](docs/A.md#no)\n" +
			"[g](https://example.org/x) [h](docs) <img src=\"plot.svg\"> [i](#here)")},
		"docs/A.md":        {Data: []byte("# The `1` way?\n<a id=\"x\"></a>[up](../README.md) [x](#x) [y](#y)\n```\n# y\n```\n")},
		"x/testdata/C.md":  {Data: []byte("[z](z.md)")},
		".hidden/HIDE.md":  {Data: []byte("[z](z.md)")},
		"docs/picture.svg": {},
	})
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, p := range found {
		got = append(got, p.String())
	}
	want := []string{
		"README.md:1: links to docs/B.md, which is not there",
		"README.md:7: links to docs/A.md#no, but docs/A.md has no such heading",
		"README.md:8: links to #here, but README.md has no such heading",
		"README.md:8: links to plot.svg, which is not there",
		"docs/A.md:2: links to #y, but docs/A.md has no such heading",
	}
	if !slices.Equal(got, want) || links != 10 {
		t.Errorf("got %d links and problems\n\t%s\nwant\n\t%s", links, strings.Join(got, "\n\t"), strings.Join(want, "\n\t"))
	}
}

// findStaleNames reports the files that Markdown files name in code, such as `deliver.go` or `hg/codec`'s `guard.go`, and that the tree
// does not have.
func findStaleNames(fsys fs.FS) (found []problem, names int, err error) {
	named := regexp.MustCompile("`([\\w./-]+\\.(?:go|txt|html))`")
	have, pages := map[string]bool{}, map[string]string{}
	err = fs.WalkDir(fsys, ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		for end := name; ; {
			have[end] = true
			_, rest, ok := strings.Cut(end, "/")
			if !ok {
				break
			}
			end = rest
		}
		if path.Ext(name) == ".md" {
			text, err := fs.ReadFile(fsys, name)
			pages[name] = string(text)
			return err
		}
		return nil
	})
	for name, text := range pages {
		for _, m := range named.FindAllStringSubmatchIndex(text, -1) {
			names++
			if file := text[m[2]:m[3]]; !have[file] {
				found = append(found, problem{name, 1 + strings.Count(text[:m[2]], "\n"), "names " + file + ", which is not there"})
			}
		}
	}
	return sorted(found), names, err
}

func TestNamedFiles(t *testing.T) {
	found, names, err := findStaleNames(os.DirFS("../../.."))
	if err != nil {
		t.Fatal(err)
	}
	if names < 50 {
		t.Errorf("got %d names of files, want those of all pages", names)
	}
	for _, p := range found {
		t.Error(p)
	}
}

func TestStaleNames(t *testing.T) {
	found, names, err := findStaleNames(fstest.MapFS{
		"docs/A.md": {Data: []byte("`a.go` and `hg/a.go`\n`b.go`, `g/a.go`, `x.y`")},
		"hg/a.go":   {},
	})
	want := "docs/A.md:2: names b.go, which is not there\ndocs/A.md:2: names g/a.go, which is not there"
	var got []string
	for _, p := range found {
		got = append(got, p.String())
	}
	if err != nil || names != 4 || strings.Join(got, "\n") != want {
		t.Errorf("got %d names, %q and %v, want %q", names, got, err, want)
	}
}

// findUnknownNames reports what Markdown files name in code as if it were Go, such as `hg.Config.MaxInput` or `Link.Pull`, and no Go file
// has.
func findUnknownNames(fsys fs.FS) (found []problem, names int, err error) {
	have := map[string]bool{}
	err = fs.WalkDir(fsys, ".", func(name string, _ fs.DirEntry, err error) error { // also of the modules below this one
		if err != nil || path.Ext(name) != ".go" {
			return err
		}
		src, err := fs.ReadFile(fsys, name)
		if err != nil {
			return err
		}
		f, err := parser.ParseFile(token.NewFileSet(), name, src, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		ast.Inspect(f, func(n ast.Node) bool {
			if id, ok := n.(*ast.Ident); ok {
				have[id.Name] = true
			}
			return true
		})
		return nil
	})
	if err != nil {
		return nil, 0, err
	}
	named := regexp.MustCompile("`([A-Za-z]\\w*(?:\\.[A-Za-z]\\w*)*\\.[A-Z]\\w*)(?:\\([^`]*)?`")
	err = fs.WalkDir(fsys, ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil || path.Ext(name) != ".md" || name == "CHANGELOG.md" { // of the past
			return err
		}
		b, err := fs.ReadFile(fsys, name)
		text := string(b)
		for _, m := range named.FindAllStringSubmatchIndex(text, -1) {
			names++
			for _, part := range strings.Split(text[m[2]:m[3]], ".")[1:] {
				if !have[part] {
					found = append(found, problem{name, 1 + strings.Count(text[:m[2]], "\n"), "names " + text[m[2]:m[3]] + ", but nothing is called " + part})
				}
			}
		}
		return err
	})
	return sorted(found), names, err
}

func TestNamedInGo(t *testing.T) {
	found, names, err := findUnknownNames(os.DirFS("../../.."))
	if err != nil {
		t.Fatal(err)
	}
	if names < 100 {
		t.Errorf("got %d names, want those of all pages", names)
	}
	for _, p := range found {
		t.Error(p)
	}
}

func TestUnknownNames(t *testing.T) {
	found, names, err := findUnknownNames(fstest.MapFS{
		"go.mod":    {Data: []byte("module m\n")},
		"hg/a.go":   {Data: []byte("package hg\ntype Config struct{ Max int }\nfunc (*Config) Open() {}\n")},
		"docs/A.md": {Data: []byte("`hg.Config.Max`, `Config.Open()` and `hg.Config`\n`hg.Config.Min`, `Gone.Open`, `the end.`")},
	})
	want := "docs/A.md:2: names hg.Config.Min, but nothing is called Min"
	if err != nil || names != 5 || len(found) != 1 || found[0].String() != want {
		t.Errorf("got %d names, %v and %v, want %q", names, found, err, want)
	}
}
