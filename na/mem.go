package na

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"sort"
	"sync/atomic"

	"github.com/quicksilver-rpc/quicksilver/internal/pool"
)

// Access is a set of operations that peers may perform on registered memory.
type Access uint8

// Access modes.
const (
	NoAccess  Access = 0
	ReadOnly  Access = 1 // peers may get
	WriteOnly Access = 2 // peers may put
	ReadWrite Access = ReadOnly | WriteOnly
)

// Can reports whether a includes all of want.
func (a Access) Can(want Access) bool { return a&want == want }

// String returns "none", "read", "write" or "read+write".
func (a Access) String() string {
	switch a & ReadWrite {
	case ReadOnly:
		return "read"
	case WriteOnly:
		return "write"
	case ReadWrite:
		return "read+write"
	}
	return "none"
}

// KeySize is the length in bytes of an encoded Key.
const KeySize = 16 + 8 + 1

// A Key grants a peer access to registered memory. It contains a random token, which the owner
// checks on every request, the length and the access mode. Any peer that has the token has access,
// so the token is never printed.
type Key struct {
	Token  [16]byte
	Len    int64
	Access Access
	Place  pool.Place // where processes on this machine can read the memory directly
}

// String describes the region without its token.
func (k Key) String() string { return fmt.Sprintf("region of %d bytes (%s)", k.Len, k.Access) }

// Format implements [fmt.Formatter]. It omits the token for every verb.
func (k Key) Format(f fmt.State, _ rune) { _, _ = f.Write([]byte(k.String())) }

// Append appends the encoding of k to b and returns the extended slice. The encoding does not
// include Place.
func (k Key) Append(b []byte) []byte {
	b = append(b, k.Token[:]...)
	b = binary.LittleEndian.AppendUint64(b, uint64(k.Len))
	return append(b, byte(k.Access))
}

// DecodeKey decodes a Key from the first KeySize bytes of b, as encoded by Key.Append, and ignores
// the rest. b may come from a peer: if it is too short, or has an impossible length or access mode,
// DecodeKey returns an error that matches ErrProtocol. It does not check whether the memory is
// still registered. The Place of the returned key is zero.
func DecodeKey(b []byte) (Key, error) {
	if len(b) < KeySize {
		return Key{}, WithText(ErrProtocol, fmt.Sprintf("na: decode key: %d bytes, want %d", len(b), KeySize))
	}
	var k Key
	copy(k.Token[:], b)
	k.Len = int64(binary.LittleEndian.Uint64(b[16:]))
	k.Access = Access(b[24])
	if k.Len < 0 || k.Access&^ReadWrite != 0 {
		return Key{}, WithText(ErrProtocol, "na: decode key: invalid length or access mode")
	}
	return k, nil
}

// A Mem is memory that operations can use. It consists of segments that form one linear space.
// Peers that have the Key of a registered Mem can access it until Deregister has completed. A
// private Mem can be used only as the local side of Put and Get.
//
// word counts the current users of the memory. Deregister closes it, and completes when the count
// is zero.
type Mem struct {
	class  *Class
	key    Key
	segs   [][]byte
	ends   []int64       // linear end offset of each segment
	public bool          // registered, so that peers can access it
	only   uint64        // session that may access it; 0 for all
	taken  atomic.Bool   // revoked
	word   atomic.Int64  // number of users, plus memClosed once revoked
	closer ticket        // operation that revoked it; set before memClosed is
	ending Result        // result of closer; set before memClosed is
	served atomic.Int64  // bytes that peers have read and written
	user   atomic.Uint64 // session of the last peer that has read or written; 0 for none
}

const memClosed = 1 << 62

// Served returns the number of bytes known to have been read from and written to m by peers. Bytes
// are counted once they have been sent or have arrived. A peer that reads the memory directly
// reports the bytes before its next message, or within 100 ms.
func (m *Mem) Served() int64 { return m.served.Load() }

