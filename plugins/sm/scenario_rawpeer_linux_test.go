package sm

import (
	"bytes"
	"crypto/rand"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/quicksilver-rpc/quicksilver/internal/frame"
	"github.com/quicksilver-rpc/quicksilver/na"
	"github.com/quicksilver-rpc/quicksilver/plugins/sm/internal/ring"
)

// A rawHost is a context to which strangers connect.
type rawHost struct {
	t    *testing.T
	cls  *na.Class
	nctx *na.Context
	path string
}

func newRawHost(t *testing.T, opts Options) *rawHost {
	dir, err := os.MkdirTemp("", "sm")
	require.NoError(t, err)
	opts.Dir = dir
	h := &rawHost{t: t, path: dir + "/host"}
	h.cls, err = na.Open("sm://host", na.Config{PeerTimeout: time.Hour, Plugins: []na.Plugin{New(opts)}})
	require.NoError(t, err)
	h.nctx, err = h.cls.NewContext()
	require.NoError(t, err)
	t.Cleanup(func() {
		require.NoError(t, h.cls.Close())
		h.until("all is closed", h.cls.Closed)
		require.NoError(t, os.RemoveAll(dir))
	})
	return h
}

func (h *rawHost) until(what string, done func() bool) {
	h.t.Helper()
	for end := time.Now().Add(time.Minute); !done(); {
		_ = h.nctx.Progress(time.Millisecond)
		h.nctx.Trigger(0)
		if time.Now().After(end) {
			h.t.Fatalf("%s: not within a minute: %+v", what, h.nctx.Stats())
		}
	}
}

// A rawPeer is a peer whose frames are written by the test.
type rawPeer struct {
	*rawHost
	fd       int
	bell     int
	peerBell int       // of the host
	end      *ring.End // once it has joined
}

func (h *rawHost) newRawPeer() *rawPeer {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	require.NoError(h.t, err)
	require.NoError(h.t, unix.Connect(fd, &unix.SockaddrUnix{Name: h.path}))
	bell, err := newBell()
	require.NoError(h.t, err)
	s := &rawPeer{rawHost: h, fd: fd, bell: bell, peerBell: -1}
	h.t.Cleanup(s.leave)
	return s
}

func (s *rawPeer) leave() {
	if s.fd >= 0 {
		_ = unix.Close(s.fd)
		_ = unix.Close(s.bell)
		_ = unix.Close(s.peerBell)
		s.fd = -1
	}
}

// recv returns the next packet, and whether the host has ended the connection.
func (s *rawPeer) recv() (received packet, over bool) {
	s.t.Helper()
	buf := make([]byte, maxPacket)
	s.until("the host says something", func() bool {
		var ok bool
		var err error
		received, ok, err = recvPacket(s.fd, buf)
		over = err != nil
		return ok || over
	})
	return received, over
}

func hello(change func(g *frame.Greeting)) []byte {
	g := frame.Greeting{Versions: frame.Versions(), Envelopes: 32, Eager: 4096}
	_, _ = rand.Read(g.Incarnation[:])
	if change != nil {
		change(&g)
	}
	return g.Append(nil)
}

// greet sends a hello, and shares a segment.
func (s *rawPeer) greet() {
	require.NoError(s.t, sendPacket(s.fd, kindHello, hello(nil), s.bell))
	received, over := s.recv()
	require.False(s.t, over)
	defer received.closeRest()
	require.EqualValues(s.t, kindHello, received.kind)
	g, err := frame.ParseGreeting(received.body)
	require.NoError(s.t, err)
	require.Equal(s.t, 2, received.n)
	s.peerBell = received.takeDescriptor(1)
	geo := ring.Geometry{Envelopes: int(g.Envelopes) + na.ExpeditedEnvelopes, Eager: 4096, Version: ring.Version}
	its, err := mapMemory(received.takeDescriptor(0), (ring.Geometry{Envelopes: 32 + na.ExpeditedEnvelopes, Eager: 4096, Version: ring.Version}).Size())
	require.NoError(s.t, err)
	s.t.Cleanup(func() { unmap(&its) })
	own, fd, err := makeMemory(geo.Size())
	require.NoError(s.t, err)
	s.t.Cleanup(func() { unmap(&own) })
	defer unix.Close(fd)
	s.end = ring.New(own, geo)
	require.NoError(s.t, s.end.Join(its, ring.Geometry{Envelopes: 32 + na.ExpeditedEnvelopes, Eager: 4096, Version: ring.Version}))
	require.NoError(s.t, sendPacket(s.fd, kindSegment, nil, fd))
}

