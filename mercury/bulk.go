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

// Len returns the bytes in the memory.
func (b Bulk) Len() int64 { return int64(b.b.Len) }

// Access returns what the handle's receiver may do.
func (b Bulk) Access() Access { return Access(b.b.Access) }

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