// countServed adds n to the number of bytes read from or written to m by the peer of l, and
// records l as the last user.
func (m *Mem) countServed(l *session, n int64) {
	m.served.Add(n)
	m.user.Store(l.id)
}

// A MemStat describes registered memory.
type MemStat struct {
	Len    int64 // length in bytes
	Access Access
	User   uint64 // Addr.Session of the last peer known to have read or written; 0 for none
}

// NewMem returns segs as private memory for the local side of Put and Get. Peers cannot access it.
// Offsets start at the first byte of the first segment and continue through all segments. The
// segments are not copied. They belong to an operation from its start until its callback runs.
// Private memory does not need to be deregistered. If there are more than Limits().MaxSegments
// segments, NewMem returns an error that matches ErrInvalid.
func (c *Class) NewMem(segs ...[]byte) (*Mem, error) {
	if limit := c.Limits().MaxSegments; len(segs) > limit {
		return nil, fmt.Errorf("na: %d memory segments, limit %d: %w", len(segs), limit, ErrInvalid)
	}
	m := &Mem{class: c, segs: segs}
	if len(segs) > 1 {
		m.ends = make([]int64, len(segs))
	}
	for i, s := range segs {
		m.key.Len += int64(len(s))
		if m.ends != nil {
			m.ends[i] = m.key.Len
		}
	}
	return m, nil
}

// Register makes segs accessible to peers that have the key. It does not copy them. The memory
// remains accessible, and is not garbage collected, until Deregister completes.
//
// A single segment allocated by package internal/pool with read access can be read directly by
// processes on this machine. Such a read succeeds if the memory is still registered when the read
// completes.
func (c *Class) Register(access Access, segs ...[]byte) (*Mem, error) {
	return c.register(access, 0, segs, len(segs) == 1 && access.Can(ReadOnly))
}

// RegisterFor is like Register but makes segs accessible to a single peer, that of the session to
// which the address peer is bound. Addresses of messages and PeerStats.Addr are bound to a session.
// Once an operation has connected to a peer that is known by name, [Context.Peers] has its bound
// address. Requests from other sessions fail with ErrPermission even if they have the key. So do
// all requests after the session has ended.
func (c *Class) RegisterFor(peer Addr, access Access, segs ...[]byte) (*Mem, error) {
	if peer.Session() == 0 {
		return nil, fmt.Errorf("na: register: address %v is not bound to a session, "+
			"want the address of a message or PeerStats.Addr: %w", peer, ErrInvalid)
	}
	return c.register(access, peer.Session(), segs, false)
}

func (c *Class) register(access Access, only uint64, segs [][]byte, share bool) (*Mem, error) {
	if access&^ReadWrite != 0 || access == NoAccess {
		return nil, fmt.Errorf("na: register: invalid access mode %d: %w", access, ErrInvalid)
	}
	m, err := c.NewMem(segs...)
	if err != nil {
		return nil, err
	}
	m.key.Access = access
	c.tokens.next(&m.key.Token, c.domain.rand)
	m.public, m.only = true, only
	if share {
		m.key.Place = pool.Share(segs[0], &m.key.Token)
	}
	if err := c.domain.register(m); err != nil {
		pool.Unshare(m.key.Place)
		return nil, err
	}
	c.regions.Add(1)
	return m, nil
}

// Format implements [fmt.Formatter]. It omits the token for every verb.
func (m *Mem) Format(f fmt.State, verb rune) { m.key.Format(f, verb) }

// Key returns the key that a peer needs to access m. The key of a private Mem does not grant
// access.
func (m *Mem) Key() Key { return m.key }

// Len returns the length of m in bytes.
func (m *Mem) Len() int64 { return m.key.Len }

// Segments returns the segments of m. The caller must not modify the slice.
func (m *Mem) Segments() [][]byte { return m.segs }

