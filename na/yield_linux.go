package na

import "golang.org/x/sys/unix"

// yieldProcessor lets other threads run that wait for this processor. It takes some 0.2 us when
// none does.
func yieldProcessor() { _, _, _ = unix.RawSyscall(unix.SYS_SCHED_YIELD, 0, 0, 0) }
