package hgwire

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"slices"
)

// Flags of a bulk handle.
const (
	Readable = 1
	Writable = 2
	eager    = 4
	bind     = 0x20
	virtual  = 0x80
)

// MaxBulk is the maximum total number of bytes in the segments of a handle received from a peer. The number of segments
// is limited by the length of the handle.
const MaxBulk = 1 << 46

const (
	descSize    = 16
	segmentSize = 16
	keySize     = 48 // length of a memory handle, which contains key, length, number of ranges, flags, and one range
)

// A Segment is one range of the memory to which a bulk handle refers.
type Segment struct {
	Addr uint64 // address of the first byte for reads and writes by peers
	Len  uint64
	Key  uint64
	Base uint64 // address in the owner's process, used only by the owner
}

// A Bulk is a bulk handle, which refers to memory. The zero Bulk is HG_BULK_NULL.
type Bulk struct {
	Len      uint64 // total number of bytes in all segments
	Access   uint8  // Readable | Writable
	Segments []Segment
	Eager    []byte         // copy of the data, in a readable handle; nil if not included
	Owner    netip.AddrPort // address of the owner, if the handle is bound
	Context  uint8          // context of the owner, if the handle is bound
}

// IsNull reports whether b is HG_BULK_NULL.
func (b *Bulk) IsNull() bool { return len(b.Segments) == 0 }

// WireSize returns the length in bytes of the encoding of b, excluding the length prefix. It is 0 for HG_BULK_NULL.
func (b *Bulk) WireSize() uint64 {
	if b.IsNull() {
		return 0
	}
	size := descSize + len(b.Segments)*(segmentSize+8+keySize) + len(b.Eager)
	if b.Owner.IsValid() {
		size += 8 + ownerSize + 1
	}
	return uint64(size)
}

// Append appends the encoding of b, including the length prefix.
func (b *Bulk) Append(to []byte) []byte {
	if b.IsNull() {
		return append(to, 0, 0, 0, 0, 0, 0, 0, 0)
	}
	n := len(b.Segments)
	flags := uint32(b.Access)
	if b.Eager != nil {
		flags |= eager
	}
	if slices.ContainsFunc(b.Segments, func(s Segment) bool { return s.Addr != 0 }) {
		flags |= virtual
	}
	if b.Owner.IsValid() {
		flags |= bind
	}
	le := binary.LittleEndian
	to = le.AppendUint64(to, b.WireSize())
	to = le.AppendUint64(to, b.Len)
	to = le.AppendUint32(to, uint32(n))
	to = le.AppendUint32(to, flags)
	for _, s := range b.Segments {
		to = le.AppendUint64(to, s.base())
		to = le.AppendUint64(to, s.Len)
	}
	for range n {
		to = le.AppendUint64(to, keySize)
	}
	for _, s := range b.Segments {
		to = le.AppendUint64(to, s.Key)
		to = le.AppendUint64(to, s.Len)
		to = le.AppendUint64(to, 1)
		to = append(to, b.Access, 0, 0, 0, 0, 0, 0, 0)
		if flags&virtual != 0 {
			to = le.AppendUint64(to, s.Addr)
		} else {
			to = le.AppendUint64(to, s.base())
		}
		to = le.AppendUint64(to, s.Len)
	}
	if b.Owner.IsValid() {
		to = le.AppendUint64(to, ownerSize)
		to = le.AppendUint64(to, 8+SourceSize)
		to = le.AppendUint64(to, SourceSize)
		to = append(AppendSource(to, b.Owner), b.Context)
	}
	return append(to, b.Eager...)
}

// base returns the Base to send. A node sends 1 in place of the addresses of its memory, because 0 would mean that
// there is no memory handle.
func (s *Segment) base() uint64 { return max(s.Base, 1) }