// send sends a frame.
func (s *rawPeer) send(h frame.Header, payload []byte) {
	var tail [frame.TailSize]byte
	h.SetPayload(len(payload))
	if h.Size() > frame.HeaderSize {
		payload = h.Tail.Append(tail[:0])
	}
	m := descriptorOf(&h)
	s.end.Put(ring.Messages, &m, payload)
	if s.end.Publish() {
		ringBell(s.peerBell)
	}
}

// bodyID is the identity of a body of n bytes.
func bodyID(n int) uint64 { return uint64(n)<<40 | 1 }

// sendBody sends a frame about a body of n bytes in the area.
func (s *rawPeer) sendBody(kind frame.Kind, at, n int) {
	m := descriptorOf(&frame.Header{Kind: kind, Op: bodyID(n), Tag: uint64(at)})
	s.end.PutBlock(&m, ring.Block{})
	if s.end.Publish() {
		ringBell(s.peerBell)
	}
}

// sendShown sends a piece of a stream whose n bytes stand at at in the area.
func (s *rawPeer) sendShown(kind frame.Kind, at, n int) {
	m := descriptorOf(&frame.Header{Kind: kind, Flags: frame.FlagStream, Op: 1})
	s.end.ShowBlock(ring.Bulk, &m, ring.Block{At: at, Len: n})
	if s.end.Publish() {
		ringBell(s.peerBell)
	}
}

// join greets, and returns the address that the host has for the raw peer.
func (s *rawPeer) join() (from na.Addr) {
	s.greet()
	s.send(frame.Header{Kind: frame.Unexpected, Op: 1}, nil)
	require.NoError(s.t, s.nctx.RecvUnexpected(s.nctx.NewOp(func(_ *na.Op, r na.Result) {
		require.NoError(s.t, r.Err)
		from = r.Envelope.From
		r.Envelope.Free()
	})))
	s.until("its message arrives", func() bool { return !from.IsZero() })
	return from
}

// open counts the descriptors of this process.
func open(t *testing.T) int {
	all, err := os.ReadDir("/proc/self/fd")
	require.NoError(t, err)
	return len(all)
}

// TestLaterMessagesSkipped checks that messages that only a later release sends are skipped, in any form: packets
// with any number of descriptors and of any length, and frames whose payload is anywhere.
func TestLaterMessagesSkipped(t *testing.T) {
	h := newRawHost(t, Options{})
	before := open(t)
	s := h.newRawPeer()
	bells := make([]int, 40)
	for i := range bells {
		bells[i] = s.bell
	}
	packets := func() {
		for _, n := range []int{0, 1, 2, 3, 12, 13, 40} {
			h.until("there is room", func() bool { return sendPacket(s.fd, firstOptional, nil, bells[:n]...) == nil })
			h.until("there is room", func() bool { return sendPacket(s.fd, 0xffff, make([]byte, 2*maxPacket), bells[:n]...) == nil })
		}
	}
	packets()
	s.join()
	packets()
	area, fd, err := makeMemory(ring.AreaSize)
	require.NoError(t, err)
	defer unmap(&area)
	require.NoError(t, sendPacket(s.fd, kindArea, nil, fd))
	require.NoError(t, unix.Close(fd))
	s.end.SetArea(area)
	for _, n := range []int{0, 1, ring.Inline, ring.Inline + 1, 4096, frame.MaxWhole} {
		s.send(frame.Header{Kind: 200}, make([]byte, n))
	}
	s.sendBody(200, 0, 100_000)
	packets()
	s.send(frame.Header{Kind: frame.Unexpected, Op: 2}, nil)
	n := 0
	require.NoError(t, h.nctx.RecvUnexpected(h.nctx.NewOp(func(_ *na.Op, r na.Result) {
		require.NoError(t, r.Err)
		n++
		r.Envelope.Free()
	})))
	h.until("it is heard", func() bool { return n == 1 })
	s.leave()
	h.until("nothing is left of it", func() bool { return open(t) <= before && h.nctx.Stats().Peers == 0 })
}

