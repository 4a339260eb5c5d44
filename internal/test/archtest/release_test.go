package archtest

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// runScript runs a script of the checkout with bash, in its root, with a folder in front of PATH.
func runScript(t *testing.T, path, script string, args ...string) (out string, err error) {
	t.Helper()
	if _, err := exec.LookPath("bash"); err != nil || runtime.GOOS == "windows" {
		t.Skip("no bash")
	}
	c := exec.CommandContext(t.Context(), "bash", append([]string{script}, args...)...)
	c.Dir = filepath.Join("..", "..", "..")
	c.Env = append(os.Environ(), "PATH="+path+string(os.PathListSeparator)+os.Getenv("PATH"))
	b, err := c.CombinedOutput()
	return string(b), err
}

// TestReleaseScript checks that .ci/release finds the version that the changelog begins with in
// every module, and names a tag for each; another version is found nowhere.
func TestReleaseScript(t *testing.T) {
	t.Parallel()
	changelog, err := os.ReadFile("../../../CHANGELOG.md")
	require.NoError(t, err)
	heading := regexp.MustCompile(`(?m)^## (\d+\.\d+\.\d+), (unreleased|\d{4}-\d{2}-\d{2})$`).FindStringSubmatch(string(changelog))
	require.NotNil(t, heading, "CHANGELOG.md has no heading with a version and a date")
	out, err := runScript(t, "", ".ci/release", "--check", heading[1])
	require.NoError(t, err, "%s", out)
	want := []string{"v" + heading[1], "cmd/qs/v" + heading[1]}
	modules, err := filepath.Glob("../../../contrib/*/go.mod")
	require.NoError(t, err)
	for _, file := range modules {
		want = append(want, "contrib/"+filepath.Base(filepath.Dir(file))+"/v"+heading[1])
	}
	require.Equal(t, want, strings.Fields(out))

	out, err = runScript(t, "", ".ci/release", "--check", "99.0.0")
	require.Error(t, err)
	require.Contains(t, out, "contrib/raft/go.mod: github.com/quicksilver-rpc/quicksilver is at v"+heading[1]+", want v99.0.0")
	require.Contains(t, out, `CHANGELOG.md: no heading "## 99.0.0, DATE"`)
	_, err = runScript(t, "", ".ci/release", "--check", "v1")
	require.Error(t, err)
}

// TestFuzzScript checks that the script that builds the fuzz targets for OSS-Fuzz builds all of
// them, under names of their own. The programs that it calls are replaced by this test.
func TestFuzzScript(t *testing.T) {
	t.Parallel()
	bin := t.TempDir()
	for name, text := range map[string]string{
		"compile_native_go_fuzzer_v2": "echo \"$@\"",
		"go":                          "[ \"$1\" != list ] || echo example.org/m",
	} {
		require.NoError(t, os.WriteFile(filepath.Join(bin, name), []byte("#!/bin/sh\n"+text+"\n"), 0o777))
	}
	out, err := runScript(t, bin, ".ci/oss-fuzz/build.sh")
	require.NoError(t, err, "%s", out)
	built := map[string]bool{}
	for line := range strings.Lines(out) {
		words := strings.Fields(line)
		require.Len(t, words, 3, "%s", line)
		require.False(t, built[words[2]], "two programs are called %s", words[2])
		built[words[2]] = true
		dir := filepath.Join("../../..", strings.TrimPrefix(words[0], "example.org/m/"))
		require.DirExists(t, dir)
	}
	tr, err := loadTree(os.DirFS("../../.."))
	require.NoError(t, err)
	targets := 0
	for _, f := range tr.files {
		targets += strings.Count(f.text, "\nfunc Fuzz")
	}
	require.Len(t, built, targets)
	require.True(t, built["hg_codec_FuzzCheck"])
}
