//go:build unix

package main

import (
	"os"
	"os/exec"
	"os/signal"
	"syscall"
)

// forwardedSignals are the signals that qs run forwards to its processes.
var forwardedSignals = []os.Signal{os.Interrupt, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT, syscall.SIGUSR1, syscall.SIGUSR2}

const (
	terminate = syscall.SIGTERM
	hangup    = syscall.SIGHUP // may be received several times when a terminal is closed
)

// catchBrokenPipe makes writes to a closed pipe return an error instead of terminating qs run. The effect lasts until
// stop is called.
func catchBrokenPipe() (stop func()) {
	caught := make(chan os.Signal, 1)
	signal.Notify(caught, syscall.SIGPIPE)
	return func() { signal.Stop(caught) }
}

// isTermination reports whether s requests qs run to terminate.
func isTermination(s os.Signal) bool { return s != syscall.SIGUSR1 && s != syscall.SIGUSR2 }

// setProcessGroup starts a process in its own process group, so that Ctrl-C in the terminal reaches only qs run, which
// forwards it. Where the system supports it, the process is killed when the thread that started it exits.
func setProcessGroup(cmd *exec.Cmd) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	endWithParent(cmd.SysProcAttr)
}

func signalProcessGroup(cmd *exec.Cmd, s os.Signal) {
	_ = syscall.Kill(-cmd.Process.Pid, s.(syscall.Signal))
}

// killProcessGroup kills the processes that remain in the process group of cmd, which has exited, and reports whether
// there were any.
func killProcessGroup(cmd *exec.Cmd) bool {
	return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) == nil
}
