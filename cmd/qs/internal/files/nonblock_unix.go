//go:build unix

package files

import "syscall"

// nonBlock opens a named pipe without blocking until a process opens it for writing.
const nonBlock = syscall.O_NONBLOCK
