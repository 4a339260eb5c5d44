package framing_test

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/internal/frame"
	"github.com/quicksilver-rpc/quicksilver/internal/framing"
	"github.com/quicksilver-rpc/quicksilver/na"
)

const (
	gotSize = 5000 // of the get of the scene: more than goes through the buffer
	putSize = 4500
)

// A liveSession is a live session with one operation of every kind under way, and what becomes of it.
type liveSession struct {
	*rawSession
	log   []string
	local []byte
	lent  *na.Mem
	in1   *na.Mem // that the peer puts to
	out1  *na.Mem // that the peer gets from
	ids   map[frame.Kind]uint64
	ops   map[string]*na.Op
}

func filledBytes(n int, seed byte) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = seed + byte(i*3) + byte(i>>8)
	}
	return b
}

// newLiveSession begins a session and every kind of operation.
func newLiveSession(t testing.TB) *liveSession {
	t.Helper()
	s := &liveSession{rawSession: newRawSession(t), local: filledBytes(gotSize, 1), ids: map[frame.Kind]uint64{}, ops: map[string]*na.Op{}}
	require.NoError(t, s.feed(hello(), 1<<20))
	peer := na.MakeAddr(peerName, 0)
	start := func(name string, run func(op *na.Op) error) {
		op := s.nctx.NewOp(func(_ *na.Op, r na.Result) {
			line := fmt.Sprintf("%s: N=%d tag=%d from=%v err=%v", name, r.N, r.Tag, r.Addr, r.Err)
			if r.Envelope != nil {
				line += fmt.Sprintf(" %q", r.Envelope.Data)
				r.Envelope.Free()
			}
			s.log = append(s.log, line)
		})
		s.ops[name] = op
		require.NoError(t, run(op))
	}
	cls := s.nctx.Class()
	var err error
	s.in1, err = cls.Register(na.WriteOnly, make([]byte, 100), make([]byte, putSize), make([]byte, 7))
	require.NoError(t, err)
	s.out1, err = cls.Register(na.ReadOnly, filledBytes(300, 9))
	require.NoError(t, err)
	buf := make([]byte, 64)
	start("receive unexpected", func(op *na.Op) error { return s.nctx.RecvUnexpected(op) })
	start("receive expected", func(op *na.Op) error { return s.nctx.RecvExpected(op, peer, 1, buf) })
	start("receive too short", func(op *na.Op) error { return s.nctx.RecvExpected(op, peer, 2, buf[:2]) })
	for _, tag := range []na.Tag{3, 4} {
		start("lease", func(op *na.Op) error {
			m, err := s.nctx.Upper().Lease(op, peer, tag, []byte("lent"))
			s.lent = m
			return err
		})
	}
	local, err := cls.NewMem(s.local[:11], s.local[11:4000], s.local[4000:])
	require.NoError(t, err)
	key := na.Key{Len: 1 << 20, Access: na.ReadWrite}
	start("get", func(op *na.Op) error { return s.nctx.Get(op, local, 0, peer, key, 0, gotSize) })
	start("put", func(op *na.Op) error { return s.nctx.Put(op, local, 5, peer, key, 0, 1000) })
	start("never answered", func(op *na.Op) error { return s.nctx.Get(op, local, 0, peer, key, 0, 10) })
	hs, _ := frames(t, s.take(1<<20))
	for _, h := range hs {
		if _, seen := s.ids[h.Kind]; !seen {
			s.ids[h.Kind] = h.Op
		}
	}
	return s
}