// Deregister revokes m. New requests for it fail, and op completes when no transport is reading or
// writing m any longer, which no peer can delay. Deregister waits for local operations that use m
// as their local side. To avoid the wait, cancel them.
//
// A second Deregister fails with ErrClosed. If c is closed and released, Deregister fails with
// ErrClosed as well, but revokes m without completing op. Private memory may also be revoked.
func (c *Context) Deregister(op *Op, m *Mem) error {
	t, err := op.beginLife(kindDeregister, Addr{})
	if errors.Is(err, ErrClosed) {
		m.revoke(ticket{}, Result{})
	}
	if err != nil {
		return err
	}
	if !m.revoke(t, Result{N: m.key.Len}) {
		op.undoStart()
		return &OpError{Op: kindText[kindDeregister], Fate: NotRun, Err: ErrClosed}
	}
	return nil
}

// revoke removes m from the domain's table, and finishes t with r once no transport uses m any
// longer. If m was already revoked, revoke does nothing and returns false.
func (m *Mem) revoke(t ticket, r Result) bool {
	if !m.taken.CompareAndSwap(false, true) {
		return false
	}
	if m.public {
		pool.Unshare(m.key.Place)
		m.class.domain.unpublishMem(m)
		m.class.regions.Add(-1)
	}
	m.closer, m.ending = t, r
	if m.word.Add(memClosed) == memClosed {
		m.finishRevoke()
	}
	return true
}

// finishRevoke finishes the operation that revoked m, once m has no users left.
func (m *Mem) finishRevoke() {
	if m.closer.isValid() {
		m.closer.finish(m.ending)
	}
}

// Acquire adds a user of m, so that Deregister does not complete until Release is called. It
// returns false if m has been revoked. The endpoint calls Acquire for requests by peers. A higher
// layer calls it to keep m usable while it starts operations that have m as their local side.
func (m *Mem) Acquire() bool { return m.addUser(memClosed - 1) }

// acquireLocal adds a user of m for a local operation. Deregister waits for the operation to
// complete. acquireLocal succeeds even if m has been revoked, provided that m still has another
// user.
func (m *Mem) acquireLocal() bool { return m.addUser(math.MaxInt64) }

// addUser adds a user and reports whether it did. It fails if m has been revoked and has no users
// left, or if m.word is greater than most.
func (m *Mem) addUser(most int64) bool {
	for {
		w := m.word.Load()
		if w == memClosed || w > most {
			return false
		}
		if m.word.CompareAndSwap(w, w+1) {
			return true
		}
	}
}

// Release removes a user added by Acquire.
func (m *Mem) Release() {
	if m.word.Add(-1) == memClosed {
		m.finishRevoke()
	}
}

// contains reports whether the n bytes at off lie within m. off and n may have any values.
func (m *Mem) contains(off, n int64) bool { return InRange(off, n, m.key.Len) }

// InRange reports whether the n bytes at off lie within size bytes. off and n may have any values,
// even if their sum would overflow.
func InRange(off, n, size int64) bool {
	return off >= 0 && n >= 0 && off <= size && n <= size-off
}

// Slices appends to dst the slices of m that hold the n bytes at off, which must lie within m.
func (m *Mem) Slices(dst [][]byte, off, n int64) [][]byte {
	for n > 0 {
		b := m.slice(off, n)
		dst = append(dst, b)
		off += int64(len(b))
		n -= int64(len(b))
	}
	return dst
}

// slice returns the n bytes at off, or the part of them that lies in the first segment they touch.
// They must lie within m, and n must not be 0.
func (m *Mem) slice(off, n int64) []byte {
	if m.ends == nil {
		return m.segs[0][off : off+n]
	}
	i := sort.Search(len(m.ends), func(i int) bool { return m.ends[i] > off })
	s := m.segs[i]
	from := off - (m.ends[i] - int64(len(s)))
	return s[from:min(int64(len(s)), from+n)]
}
