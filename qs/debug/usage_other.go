//go:build !unix

package debug

import "time"

// cpuTime returns the CPU time used by the process, or 0 if it is not known.
func cpuTime() time.Duration { return 0 }
