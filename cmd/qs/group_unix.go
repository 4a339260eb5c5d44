//go:build unix

package main

import (
	"os"
	"os/exec"
	"os/signal"
	"syscall"
)

// forwardedSignals are the signals that qs run passes on.
var forwardedSignals = []os.Signal{os.Interrupt, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT, syscall.SIGUSR1, syscall.SIGUSR2}

const (
	terminate = syscall.SIGTERM
	hangup    = syscall.SIGHUP // may come several times when a terminal is closed
)

// catchBrokenPipe makes a write of an output that is not read any more fail, until stop is called: it would end qs run otherwise.
func catchBrokenPipe() (stop func()) {
	caught := make(chan os.Signal, 1)
	signal.Notify(caught, syscall.SIGPIPE)
	return func() { signal.Stop(caught) }
}

// isTermination reports whether a signal ends qs run.
func isTermination(s os.Signal) bool { return s != syscall.SIGUSR1 && s != syscall.SIGUSR2 }

// setProcessGroup puts a process and its children into a group of their own, so that a terminal does not send them Ctrl-C: qs run passes it
// on. The process ends with the thread that starts it, where the system supports that.
func setProcessGroup(cmd *exec.Cmd) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	endWithParent(cmd.SysProcAttr)
}

func signalProcessGroup(cmd *exec.Cmd, s os.Signal) {
	_ = syscall.Kill(-cmd.Process.Pid, s.(syscall.Signal))
}

// killProcessGroup kills the processes that are left in the group of a process that has ended, and reports whether there were any.
func killProcessGroup(cmd *exec.Cmd) bool {
	return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) == nil
}
