package main

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// pages returns the pages for users by their paths: README.md, docs, and the READMEs of the examples and of contrib.
func pages(t *testing.T) map[string]string {
	t.Helper()
	all := map[string]string{}
	for _, pattern := range []string{"README.md", "docs/*.md", "docs/guide/*.md", "examples/*.md", "contrib/*/README.md"} {
		files, err := filepath.Glob(filepath.Join(root, filepath.FromSlash(pattern)))
		require.NoError(t, err)
		require.NotEmpty(t, files, pattern)
		for _, file := range files {
			text, err := os.ReadFile(file)
			require.NoError(t, err)
			name, err := filepath.Rel(root, file)
			require.NoError(t, err)
			all[filepath.ToSlash(name)] = string(text)
		}
	}
	return all
}

// program finds a whole program in a page, or its output. The comment above the block names its source:
//
//	<!-- program: examples/errors/main.go -->     the file, without its first comment
//	<!-- output: examples/errors -->              what the example of its test prints
var program = regexp.MustCompile("(?s)<!-- (program|output): (\\S+) -->\n```(?:go)?\n(.*?)```\n")

// TestPrograms checks that whole programs in pages, and what they print, are those that tests build
// and run.
func TestPrograms(t *testing.T) {
	shown := 0
	for page, text := range pages(t) {
		written := program.ReplaceAllStringFunc(text, func(found string) string {
			shown++
			m := program.FindStringSubmatch(found)
			want := ""
			if m[1] == "program" {
				want = programOf(t, m[2])
			} else {
				want = outputOf(t, m[2])
			}
			if !*update {
				assert.Equal(t, want, m[3], "%s: the %s of %s; write it anew with -update", page, m[1], m[2])
				return found
			}
			before, _, _ := strings.Cut(found, "```")
			fence := map[string]string{"program": "```go\n", "output": "```\n"}[m[1]]
			return before + fence + want + "```\n"
		})
		if written != text {
			require.NoError(t, os.WriteFile(filepath.Join(root, filepath.FromSlash(page)), []byte(written), 0o666))
		}
	}
	require.Greater(t, shown, 10)
}

// programOf returns a file of an example that has a test beside it, from its package clause or, without one, from its imports on.
func programOf(t *testing.T, file string) string {
	t.Helper()
	dir, name := filepath.Split(filepath.FromSlash(file))
	text := sources(t, dir, name)
	_, rest, ok := strings.Cut("\n"+text, "\npackage ")
	require.True(t, ok, "%s is not a Go file", file)
	tests, err := filepath.Glob(filepath.Join(root, dir, "*_test.go"))
	require.NoError(t, err)
	require.NotEmpty(t, tests, "%s has no test that runs it", file)
	return "package " + rest
}

// outputOf returns what the example of a program's test prints.
func outputOf(t *testing.T, dir string) string {
	t.Helper()
	_, rest, ok := strings.Cut(sources(t, filepath.FromSlash(dir), "main_test.go"), "\t// Output:")
	require.True(t, ok, "%s has no example", dir)
	var b strings.Builder
	for line := range strings.Lines(rest) {
		line, more := strings.CutPrefix(strings.TrimLeft(line, "\t "), "// ")
		if !more && b.Len() > 0 {
			break
		}
		if strings.TrimSpace(line) != "" {
			b.WriteString(line)
		}
	}
	return b.String()
}

var (
	// goes finds what a page has the go command work on: go run ./examples/demo, go test ./cmd/qs/..., go build -o kv ./examples/kv.
	goes = regexp.MustCompile(`\bgo (?:run|test|build|generate)((?: -[\w.]+(?:[ =][^-.\s]\S*)?)*)((?: \./[\w./-]*[\w.])+)`)
	// gets finds the packages that a page gets: go get PATH, go install PATH@VERSION.
	gets = regexp.MustCompile(`\bgo (?:get|install) (\S+[\w])`)
)

// within finds the module in which the commands of a line run: "in contrib/raft: `go run ./examples/three`".
var within = regexp.MustCompile(`\bin ((?:contrib|examples)/[\w/]+): `)

