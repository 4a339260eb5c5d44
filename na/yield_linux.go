package na

import "golang.org/x/sys/unix"

// yieldProcessor lets other threads waiting for this processor run. If there are none, it takes
// about 0.2 µs.
func yieldProcessor() { _, _, _ = unix.RawSyscall(unix.SYS_SCHED_YIELD, 0, 0, 0) }