// script returns the bytes of the peer: a frame of every kind, and the offset of each.
func (s *liveSession) script() (b []byte, begins []int) {
	credit := uint32(32)
	whole := func(h frame.Header, payload []byte) {
		begins = append(begins, len(b))
		h.Credit = credit
		b = h.Append(b, payload)
	}
	apart := func(h frame.Header, payload []byte) {
		begins = append(begins, len(b))
		h.Credit = credit
		b = append(h.AppendFront(b, len(payload)), payload...)
	}
	put := frame.Tail{Token: s.in1.Key().Token, Offset: 3, Length: putSize}
	data := filledBytes(gotSize, 77)
	whole(frame.Header{Kind: frame.Unexpected, Op: 1, Tag: 5}, []byte("unexpected"))
	apart(frame.Header{Kind: frame.Put, Op: 500, Tail: put}, nil)
	apart(frame.Header{Kind: frame.Data, Op: 500}, filledBytes(4200, 30))
	whole(frame.Header{Kind: frame.Expected, Tag: 1}, []byte("expected"))
	apart(frame.Header{Kind: frame.Data, Flags: frame.FlagAnswer, Op: s.ids[frame.Get]}, data[:4300])
	whole(frame.Header{Kind: frame.Expected, Tag: 2}, []byte("too long"))
	whole(frame.Header{Kind: frame.Expected, Tag: 9, Flags: frame.FlagTell}, nil)
	apart(frame.Header{Kind: frame.Data, Op: 500, Tag: 4200}, filledBytes(putSize-4200, 31))
	apart(frame.Header{Kind: frame.Done, Op: s.ids[frame.Put]}, nil)
	apart(frame.Header{Kind: frame.Data, Flags: frame.FlagAnswer, Op: s.ids[frame.Get], Tag: 4300}, data[4300:])
	apart(frame.Header{Kind: frame.Get, Op: 501, Tail: frame.Tail{Token: s.out1.Key().Token, Offset: 7, Length: 200}}, nil)
	apart(frame.Header{Kind: frame.Done, Op: s.ids[frame.Get]}, nil)
	apart(frame.Header{Kind: frame.Data, Flags: frame.FlagAnswer, Op: 4711}, make([]byte, 50)) // without an operation for it
	apart(frame.Header{Kind: frame.Cancel, Op: 999}, nil)
	apart(frame.Header{Kind: frame.Put, Op: 502, Tail: frame.Tail{Length: 10}}, nil) // to no memory
	apart(frame.Header{Kind: frame.Data, Op: 502}, make([]byte, 10))
	apart(frame.Header{Kind: frame.Put, Op: 503, Tail: frame.Tail{Token: s.in1.Key().Token}}, nil)
	apart(frame.Header{Kind: frame.Ping, Tag: 8}, nil)
	apart(frame.Header{Kind: frame.Pong}, nil)
	credit += 5
	apart(frame.Header{Kind: frame.Credit}, nil)
	apart(frame.Header{Kind: frame.Dropped, Tag: 3}, nil)
	apart(frame.Header{Kind: frame.GiveBack, Tail: frame.Tail{Token: s.lent.Key().Token, Length: 4}}, nil)
	whole(frame.Header{Kind: frame.Goaway, Tag: uint64(na.ErrClosed)}, []byte("goodbye"))
	return b, begins
}

// outcome is everything that the peer's frames changed.
func (s *liveSession) outcome() string {
	s.Helper()
	answers := s.take(1 << 20)
	for s.nctx.Trigger(0) > 0 {
	}
	st := s.nctx.Stats()
	st.Reserved = 0
	s.close()
	return fmt.Sprintf("%q\nget %x\nput %x\nstats %+v\nanswers %x", s.log, s.local, s.in1.Segments(), st, answers)
}

// TestEverySplit checks that a stream cut in two at any point means the same.
func TestEverySplit(t *testing.T) {
	s := newLiveSession(t)
	b, begins := s.script()
	require.NoError(t, s.feed(b, 1<<20))
	want := s.outcome()
	for _, part := range []string{
		`receive unexpected: N=10 tag=5 from=solo://peer err=<nil> \"unexpected\"`,
		"receive expected: N=8 tag=1 from=solo://peer err=<nil>",
		"receive too short: N=8 tag=2 from=solo://peer err=na: receive expected solo://peer: message of 8 bytes exceeds the receive buffer of 2",
		"get: N=5000 tag=0 from=solo://peer err=<nil>",
		"put: N=1000 tag=0 from=solo://peer err=<nil>",
		"lease: N=0 tag=0 from=<no address> err=na: lease solo://peer: the peer dropped the message",
		"lease: N=4 tag=0 from=<no address> err=<nil>",
		"never answered: N=0 tag=0 from=<no address> err=na: get solo://peer: session closed by peer: goodbye",
		fmt.Sprintf("get %x", filledBytes(gotSize, 77)),
		"LateDropped:3", "Violations:0", "PeersLeft:1",
	} {
		require.Contains(t, want, part)
	}
	near := map[int]bool{}
	for _, at := range begins {
		for i := at - 3; i < at+70; i++ {
			near[i] = true
		}
	}
	checked := 0
	for at := range b {
		if !near[at] && at%61 != 0 {
			continue
		}
		checked++
		s := newLiveSession(t)
		require.NoError(t, s.feed(b[:at], 1<<20))
		s.in.Idle()
		require.NoError(t, s.feed(b[at:], 1<<20))
		if got := s.outcome(); got != want {
			t.Fatalf("cut at %d of %d: got\n%s\nwant\n%s", at, len(b), got, want)
		}
	}
	require.Greater(t, checked, 1000)
}

