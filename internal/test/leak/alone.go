package leak

import (
	"os"
	"os/exec"
	"testing"
)

const aloneEnv = "QUICKSILVER_TEST_ALONE"

// Alone runs the test that calls it again in a process of its own, where it reports true: for tests
// that look at what the whole process uses. This process waits in parallel with other tests.
//
//	if !leak.Alone(t) {
//		return
//	}
func Alone(t *testing.T) bool {
	t.Helper()
	if os.Getenv(aloneEnv) == t.Name() {
		return true
	}
	t.Parallel()
	cmd := exec.Command(os.Args[0], "-test.run=^"+t.Name()+"$", "-test.v")
	cmd.Env = append(os.Environ(), aloneEnv+"="+t.Name())
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return false
}
