//go:build unix

package debug

import (
	"syscall"
	"time"
)

// cpuTime returns the CPU time used by the process, or 0 if it is not known.
func cpuTime() time.Duration {
	var u syscall.Rusage
	if syscall.Getrusage(syscall.RUSAGE_SELF, &u) != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
