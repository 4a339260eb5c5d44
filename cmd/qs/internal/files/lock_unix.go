//go:build darwin || dragonfly || freebsd || linux || netbsd || openbsd

package files

import (
	"errors"
	"fmt"
	"os"
	"syscall"

	"github.com/quicksilver-rpc/quicksilver/na"
)

// lock keeps every other lock of the file away until f is closed. It does not wait. A file system that knows no locks keeps
// nobody away.
func lock(f *os.File) error {
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); errors.Is(err, syscall.EWOULDBLOCK) {
		return fmt.Errorf("another transfer writes it; try again when it has ended: %w", na.ErrAgain)
	}
	return nil
}
