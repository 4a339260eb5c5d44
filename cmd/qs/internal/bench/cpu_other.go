//go:build !unix

package bench

import "time"

// cpuTime returns 0, because this system does not support the measurement.
func cpuTime() time.Duration { return 0 }
