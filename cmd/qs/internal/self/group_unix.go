//go:build unix

package self

import (
	"os/exec"
	"syscall"
)

// ownGroup makes cmd run in its own process group, so that Ctrl-C in the terminal does not reach
// it. The process exits when its standard input is closed.
func ownGroup(cmd *exec.Cmd) { cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} }
