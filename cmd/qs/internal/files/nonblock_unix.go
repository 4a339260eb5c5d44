//go:build unix

package files

import "syscall"

// nonBlock makes opening a named pipe return at once, even if no process has opened it for writing.
const nonBlock = syscall.O_NONBLOCK
