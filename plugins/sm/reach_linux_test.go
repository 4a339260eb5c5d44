package sm

import (
	"context"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	qbulk "github.com/quicksilver-rpc/quicksilver/bulk"
	"github.com/quicksilver-rpc/quicksilver/hg"
	"github.com/quicksilver-rpc/quicksilver/internal/frame"
	"github.com/quicksilver-rpc/quicksilver/internal/memfd"
	"github.com/quicksilver-rpc/quicksilver/internal/pool"
	"github.com/quicksilver-rpc/quicksilver/na"
	"github.com/quicksilver-rpc/quicksilver/plugins/sm/internal/ring"
)

// A lendingPair is two classes of this process: one lends memory of the pool, and is driven only
// to take it back; the other reads.
type lendingPair struct {
	t            *testing.T
	opts         Options
	owner, other *hg.Context
	mem          []byte
	handle       *qbulk.Handle // of mem
	remote       *qbulk.Handle // as the other has it
}

func openAt(t *testing.T, addr string, opts Options) *hg.Context {
	cls, err := hg.Open(addr, hg.Config{NA: na.Config{PeerTimeout: time.Hour, Plugins: []na.Plugin{New(opts)}}})
	require.NoError(t, err)
	hctx, err := cls.NewContext()
	require.NoError(t, err)
	return hctx
}

func newLendingPair(t *testing.T, size int) *lendingPair {
	return newLendingPairWith(t, size, Options{Unassisted: true})
}

func newLendingPairWith(t *testing.T, size int, opts Options) *lendingPair {
	dir, err := os.MkdirTemp("", "sm")
	require.NoError(t, err)
	opts.Dir = dir
	n := &lendingPair{t: t, opts: opts}
	n.owner, n.other = openAt(t, "sm://owner", n.opts), openAt(t, "sm://", n.opts)
	n.mem, err = qbulk.Alloc(size)
	require.NoError(t, err)
	t.Cleanup(func() {
		n.close(n.owner)
		n.close(n.other)
		qbulk.Free(n.mem)
		pool.ReleaseUnused()
		require.NoError(t, os.RemoveAll(dir))
	})
	n.lend()
	_, err = n.get(size) // requests the chunk
	require.NoError(t, err)
	n.until(n.isDirect)
	return n
}

func (n *lendingPair) close(hctx *hg.Context) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if hctx == n.owner {
		_ = n.handle.Close()
	}
	require.NoError(n.t, hctx.Class().Shutdown(ctx))
}

// lend lends mem.
func (n *lendingPair) lend() {
	var err error
	n.handle, err = qbulk.Create(n.owner, qbulk.Options{Access: qbulk.ReadOnly, Eager: -1}, n.mem)
	require.NoError(n.t, err)
	b, err := n.handle.MarshalBinary()
	require.NoError(n.t, err)
	n.remote = &qbulk.Handle{}
	require.NoError(n.t, n.remote.UnmarshalBinary(b))
}

// closeLent takes it back, and writes something else there.
func (n *lendingPair) closeLent() {
	closed := false
	require.NoError(n.t, n.handle.CloseFunc(func(error) { closed = true }))
	for range 3 {
		n.owner.Trigger(0)
	}
	require.True(n.t, closed, "it is not delayed")
	for i := range n.mem {
		n.mem[i] = 0xdb
	}
}

// start begins to read so many bytes, in one piece.
func (n *lendingPair) start(size int) (op *qbulk.Op, into []byte, ended *error) {
	into = make([]byte, size)
	local, err := qbulk.Create(n.other, qbulk.Options{}, into)
	require.NoError(n.t, err)
	ended = new(error)
	*ended = errUnderWay
	op, err = qbulk.Transfer(n.other, qbulk.Spec{Peer: n.owner.Class().Addr(), Remote: n.remote, Local: local, Size: int64(size), Chunk: 1 << 30},
		func(_ *qbulk.Op, err error) { *ended = err })
	require.NoError(n.t, err)
	return op, into, ended
}

var errUnderWay = os.ErrInvalid

func (n *lendingPair) until(done func() bool) {
	n.t.Helper()
	for end := time.Now().Add(time.Minute); !done(); {
		for _, hctx := range []*hg.Context{n.owner, n.other} {
			hctx.Trigger(0)
			_ = hctx.Progress(0)
		}
		if time.Now().After(end) {
			n.t.Fatal("not within a minute")
		}
	}
}

