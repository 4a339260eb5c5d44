//go:build unix

package main

import (
	"os"
	"os/exec"
	"os/signal"
	"syscall"
)

// passed are the signals that qs run passes on.
var passed = []os.Signal{os.Interrupt, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT, syscall.SIGUSR1, syscall.SIGUSR2}

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

// ends reports whether a signal asks for the end.
func ends(s os.Signal) bool { return s != syscall.SIGUSR1 && s != syscall.SIGUSR2 }

// ownGroup puts a process and what it starts into a group, which a terminal does not send its Ctrl-C to: it comes from us. The
// process ends with the thread that starts it, where the system can do that.
func ownGroup(cmd *exec.Cmd) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	endWithParent(cmd.SysProcAttr)
}

func signalGroup(cmd *exec.Cmd, s os.Signal) {
	_ = syscall.Kill(-cmd.Process.Pid, s.(syscall.Signal))
}

// killGroup kills what a process that has ended has left in its group, and reports whether there was anything.
func killGroup(cmd *exec.Cmd) bool { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) == nil }
