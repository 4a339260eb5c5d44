//go:build unix && !linux

package main

import "syscall"

// endWithParent does nothing, because this system does not support it.
func endWithParent(*syscall.SysProcAttr) {}
