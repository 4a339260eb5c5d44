package bulk

import (
	"fmt"

	"github.com/quicksilver-rpc/quicksilver/hg"
	"github.com/quicksilver-rpc/quicksilver/na"
)

// This file validates the fields that Spec and Stream have in common. The parameter named of is
// "Spec" or "Stream", for error messages.

// invalidError returns an error that matches hg.ErrInvalid, for a transfer in direction dir.
func invalidError(dir Dir, format string, args ...any) error {
	return fmt.Errorf("bulk: %v: %w", dir, na.WithText(hg.ErrInvalid, fmt.Sprintf(format, args...)))
}

// checkChunks validates *chunk and *window, and replaces zero values with the defaults.
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

// checkRemote returns an error unless remote permits a transfer in direction dir. Otherwise it
// returns the owner's address, which is peer if set, or else the address to which remote is bound.
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
