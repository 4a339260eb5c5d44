//go:build !linux

package main

import (
	"fmt"
	"runtime"
)

// kernelFacts says that the facts of Linux are not to be had here.
func kernelFacts() []fact {
	return []fact{{key: "kernel", label: "kernel", err: fmt.Errorf("facts of the kernel are read on Linux only, not on %s", runtime.GOOS)}}
}