// TestPieces checks that cut into pieces of all sizes, the stream means the same.
func TestPieces(t *testing.T) {
	s := newLiveSession(t)
	b, _ := s.script()
	require.NoError(t, s.feed(b, 1<<20))
	want := s.outcome()
	for _, size := range []int{1, 2, 3, 7, 31, 32, 33, 63, 64, 65, 1000, 4096, 4097} {
		s := newLiveSession(t)
		require.NoError(t, s.feed(b, size))
		require.Equal(t, want, s.outcome(), "pieces of %d bytes", size)
	}
	r := rand.New(rand.NewPCG(1, 2))
	for range 30 {
		s := newLiveSession(t)
		for rest := b; len(rest) > 0; {
			n := min(1+r.IntN(1<<r.IntN(13)), len(rest))
			require.NoError(t, s.feed(rest[:n], 1+r.IntN(n)))
			rest = rest[n:]
		}
		require.Equal(t, want, s.outcome())
	}
}

// TestHelloSplit checks the HELLO of a peer that connects, cut anywhere.
func TestHelloSplit(t *testing.T) {
	b := hello()
	for at := range b {
		s := newRawSession(t)
		require.NoError(t, s.feed(b[:at], 1<<20))
		require.Nil(t, s.link)
		require.NoError(t, s.feed(b[at:], 1<<20))
		require.True(t, s.link.Up())
		s.close()
	}
}

// TestBadBeginning checks that a first frame that is no HELLO refuses the peer, and nothing is
// admitted.
func TestBadBeginning(t *testing.T) {
	ping := frame.Header{Kind: frame.Ping}
	put := frame.Header{Kind: frame.Data}
	long := frame.Header{Kind: frame.Hello, Tag: frame.Magic}
	other := frame.Header{Kind: frame.Hello, Tag: 1}
	damaged := hello()
	damaged[50] ^= 1
	for text, b := range map[string][]byte{
		"session begins with PING":   ping.AppendFront(nil, 0),
		"session begins with DATA":   put.AppendFront(nil, 100),
		"session begins with HELLO":  other.Append(nil, nil),
		"checksum mismatch":          damaged,
		"HELLO of 50000 bytes":       long.Append(nil, make([]byte, 50000)),
		"HELLO of 5000 bytes":        long.Append(nil, make([]byte, 5000))[:frame.HeaderSize], // nothing is kept for it
		"session begins with KIND84": []byte("GET T / HTTP/1.1\r\nHost: somewhere.example.org\r\n\r\n"),
		"missing required label":     long.Append(nil, nil),
	} {
		s := newRawSession(t)
		err := s.feed(b, 1<<20)
		require.ErrorContains(t, err, text)
		require.Nil(t, s.link)
		require.Zero(t, s.nctx.Stats().Reserved)
		s.close()
	}
}

// TestLongestFrame checks that a message has at most as many bytes as its sender was offered, in
// addition to its room.
func TestLongestFrame(t *testing.T) {
	for n, want := range map[int]string{
		4096:           "",
		4097:           "unexpected message of 4097 bytes, limit 4096 without room granted",
		na.MaxRoom:     "without room granted",
		na.MaxRoom + 1: fmt.Sprintf("UNEXPECTED frame with %d bytes, the limit is %d", na.MaxRoom+1, na.MaxRoom),
	} {
		for _, atMost := range []int{1 << 20, 5000} {
			s := newRawSession(t)
			require.NoError(t, s.feed(hello(), 1<<20))
			h := frame.Header{Kind: frame.Unexpected, Op: 1, Credit: 32}
			err := s.feed(h.Append(nil, make([]byte, n)), atMost)
			if want == "" {
				require.NoError(t, err)
				require.Equal(t, 1, s.nctx.Stats().Envelopes)
			} else {
				require.ErrorIs(t, err, na.ErrProtocol)
				require.ErrorContains(t, err, want)
			}
			s.close()
		}
	}
}