// TestBadPackets checks that with any packet on the socket, before its hello and after, a peer gets
// the reason when its session ends. Others continue, and nothing is left of it.
func TestBadPackets(t *testing.T) {
	h := newRawHost(t, Options{})
	otherPeer := h.newRawPeer()
	otherPeer.join()
	memfd := func(size int) int {
		b, fd, err := makeMemory(size)
		require.NoError(t, err)
		unmap(&b)
		return fd
	}
	pipe := make([]int, 2)
	require.NoError(t, unix.Pipe2(pipe, unix.O_CLOEXEC))
	plain, err := unix.MemfdCreate("plain", unix.MFD_CLOEXEC)
	require.NoError(t, err)
	area, small := memfd(ring.AreaSize), memfd(4096)
	keep := append([]int{plain, area, small}, pipe...)
	defer func() {
		for _, fd := range keep {
			_ = unix.Close(fd)
		}
	}()
	raw := func(b string) func(*rawPeer) error {
		return func(s *rawPeer) error { return unix.Send(s.fd, []byte(b), 0) }
	}
	says := func(kind uint16, body []byte, fds ...int) func(*rawPeer) error {
		return func(s *rawPeer) error { return sendPacket(s.fd, kind, body, fds...) }
	}
	greets := func(change func(*frame.Greeting)) func(*rawPeer) error {
		return func(s *rawPeer) error { return sendPacket(s.fd, kindHello, hello(change), s.bell) }
	}
	joined := func(then func(*rawPeer) error) func(*rawPeer) error {
		return func(s *rawPeer) error { s.join(); return then(s) }
	}
	for name, c := range map[string]struct {
		do   func(s *rawPeer) error
		want string
	}{
		"another protocol":         {raw("GET / HTTP/1.1\r\n"), `packet begins with 0x`},
		"half a head":              {raw("QSSM"), `truncated packet of 4 bytes`},
		"too long":                 {raw(strings.Repeat("x", maxPacket+1)), `truncated packet`},
		"another layout":           {raw("QSSM\xfe\xff\x01\x00"), `the dialing side speaks 254 to 255, the listening side 5; upgrade the listening side`},
		"an unknown kind":          {says(99, nil), `packet of unknown kind 99`},
		"no hello":                 {says(kindSegment, nil, plain), `packet of kind 2 before HELLO`},
		"no greeting":              {says(kindHello, []byte("hello"), plain), `HELLO`},
		"no bell":                  {says(kindHello, hello(nil)), `packet of kind 1 has 0 descriptors, want 1`},
		"two bells":                {func(s *rawPeer) error { return sendPacket(s.fd, kindHello, hello(nil), s.bell, s.bell) }, `has 2 descriptors`},
		"three bells":              {func(s *rawPeer) error { return sendPacket(s.fd, kindHello, hello(nil), s.bell, s.bell, s.bell) }, `too many descriptors`},
		"very many":                {says(kindHello, hello(nil), make([]int, 40)...), `too many descriptors`},
		"a bell that waits":        {says(kindHello, hello(nil), pipe[1]), `the eventfd of the peer is not nonblocking`},
		"nowhere":                  {greets(func(g *frame.Greeting) { g.Target = 77 }), `no such context: 77`},
		"no envelopes":             {greets(func(g *frame.Greeting) { g.Envelopes = 0 }), `offers 0 envelopes`},
		"huge envelopes":           {greets(func(g *frame.Greeting) { g.Eager = 1 << 30 }), `out of range`},
		"a small segment":          {func(s *rawPeer) error { return s.greetWith(small) }, `shared memory has 4096 bytes, want`},
		"a segment that is not":    {func(s *rawPeer) error { return s.greetWith(pipe[0]) }, `shared memory has 0 bytes, want`},
		"hello again":              {joined(greets(nil)), `unexpected packet of kind 1`},
		"segment again":            {joined(says(kindSegment, nil, area)), `unexpected packet of kind 2`},
		"an unsealed area":         {joined(says(kindArea, nil, plain)), `shared memory has 0 bytes`},
		"a want without a number":  {joined(says(kindWant, []byte{1, 2, 3})), `invalid request for shared memory`},
		"a want with a descriptor": {joined(says(kindWant, make([]byte, 4), plain)), `packet of kind 5 has 1 descriptors, want 0`},
		"a chunk for nobody":       {joined(says(kindChunk, make([]byte, 12), area)), `invalid share of memory`},
		"area again": {joined(func(s *rawPeer) error {
			_ = sendPacket(s.fd, kindArea, nil, area)
			return sendPacket(s.fd, kindArea, nil, area)
		}), `duplicate area`},
		"a body in no area": {joined(func(s *rawPeer) error {
			s.end.SetArea(make([]byte, ring.AreaSize))
			s.send(frame.Header{Kind: frame.Expected}, make([]byte, 20_000))
			return nil
		}), `does not share`},
		"a body in an area that is not there": {joined(func(s *rawPeer) error {
			s.sendBody(frame.Body, 0, 100_000)
			return nil
		}), `does not share`},
		"a body outside of the area": {joined(func(s *rawPeer) error {
			_ = sendPacket(s.fd, kindArea, nil, area)
			s.sendBody(frame.Body, ring.BodyRoom-99_999, 100_000)
			return nil
		}), `invalid body of 100000 bytes at offset \d+ of`},
		"a body without room": {joined(func(s *rawPeer) error {
			_ = sendPacket(s.fd, kindArea, nil, area)
			s.sendBody(frame.Body, 0, 100_000)
			return nil
		}), `without room granted`},
		"a piece in an area that is not there": {joined(func(s *rawPeer) error {
			s.sendShown(frame.Data, 0, 100_000)
			return nil
		}), `does not share`},
		"a piece outside of the area": {joined(func(s *rawPeer) error {
			_ = sendPacket(s.fd, kindArea, nil, area)
			s.sendShown(frame.Data, ring.BodyRoom-99_999, 100_000)
			return nil
		}), `invalid body of 100000 bytes at offset \d+ of`},
		"a piece longer than any": {joined(func(s *rawPeer) error {
			_ = sendPacket(s.fd, kindArea, nil, area)
			s.sendShown(frame.Data, 0, 1<<30)
			return nil
		}), `the limit is`},
		"a piece of a message": {joined(func(s *rawPeer) error {
			_ = sendPacket(s.fd, kindArea, nil, area)
			s.sendShown(frame.Ping, 0, 100_000)
			return nil
		}), `PING frame`},
		"another frame about a body": {joined(func(s *rawPeer) error {
			_ = sendPacket(s.fd, kindArea, nil, area)
			s.sendBody(frame.Ping, 0, 100_000)
			return nil
		}), `PING frame about a body`},
		"a hello in the ring": {joined(func(s *rawPeer) error {
			s.send(frame.Header{Kind: frame.Hello, Tag: frame.Magic}, nil)
			return nil
		}), `HELLO frame where none is allowed`},
		"unknown flags": {joined(func(s *rawPeer) error {
			s.send(frame.Header{Kind: frame.Ping, Flags: 0x7f}, nil)
			return nil
		}), `flags`},
		"forged credit": {joined(func(s *rawPeer) error {
			s.send(frame.Header{Kind: frame.Ping, Credit: 1 << 31}, nil)
			return nil
		}), `credit`},
	} {
		t.Run(name, func(t *testing.T) {
			before := open(t)
			s := h.newRawPeer()
			require.NoError(t, c.do(s))
			received, over := s.recv()
			for !over && received.kind == kindHello {
				received.closeRest()
				received, over = s.recv()
			}
			require.False(t, over, "it gets the reason")
			require.EqualValues(t, kindBye, received.kind)
			require.Regexp(t, c.want, frame.ParseBye(received.body).Text)
			s.leave()
			h.until("nothing is left of it", func() bool { return open(t) <= before && h.nctx.Stats().Peers == 1 })
		})
	}
	otherPeer.send(frame.Header{Kind: frame.Unexpected, Op: 2}, nil)
	n := 0
	require.NoError(t, h.nctx.RecvUnexpected(h.nctx.NewOp(func(_ *na.Op, r na.Result) { n++; r.Envelope.Free() })))
	h.until("the friend is heard", func() bool { return n == 1 })
}

