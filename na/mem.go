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

// Access says what peers may do with registered memory.
type Access uint8

// The access modes.
const (
	NoAccess  Access = 0
	ReadOnly  Access = 1 // peers may get
	WriteOnly Access = 2 // peers may put
	ReadWrite Access = ReadOnly | WriteOnly
)

// Can reports whether a allows all of want.
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

// KeySize is the length of an encoded Key in bytes.
const KeySize = 16 + 8 + 1

// A Key is what a peer needs to reach registered memory: a random token that the owner checks on every request, the
// length and the access mode. The key grants the access to any peer that knows it, so it is never printed.
type Key struct {
	Token  [16]byte
	Len    int64
	Access Access
	Place  pool.Place // where peers of this machine may find it by themselves
}

// String names the region without its token.
func (k Key) String() string { return fmt.Sprintf("region of %d bytes (%s)", k.Len, k.Access) }

// Format keeps the token out of every verb of package fmt.
func (k Key) Format(f fmt.State, _ rune) { _, _ = f.Write([]byte(k.String())) }

// Append encodes k at the end of b, without its Place.
func (k Key) Append(b []byte) []byte {
	b = append(b, k.Token[:]...)
	b = binary.LittleEndian.AppendUint64(b, uint64(k.Len))
	return append(b, byte(k.Access))
}

// DecodeKey reads a key from the first KeySize bytes of b, as Key.Append has written them; what follows is left alone. b may come from
// a peer: a key that is too short, or with a length or an access mode that cannot be, is an error which matches ErrProtocol.
// That the owner still has the memory shows only when it is used. The key's Place is zero.
func DecodeKey(b []byte) (Key, error) {
	if len(b) < KeySize {
		return Key{}, WithText(ErrProtocol, fmt.Sprintf("na: key of %d bytes, want %d", len(b), KeySize))
	}
	var k Key
	copy(k.Token[:], b)
	k.Len = int64(binary.LittleEndian.Uint64(b[16:]))
	k.Access = Access(b[24])
	if k.Len < 0 || k.Access&^ReadWrite != 0 {
		return Key{}, WithText(ErrProtocol, "na: key has a length or an access mode that cannot be")
	}
	return k, nil
}

// A Mem is memory that operations can use: segments that form one linear space. A registered Mem is also reachable by
// peers that have its Key, until Deregister has completed; a private one is the local side of Put and Get only.
//
// The word counts who touches the memory now; Deregister closes it and completes when the count is zero.
type Mem struct {
	class  *Class
	key    Key
	segs   [][]byte
	ends   []int64       // linear end offset of each segment
	public bool          // registered
	only   uint64        // the session that may reach it; 0 for all
	taken  atomic.Bool   // taken back
	word   atomic.Int64  // users, plus memClosed once closed
	closer ticket        // the operation that took m back; set before memClosed is
	ending Result        // what it ends with; likewise
	served atomic.Int64  // bytes that peers have read and written
	user   atomic.Uint64 // the session of the peer that has read or written some last; 0 for none
}

const memClosed = 1 << 62

// Served returns how many bytes peers have read from m and written to it so far, as far as is known: those whose pieces have left,
// or have come, or of which a peer that reads by itself has told. It tells before its next message, or after 100 ms.
func (m *Mem) Served() int64 { return m.served.Load() }

// countServed counts n bytes that the peer of l has read or written.
func (m *Mem) countServed(l *session, n int64) {
	m.served.Add(n)
	m.user.Store(l.id)
}

// A MemStat describes registered memory.
type MemStat struct {
	Len    int64 // bytes
	Access Access
	User   uint64 // Addr.Session of the peer that has read or written some of it last, as far as is known; 0 for none
}