// longFrames is a long unexpected message, an expected one for tag 7, one without an operation for it, and a short one.
func longFrames() []byte {
	var b []byte
	for i, h := range []frame.Header{
		{Kind: frame.Unexpected, Op: 1, Tag: 5}, {Kind: frame.Expected, Tag: 7}, {Kind: frame.Expected, Tag: 8}, {Kind: frame.Unexpected, Op: 2, Tag: 6},
	} {
		h.Credit = 32
		b = h.Append(b, filledBytes([]int{40000, 30000, 20000, 10}[i], byte(10*i+1)))
	}
	return b
}

// newLongSession is a solo whose peer has room, and owes the message of tag 7.
func newLongSession(t *testing.T) (s *rawSession, got *na.Result) {
	s = newRawSession(t)
	require.NoError(t, s.feed(hello(), 1<<20))
	peer := na.MakeAddr(peerName, 0)
	s.nctx.Upper().GrantRoom(peer, 40000)
	hs, _ := frames(t, s.take(1<<20))
	require.Equal(t, uint64(4*na.MaxRoom), hs[len(hs)-1].Tag, "%v", hs)
	got = &na.Result{}
	op := s.nctx.NewOp(func(_ *na.Op, r na.Result) { *got = r })
	require.NoError(t, s.nctx.RecvExpectedLong(op, peer, 7, make([]byte, 100), 30000))
	return s, got
}

// TestLongMessages checks that long messages arrive the same however the bytes are cut, and also
// beside others.
func TestLongMessages(t *testing.T) {
	for _, atMost := range []int{1, 31, 1000, 4096, 4097, 9000, 39999, 50000, 1 << 20} {
		s, got := newLongSession(t)
		require.NoError(t, s.feed(longFrames(), atMost))
		s.nctx.Trigger(0)
		require.NoError(t, got.Err)
		require.True(t, bytes.Equal(filledBytes(30000, 11), got.Envelope.Data), "at most %d bytes at a time", atMost)
		got.Envelope.Free()
		require.EqualValues(t, 1, s.nctx.Stats().LateDropped)
		for i, n := range []int{40000, 10} {
			var env *na.Envelope
			require.NoError(t, s.nctx.RecvUnexpected(s.nctx.NewOp(func(_ *na.Op, r na.Result) { env = r.Envelope })))
			s.nctx.Trigger(0)
			require.True(t, bytes.Equal(filledBytes(n, byte(30*i+1)), env.Data), "at most %d bytes at a time", atMost)
			env.Free()
		}
		s.close()
	}
}

// TestLongMessageDamaged checks that a long message that is damaged anywhere is never delivered.
func TestLongMessageDamaged(t *testing.T) {
	for _, atMost := range []int{3000, 9000, 1 << 20} {
		for at := 32; at < 40000; at += 997 {
			s, _ := newLongSession(t)
			b := longFrames()[:40032]
			b[at] ^= 4
			require.ErrorIs(t, s.feed(b, atMost), na.ErrChecksum, "byte %d", at)
			require.Zero(t, s.nctx.Stats().Envelopes)
			s.close()
		}
	}
}

// TestEveryWrite checks that the output is the same bytes however it is written, also by Copy.
func TestEveryWrite(t *testing.T) {
	begin := func() *rawSession {
		s := newRawSession(t)
		require.NoError(t, s.feed(hello(), 1<<20))
		peer := na.MakeAddr(peerName, 0)
		m, err := s.nctx.Class().NewMem(filledBytes(10, 1), filledBytes(300_000, 2), nil, filledBytes(5, 3))
		require.NoError(t, err)
		key := na.Key{Len: 1 << 20, Access: na.ReadWrite}
		done := func(*na.Op, na.Result) {}
		for i := range 5 {
			require.NoError(t, s.nctx.SendUnexpected(s.nctx.NewOp(done), peer, na.Tag(i), filledBytes(i*700, byte(i))))
		}
		require.NoError(t, s.nctx.Put(s.nctx.NewOp(done), m, 3, peer, key, 0, 300_000))
		require.NoError(t, s.nctx.Get(s.nctx.NewOp(done), m, 3, peer, key, 0, 300_000))
		require.NoError(t, s.nctx.Put(s.nctx.NewOp(done), m, 0, peer, key, 0, 0))
		return s
	}
	s := begin()
	want := s.take(1 << 30)
	hs, payloads := frames(t, want)
	require.Greater(t, len(hs), 8)
	var put []byte
	for i, h := range hs {
		if h.Kind == frame.Data {
			put = append(put, payloads[i]...)
		}
	}
	all := bytes.Join([][]byte{filledBytes(10, 1), filledBytes(300_000, 2), filledBytes(5, 3)}, nil)
	require.True(t, bytes.Equal(all[3:300_003], put))
	s.close()
	for _, n := range []int{1, 31, 32, 33, 1000, 65537, 262144} {
		s := begin()
		if n == 1 { // for the first of it
			require.True(t, bytes.Equal(want[:5000], takePieces(s, 5000, 1)))
			rest := s.take(1 << 30)
			require.True(t, bytes.Equal(want[5000:], rest))
		} else {
			require.True(t, bytes.Equal(want, s.take(n)), "%d bytes at a time", n)
		}
		s.close()
	}
	s = begin()
	var got []byte
	buf := make([]byte, 7001)
	for {
		s.e.Lock()
		more := s.out.Fill()
		s.e.Unlock()
		if !more {
			break
		}
		require.True(t, s.out.Pending())
		got = append(got, buf[:s.out.Copy(buf)]...)
	}
	require.True(t, bytes.Equal(want, got), "by Copy")
	s.close()
}

