//go:build !unix

package main

import (
	"os"
	"os/exec"
)

var passed = []os.Signal{os.Interrupt}

var (
	terminate = os.Kill
	hangup    os.Signal
)

func catchBrokenPipe() (stop func()) { return func() {} }

func ends(os.Signal) bool { return true }

func ownGroup(*exec.Cmd) {}

func signalGroup(cmd *exec.Cmd, s os.Signal) { _ = cmd.Process.Signal(s) }

func killGroup(*exec.Cmd) bool { return false }
