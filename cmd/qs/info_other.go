//go:build !linux

package main

import (
	"fmt"
	"runtime"
)

// kernelFacts returns a single fact, which states that facts about the kernel are available only on
// Linux.
func kernelFacts() []infoFact {
	return []infoFact{{key: "kernel", label: "kernel", err: fmt.Errorf("kernel information is available only on Linux, not on %s", runtime.GOOS)}}
}
