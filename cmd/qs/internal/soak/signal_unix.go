//go:build unix

package soak

import (
	"os"
	"syscall"
)

func stopProcess(p *os.Process) error   { return p.Signal(syscall.SIGSTOP) }
func resumeProcess(p *os.Process) error { return p.Signal(syscall.SIGCONT) }
