package mercury

import (
	"github.com/quicksilver-rpc/quicksilver/mercury/internal/hgwire"
)

// A Bulk is a handle of memory, as hg_bulk_t is: a process that receives it can read or write the memory. The zero
// Bulk is HG_BULK_NULL.
type Bulk struct{ wire hgwire.Bulk }

// ParseBulk decodes a handle at the beginning of data, and returns the bytes after it. The error matches ErrProtocol.
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

// Access returns what the receiver of the handle may do.
func (b Bulk) Access() Access { return Access(b.wire.Access) }

// Bind returns b bound to the process at owner, as HG_Bulk_bind does: a process that receives the handle, directly or
// from a third process, reads and writes the memory of owner.
//
// Before a service passes a handle on, it must be bound: bind the handle of a Region to Node.Addr, and an unbound
// handle in a client's request to Request.Peer. Memory that was lent to certain peers can be used by these only.
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

// Owner returns the address of the process that owns the memory, if the handle is bound to it (HG_Bulk_bind), and ""
// otherwise: the owner is then the process that has sent the handle. A sender can forge the owner: use it, with
// Node.Remote, only if you trust the sender.
func (b Bulk) Owner() string {
	if !b.wire.Owner.IsValid() {
		return ""
	}
	return addrText(b.wire.Owner)
}

// IsNull reports whether b is HG_BULK_NULL.
func (b Bulk) IsNull() bool { return b.wire.IsNull() }

// AppendProc appends b as hg_proc_hg_bulk_t encodes it.
func (b Bulk) AppendProc(to []byte) ([]byte, error) { return b.wire.Append(to), nil }

// ReadProc decodes a handle at the beginning of data and returns its length.
func (b *Bulk) ReadProc(data []byte) (int, error) {
	v, rest, err := ParseBulk(data)
	if err != nil {
		return 0, err
	}
	*b = v
	return len(data) - len(rest), nil
}
