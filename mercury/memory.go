package mercury

import (
	"crypto/rand"
	"encoding/binary"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/quicksilver-rpc/quicksilver/mercury/internal/hgwire"
)

// A memory is a byte range that connections may copy to or from until it is revoked. Data is copied in chunks with the
// lock held, so that revoke waits for at most one chunk and never for a peer.
type memory struct {
	mu  sync.Mutex
	buf []byte // nil once revoked
}

// copyOut copies len(to) bytes at offset off of the memory to to. It returns false if the memory has been revoked.
func (m *memory) copyOut(to []byte, off uint64) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.buf == nil {
		return false
	}
	copy(to, m.buf[off:])
	return true
}

// copyIn copies the bytes of from to offset off of the memory. It returns false if the memory has been revoked.
func (m *memory) copyIn(from []byte, off uint64) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.buf == nil {
		return false
	}
	copy(m.buf[off:], from)
	return true
}

// revoke prevents further use of the memory. When it returns, no copy is in progress.
func (m *memory) revoke() {
	m.mu.Lock()
	m.buf = nil
	m.mu.Unlock()
}

// replaceWithCopy replaces the memory with a copy, so that the caller can reuse the original bytes.
func (m *memory) replaceWithCopy() {
	m.mu.Lock()
	m.buf = slices.Clone(m.buf)
	m.mu.Unlock()
}

// A buffer is the source of a nonblocking write or the destination of a nonblocking read. It is b or, if mem is not
// nil, n bytes at offset off of mem.
type buffer struct {
	b      []byte
	mem    *memory
	off, n uint64
}

// errRevoked is returned for an access to memory that has been revoked.
var errRevoked = errorf(ErrRevoked, "the memory is no longer accessible")

// Access is the set of operations that peers may perform on lent memory.
type Access uint8

// Access modes, which may be combined.
const (
	Read  Access = hgwire.Readable // peers may read the memory
	Write Access = hgwire.Writable // peers may write the memory
)

// A Region is memory of this process that peers may read or write. It is safe for concurrent use.
type Region struct {
	node     *Node
	size     uint64
	access   Access
	only     *conn    // the only connection that may access the memory; nil if any may
	peers    []string // addresses of the peers that may access the memory; nil if any may
	segments []*segment
	lastUsed atomic.Int64 // time of the last access through only, in Unix nanoseconds
}

// A segment is a part of a Region with its own key.
type segment struct {
	region *Region
	key    uint64
	size   uint64
	mem    memory
}

// Lend allows peers to read or write buf until Region.Close is called, like HG_Bulk_create.
//
//   - It does not block and does not copy buf. The caller must not use buf for anything else until Region.Close has
//     returned.
//   - A peer needs the key, which is random and part of Region.Bulk. If peers are given, as addresses, the key is valid
//     only for these peers.
//   - An access with a wrong key or range, or of a kind that is not allowed, closes the connection, as in C, because the
//     protocol has no message to refuse an access.
//   - The error is ErrInvalid if buf is empty, access is unknown or peers are not addresses, and ErrClosed after
//     Node.Close.
func (n *Node) Lend(buf []byte, access Access, peers ...string) (*Region, error) {
	return n.LendSegments([][]byte{buf}, access, peers...)
}

// LendSegments is like Lend for several buffers, which peers see as one contiguous range. Empty buffers are skipped.
// The handle needs 72 bytes for each buffer. A request that contains a handle of more than about 50 buffers does not
// fit into a message, so that the target needs a separate transfer to read it.
func (n *Node) LendSegments(bufs [][]byte, access Access, peers ...string) (*Region, error) {
	if access == 0 || access&^(Read|Write) != 0 || !slices.ContainsFunc(bufs, func(b []byte) bool { return len(b) > 0 }) {
		return nil, errorf(ErrInvalid, "mercury: lend: empty memory or invalid access")
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
	return n.newRegion(bufs, access, nil, peers)
}

// newRegion returns a Region of bufs, skipping empty ones. Each buffer becomes a segment with a new key. only and peers
// restrict the access as described for the fields of Region.
func (n *Node) newRegion(bufs [][]byte, access Access, only *conn, peers []string) (*Region, error) {
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

// newKey returns a random key.
func newKey() uint64 {
	var b [8]byte
	_, _ = rand.Read(b[:])
	return binary.LittleEndian.Uint64(b[:])
}

// Bulk returns the handle of r, which can be sent to peers in the input or output of a call. It is valid until Close.
// To allow a peer to pass it to other processes, bind it: Region.Bulk().Bind(Node.Addr()).
func (r *Region) Bulk() Bulk {
	b := hgwire.Bulk{Len: r.size, Access: uint8(r.access), Segments: make([]hgwire.Segment, len(r.segments))}
	for i, s := range r.segments {
		b.Segments[i] = hgwire.Segment{Len: s.size, Key: s.key}
	}
	return Bulk{b}
}

// maxEager is the maximum size in bytes of a handle that includes a copy of the memory. It is less than the default of
// Config.MessageSize, so that other arguments fit into the message.
const maxEager = 3 << 10

// EagerBulk is like Bulk, but the handle includes a copy of the current contents of the memory, as C does for small
// memory. The receiver reads the copy, and Get on such a handle does not block. EagerBulk returns the same handle as
// Bulk if peers may write to the memory, if the handle would be longer than 3 KiB, or after Close.
//
// Every process that receives the handle can read the copy, even if the memory was lent only to certain peers, and even
// after Close.
func (r *Region) EagerBulk() Bulk {
	b := r.Bulk()
	if r.access != Read || b.wire.WireSize()+r.size > maxEager {
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
	b.wire.Eager = data
	return b
}

// Close revokes the access of peers to the memory. When it returns, the memory is no longer read or written on behalf
// of peers. A peer that is in the middle of an access, or that uses the key afterward, loses its connection. Close does
// not wait for peers. It returns nil and may be called more than once.
func (r *Region) Close() error {
	r.node.regionMu.Lock()
	for _, s := range r.segments {
		delete(r.node.segments, s.key)
	}
	r.node.regionMu.Unlock()
	for _, s := range r.segments {
		s.mem.revoke()
	}
	return nil
}

// replaceWithCopies replaces the memory of r with copies, so that the caller can reuse the original bytes.
func (r *Region) replaceWithCopies() {
	for _, s := range r.segments {
		s.mem.replaceWithCopy()
	}
}

// findSegment returns the segment with the given key if c may access size bytes at offset off of it. Otherwise it
// returns nil.
func (n *Node) findSegment(c *conn, key, off, size uint64, access Access) *segment {
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
