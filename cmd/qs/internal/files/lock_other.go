//go:build !(darwin || dragonfly || freebsd || linux || netbsd || openbsd)

package files

import "os"

// lockFile does nothing on this system. Users must ensure that only one transfer at a time writes a
// file.
func lockFile(*os.File) error { return nil }