// greetWith greets, and shares fd in place of a segment.
func (s *rawPeer) greetWith(fd int) error {
	require.NoError(s.t, sendPacket(s.fd, kindHello, hello(nil), s.bell))
	received, over := s.recv()
	require.False(s.t, over)
	received.closeRest()
	return sendPacket(s.fd, kindSegment, nil, fd)
}

// TestFramesBeforeExit checks that frames that a peer has sent count although it ends before it rings,
// also when it is not polled any more.
func TestFramesBeforeExit(t *testing.T) {
	h := newRawHost(t, Options{Unassisted: true})
	s := h.newRawPeer()
	s.join()
	for range 2 * maxIdle { // until it is not hot
		_ = h.nctx.Progress(100 * time.Microsecond) // longer than it polls: it blocks
	}
	heard := false
	require.NoError(t, h.nctx.RecvUnexpected(h.nctx.NewOp(func(_ *na.Op, r na.Result) {
		require.NoError(t, r.Err)
		heard = string(r.Envelope.Data) == "last words"
		r.Envelope.Free()
	})))
	head := frame.Header{Kind: frame.Unexpected, Op: 2}
	head.SetPayload(10)
	m := descriptorOf(&head)
	s.end.Put(ring.Messages, &m, []byte("last words"))
	require.True(t, s.end.Publish(), "a bell is to be rung")
	s.leave()
	h.until("it is gone", func() bool { return h.nctx.Stats().Peers == 0 })
	h.nctx.Trigger(0)
	require.True(t, heard, "its last message")
}

