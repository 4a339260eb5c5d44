package archtest

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestWorkflow checks that the workflow runs .ci/run, whole, on Linux, and the tests on the systems
// that .ci/run only compiles for.
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
	contrib := "go test ./contrib/group/... ./contrib/grpc/... ./contrib/otel/... ./contrib/prometheus/... ./contrib/raft/... ./contrib/yokan/..."
	require.Equal(t, []string{"go test ./... ./cmd/qs/...", contrib}, commands(portable))
	modules, err := filepath.Glob("../../../contrib/*/go.mod")
	require.NoError(t, err)
	for _, file := range modules {
		require.Contains(t, contrib, " ./contrib/"+filepath.Base(filepath.Dir(file))+"/...")
	}
	require.Contains(t, portable, "os: [macos-latest, windows-latest]")
	ci, err := os.ReadFile(filepath.Join("..", "..", "..", ".ci", "run"))
	require.NoError(t, err)
	for _, step := range []string{"darwin/arm64 windows/amd64 linux/386", `"$tmp/types"`, "go test -exec true ./..."} {
		require.True(t, strings.Contains(string(ci), step), step)
	}
}

// TestPinned checks that every action of the workflows is named by the hash of a commit, which
// cannot be changed, with its version behind it.
func TestPinned(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob("../../../.github/workflows/*.yml")
	require.NoError(t, err)
	uses, pinned := regexp.MustCompile(`(?m)^.*\buses:.*$`), regexp.MustCompile(`uses: [\w/-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+$`)
	found := 0
	for _, file := range files {
		b, err := os.ReadFile(file)
		require.NoError(t, err)
		for _, line := range uses.FindAllString(string(b), -1) {
			found++
			require.Regexp(t, pinned, line, "%s", file)
		}
	}
	require.Greater(t, found, 3)
}