// NewMem returns memory over segs for local use, as the local side of Put and Get: nothing is published, and no peer can reach it.
// Offsets count from the first byte of the first segment on through all of them. The segments are used, not copied: they belong to an
// operation from its start until its callback runs. Memory that is not published has nothing to be given back; Deregister is not for it.
// The error matches ErrInvalid when there are more than Limits().MaxSegments.
func (c *Class) NewMem(segs ...[]byte) (*Mem, error) {
	if limit := c.Limits().MaxSegments; len(segs) > limit {
		return nil, fmt.Errorf("na: %d segments, the limit is %d: %w", len(segs), limit, ErrInvalid)
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

// Register publishes segs to peers that will have the key, for the given access. It does not copy. The memory stays
// reachable, and is kept alive, until Deregister completes.
//
// One segment of the memory of package internal/pool that peers may read can be read by peers on this machine without this process:
// what they have read counts if it is still registered then.
func (c *Class) Register(access Access, segs ...[]byte) (*Mem, error) {
	return c.register(access, 0, segs, len(segs) == 1 && access.Can(ReadOnly))
}

// RegisterFor is Register for one peer alone: that of the session which peer is bound to, as the address of a message and
// PeerStats.Addr are. Of a peer whose name you know [Context.Peers] has it, once an operation has connected to it.
// Requests of others fail with ErrPermission, whatever key they have, and so does everything once the session has ended.
func (c *Class) RegisterFor(peer Addr, access Access, segs ...[]byte) (*Mem, error) {
	if peer.Session() == 0 {
		return nil, fmt.Errorf("na: register: address %v is not bound to a session, as that of a message is, or PeerStats.Addr in "+
			"Context.Peers once there is a session: %w", peer, ErrInvalid)
	}
	return c.register(access, peer.Session(), segs, false)
}

func (c *Class) register(access Access, only uint64, segs [][]byte, share bool) (*Mem, error) {
	if access&^ReadWrite != 0 || access == NoAccess {
		return nil, fmt.Errorf("na: register: access mode %d is neither read, write nor both: %w", access, ErrInvalid)
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

// Format keeps the token out of every verb of package fmt.
func (m *Mem) Format(f fmt.State, verb rune) { m.key.Format(f, verb) }

// Key returns what a peer needs to reach the memory. A private Mem has a key of no use.
func (m *Mem) Key() Key { return m.key }

// Len returns the number of bytes.
func (m *Mem) Len() int64 { return m.key.Len }

// Segments returns the segments. The caller does not change the slice.
func (m *Mem) Segments() [][]byte { return m.segs }

// Deregister takes m back: no new request can reach it from now on, and op completes when no transport touches it any
// more, which no peer can delay. Operations of this process that use m as their local side are waited for: cancel them
// to be quick. A second Deregister fails with ErrClosed, and so does one of a context that is closed and drained: the memory is
// taken back, and op does not complete. Private memory may be taken back too.
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

// revoke takes m out of the domain's table and finishes t with r when no transport touches m any more. It reports
// false, and does nothing, when m was taken back before.
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

// finishRevoke says that nobody touches m any more.
func (m *Mem) finishRevoke() {
	if m.closer.isValid() {
		m.closer.finish(m.ending)
	}
}

// Acquire borrows m, and reports false when it has been taken back. The endpoint calls it for the requests of peers, and a
// layer above for as long as it will start operations with m as their local side.
func (m *Mem) Acquire() bool { return m.addUser(memClosed - 1) }

// acquireLocal is Acquire for operations of this process, which Deregister waits for: it also borrows memory that has been taken
// back, as long as somebody else still has it.
func (m *Mem) acquireLocal() bool { return m.addUser(math.MaxInt64) }

// addUser counts a user unless m has been taken back with no user left, or its word is above most.
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

// Release ends what Acquire or Join began.
func (m *Mem) Release() {
	if m.word.Add(-1) == memClosed {
		m.finishRevoke()
	}
}

// contains reports whether the n bytes at off lie inside m. It is safe against overflow.
func (m *Mem) contains(off, n int64) bool { return InRange(off, n, m.key.Len) }

// InRange reports whether the n bytes at off lie inside size bytes.
func InRange(off, n, size int64) bool {
	return off >= 0 && n >= 0 && off <= size && n <= size-off
}

// Slices appends to dst the pieces of m that hold the n bytes at off, which lie inside m.
func (m *Mem) Slices(dst [][]byte, off, n int64) [][]byte {
	for n > 0 {
		b := m.slice(off, n)
		dst = append(dst, b)
		off += int64(len(b))
		n -= int64(len(b))
	}
	return dst
}

// slice returns the n bytes at off, which lie inside m, or the first of them that lie in one segment; n is not 0.
func (m *Mem) slice(off, n int64) []byte {
	if m.ends == nil {
		return m.segs[0][off : off+n]
	}
	i := sort.Search(len(m.ends), func(i int) bool { return m.ends[i] > off })
	s := m.segs[i]
	from := off - (m.ends[i] - int64(len(s)))
	return s[from:min(int64(len(s)), from+n)]
}