// TestByeBeforeReset checks that the last packet of a peer that closes is read, although it has not
// read what was sent to it: the system then reports that the socket was reset.
func TestByeBeforeReset(t *testing.T) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	require.NoError(t, err)
	defer unix.Close(fds[0])
	require.NoError(t, sendPacket(fds[0], kindArea, nil))
	require.NoError(t, sendPacket(fds[1], kindBye, frame.Bye{Code: na.ErrClosed, Text: "closed"}.Words()))
	require.NoError(t, unix.Close(fds[1]))
	received, ok, err := recvPacket(fds[0], make([]byte, maxPacket))
	require.NoError(t, err)
	require.True(t, ok)
	require.Equal(t, frame.Bye{Code: na.ErrClosed, Text: "closed"}, frame.ParseBye(received.body))
	_, _, err = recvPacket(fds[0], make([]byte, maxPacket))
	require.ErrorIs(t, err, errEOF)
}

// TestReasonOfRefusal checks that the error of a dial that was refused has the reason of the peer,
// and has one code, whatever that of the peer is.
func TestReasonOfRefusal(t *testing.T) {
	t.Parallel()
	h := newRawHost(t, Options{})
	lis, err := unix.Socket(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	require.NoError(t, err)
	defer unix.Close(lis)
	require.NoError(t, unix.Bind(lis, &unix.SockaddrUnix{Name: filepath.Join(filepath.Dir(h.path), "other")}))
	require.NoError(t, unix.Listen(lis, 1))
	other, err := na.ParseAddr("sm://other")
	require.NoError(t, err)
	for _, code := range []na.Code{na.ErrNoMemory, na.ErrPermission, na.OK, na.ErrCanceled, na.ErrTimeout} {
		var failed error
		dialed := h.nctx.Now() // not within the pause after the last refusal
		h.until("it may be dialed again", func() bool { return h.nctx.Now()-dialed > 250*time.Millisecond })
		require.NoError(t, h.nctx.SendUnexpected(h.nctx.NewOp(func(_ *na.Op, r na.Result) { failed = r.Err }), other, 1, nil))
		fd := -1
		h.until("it connects", func() bool {
			fd, _, err = unix.Accept4(lis, unix.SOCK_CLOEXEC)
			return err == nil
		})
		words := frame.Bye{Code: na.ErrIO, Text: "not you"}.Words()
		words[0] = byte(code)
		require.NoError(t, sendPacket(fd, kindBye, words))
		h.until("it is refused", func() bool { return failed != nil })
		require.NoError(t, unix.Close(fd))
		require.ErrorIs(t, failed, na.ErrUnreachable)
		require.ErrorContains(t, failed, "refused by peer: not you")
		require.NotErrorIs(t, failed, code)
	}
}

// TestPeerNeverReads checks that a peer that takes nothing is cut when TakeTimeout has passed, though
// it still sends, and operations that wait for it end (F68).
func TestPeerNeverReads(t *testing.T) {
	t.Parallel()
	h := newRawHost(t, Options{TakeTimeout: 200 * time.Millisecond})
	s := h.newRawPeer()
	from := s.join()
	ended := 0
	var failed error
	for range 300 {
		require.NoError(t, h.nctx.SendExpected(h.nctx.NewOp(func(_ *na.Op, r na.Result) {
			if ended++; r.Err != nil {
				failed = r.Err
			}
		}), from, 1, nil))
	}
	pings := 0
	h.until("it is cut", func() bool {
		if longest, _, _ := s.end.Room(ring.Messages); longest >= 0 && pings < 50 {
			s.send(frame.Header{Kind: frame.Ping, Tag: uint64(pings)}, nil)
			pings++
		}
		return ended == 300
	})
	require.ErrorIs(t, failed, na.ErrPeerLost)
	require.ErrorContains(t, failed, "has read nothing")
	require.Positive(t, pings)
}

// requireIdle requires that a context which has nothing to do takes less than a ninth of a processor: one that spins gets more, on a machine that is
// busy, too.
func requireIdle(t *testing.T, nctx *na.Context) {
	used := func() time.Duration {
		var u unix.Rusage
		require.NoError(t, unix.Getrusage(unix.RUSAGE_SELF, &u))
		return time.Duration(u.Utime.Nano() + u.Stime.Nano())
	}
	var all []time.Duration
	for range 3 {
		before := used()
		_ = nctx.Progress(3 * starvedPause)
		if all = append(all, used()-before); all[len(all)-1] < starvedPause/3 {
			return
		}
	}
	t.Fatalf("it spins: in %v processor time of %v", 3*starvedPause, all)
}

// TestOutOfDescriptors checks that when the process has no descriptor left no peer is accepted, and
// it does not spin; sessions continue, and all recovers (F72).
func TestOutOfDescriptors(t *testing.T) {
	h := newRawHost(t, Options{})
	s := h.newRawPeer()
	from := s.join()
	late := h.newRawPeer()
	var old unix.Rlimit
	require.NoError(t, unix.Getrlimit(unix.RLIMIT_NOFILE, &old))
	first, err := unix.Dup(0)
	require.NoError(t, err)
	require.NoError(t, unix.Close(first))
	require.NoError(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: uint64(first), Max: old.Max}))
	restore := func() { require.NoError(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &old)) }
	defer restore()

	requireIdle(t, h.nctx)
	sent := false
	require.NoError(t, h.nctx.SendExpected(h.nctx.NewOp(func(_ *na.Op, r na.Result) { sent = r.Err == nil }), from, 1, nil))
	h.until("a session goes on", func() bool { return sent })
	require.Equal(t, 1, h.nctx.Stats().Peers)
	restore()
	late.join()
	require.Equal(t, 2, h.nctx.Stats().Peers)
}

