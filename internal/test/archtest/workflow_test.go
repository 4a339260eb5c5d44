package archtest

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// The workflow runs .ci/run, whole, on Linux, and the tests on the systems that .ci/run only compiles for.
func TestWorkflow(t *testing.T) {
	t.Parallel()
	b, err := os.ReadFile(filepath.Join("..", "..", "..", ".github", "workflows", "ci.yml"))
	require.NoError(t, err)
	linux, portable, ok := strings.Cut(string(b), "\n  portable:\n")
	require.True(t, ok)
	run := regexp.MustCompile(`(?m)^ +- run: (.*)$`)
	commands := func(job string) (all []string) {
		for _, m := range run.FindAllStringSubmatch(job, -1) {
			all = append(all, m[1])
		}
		return all
	}
	require.Equal(t, []string{".ci/run", ".ci/run long"}, commands(linux))
	require.Equal(t, []string{"go test ./... ./cmd/qs/..."}, commands(portable))
	require.Contains(t, portable, "os: [macos-latest, windows-latest]")
	ci, err := os.ReadFile(filepath.Join("..", "..", "..", ".ci", "run"))
	require.NoError(t, err)
	for _, step := range []string{"darwin/arm64 windows/amd64 linux/386", `"$tmp/types"`, "go test -exec true ./..."} {
		require.True(t, strings.Contains(string(ci), step), step)
	}
}
