//go:build !linux

package main

import (
	"fmt"
	"runtime"
)

// kernelFacts returns that the facts of the kernel are available on Linux only.
func kernelFacts() []infoFact {
	return []infoFact{{key: "kernel", label: "kernel", err: fmt.Errorf("kernel information is available only on Linux, not on %s", runtime.GOOS)}}
}
