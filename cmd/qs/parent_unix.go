//go:build unix && !linux

package main

import "syscall"

// endWithParent does nothing: this system cannot do that.
func endWithParent(*syscall.SysProcAttr) {}
