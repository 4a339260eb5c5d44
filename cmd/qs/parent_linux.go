package main

import "syscall"

// endWithParent has the system kill a process when the thread that has started it ends.
func endWithParent(attr *syscall.SysProcAttr) { attr.Pdeathsig = syscall.SIGKILL }
