package sm_test

import (
	"fmt"
	"os"
	"testing"

	"github.com/quicksilver-rpc/quicksilver/internal/test/leak"
)

// roleEnv makes the test binary be another process of a test.
const roleEnv = "QUICKSILVER_SM_ROLE"

// roles are the programs that the test binary may run as.
var roles = map[string]func() error{}

func TestMain(m *testing.M) {
	if role := os.Getenv(roleEnv); role != "" {
		if err := roles[role](); err != nil {
			fmt.Fprintln(os.Stderr, "child:", err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	leak.Main(m)
}
