package tcp_test

import (
	"os"
	"os/exec"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/internal/leak"
)

func TestMain(m *testing.M) { leak.Main(m) }

const aloneEnv = "QS_TCP_TEST_ALONE"

// inProcessOfItsOwn runs the test that calls it in another process, where it reports true: for tests that look at what the whole
// process uses.
func inProcessOfItsOwn(t *testing.T) bool {
	t.Helper()
	if os.Getenv(aloneEnv) != "" {
		return true
	}
	cmd := exec.Command(os.Args[0], "-test.run=^"+t.Name()+"$", "-test.v")
	cmd.Env = append(os.Environ(), aloneEnv+"=1")
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", out)
	return false
}
