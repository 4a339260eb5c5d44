package bulk

import (
	"fmt"

	"github.com/quicksilver-rpc/quicksilver/hg"
	"github.com/quicksilver-rpc/quicksilver/na"
)

// This file checks the fields that Spec and Stream have in common. The parameter named of is "Spec"
// or "Stream" and is used in error messages.

// invalidError returns an error that matches hg.ErrInvalid.
func invalidError(dir Dir, format string, args ...any) error {
	return fmt.Errorf("bulk: %v: %w", dir, na.WithText(hg.ErrInvalid, fmt.Sprintf(format, args...)))
}

// checkChunks validates chunk and window and applies their defaults.
func checkChunks(of string, dir Dir, chunk *int64, window *int) error {
	switch {
	case *chunk < 0 || *chunk > 0 && *chunk < minChunk:
		return invalidError(dir, "%s.Chunk is %d, want at least %d, or 0 for %d", of, *chunk, minChunk, DefaultChunk)
	case *window < 0 || *window > maxWindow:
		return invalidError(dir, "%s.Window is %d, want 1 to %d, or 0 for %d", of, *window, maxWindow, DefaultWindow)
	}
	if *chunk == 0 {
		*chunk = DefaultChunk
	}
	if *window == 0 {
		*window = DefaultWindow
	}
	return nil
}

// checkRemote checks that remote permits a transfer in direction dir. It returns the address of the
// memory's owner, which is peer if set and otherwise the address that remote is bound to.
func checkRemote(of string, dir Dir, remote *Handle, peer na.Addr) (na.Addr, error) {
	need := ReadOnly
	if dir == Push {
		need = WriteOnly
	}
	if !remote.Access().Can(need) {
		return na.Addr{}, fmt.Errorf("bulk: %v: %w", dir,
			na.WithText(na.ErrPermission, fmt.Sprintf("the remote handle allows %v only", remote.Access())))
	}
	if peer.IsZero() {
		peer = remote.owner
	}
	if peer.IsZero() {
		return peer, invalidError(dir, "%s.Peer is not set and the remote handle is not bound to an address", of)
	}
	return peer, nil
}
