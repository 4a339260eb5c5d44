package sm

import (
	"golang.org/x/sys/unix"

	"github.com/quicksilver-rpc/quicksilver/internal/memfd"
	"github.com/quicksilver-rpc/quicksilver/na/codes"
)

// makeMemory creates n bytes of zeroed and sealed memory to be shared with a peer, and returns the
// memory and its descriptor.
func makeMemory(n int) (b []byte, fd int, err error) {
	if b, fd, err = memfd.Make(n); err != nil {
		err = codes.WithText(codes.ErrNoMemory, err.Error())
	}
	return b, fd, err
}

// mapMemory maps n bytes of a peer's memory read-only and closes fd. It returns an error if the
// size of the memory could change later.
func mapMemory(fd, n int) ([]byte, error) { return mapSealed(fd, n, memfd.FixedSize) }

// mapSealed maps n bytes of a peer's memory read-only and closes fd. It returns an error if the
// memory does not have all of the given seals.
func mapSealed(fd, n, seals int) ([]byte, error) {
	defer unix.Close(fd)
	if err := memfd.Check(fd, n, seals); err != nil {
		return nil, codes.WithText(codes.ErrProtocol, "the peer's "+err.Error())
	}
	b, err := memfd.Map(fd, n)
	if err != nil {
		err = codes.WithText(codes.ErrNoMemory, "map the peer's memory: "+err.Error())
	}
	return b, err
}

// unmap unmaps *b, which may be nil.
func unmap(b *[]byte) { memfd.Unmap(b) }