func (n *lendingPair) get(size int) ([]byte, error) {
	n.t.Helper()
	_, into, ended := n.start(size)
	n.until(func() bool { return *ended != errUnderWay })
	return into, *ended
}

// isDirect reports whether the memory is read without its owner.
func (n *lendingPair) isDirect() bool {
	ctx, cancel := context.WithCancel(context.Background())
	cancel() // else it would be pulled
	v, err := qbulk.NewView(ctx, n.other, qbulk.Stream{Peer: n.owner.Class().Addr(), Handle: n.remote, Size: 1})
	if err != nil {
		return false
	}
	require.True(n.t, v.Shared())
	require.NoError(n.t, v.Close())
	return true
}

// TestReachWithoutOwner checks that a get needs no call of the owner. When it is canceled
// nothing more is copied.
func TestReachWithoutOwner(t *testing.T) {
	const size = 9 << 20
	n := newLendingPair(t, size)
	for i := range n.mem {
		n.mem[i] = 1
	}
	count := func(b []byte) (ones int) {
		for _, v := range b {
			ones += int(v)
		}
		return ones
	}
	_, into, ended := n.start(size)
	for *ended == errUnderWay { // the owner is not driven
		_ = n.other.Progress(0)
		n.other.Trigger(0)
	}
	require.NoError(t, *ended)
	require.Equal(t, size, count(into))
	require.EqualValues(t, size, n.handle.Moved(), "it has not been notified")
	n.until(func() bool { return n.handle.Moved() == 2*size+1 }) // the first get, the view, and this

	for turns := range 6 {
		op, into, ended := n.start(size)
		for range turns {
			_ = n.other.Progress(0)
		}
		copied := count(into)
		require.LessOrEqual(t, copied, turns*reachTurn)
		require.GreaterOrEqual(t, copied, (turns-1)*reachTurn)
		op.Cancel()
		n.until(func() bool { return *ended != errUnderWay })
		require.ErrorIs(t, *ended, hg.ErrCanceled)
		require.Equal(t, copied, count(into), "nothing is copied after a cancel")
	}
}

// TestReachCanceledInCopy checks that a cancel while another goroutine copies lets it end the
// piece, and nothing more.
func TestReachCanceledInCopy(t *testing.T) {
	const size = 64 << 20
	n := newLendingPairWith(t, size, Options{})
	var pieces atomic.Int64
	inCopy = func() { pieces.Add(1) }
	defer func() { inCopy = nil }()
	inTime := 0
	for want := range int64(20) {
		begun := pieces.Load()
		op, _, ended := n.start(size)
		for pieces.Load() < begun+want { // the goroutine that helps out copies
			runtime.Gosched()
		}
		op.Cancel()
		canceled := pieces.Load()
		n.until(func() bool { return *ended != errUnderWay })
		require.LessOrEqual(t, pieces.Load(), canceled+1)
		if *ended != nil { // else it was too late
			require.ErrorIs(t, *ended, hg.ErrCanceled)
			inTime++
		}
	}
	require.Positive(t, inTime)
}

// TestReachRevoked checks that bytes that were read after the owner has taken the memory back never
// count, wherever the read is then.
func TestReachRevoked(t *testing.T) {
	const size = 4 * reachPiece
	n := newLendingPair(t, size)
	defer func() { inCopy = nil }()
	for pieces := range 5 { // 0: never; 4: in the last
		for i := range n.mem {
			n.mem[i] = 1
		}
		left := pieces
		inCopy = func() {
			if left--; left == 0 {
				n.closeLent()
			}
		}
		_, into, ended := n.start(size)
		n.until(func() bool { return *ended != errUnderWay })
		if pieces == 0 {
			require.NoError(t, *ended)
			require.NotContains(t, into, byte(0xdb))
			n.closeLent()
		} else {
			require.ErrorIs(t, *ended, na.ErrRevoked)
		}
		_, err := n.get(size)
		require.ErrorIs(t, err, na.ErrRevoked, "and a get that begins now")
		n.lend()
	}
	v, err := qbulk.NewView(context.Background(), n.other, qbulk.Stream{Peer: n.owner.Class().Addr(), Handle: n.remote})
	require.NoError(t, err)
	require.True(t, v.Shared())
	require.Len(t, v.Bytes(), size)
	n.mem[7] = 77
	require.EqualValues(t, 77, v.Bytes()[7], "it is the owner's")
	n.closeLent()
	require.ErrorIs(t, v.Close(), na.ErrRevoked)
	require.ErrorIs(t, v.Close(), na.ErrRevoked)
	require.Nil(t, v.Bytes())
	n.lend()
}

