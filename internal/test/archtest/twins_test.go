package archtest

import (
	"path"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// twinned are the packages whose test files are named after what they test.
var twinned = []string{"qs", "hg", "plugins/tcp", "plugins/udp", "plugins/sm"}

// supports are the names of test files that serve the others of their package, or stand beside its
// files.
var supports = []string{"main", "helpers", "export", "example", "bench", "doc", "alloc"}

var (
	platform = regexp.MustCompile(`_(linux|darwin|windows|unix|other)$`)
	lastWord = regexp.MustCompile(`_[a-z0-9]+$`)
)

// findTwins: in the twinned packages x_test.go tests x.go; what crosses several files is
// scenario_NAME_test.go. A platform and one more word may follow: call_cancel_linux_test.go tests
// call.go.
func findTwins(t *tree) (found []problem) {
	products := map[string]bool{}
	for _, f := range t.files {
		if !f.test {
			products[platform.ReplaceAllString(strings.TrimSuffix(f.path, ".go"), "")] = true
		}
	}
	for _, f := range t.files {
		if !f.test || !slices.Contains(twinned, f.pkg) {
			continue
		}
		name := platform.ReplaceAllString(strings.TrimSuffix(path.Base(f.path), "_test.go"), "")
		if strings.HasPrefix(name, "scenario_") {
			continue
		}
		is := func(name string) bool { return slices.Contains(supports, name) || products[path.Join(f.pkg, name)] }
		if is(name) || is(lastWord.ReplaceAllString(name, "")) {
			continue
		}
		found = append(found, t.at(f, f.Package,
			"tests no file of its package by its name: name it after the one that it tests, or scenario_%s_test.go if it crosses several", name))
	}
	return found
}

func TestTwins(t *testing.T) {
	m := fakeTree{}
	for _, name := range []string{
		"hg/call.go", "hg/call_test.go", "hg/call_cancel_test.go", "hg/call_cancel_linux_test.go", "hg/call_two_words_test.go",
		"hg/wire_linux.go", "hg/wire_test.go", "hg/wire_linux_test.go", "hg/peer_watch.go", "hg/peer_watch_late_test.go", "hg/peer_test.go",
		"hg/scenario_restart_test.go", "hg/scenario_two_words_linux_test.go", "hg/scenario_test.go",
		"hg/main_test.go", "hg/helpers_raw_test.go", "hg/bench_linux_test.go", "hg/doc_test.go",
		"qs/call_test.go", "qs/debug/any_test.go", "plugins/sm/lock_linux_test.go", "plugins/sim/any_test.go", "any_test.go",
	} {
		m[name] = "package p"
	}
	const says = "tests no file of its package by its name: name it after the one that it tests, or scenario_"
	requireProblems(t, findTwins, m,
		"hg/call_two_words_test.go:1: "+says+"call_two_words_test.go if it crosses several",
		"hg/peer_test.go:1: "+says+"peer_test.go if it crosses several",
		"hg/scenario_test.go:1: "+says+"scenario_test.go if it crosses several",
		"plugins/sm/lock_linux_test.go:1: "+says+"lock_test.go if it crosses several",
		"qs/call_test.go:1: "+says+"call_test.go if it crosses several",
	)
}
