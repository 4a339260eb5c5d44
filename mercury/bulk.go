package mercury

import (
	"github.com/quicksilver-rpc/quicksilver/mercury/internal/hgwire"
)

// A Bulk is a memory handle, like hg_bulk_t. A process that receives it can read or write the memory. The zero Bulk is
// HG_BULK_NULL.
type Bulk struct{ wire hgwire.Bulk }

// ParseBulk decodes a handle at the beginning of data and returns it with the bytes that follow. The error matches
// ErrProtocol.
func ParseBulk(data []byte) (Bulk, []byte, error) {
	var b Bulk
	rest, err := b.wire.Parse(data)
	if err != nil {
		return Bulk{}, nil, errorf(ErrProtocol, "%v", err)
	}
	b.wire.Eager = append([]byte(nil), b.wire.Eager...)
	return b, rest, nil
}

// Len returns the number of bytes in all segments of the memory.
func (b Bulk) Len() int64 { return int64(b.wire.Len) }

// Access returns the kinds of access that the handle allows.
func (b Bulk) Access() Access { return Access(b.wire.Access) }

// Bind returns b bound to the process at owner, like HG_Bulk_bind. A process that receives the handle, whether directly
// or from a third process, reads and writes the memory of owner.
//
// A handle must be bound before a service passes it to another process. Bind the handle of a Region to Node.Addr, and
// an unbound handle in a client's request to Request.Peer. Memory that was lent only to certain peers can be used only
// by those peers.
//
// The error is ErrInvalid if b is HG_BULK_NULL or bound to another process, or if owner is not an address that other
// processes can reach.
func (b Bulk) Bind(owner string) (Bulk, error) {
	a, err := parseAddr(owner)
	switch {
	case err != nil:
		return Bulk{}, err
	case a.Addr().IsUnspecified():
		return Bulk{}, errorf(ErrInvalid, "mercury: bind: %s is not reachable by other processes", owner)
	case b.IsNull():
		return Bulk{}, errorf(ErrInvalid, "mercury: bind: null handle")
	case b.Owner() != "" && b.Owner() != addrText(a):
		return Bulk{}, errorf(ErrInvalid, "mercury: bind: handle is already bound to %s", b.Owner())
	}
	b.wire.Owner = a
	return b, nil
}

// Owner returns the address of the process that owns the memory if the handle is bound to it (see HG_Bulk_bind). For an
// unbound handle it returns "", and the owner is the process that sent the handle. A sender can forge the owner, so use
// it with Node.Remote only if you trust the sender.
func (b Bulk) Owner() string {
	if !b.wire.Owner.IsValid() {
		return ""
	}
	return addrText(b.wire.Owner)
}

// IsNull reports whether b is HG_BULK_NULL.
func (b Bulk) IsNull() bool { return b.wire.IsNull() }

// AppendProc appends the hg_proc_hg_bulk_t encoding of b and returns the extended slice.
func (b Bulk) AppendProc(to []byte) ([]byte, error) { return b.wire.Append(to), nil }

// ReadProc decodes a handle at the beginning of data and returns the number of bytes read.
func (b *Bulk) ReadProc(data []byte) (int, error) {
	v, rest, err := ParseBulk(data)
	if err != nil {
		return 0, err
	}
	*b = v
	return len(data) - len(rest), nil
}
