package mercury

import (
	"crypto/rand"
	"encoding/binary"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/quicksilver-rpc/quicksilver/mercury/internal/hgwire"
)

// A memory is bytes that a connection may copy from or to until they are taken away. Copies are made under its lock, in pieces, so
// that taking away waits for one piece at most and never for a peer.
type memory struct {
	mu  sync.Mutex
	buf []byte // nil once taken away
}

// copyOut fills to with what lies at off. It reports whether the memory is still there.
func (m *memory) copyOut(to []byte, off uint64) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.buf == nil {
		return false
	}
	copy(to, m.buf[off:])
	return true
}

// copyIn is copyOut in the other direction.
func (m *memory) copyIn(from []byte, off uint64) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.buf == nil {
		return false
	}
	copy(m.buf[off:], from)
	return true
}

func (m *memory) takeAway() {
	m.mu.Lock()
	m.buf = nil
	m.mu.Unlock()
}

// keep puts a copy in place of the memory, which is the caller's again.
func (m *memory) keep() {
	m.mu.Lock()
	m.buf = slices.Clone(m.buf)
	m.mu.Unlock()
}

// A place is where a try reads or writes: b, or n bytes at off of mem.
type place struct {
	b      []byte
	mem    *memory
	off, n uint64
}

// errGone says that the memory of a place has been taken away.
var errGone = errorf(ErrRevoked, "the memory has been taken away")

// Access is what peers may do with lent memory.
type Access uint8

// The access modes. They may be combined.
const (
	Read  Access = hgwire.Readable // peers may read it
	Write Access = hgwire.Writable // peers may write it
)

// A Region is memory of this process that peers may read or write. It is safe for concurrent use.
type Region struct {
	node     *Node
	size     uint64
	access   Access
	only     *conn    // nil: any connection
	peers    []string // nil: any peer
	segments []*segment
	used     atomic.Int64 // when only has asked for it last, in nanoseconds
}

// A segment is a part of a Region, which has a key of its own.
type segment struct {
	region *Region
	key    uint64
	size   uint64
	mem    memory
}

// Lend lets peers read or write buf until Region.Close, as HG_Bulk_create does. It does not block, and copies nothing: until then the program
// must not use buf for something else. A peer needs its key, which is random and part of what Region.Bulk returns; with peers, which are
// addresses, the key is good for these only.
//
// There is no message that refuses an access: a wrong key or range, or access that was not given, ends the connection, as in C.
//
// The error is ErrInvalid for no bytes, an unknown access or peers that are not addresses, and ErrClosed after Node.Close.
func (n *Node) Lend(buf []byte, access Access, peers ...string) (*Region, error) {
	return n.LendSegments([][]byte{buf}, access, peers...)
}

// LendSegments is Lend of several pieces of memory, which peers see as one: bufs[1] follows the last byte of bufs[0]. Nothing needs to
// be copied together for that. Pieces without bytes are left out. The handle takes 72 bytes for each piece; a request with more than some
// 50 of them is longer than a message, and travels apart.
func (n *Node) LendSegments(bufs [][]byte, access Access, peers ...string) (*Region, error) {
	if access == 0 || access&^(Read|Write) != 0 || !slices.ContainsFunc(bufs, func(b []byte) bool { return len(b) > 0 }) {
		return nil, errorf(ErrInvalid, "mercury: lend: no bytes or no access; want memory that peers may Read, Write, or both")
	}
	for i, p := range peers {
		a, err := parseAddr(p)
		if err != nil {
			return nil, err
		}
		if i == 0 {
			peers = slices.Clone(peers)
		}
		peers[i] = addrText(a)
	}
	return n.lend(bufs, access, nil, peers)
}

func (n *Node) lend(bufs [][]byte, access Access, only *conn, peers []string) (*Region, error) {
	r := &Region{node: n, access: access, only: only, peers: peers}
	for _, buf := range bufs {
		if len(buf) > 0 {
			r.segments = append(r.segments, &segment{region: r, key: newKey(), size: uint64(len(buf)), mem: memory{buf: buf}})
			r.size += uint64(len(buf))
		}
	}
	n.regionMu.Lock()
	defer n.regionMu.Unlock()
	if n.segments == nil {
		return nil, ErrClosed
	}
	for _, s := range r.segments {
		for s.key == 0 || n.segments[s.key] != nil {
			s.key = newKey()
		}
		n.segments[s.key] = s
	}
	return r, nil
}

func newKey() uint64 {
	var b [8]byte
	_, _ = rand.Read(b[:])
	return binary.LittleEndian.Uint64(b[:])
}

// Bulk returns the handle of r, to be sent to peers in the input or output of a call. It is good until Close. A peer that passes it on
// needs one that is bound to this process: Region.Bulk().Bind(Node.Addr()).
func (r *Region) Bulk() Bulk {
	b := hgwire.Bulk{Len: r.size, Access: uint8(r.access), Segments: make([]hgwire.Segment, len(r.segments))}
	for i, s := range r.segments {
		b.Segments[i] = hgwire.Segment{Len: s.size, Key: s.key}
	}
	return Bulk{b}
}

// maxEager bounds the handle with a copy of the memory. It fits into a message beside some other arguments.
const maxEager = 3 << 10

// EagerBulk is Bulk with a copy of the memory, as it is now, inside of the handle: its receiver reads that without asking
// this process. C makes its handles of small memory so. Get of such a handle waits for nothing. The handle is that of Bulk
// if peers may write to the memory, if it would be longer than 3 KiB, or after Close.
//
// The copy goes wherever the handle goes, whatever peers the memory was lent to, and stays there after Close.
func (r *Region) EagerBulk() Bulk {
	b := r.Bulk()
	if r.access != Read || b.b.WireSize()+r.size > maxEager {
		return b
	}
	data := make([]byte, r.size)
	at := uint64(0)
	for _, s := range r.segments {
		if !s.mem.copyOut(data[at:at+s.size], 0) {
			return b
		}
		at += s.size
	}
	b.b.Eager = data
	return b
}

// Close takes the memory away from peers: when it returns, nobody reads or writes it for one. A peer that is in the middle of that,
// or uses a key afterwards, loses its connection. Close waits for no peer, and is nil. It may be called twice.
func (r *Region) Close() error {
	r.node.regionMu.Lock()
	for _, s := range r.segments {
		delete(r.node.segments, s.key)
	}
	r.node.regionMu.Unlock()
	for _, s := range r.segments {
		s.mem.takeAway()
	}
	return nil
}

// keep puts copies in place of the memory, which is the caller's again.
func (r *Region) keep() {
	for _, s := range r.segments {
		s.mem.keep()
	}
}

// segment returns what key stands for, if c may do access to size bytes at off.
func (n *Node) segment(c *conn, key, off, size uint64, access Access) *segment {
	n.regionMu.Lock()
	s := n.segments[key]
	n.regionMu.Unlock()
	if s == nil || off > s.size || size > s.size-off {
		return nil
	}
	r := s.region
	if r.access&access == 0 || r.only != nil && r.only != c || r.peers != nil && !slices.Contains(r.peers, c.addr) {
		return nil
	}
	return s
}
