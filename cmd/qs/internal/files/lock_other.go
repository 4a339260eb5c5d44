//go:build !(darwin || dragonfly || freebsd || linux || netbsd || openbsd)

package files

import "os"

// lockFile does nothing. On this system the user must ensure that two transfers do not write the
// same file.
func lockFile(*os.File) error { return nil }
