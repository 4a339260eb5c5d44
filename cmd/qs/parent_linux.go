package main

import "syscall"

// endWithParent makes the kernel kill the process when the thread that started it exits.
func endWithParent(attr *syscall.SysProcAttr) { attr.Pdeathsig = syscall.SIGKILL }
