package bulk

import (
	"context"
	"sync"

	"github.com/quicksilver-rpc/quicksilver/hg"
)

// A View gives read access to the bytes of a handle. Its memory is either shared with the owner,
// without a copy, or a private buffer into which the bytes were pulled.
type View struct {
	bytes   []byte
	shared  bool
	once    sync.Once
	release func() error
	err     error
}

// NewView returns a View of the bytes that s describes.
//
// The View shares the owner's memory if the owner runs on this machine as the same user, both
// processes communicate over shared memory, and the memory was returned by Alloc. Otherwise, and
// possibly for the first View of such memory, NewView pulls the bytes in chunks according to
// Stream.Chunk and Stream.Window. A pull blocks until it completes or ctx is done; see Stream.
// Errors are those documented for Transfer.
//
// This process must not write to the bytes of a shared View. The owner may write to them, or close
// its handle, at any time, so they can change while they are being read. Copy values before
// validating and using them, and discard everything that was read if Close returns an error.
func NewView(ctx context.Context, hctx *hg.Context, s Stream) (*View, error) {
	r, err := NewReaderAt(ctx, hctx, s)
	if err != nil {
		return nil, err
	}
	s = r.flow.Stream
	switch {
	case s.Handle.eagerData != nil:
		s.Handle.addMoved(s.Size)
		return &View{bytes: s.Handle.eagerData[s.Offset:][:s.Size:s.Size]}, nil
	case s.Handle.Remote():
		if v, ok := hctx.NA().View(s.Peer, s.Handle.key(), s.Offset, s.Size); ok {
			s.Handle.addMoved(s.Size)
			return &View{bytes: v.Bytes, shared: true, release: v.End}, nil
		}
	}
	b := make([]byte, s.Size)
	if _, err := r.ReadAt(b, 0); err != nil {
		return nil, err
	}
	return &View{bytes: b}, nil
}

// Bytes returns the bytes of the View, which are read-only: writing to a shared View causes a
// memory fault. The bytes are valid until Close.
func (v *View) Bytes() []byte { return v.bytes }

// Shared reports whether the bytes are the owner's memory.
func (v *View) Shared() bool { return v.shared }

// Close releases the View. If the View is shared and the owner has closed its handle in the
// meantime, the error matches na.ErrRevoked, and the caller must discard what it has read. A second
// Close returns the result of the first.
func (v *View) Close() error {
	v.once.Do(func() {
		if v.release != nil {
			v.err = v.release()
		}
		v.bytes = nil
	})
	return v.err
}