// TestViewOutlivesSession checks that a view is valid after its session has ended, and its end
// removes the mapping.
func TestViewOutlivesSession(t *testing.T) {
	n := newLendingPair(t, 10_000)
	n.mem[9999] = 9
	v, err := qbulk.NewView(context.Background(), n.other, qbulk.Stream{Peer: n.owner.Class().Addr(), Handle: n.remote})
	require.NoError(t, err)
	n.close(n.other)
	require.EqualValues(t, 9, v.Bytes()[9999])
	require.NoError(t, v.Close())
	n.other = openAt(t, "sm://", n.opts)
}

// TestFreedChunks checks that chunks that the owner has given back are not kept for ever.
func TestFreedChunks(t *testing.T) {
	n := newLendingPair(t, 100)
	mapped := func() int {
		b, err := os.ReadFile("/proc/self/maps")
		require.NoError(t, err)
		return strings.Count(string(b), "memfd:quicksilver")
	}
	before := mapped()
	own, small := n.handle, n.mem
	for range 3 {
		var err error
		n.mem, err = qbulk.Alloc(64<<20 + 1) // a chunk of its own
		require.NoError(t, err)
		n.lend()
		_, err = n.get(1)
		require.NoError(t, err)
		n.until(n.isDirect)
		require.LessOrEqual(t, mapped(), before+2, "one for each side")
		require.NoError(t, n.handle.Close())
		qbulk.Free(n.mem)
	}
	n.handle, n.mem = own, small
}

// TestReachRestarted checks that the key of an owner that has ended reaches nothing of the process
// that listens there now, although its chunk has the same number.
func TestReachRestarted(t *testing.T) {
	n := newLendingPair(t, 10_000)
	stale := n.remote
	n.close(n.owner)
	n.owner = openAt(t, "sm://owner", n.opts)
	n.lend()
	for n.remote = stale; ; { // the session of before ends first
		_, err := n.get(100)
		require.Error(t, err)
		if na.CodeOf(err) == na.ErrRevoked {
			break
		}
		require.Contains(t, []na.Code{na.ErrPeerLost, na.ErrUnreachable}, na.CodeOf(err))
	}
	require.NoError(t, n.handle.Close())
	n.lend()
	_, err := n.get(100)
	require.NoError(t, err)
}

// TestReachOtherUser checks that nothing of the pool is shared with other users, and nothing is
// requested from them.
func TestReachOtherUser(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root can be another user")
	}
	h := newRawHost(t, Options{AnyUser: true})
	require.NoError(t, os.Chmod(filepath.Dir(h.path), 0o711))
	connected := make(chan *rawPeer)
	go func() {
		runtime.LockOSThread() // the thread ends with the goroutine
		_, _, errno := unix.RawSyscall(unix.SYS_SETRESUID, 65534, 65534, 65534)
		assert.Zero(t, errno)
		connected <- h.newRawPeer()
	}()
	s := <-connected
	from := s.join()
	local, err := h.cls.NewMem(make([]byte, 100))
	require.NoError(t, err)
	ended := na.Result{Err: errUnderWay}
	get := h.nctx.NewOp(func(_ *na.Op, r na.Result) { ended = r })
	require.NoError(t, h.nctx.Get(get, local, 0, from, na.Key{Len: 100, Access: na.ReadOnly, Place: pool.Place{Chunk: 1, Claim: 1}}, 0, 100))
	_ = h.nctx.Progress(0)
	_, ok, err := recvPacket(s.fd, make([]byte, maxPacket))
	require.NoError(t, err)
	require.False(t, ok, "nothing is requested")
	require.NoError(t, sendPacket(s.fd, kindWant, make([]byte, 4)))
	received, over := s.recv()
	require.False(t, over)
	require.EqualValues(t, kindBye, received.kind)
	require.Contains(t, frame.ParseBye(received.body).Text, "invalid request for shared memory")
	h.until("the get ends", func() bool { return ended.Err != errUnderWay })
	require.ErrorIs(t, ended.Err, na.ErrPeerLost)
}

