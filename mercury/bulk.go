package mercury

import (
	"github.com/quicksilver-rpc/quicksilver/mercury/internal/hgwire"
)

// A Bulk is a handle of memory, as hg_bulk_t is: what one process sends to another so that it may read or write. The zero Bulk
// is HG_BULK_NULL.
type Bulk struct{ b hgwire.Bulk }

// ParseBulk decodes a handle at the beginning of data, and returns what follows it.
func ParseBulk(data []byte) (Bulk, []byte, error) {
	var b Bulk
	rest, err := b.b.Parse(data)
	if err != nil {
		return Bulk{}, nil, errorf(ErrProtocol, "%v", err)
	}
	b.b.Eager = append([]byte(nil), b.b.Eager...)
	return b, rest, nil
}

// Len returns the bytes in the memory, of all its segments.
func (b Bulk) Len() int64 { return int64(b.b.Len) }

// Access returns what the handle's receiver may do.
func (b Bulk) Access() Access { return Access(b.b.Access) }

// Bind returns b bound to the process at owner, as HG_Bulk_bind does: a process that receives the handle, directly or from another one,
// reads and writes the memory at owner. Bind a Region's handle to the address of its node before it is sent to a service that passes it on, and an unbound one of
// a client's request to Request.Peer before this process passes it on. Memory that was lent to certain peers is good for these
// only.
//
// The error is ErrInvalid if b is HG_BULK_NULL or bound to another process, or if owner is no address that others can reach.
func (b Bulk) Bind(owner string) (Bulk, error) {
	a, err := parseAddr(owner)
	switch {
	case err != nil:
		return Bulk{}, err
	case a.Addr().IsUnspecified():
		return Bulk{}, errorf(ErrInvalid, "mercury: bind: %s is no address that others can reach: name one of this machine", owner)
	case b.IsNull():
		return Bulk{}, errorf(ErrInvalid, "mercury: bind: a handle of no memory")
	case b.Owner() != "" && b.Owner() != addrText(a):
		return Bulk{}, errorf(ErrInvalid, "mercury: bind: the memory is that of %s", b.Owner())
	}
	b.b.Owner = a
	return b, nil
}

// Owner returns the address of whose memory it is, if the handle is bound to it (HG_Bulk_bind), and "" otherwise: then it is that of
// whom it came from. A handle may be lying: to reach the owner, decide to, with Node.Remote.
func (b Bulk) Owner() string {
	if !b.b.Owner.IsValid() {
		return ""
	}
	return addrText(b.b.Owner)
}

// IsNull reports whether b is HG_BULK_NULL.
func (b Bulk) IsNull() bool { return b.b.IsNull() }

// AppendProc appends b as hg_proc_hg_bulk_t encodes it.
func (b Bulk) AppendProc(to []byte) ([]byte, error) { return b.b.Append(to), nil }

// ReadProc decodes a handle at the beginning of data and returns how long it is.
func (b *Bulk) ReadProc(data []byte) (int, error) {
	v, rest, err := ParseBulk(data)
	if err != nil {
		return 0, err
	}
	*b = v
	return len(data) - len(rest), nil
}
