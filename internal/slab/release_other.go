//go:build !linux

package slab

// releasePages leaves a buffer to the garbage collector.
func releasePages([]byte) {}