// TestReachOrdinaryMemory checks that only memory of one piece that is from the pool, and that
// every process with the handle may read, is read so.
func TestReachOrdinaryMemory(t *testing.T) {
	n := newLendingPair(t, 10_000)
	for name, c := range map[string]struct {
		opts qbulk.Options
		segs [][]byte
		want bool
	}{
		"pool":                    {qbulk.Options{Access: qbulk.ReadOnly}, [][]byte{n.mem}, true},
		"part of a block":         {qbulk.Options{Access: qbulk.ReadWrite}, [][]byte{n.mem[4000:9999]}, true},
		"two pieces":              {qbulk.Options{Access: qbulk.ReadOnly}, [][]byte{n.mem[:5000], n.mem[5000:]}, false},
		"other memory":            {qbulk.Options{Access: qbulk.ReadOnly}, [][]byte{make([]byte, 10_000)}, false},
		"memory that may be read": {qbulk.Options{Access: qbulk.WriteOnly}, [][]byte{n.mem}, false},
	} {
		c.opts.Eager = -1
		h, err := qbulk.Create(n.owner, c.opts, c.segs...)
		require.NoError(t, err, name)
		b, err := h.MarshalBinary()
		require.NoError(t, err, name)
		require.Equal(t, c.want, len(b) == 3+na.KeySize+6, name)
		require.NoError(t, h.Close(), name)
	}
}

// TestBadChunks checks that an invalid answer to a request of a chunk ends the peer's own session
// at most; and whatever a peer writes into the chunk, no read is outside of it.
func TestBadChunks(t *testing.T) {
	h := newRawHost(t, Options{})
	local, err := h.cls.NewMem(make([]byte, 1<<20))
	require.NoError(t, err)
	const size = 32 << 10
	shared, fd, err := memfd.Make(size)
	require.NoError(t, err)
	defer unmap(&shared)
	plain, err := unix.MemfdCreate("plain", unix.MFD_CLOEXEC)
	require.NoError(t, err)
	require.NoError(t, unix.Ftruncate(plain, size))
	defer func() { _, _ = unix.Close(fd), unix.Close(plain) }()
	key := na.Key{Len: 1 << 20, Access: na.ReadOnly, Place: pool.Place{Chunk: 5, Claim: 3}}
	binary.LittleEndian.PutUint64(key.Token[8:], 42)
	says := func(id uint32, size uint64) []byte {
		return binary.LittleEndian.AppendUint64(binary.LittleEndian.AppendUint32(nil, id), size)
	}
	for name, c := range map[string]struct {
		body []byte
		fds  []int
		want string // empty: the session continues
	}{
		"good":                {says(5, size), []int{fd}, ""},
		"none":                {says(5, 0)[:4], nil, ""},
		"another":             {says(6, size), []int{fd}, "invalid share of memory"},
		"no number":           {nil, nil, "invalid share of memory"},
		"half a size":         {says(5, size)[:8], []int{fd}, "invalid share of memory"},
		"no descriptor":       {says(5, size), nil, "invalid share of memory"},
		"two descriptors":     {says(5, size), []int{fd, fd}, "invalid share of memory"},
		"of another size":     {says(5, size+1), []int{fd}, "shared memory has 32768 bytes, want 32769"},
		"very large":          {says(5, 1<<60), []int{fd}, "invalid share of memory"},
		"that can be written": {says(5, size), []int{plain}, "shared memory has seals"},
	} {
		s := h.newRawPeer()
		from := s.join()
		good, bad := 0, 0
		get := func() *na.Op {
			op := h.nctx.NewOp(func(_ *na.Op, r na.Result) {
				if r.Err == nil {
					good++
				} else {
					bad++
				}
			})
			require.NoError(t, h.nctx.Get(op, local, 0, from, key, 0, 1000))
			return op
		}
		get()
		received, over := s.recv()
		require.False(t, over, name)
		require.EqualValues(t, kindWant, received.kind, name)
		require.Equal(t, says(5, 0)[:4], received.body, name)
		require.NoError(t, sendPacket(s.fd, kindChunk, c.body, c.fds...), name)
		if c.want != "" {
			received, over = s.recv()
			require.False(t, over, name)
			require.EqualValues(t, kindBye, received.kind, name)
			require.Contains(t, string(frame.ParseBye(received.body).Text), c.want, name)
		}
		if name == "good" {
			rng := rand.New(rand.NewPCG(1, 1))
			for range 2000 {
				for i, v := range []uint64{42, 16<<10 - 100 + uint64(rng.IntN(20_000)), 900 + uint64(rng.IntN(10_000))} {
					if rng.IntN(10) == 0 {
						v = rng.Uint64()
					}
					binary.NativeEndian.PutUint64(shared[3*32+8*i:], v)
				}
				op := get()
				_ = h.nctx.Progress(0)
				h.nctx.Trigger(0)
				op.Cancel() // one that was requested of the raw peer
				h.nctx.Trigger(0)
				for ok := true; ok; { // request to the raw peer
					var m ring.Taken
					ok, _, err = s.end.Take(ring.Messages, &m, make([]byte, 4096))
					require.NoError(t, err)
				}
				s.end.Report()
			}
			require.Greater(t, good, 100, "some claims were right")
			require.Greater(t, bad, 100, "some were not")
		}
		s.leave()
		h.until("the session ends", func() bool { return h.nctx.Stats().Peers == 0 })
		h.until("its gets end", func() bool { return h.nctx.Stats().Outstanding == 0 })
	}
}

