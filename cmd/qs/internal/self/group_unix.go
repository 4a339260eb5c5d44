//go:build unix

package self

import (
	"os/exec"
	"syscall"
)

// ownGroup puts a process into its own process group, so that Ctrl-C in the terminal does not reach
// it. It exits when its standard input ends.
func ownGroup(cmd *exec.Cmd) { cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} }