// TestCommands checks that packages that a page runs, builds or gets with the go command exist. The
// commands of the tool have tests of their own.
func TestCommands(t *testing.T) {
	found := 0
	for page, text := range pages(t) {
		for line := range strings.Lines(text) {
			from := []string{".", filepath.Dir(page)} // commands run in the root, or in the module of that README
			if m := within.FindStringSubmatch(line); m != nil {
				from = []string{m[1]}
			}
			for _, m := range goes.FindAllStringSubmatch(line, -1) {
				for _, place := range strings.Fields(m[2]) {
					found++
					place = strings.TrimSuffix(strings.TrimSuffix(place, "..."), "/")
					if place == "./store" { // the reader's own
						continue
					}
					assert.True(t, slices.ContainsFunc(from, func(dir string) bool {
						_, err := os.Stat(filepath.Join(root, dir, place))
						return err == nil
					}), "%s runs %s", page, m[0])
				}
			}
			for _, m := range gets.FindAllStringSubmatch(line, -1) {
				found++
				path, _, _ := strings.Cut(m[1], "@")
				rest, ours := strings.CutPrefix(path, module)
				_, err := os.Stat(filepath.Join(root, filepath.FromSlash(rest)))
				assert.True(t, !ours || err == nil, "%s gets %s", page, path)
			}
		}
	}
	require.Greater(t, found, 20)
}

// TestIndex checks that every example is in the index of the examples.
func TestIndex(t *testing.T) {
	index := pages(t)["examples/README.md"]
	for _, pattern := range []string{"examples/*", "contrib/*/examples/*", "examples/plugin/*"} {
		dirs, err := filepath.Glob(filepath.Join(root, filepath.FromSlash(pattern)))
		require.NoError(t, err)
		for _, dir := range dirs {
			if files, err := filepath.Glob(filepath.Join(dir, "*.go")); err != nil || len(files) == 0 {
				continue
			}
			link, err := filepath.Rel(filepath.Join(root, "examples"), dir)
			require.NoError(t, err)
			assert.Contains(t, index, "]("+filepath.ToSlash(link)+")", "examples/README.md does not have %s", dir)
		}
	}
}

// TestDocsIndex checks that every page of docs is in its index.
func TestDocsIndex(t *testing.T) {
	all := pages(t)
	for page := range all {
		if rest, ok := strings.CutPrefix(page, "docs/"); ok && rest != "README.md" {
			assert.Contains(t, all["docs/README.md"], "]("+rest, "docs/README.md does not have %s", page)
		}
	}
}

// unchecked are the blocks that neither run nor are compared: pictures of calls. All others are commands, programs, code or output.
var unchecked = []string{"na.Open        ─► Plugin.Open(Class, listen)"}

// fenced finds every block of a page, with the kind and the comment above it.
var fenced = regexp.MustCompile("(?s)(<!-- (?:program|output): \\S+ -->\n)?\n?```(\\w*)\n(.*?)```")

// TestEveryBlock checks that each block of a page is of a kind that a test checks. Go code:
// TestBlocks, or TestFirstProgram for the first one of README.md. Programs and their output:
// TestPrograms. Lines of a shell: TestCommands and, for the tool, TestPages of cmd/qs. The program
// in C stands beside its twin in Go, which TestShown of examples/ported compares; it needs C
// Mercury, and is not compiled.
func TestEveryBlock(t *testing.T) {
	for page, text := range pages(t) {
		for _, m := range fenced.FindAllStringSubmatch(text, -1) {
			switch {
			case m[1] != "", m[2] == "go":
				continue
			case m[2] == "c":
				assert.Equal(t, "docs/MERCURY.md", page)
				continue
			case slices.ContainsFunc(unchecked, func(begin string) bool { return strings.HasPrefix(m[3], begin) }):
				continue
			}
			for line := range strings.Lines(strings.ReplaceAll(m[3], "\\\n", " ")) {
				line = strings.TrimPrefix(line, "$ ")
				assert.Regexp(t, `^(qs [a-z]|go (run|test|build|get|install) |cd [\w/]+ && go |(srun|mpiexec|mpirun) .*allgather)`, line, "%s: neither Go nor a command that a test checks", page)
			}
		}
	}
}