// TestAttachToClosing checks that an attach to a context that is closed meanwhile is refused like
// one to an unknown context, and nothing is left of the peer.
func TestAttachToClosing(t *testing.T) {
	h := newRawHost(t, Options{Unassisted: true})
	h.newRawPeer().join() // memory made once is there
	before := open(t)
	closing, err := h.cls.NewContext()
	require.NoError(t, err)

	s := h.newRawPeer()
	closes := sync.OnceFunc(func() { // its segment has just been made
		closing.Close()
		for !closing.Closed() {
			_ = closing.Progress(0)
			closing.Trigger(0)
		}
	})
	ring.Step = func(ring.Point) { closes() }
	require.NoError(t, sendPacket(s.fd, kindHello, hello(func(g *frame.Greeting) { g.Target = uint16(closing.ID()) }), s.bell))
	received, over := s.recv()
	ring.Step = nil
	require.False(t, over, "it gets the reason")
	require.EqualValues(t, kindBye, received.kind)
	require.Equal(t, "no such context: 1", frame.ParseBye(received.body).Text)
	s.leave()
	h.until("nothing is left of it", func() bool { return open(t) <= before })
}

// TestTwoHellos checks that a peer that sends two hellos, for another context than the one that
// accepts it, ends its own session, whichever context reads the second: nothing is left of it.
func TestTwoHellos(t *testing.T) {
	h := newRawHost(t, Options{Unassisted: true})
	h.newRawPeer().join() // memory made once is there
	other, err := h.cls.NewContext()
	require.NoError(t, err)
	before := open(t)
	drive := func() {
		_ = other.Progress(0)
		other.Trigger(0)
	}
	var wg sync.WaitGroup
	stop := make(chan struct{})
	wg.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
				drive()
			}
		}
	})
	defer func() {
		close(stop)
		wg.Wait()
		for other.Close(); !other.Closed(); {
			drive()
		}
	}()
	for range 50 {
		s := h.newRawPeer()
		greeting := hello(func(g *frame.Greeting) { g.Target = uint16(other.ID()) })
		for range 2 {
			require.NoError(t, sendPacket(s.fd, kindHello, greeting, s.bell))
		}
		for over := false; !over; {
			var received packet
			received, over = s.recv()
			if received.kind == kindBye {
				require.Contains(t, string(received.body[1:]), "unexpected packet of kind 1")
			}
			received.closeRest()
		}
		s.leave()
	}
	h.until("nothing is left of them", func() bool { return open(t) <= before })
}

// TestBodyIsCopied checks that the received part of a body is the receiver's: later writes of the
// sender to its area are not seen, and room is where it was.
func TestBodyIsCopied(t *testing.T) {
	const n = 300_000
	h := newRawHost(t, Options{})
	s := h.newRawPeer()
	from := s.join()
	area, fd, err := makeMemory(ring.AreaSize)
	require.NoError(t, err)
	defer unmap(&area)
	require.NoError(t, sendPacket(s.fd, kindArea, nil, fd))
	require.NoError(t, unix.Close(fd))
	s.end.SetArea(area)
	h.nctx.Upper().GrantRoom(from, n)
	b, ok := s.end.Reserve(n)
	require.True(t, ok)
	body := s.end.Body(b)
	fill := func(v byte) {
		for i := range body {
			body[i] = v
		}
	}
	fill(1)
	s.sendBody(frame.Body, b.At, n)
	s.send(frame.Header{Kind: frame.Unexpected, Flags: frame.FlagBody, Op: bodyID(n)}, []byte("front"))
	var env *na.Envelope
	require.NoError(t, h.nctx.RecvUnexpected(h.nctx.NewOp(func(_ *na.Op, r na.Result) { env = r.Envelope })))
	h.until("the message arrives", func() bool { return env != nil })
	require.NoError(t, s.end.Update())
	fill(2)
	require.Equal(t, n, bytes.Count(env.Body, []byte{1}))
	env.Free()
	require.Zero(t, h.nctx.Peers()[0].RoomHeld)
}

