//go:build unix

package files

import "syscall"

// nonBlock makes opening a named pipe return immediately, even if no process has opened the pipe
// for writing.
const nonBlock = syscall.O_NONBLOCK