// benchmarks finds the benchmarks that a page names, or has the go command run.
var benchmarks = regexp.MustCompile(`\bBenchmark([A-Z]\w+)|-bench ([A-Z]\w+)`)

// TestBenchmarks checks that the source that a page names for a figure exists.
func TestBenchmarks(t *testing.T) {
	found := 0
	for page, text := range pages(t) {
		dir := "."
		if strings.HasPrefix(page, "contrib/") {
			dir = filepath.Dir(page)
		}
		for _, m := range benchmarks.FindAllStringSubmatch(text, -1) {
			found++
			have := false
			for _, pattern := range []string{"*_test.go", "*/*_test.go", "*/*/*_test.go", "*/*/*/*_test.go"} {
				have = have || strings.Contains(sources(t, dir, pattern), "func Benchmark"+m[1]+m[2]+"(")
			}
			assert.True(t, have, "%s: no benchmark %s", page, m[0])
		}
	}
	require.Greater(t, found, 5)
}

// figure finds a size, a time or a count of thousands: "64 MiB", "5 s", "4,096".
var figure = regexp.MustCompile(`\b\d[\d,.]*\d? (?:KiB|MiB|GiB|bytes|us|µs|ms|s|minutes?)\b|\b\d{1,3},\d{3}\b`)

// figurePages are the pages whose figures are limits and defaults, the guide besides. Those of BENCHMARKS, MONITORING and contrib/raft are
// measured, with the command that measures them: TestBenchmarks; LIMITS and GUARANTEES are held to tests.
var figurePages = []string{
	"README.md", "docs/OPERATIONS.md", "docs/MERCURY.md", "docs/PLUGINS.md", "docs/EVOLUTION.md",
	"contrib/group/README.md", "contrib/grpc/README.md", "contrib/otel/README.md", "contrib/prometheus/README.md", "contrib/yokan/README.md",
}

// facts are figures of others: the default of net.core.rmem_default.
var facts = []string{"208 KiB"}

// drawn are the tables that contrib/bench/plot writes from what was measured; its tests compare them.
var drawn = regexp.MustCompile(`(?s)<!-- figures: .*?<!-- end -->`)

// measured is a section of figures that the program which it names prints.
var measured = regexp.MustCompile(`(?s)\n## Beside grpc-go\n.*?\n## `)

// TestFigures checks that the figures of the guide, and of figurePages, are those of the pages that
// tests hold to the code, or of the comments beside the defaults.
func TestFigures(t *testing.T) {
	all := pages(t)
	known := all["docs/LIMITS.md"] + all["docs/BENCHMARKS.md"] + all["docs/GUARANTEES.md"]
	for _, dir := range []string{
		"qs", "hg", "na", "contrib/group", "contrib/grpc", "contrib/yokan", "mercury", "cmd/qs", "plugins/udp", "plugins/udp/internal/arq", "hg/codec", "qs/debug",
	} {
		known += sources(t, dir, "*.go")
	}
	known = strings.Join(strings.Fields(strings.ReplaceAll(known, "// ", "")), " ")
	found := 0
	for page, text := range all {
		if !strings.HasPrefix(page, "docs/guide/") && !slices.Contains(figurePages, page) {
			continue
		}
		text = measured.ReplaceAllString(text, "\n## ")
		text = fence.ReplaceAllString(program.ReplaceAllString(drawn.ReplaceAllString(text, ""), ""), "")
		for _, f := range figure.FindAllString(text, -1) {
			found++
			number, _, _ := strings.Cut(f, " ")
			stated := regexp.MustCompile(`(^|[^\d,.])(` + regexp.QuoteMeta(f) + `([^\d]|$)|` + regexp.QuoteMeta(number) + ` \([\d,.]+–)`) // or a median with its range
			assert.True(t, stated.MatchString(known) || slices.Contains(facts, f), "%s says %s", page, f)
		}
	}
	require.Greater(t, found, 30)
}

var fence = regexp.MustCompile("(?s)```.*?```")