// TestCloseBelowCopy closes the context while a goroutine copies a body for a peer. The memory is
// there until that has ended, and then is given back.
func TestCloseBelowCopy(t *testing.T) {
	below := 0
	for attempt := 0; below < 3 && attempt < 200; attempt++ { // most succeed where there are two processors
		h := newRawHost(t, Options{Unassisted: true})
		s := h.newRawPeer()
		from := s.join()
		s.send(frame.Header{Kind: frame.Credit, Tag: 4 * na.MaxBody}, nil)
		bound, ok := na.Addr{}, false
		h.until("there is room", func() bool {
			bound, ok = h.nctx.Upper().ClaimRoom(from, na.MaxBody)
			return ok
		})
		there := countShared(t)
		body, done := make([]byte, na.MaxBody), make(chan struct{})
		op := h.nctx.NewOp(func(*na.Op, na.Result) {})
		go func() {
			defer close(done)
			_ = h.nctx.Upper().SendExpectedBody(op, bound, 1, []byte("front"), body, true)
		}()
		for countShared(t) == there { // the area is made just before
			runtime.Gosched()
		}
		h.nctx.Close()
		h.nctx.Trigger(0)
		_ = h.nctx.Progress(0)
		if left := countShared(t); left == there { // the area is left, and the segment is not
			below++
		} else { // the copy has ended meanwhile: one into memory that is not there would have ended the process
			require.Equal(t, there-1, left)
		}
		<-done
		h.until("it is closed", h.nctx.Closed)
		require.Equal(t, there-1, countShared(t), "the raw peer has its own")
	}
	t.Logf("%d times a context was closed below a copy", below)
	if runtime.GOMAXPROCS(0) > 1 { // memory that is unmapped below the copy is never seen to be left
		require.Positive(t, below, "contexts that were closed below a copy, and whose memory was left to it")
	}
}

// TestStreamBelowRead checks that a program that has memory of a stream keeps it when the peer has
// exited, for as long as it takes: its Read may block.
func TestStreamBelowRead(t *testing.T) {
	const n = 100_000
	h := newRawHost(t, Options{})
	before := open(t)
	s := h.newRawPeer()
	from := s.join()
	up, err := h.nctx.Upper().NewStream(true, true, func(any) int { return 0 }, nil)
	require.NoError(t, err)
	ended := false
	require.NoError(t, h.nctx.Upper().Call(h.nctx.NewOp(func(*na.Op, na.Result) { ended = true }), na.CallSpec{
		To: from, Tag: 1, Msg: make([]byte, 8), Buf: make([]byte, 1), Streams: []*na.Stream{up},
	}))
	s.send(frame.Header{Kind: frame.Credit, Tag: 1 << 20}, nil)
	s.send(frame.Header{Kind: frame.Window, Flags: frame.FlagAnswer, Op: 1, Tag: 1 << 20}, make([]byte, 8))
	shared := countShared(t)
	var b []byte
	h.until("it may write", func() bool {
		b, err = up.Reserve(n)
		return err == nil
	})
	require.Equal(t, shared+1, countShared(t), "the memory is not of the area")
	s.leave()
	h.until("the session ends, and its descriptors", func() bool { return ended && open(t) <= before })
	require.Equal(t, shared, countShared(t), "the area is left, and the segment of the raw peer")
	for i := range b {
		b[i] = 1
	}
	up.Close()
	up.Commit(n)
	require.Equal(t, shared-1, countShared(t), "the area is left")
}

// TestSendBelowCopy checks that messages sent while another goroutine copies bulk data to the peer
// leave behind it: no goroutine has to drive for that.
func TestSendBelowCopy(t *testing.T) {
	h := newRawHost(t, Options{Unassisted: true})
	segs := make([][]byte, 16<<10) // slow to copy
	for i := range segs {
		segs[i] = make([]byte, 1)
	}
	size := int64(len(segs))
	m, err := h.cls.Register(na.ReadOnly, segs...)
	require.NoError(t, err)
	reserved := make(chan struct{}, 1000)
	ring.Step = func(p ring.Point) {
		if p == ring.Reserve {
			reserved <- struct{}{}
		}
	}
	defer func() { ring.Step = nil }()
	s := h.newRawPeer()
	from := s.join()
	for len(reserved) > 0 {
		<-reserved
	}
	for range 10 {
		copied := make(chan error, 1)
		go func() {
			copied <- h.nctx.Put(h.nctx.NewOp(func(*na.Op, na.Result) {}), m, 0, from, na.Key{Len: size, Access: na.WriteOnly}, 0, size)
		}()
		<-reserved // of the PUT
		<-reserved // of its data
		sent := false
		require.NoError(t, h.nctx.SendExpected(h.nctx.NewOp(func(_ *na.Op, r na.Result) { sent = r.Err == nil }), from, 1, nil))
		require.NoError(t, <-copied)
		h.nctx.Trigger(0)
		require.True(t, sent, "it has left")
		<-reserved
	}
}