// takePieces writes n bytes, a few at a time.
func takePieces(s *rawSession, n, atMost int) (all []byte) {
	for len(all) < n {
		s.e.Lock()
		more := s.out.Fill()
		s.e.Unlock()
		if !more {
			break
		}
		left := min(atMost, n-len(all))
		wrote := 0
		for _, b := range s.out.Gather(nil) {
			b = b[:min(len(b), left)]
			all = append(all, b...)
			left -= len(b)
			wrote += len(b)
		}
		s.out.Wrote(wrote)
	}
	return all
}

// TestRevokedInPiece checks a put that is canceled in the middle of a piece: the stream continues,
// with zeroes in place of the memory that the program got back.
func TestRevokedInPiece(t *testing.T) {
	for _, at := range []int{0, 1, 63, 64, 65, 1000, 100_000, 262_143, 262_208, 262_272, 300_000} {
		s := newRawSession(t)
		require.NoError(t, s.feed(hello(), 1<<20))
		s.take(1 << 20)
		peer := na.MakeAddr(peerName, 0)
		buf := bytes.Repeat([]byte{7}, 400_000)
		m, err := s.nctx.Class().NewMem(buf)
		require.NoError(t, err)
		ended := 0
		op := s.nctx.NewOp(func(*na.Op, na.Result) {
			ended++
			for i := range buf {
				buf[i] = 0xee
			}
		})
		require.NoError(t, s.nctx.Put(op, m, 0, peer, na.Key{Len: 1 << 20, Access: na.ReadWrite}, 0, 400_000))
		b := takePieces(s, at, 100_000)
		op.Cancel()
		s.nctx.Trigger(0)
		require.Equal(t, 1, ended, "canceled after %d bytes", at)
		require.NoError(t, s.nctx.SendUnexpected(s.nctx.NewOp(func(*na.Op, na.Result) {}), peer, 5, []byte("and on")))
		b = append(b, s.take(1<<20)...)
		require.Negative(t, bytes.IndexByte(b, 0xee), "memory was read after the callback")
		hs, payloads := frames(t, b)
		require.Equal(t, "and on", string(payloads[len(payloads)-1]))
		require.Equal(t, frame.Unexpected, hs[len(hs)-1].Kind)
		s.close()
	}
}

// TestGatherBounds checks that a piece of many slices, or of zeroes, behind a header takes
// MaxVectors buffers at most.
func TestGatherBounds(t *testing.T) {
	const slices = 2 * framing.MaxVectors
	for _, cancel := range []bool{false, true} {
		s := newRawSession(t)
		require.NoError(t, s.feed(hello(), 1<<20))
		s.take(1 << 20)
		bufs := make([][]byte, slices)
		for i := range bufs {
			bufs[i] = make([]byte, 100)
		}
		m, err := s.nctx.Class().NewMem(bufs...)
		require.NoError(t, err)
		op := s.nctx.NewOp(func(*na.Op, na.Result) {})
		require.NoError(t, s.nctx.Put(op, m, 0, na.MakeAddr(peerName, 0), na.Key{Len: 1 << 20, Access: na.ReadWrite}, 0, 100*slices))
		s.e.Lock()
		require.True(t, s.out.Fill())
		s.e.Unlock()
		if cancel {
			op.Cancel()
		}
		require.LessOrEqual(t, len(s.out.Gather(nil)), framing.MaxVectors)
		s.out.Wrote(0)
		s.nctx.Trigger(0)
		s.take(1 << 20)
		s.close()
	}
}

