//go:build unix

package main

import "syscall"

// nonBlock opens a pipe that nobody writes to without waiting for somebody.
const nonBlock = syscall.O_NONBLOCK