// countShared counts the segments and areas that this process writes.
func countShared(t *testing.T) (n int) {
	maps, err := os.ReadFile("/proc/self/maps")
	require.NoError(t, err)
	for line := range strings.Lines(string(maps)) {
		if strings.Contains(line, " rw-s ") && strings.Contains(line, "memfd:quicksilver") {
			n++
		}
	}
	return n
}

// TestCloseBelowWriter closes the context while a goroutine is about to write to a peer. The memory
// is there until that has ended, and then is given back.
func TestCloseBelowWriter(t *testing.T) {
	segs := make([][]byte, 16<<10) // slow to copy
	for i := range segs {
		segs[i] = make([]byte, 1)
	}
	size := int64(len(segs))
	var taken atomic.Int64
	ring.Step = func(p ring.Point) {
		if p == ring.Reserve {
			taken.Add(1)
		}
	}
	stacks := make([]byte, 1<<20)
	defer func() { ring.Step = nil }()
	below := 0
	for attempt := 0; below < 3 && attempt < 100; attempt++ { // most succeed where there are two processors
		h := newRawHost(t, Options{Unassisted: true})
		m, err := h.cls.Register(na.ReadOnly, segs...)
		require.NoError(t, err)
		s := h.newRawPeer()
		from := s.join()
		there := countShared(t)
		for op := range uint64(maxPieces) {
			s.send(frame.Header{Kind: frame.Get, Op: op, Tail: frame.Tail{Token: m.Key().Token, Length: size}}, nil)
		}
		begun := taken.Load()
		done := make(chan struct{})
		go func() {
			defer close(done)
			h.nctx.Batch(func() {
				for range maxPieces {
					require.NoError(t, h.nctx.Put(h.nctx.NewOp(func(*na.Op, na.Result) {}), m, 0, from, na.Key{Len: size, Access: na.WriteOnly}, 0, size))
				}
			})
		}()
		for taken.Load() == begun {
			runtime.Gosched()
		}
		puts := taken.Load()
		for taken.Load() == puts {
			_ = h.nctx.Progress(0) // takes in the gets while the puts are copied
		}
		h.nctx.Close()
		h.until("it is closed", h.nctx.Closed)
		left := countShared(t)
		if bytes.Contains(stacks[:runtime.Stack(stacks, true)], []byte("(*peer).copyStaged")) { // it writes still
			below++
			require.GreaterOrEqual(t, left, there, "it writes into memory that is not there")
		}
		<-done
		require.Equal(t, there-1, countShared(t), "the raw peer has its own")
	}
	t.Logf("%d times a context was closed below a writer", below)
}

// TestClosedBeforeHello checks that a peer that has closed before its hello is read replaces no
// other: operations that wait continue to wait.
func TestClosedBeforeHello(t *testing.T) {
	h := newRawHost(t, Options{Unassisted: true})
	dir := filepath.Dir(h.path)
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	require.NoError(t, err)
	t.Cleanup(func() { _ = unix.Close(fd) })
	require.NoError(t, unix.Bind(fd, &unix.SockaddrUnix{Name: dir + "/slow"}))
	require.NoError(t, unix.Listen(fd, 1))
	slow := na.MakeAddr("sm://slow", 0)
	require.NoError(t, h.nctx.SendUnexpected(h.nctx.NewOp(func(_ *na.Op, r na.Result) { err = r.Err }), slow, 1, []byte("x")))
	s := h.newRawPeer()
	label := []byte((&Options{Dir: dir}).dirID())
	require.NoError(t, sendPacket(s.fd, kindHello, hello(func(g *frame.Greeting) {
		g.Listen, g.Label, g.Incarnation = "sm://slow", label, [16]byte{255, 255, 255, 255} // its connection would stay
	}), s.bell))
	s.leave()
	h.newRawPeer().greet()
	require.NoError(t, err)
	require.Zero(t, h.nctx.Stats().PeersLost)
}

// TestLabelOfLaterRelease checks that bytes behind the name of the directory do not make it another
// one, and a longer name is another one.
func TestLabelOfLaterRelease(t *testing.T) {
	t.Parallel()
	require.True(t, isDir("fd01:1f", "fd01:1f"))
	require.True(t, isDir("fd01:1f;more", "fd01:1f"))
	require.False(t, isDir("fd01:1f0", "fd01:1f"))
	require.False(t, isDir("", "fd01:1f"))
}