// TestCanceledInPiece checks a get that is canceled in the middle of a piece that is read directly
// into its memory: the rest is read and dropped.
func TestCanceledInPiece(t *testing.T) {
	for _, at := range []int{0, 31, 32, 33, 900, 1000, 4999, 5031, 5032} {
		for _, atMost := range []int{1 << 20, 700} {
			s := newLiveSession(t)
			h := frame.Header{Kind: frame.Data, Flags: frame.FlagAnswer, Op: s.ids[frame.Get], Credit: 32}
			b := append(h.AppendFront(nil, gotSize), filledBytes(gotSize, 77)...)
			require.NoError(t, s.feed(b[:at], atMost))
			s.ops["get"].Cancel()
			s.nctx.Trigger(0)
			require.Contains(t, s.log[len(s.log)-1], "get: ")
			require.Contains(t, s.log[len(s.log)-1], na.ErrCanceled.Error())
			copy(s.local, bytes.Repeat([]byte{0xee}, gotSize))
			require.NoError(t, s.feed(b[at:], atMost))
			require.Equal(t, bytes.Repeat([]byte{0xee}, gotSize), s.local, "canceled after %d bytes", at)
			after := frame.Header{Kind: frame.Unexpected, Credit: 32}
			require.NoError(t, s.feed(after.Append(nil, []byte("and on")), atMost))
			s.nctx.Trigger(0)
			require.Contains(t, s.log[len(s.log)-1], "and on")
			s.close()
		}
	}
}

func TestLast(t *testing.T) {
	s := newRawSession(t)
	require.NoError(t, s.feed(hello(), 1<<20))
	peer := na.MakeAddr(peerName, 0)
	require.NoError(t, s.nctx.SendUnexpected(s.nctx.NewOp(func(*na.Op, na.Result) {}), peer, 5, []byte("first")))
	b := takePieces(s, 40, 40)
	require.True(t, s.out.Pending())
	require.Positive(t, s.out.Front())
	last := frame.Bye{Code: na.ErrClosed, Text: "closed"}.Frame()
	require.True(t, s.out.Last(last), "behind what is gathered")
	for s.out.Pending() {
		for _, x := range s.out.Gather(nil) {
			b = append(b, x...)
			s.out.Wrote(len(x))
			break
		}
	}
	hs, payloads := frames(t, b)
	require.Equal(t, frame.Goaway, hs[len(hs)-1].Kind)
	require.Equal(t, "first", string(payloads[len(payloads)-2]))
	s.close()

	s = newRawSession(t)
	require.NoError(t, s.feed(hello(), 1<<20))
	m, err := s.nctx.Class().NewMem(make([]byte, 100_000))
	require.NoError(t, err)
	require.NoError(t, s.nctx.Put(s.nctx.NewOp(func(*na.Op, na.Result) {}), m, 0, peer, na.Key{Len: 1 << 20, Access: na.ReadWrite}, 0, 100_000))
	takePieces(s, 50_000, 10_000)
	require.False(t, s.out.Last(last), "in the middle of a piece")
	s.close()
}

// TestEnd checks that after End nothing is delivered any more.
func TestEnd(t *testing.T) {
	s := newLiveSession(t)
	b, _ := s.script()
	require.NoError(t, s.feed(b[:50], 1<<20))
	s.e.Lock()
	s.in.End()
	s.e.Unlock()
	before := len(s.log)
	require.NoError(t, s.feed(b[50:], 1<<20))
	s.nctx.Trigger(0)
	require.LessOrEqual(t, len(s.log)-before, 1, "what was delivered before End")
	require.True(t, s.link.Up())
	s.close()
}

// TestIdleHoldsNothing checks that a stream whose first reads waited has returned its buffer when
// it is idle, since there are many idle peers.
func TestIdleHoldsNothing(t *testing.T) {
	heap := func() int64 {
		runtime.GC()
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return int64(m.HeapAlloc)
	}
	const many = 10_000
	ins := make([]framing.In, many)
	before := heap()
	for i := range ins {
		in := &ins[i]
		in.Wait()
		in.Got(0)
		in.Idle()
	}
	require.Less(t, (heap()-before)/many, int64(64), "bytes of each")
	runtime.KeepAlive(ins)
}
