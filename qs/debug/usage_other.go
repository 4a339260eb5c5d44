//go:build !unix

package debug

import "time"

// cpuTime returns how much processor time this process has used, or 0 if that is not known.
func cpuTime() time.Duration { return 0 }
