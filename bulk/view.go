package bulk

import (
	"context"
	"sync"

	"github.com/quicksilver-rpc/quicksilver/hg"
)

// A View gives read access to the bytes of a handle: to the memory of the owner, without a copy, or
// to a private buffer into which they were pulled.
type View struct {
	bytes   []byte
	shared  bool
	once    sync.Once
	release func() error
	err     error
}

// NewView returns the bytes that s describes.
//
// The View is of the owner's memory if the owner runs on this machine as the same user, both talk
// over shared memory, and the memory is from Alloc. Else, and perhaps for the first View of such
// memory, the bytes are pulled, in the way that Stream.Chunk and Stream.Window say. A pull blocks
// until it has completed or ctx is done; see Stream. The error is one of those of Transfer.
//
// The bytes of a shared View must not be written to by this process. The owner may write to them,
// and may close its handle at any time, so they can change while they are read. Copy values before
// you check and use them, and discard everything that was read if Close returns an error.
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

// Bytes returns the bytes, for reading only: a write to a shared View is a memory fault. They are
// valid until Close.
func (v *View) Bytes() []byte { return v.bytes }

// Shared reports whether the bytes are the memory of the owner.
func (v *View) Shared() bool { return v.shared }

// Close ends the use of the bytes. The error matches na.ErrRevoked if the View is shared and the
// owner has closed its handle since: discard what was read then. A second Close returns the same.
func (v *View) Close() error {
	v.once.Do(func() {
		if v.release != nil {
			v.err = v.release()
		}
		v.bytes = nil
	})
	return v.err
}
