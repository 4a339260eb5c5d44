//go:build unix

package self

import (
	"os/exec"
	"syscall"
)

// ownGroup keeps the Ctrl-C of a terminal from a process: its end is that of its input.
func ownGroup(cmd *exec.Cmd) { cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} }
