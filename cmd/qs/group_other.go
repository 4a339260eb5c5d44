//go:build !unix

package main

import (
	"os"
	"os/exec"
)

var forwardedSignals = []os.Signal{os.Interrupt}

var (
	terminate = os.Kill
	hangup    os.Signal
)

func catchBrokenPipe() (stop func()) { return func() {} }

func isTermination(os.Signal) bool { return true }

func setProcessGroup(*exec.Cmd) {}

func signalProcessGroup(cmd *exec.Cmd, s os.Signal) { _ = cmd.Process.Signal(s) }

func killProcessGroup(*exec.Cmd) bool { return false }
