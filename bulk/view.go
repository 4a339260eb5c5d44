package bulk

import (
	"context"
	"sync"

	"github.com/quicksilver-rpc/quicksilver/hg"
)

// A View is the bytes of a handle, to be read: the owner's own, without a copy, or private ones into which they were pulled.
type View struct {
	b      []byte
	shared bool
	once   sync.Once
	end    func() error
	err    error
}

// NewView returns the bytes that s describes; its Chunk and Window are for a pull. They are the owner's own if it is on this machine, of
// the same user, the two talk over shared memory, and the memory is from Alloc; the first View of a piece of such memory may be pulled. A
// pull blocks, as ReadAt of a ReaderAt does, until it has ended or ctx has. The error is one of those of Transfer.
//
// Nobody may write to the bytes. The owner may, and takes its memory back whenever it likes: so what stands in a View that is Shared may
// change while you look at it. Copy what you check before you use it, and forget what you have read if Close returns an error.
func NewView(ctx context.Context, hctx *hg.Context, s Stream) (*View, error) {
	r, err := NewReaderAt(ctx, hctx, s)
	if err != nil {
		return nil, err
	}
	s = r.f.Stream
	switch {
	case s.Handle.data != nil:
		s.Handle.countMoved(s.Size)
		return &View{b: s.Handle.data[s.Offset:][:s.Size:s.Size]}, nil
	case s.Handle.Remote():
		if v, ok := hctx.NA().View(s.Peer, s.Handle.key(), s.Offset, s.Size); ok {
			s.Handle.countMoved(s.Size)
			return &View{b: v.Bytes, shared: true, end: v.End}, nil
		}
	}
	b := make([]byte, s.Size)
	if _, err := r.ReadAt(b, 0); err != nil {
		return nil, err
	}
	return &View{b: b}, nil
}

// Bytes returns the bytes, for reading only: a write to those of the owner is a fault. They are there until Close.
func (v *View) Bytes() []byte { return v.b }

// Shared reports whether the bytes are the owner's own.
func (v *View) Shared() bool { return v.shared }

// Close ends the use of the bytes. The error matches na.ErrRevoked if they are the owner's, who has taken them back since: what was read
// means nothing then. A second Close returns the same.
func (v *View) Close() error {
	v.once.Do(func() {
		if v.end != nil {
			v.err = v.end()
		}
		v.b = nil
	})
	return v.err
}
