//go:build unix

package files

import "syscall"

// nonBlock opens a pipe that nobody writes to without waiting for somebody.
const nonBlock = syscall.O_NONBLOCK
