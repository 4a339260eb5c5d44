//go:build !linux

package na

import "runtime"

func yieldProcessor() { runtime.Gosched() }