// Parse parses a handle with its length prefix and returns the bytes that follow. b.Eager aliases data.
func (b *Bulk) Parse(data []byte) (rest []byte, err error) {
	le := binary.LittleEndian
	if len(data) < 8 {
		return nil, errBulk
	}
	size := le.Uint64(data)
	data = data[8:]
	*b = Bulk{}
	if size == 0 {
		return data, nil
	}
	if size > uint64(len(data)) || size < descSize {
		return nil, errBulk
	}
	d, rest := data[:size], data[size:]
	// Before Mercury 2.4.1, the flags are a single byte followed by undefined bytes.
	total, n, flags := le.Uint64(d), int64(le.Uint32(d[8:])), d[12]
	d = d[descSize:]
	if n == 0 || total > MaxBulk || n*(segmentSize+8) > int64(len(d)) {
		return nil, fmt.Errorf("hgwire: invalid bulk handle: %d bytes in %d segments", total, n)
	}
	segments, sizes, d := d[:n*segmentSize], d[n*segmentSize:n*(segmentSize+8)], d[n*(segmentSize+8):]
	made := Bulk{Len: total, Access: flags & (Readable | Writable), Segments: make([]Segment, n)}
	left := total
	for i := range made.Segments {
		base, length := le.Uint64(segments[i*segmentSize:]), le.Uint64(segments[i*segmentSize+8:])
		if length > left {
			return nil, errBulk
		}
		left -= length
		s := &made.Segments[i]
		s.Len = length
		switch keyLen := le.Uint64(sizes[i*8:]); {
		case base == 0 && keyLen == 0 && (length == 0 || flags&eager != 0):
		case keyLen == keySize && len(d) >= keySize:
			if le.Uint64(d[8:]) < length || le.Uint64(d[16:]) != 1 {
				return nil, errBulk
			}
			s.Key, s.Base = le.Uint64(d), base
			if flags&virtual != 0 {
				s.Addr = le.Uint64(d[32:])
			}
			d = d[keySize:]
		default:
			return nil, fmt.Errorf("hgwire: memory key of %d bytes, want %d", keyLen, keySize)
		}
	}
	if left != 0 {
		return nil, errBulk
	}
	if flags&bind != 0 {
		if d, err = made.parseOwner(d); err != nil {
			return nil, err
		}
	}
	if flags&eager != 0 {
		if uint64(len(d)) != total {
			return nil, errBulk
		}
		made.Eager = d
	} else if len(d) != 0 {
		return nil, errBulk
	}
	*b = made
	return rest, nil
}

// ownerSize is the length in bytes of an owner's address, including its length prefixes. The address sent by a library
// with shared memory may be longer.
const ownerSize = 8 + 8 + SourceSize

// parseOwner parses the address to which b is bound, at the beginning of d, and returns the bytes that follow.
func (b *Bulk) parseOwner(d []byte) (rest []byte, err error) {
	le := binary.LittleEndian
	if len(d) < 8+ownerSize+1 {
		return nil, errBulk
	}
	size := le.Uint64(d)
	d = d[8:]
	if size < ownerSize || size > uint64(len(d)-1) || le.Uint64(d) != 8+SourceSize || le.Uint64(d[8:]) != SourceSize {
		return nil, errBulk
	}
	b.Owner, _, err = ParseSource(d[16:ownerSize])
	b.Context = d[size]
	return d[size+1:], err
}

// A Piece is a part of one segment.
type Piece struct {
	Addr, Key uint64
	Len       int
}

// A Cursor is a position in the memory to which a Bulk refers.
type Cursor struct {
	segments []Segment // the current segment and those that follow
	off      uint64    // offset in segments[0]
}

// Seek returns a Cursor at offset off of b.
func (b *Bulk) Seek(off uint64) Cursor {
	c := Cursor{b.Segments, off}
	c.skip()
	return c
}

// skip advances c past exhausted segments.
func (c *Cursor) skip() {
	for len(c.segments) > 0 && c.off >= c.segments[0].Len {
		c.off -= c.segments[0].Len
		c.segments = c.segments[1:]
	}
}

// Next returns the next part of the memory, which is at most n bytes of one segment, and advances c past it. At the end
// of the memory, it returns an empty Piece.
func (c *Cursor) Next(n int) Piece {
	if len(c.segments) == 0 {
		return Piece{}
	}
	s := &c.segments[0]
	p := Piece{s.Addr + c.off, s.Key, int(min(uint64(n), s.Len-c.off))}
	c.off += uint64(p.Len)
	c.skip()
	return p
}

var errBulk = errors.New("hgwire: inconsistent bulk handle")
