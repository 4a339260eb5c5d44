package sm_test

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/quicksilver-rpc/quicksilver/internal/test/long"
)

const devShm = "/dev/shm"

func init() {
	roles["tiny /dev/shm"] = func() error { return runTestsInside(unix.Mount("tmpfs", devShm, "tmpfs", 0, "size=64k")) }
	roles["no /dev/shm"] = func() error { return runTestsInside(mountBareDev()) }
}

// TestDevShm checks that the package works where /dev/shm is tiny, and where there is none: its
// tests pass there.
func TestDevShm(t *testing.T) {
	which := []string{"-test.run=^Test(ExitAtEachPoint|ManyAttach|Footprint|NoMemory|PingPongSendsNoCredit)$"}
	if long.On {
		which = nil
	}
	for _, role := range []string{"tiny /dev/shm", "no /dev/shm"} {
		t.Run(role, func(t *testing.T) {
			cmd := exec.Command(os.Args[0], append(which, "-test.v", "-test.skip=^TestDevShm$", "-test.timeout=5m")...)
			cmd.Env = append(os.Environ(), roleEnv+"="+role)
			cmd.SysProcAttr = &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS}
			out, err := cmd.CombinedOutput()
			if errors.Is(err, os.ErrPermission) {
				t.Skip("a mount namespace of its own is not allowed to this process:", err)
			}
			require.NoError(t, err, "%s", out)
			require.GreaterOrEqual(t, bytes.Count(out, []byte("\n--- PASS: ")), 5, "%s", out)
		})
	}
}

// mountBareDev mounts a /dev in which there are the devices that tests need, and nothing else.
func mountBareDev() error {
	dir, err := os.MkdirTemp("", "dev")
	if err != nil {
		return err
	}
	defer os.Remove(dir)
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=64k"); err != nil {
		return err
	}
	for _, name := range []string{"null", "zero", "urandom"} {
		at := filepath.Join(dir, name)
		if err := os.WriteFile(at, nil, 0o600); err != nil {
			return err
		}
		if err := unix.Mount("/dev/"+name, at, "", unix.MS_BIND, ""); err != nil {
			return err
		}
	}
	return unix.Mount(dir, "/dev", "", unix.MS_MOVE, "")
}

// runTestsInside runs the tests with the new mounts.
func runTestsInside(err error) error {
	if err != nil {
		return err
	}
	var st unix.Statfs_t
	switch err := unix.Statfs(devShm, &st); {
	case errors.Is(err, unix.ENOENT):
	case err != nil || st.Blocks*uint64(st.Bsize) > 64<<10:
		return fmt.Errorf("%s has %d bytes: %v", devShm, st.Blocks*uint64(st.Bsize), err)
	}
	var env []string
	for _, v := range os.Environ() {
		if !strings.HasPrefix(v, roleEnv+"=") {
			env = append(env, v)
		}
	}
	return syscall.Exec(os.Args[0], os.Args, env)
}