// TestChunkAnsweredTwice checks that a peer that was stopped while a chunk was requested again
// answers both times, and the session continues.
func TestChunkAnsweredTwice(t *testing.T) {
	old := wantAgain
	wantAgain = 0
	t.Cleanup(func() { wantAgain = old })
	const size = 32 << 10
	h := newRawHost(t, Options{})
	local, err := h.cls.NewMem(make([]byte, 1000))
	require.NoError(t, err)
	shared, fd, err := memfd.Make(size)
	require.NoError(t, err)
	defer unmap(&shared)
	defer unix.Close(fd)
	number := binary.LittleEndian.AppendUint32(nil, 5)
	there := binary.LittleEndian.AppendUint64(slices.Clone(number), size)
	for _, answers := range [][2]int{{1, 1}, {1, 0}, {0, 0}, {0, 1}} {
		name := fmt.Sprint("answers with descriptors: ", answers)
		s := h.newRawPeer()
		from := s.join()
		key := na.Key{Len: 1 << 20, Access: na.ReadOnly, Place: pool.Place{Chunk: 5, Claim: 3}}
		for range answers {
			op := h.nctx.NewOp(func(*na.Op, na.Result) {})
			require.NoError(t, h.nctx.Get(op, local, 0, from, key, 0, 1000))
		}
		for range answers {
			received, over := s.recv()
			require.False(t, over, name)
			require.EqualValues(t, kindWant, received.kind, name)
		}
		for _, n := range answers {
			if n == 1 {
				require.NoError(t, sendPacket(s.fd, kindChunk, there, fd), name)
			} else {
				require.NoError(t, sendPacket(s.fd, kindChunk, number), name)
			}
		}
		pinged := h.nctx.NewOp(func(*na.Op, na.Result) {})
		require.NoError(t, h.nctx.Get(pinged, local, 0, from, key, 0, 1000))
		for range 100 {
			_ = h.nctx.Progress(0)
			h.nctx.Trigger(0)
		}
		require.Equal(t, 1, h.nctx.Stats().Peers, name)
		s.leave()
		h.until("the session ends", func() bool { return h.nctx.Stats().Peers == 0 && h.nctx.Stats().Outstanding == 0 })
	}
}

// TestForgedRead checks that a report of a peer of the bytes that it has read counts for memory
// that it may read, and for nothing else.
func TestForgedRead(t *testing.T) {
	h := newRawHost(t, Options{})
	s := h.newRawPeer()
	from := s.join()
	register := func(access na.Access) *na.Mem {
		m, err := h.cls.Register(access, make([]byte, 100))
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, h.nctx.Deregister(h.nctx.NewOp(func(*na.Op, na.Result) {}), m)) })
		return m
	}
	read, write := register(na.ReadOnly), register(na.WriteOnly)
	other, err := h.cls.RegisterFor(from.Named().Bound(from.Session()+256), na.ReadOnly, make([]byte, 100))
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, h.nctx.Deregister(h.nctx.NewOp(func(*na.Op, na.Result) {}), other)) })
	for _, token := range [][16]byte{{1, 2, 3}, write.Key().Token, other.Key().Token, read.Key().Token} {
		s.send(frame.Header{Kind: frame.Read, Tail: frame.Tail{Token: token, Length: 1 << 62}}, nil)
	}
	h.until("the last counts", func() bool { return read.Served() > 0 })
	require.LessOrEqual(t, read.Served(), int64(1)<<40)
	require.Zero(t, write.Served())
	require.Zero(t, other.Served())
	require.Equal(t, 1, h.nctx.Stats().Peers, "it may have been taken back: no peer is cut for it")
}
