package mercury

import (
	"crypto/rand"
	"encoding/binary"
	"slices"
	"sync"

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

// Access is what peers may do with lent memory.
type Access uint8

// The access modes. They may be combined.
const (
	Read  Access = hgwire.Readable // peers may read it
	Write Access = hgwire.Writable // peers may write it
)

// A Region is memory of this process that peers may read or write. It is safe for concurrent use.
type Region struct {
	node   *Node
	key    uint64
	size   uint64
	access Access
	only   *conn    // nil: any connection
	peers  []string // nil: any peer
	mem    memory
}

// Lend lets peers read or write buf until Close. A peer needs its key, which is random and part of what Region.Bulk returns; with
// peers, addresses, the key is good for these only. The program must not use buf for something else meanwhile.
//
// There is no message that refuses an access: a wrong key or range, or access that was not given, ends the connection, as in C.
func (n *Node) Lend(buf []byte, access Access, peers ...string) (*Region, error) {
	if len(buf) == 0 || access == 0 || access&^(Read|Write) != 0 {
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
	return n.lend(buf, access, nil, peers)
}

func (n *Node) lend(buf []byte, access Access, only *conn, peers []string) (*Region, error) {
	r := &Region{node: n, access: access, size: uint64(len(buf)), only: only, peers: peers, mem: memory{buf: buf}}
	n.regionMu.Lock()
	defer n.regionMu.Unlock()
	if n.regions == nil {
		return nil, ErrClosed
	}
	for r.key == 0 || n.regions[r.key] != nil {
		var b [8]byte
		_, _ = rand.Read(b[:])
		r.key = binary.LittleEndian.Uint64(b[:])
	}
	n.regions[r.key] = r
	return r, nil
}

// Bulk returns the handle of r, to be sent to peers.
func (r *Region) Bulk() Bulk {
	return Bulk{hgwire.Bulk{Len: r.size, Access: uint8(r.access), Segments: []hgwire.Segment{{Len: r.size, Key: r.key}}}}
}

// Close takes the memory away from peers: when it returns, nobody reads or writes it for one. A peer that is in the middle of that,
// or uses the key afterwards, loses its connection. Close waits for no peer, and is nil. It may be called twice.
func (r *Region) Close() error {
	r.mem.takeAway()
	r.node.regionMu.Lock()
	delete(r.node.regions, r.key)
	r.node.regionMu.Unlock()
	return nil
}

// region returns what key stands for, if c may do access to n bytes at off.
func (n *Node) region(c *conn, key, off, size uint64, access Access) *Region {
	n.regionMu.Lock()
	r := n.regions[key]
	n.regionMu.Unlock()
	if r == nil || r.access&access == 0 || off > r.size || size > r.size-off {
		return nil
	}
	if r.only != nil && r.only != c || r.peers != nil && !slices.Contains(r.peers, c.addr) {
		return nil
	}
	return r
}
