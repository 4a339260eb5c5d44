//go:build !linux

package files

import "os"

// requireRoom does nothing on this system, where writes fail when the disk is full.
func requireRoom(*os.File, int64) error { return nil }

func reserveSpace(_ *os.File, _, _ int64) error { return nil }
