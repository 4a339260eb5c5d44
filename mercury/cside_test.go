package mercury_test

import (
	"bytes"
	"context"
	"errors"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/mercury"
	"github.com/quicksilver-rpc/quicksilver/mercury/internal/hgwire"
	"github.com/quicksilver-rpc/quicksilver/mercury/internal/xnet"
)

// TestDoubleCalls has a C client call: small and lent input, small and lent output with its
// acknowledgement, with both headers.
func TestDoubleCalls(t *testing.T) {
	n := open(t, mercury.Config{})
	serveEcho(n)
	for i, sums := range []bool{false, true} {
		d := dialDouble(t, n, uint16(50+i))
		d.sums = sums
		d.sendRequest(1, echoID, 0, []byte("small"))
		r, out := d.recvResponse(1)
		require.Zero(t, r.Code)
		require.Equal(t, "small", string(out))

		long := fill(2_500_000)
		d.sum = hgwire.Sum(long)
		d.sendRequest(2, echoID, hgwire.More, lentHandle(len(long), 5, hgwire.Readable))
		type piece struct{ off, n uint64 }
		var asked []piece
		for at := uint64(0); at < uint64(len(long)); {
			h, _ := d.recv()
			require.EqualValues(t, xnet.ReadReq, h.Op)
			require.EqualValues(t, 5, h.IOV[0].Key)
			require.Equal(t, at, h.IOV[0].Addr)
			asked = append(asked, piece{at, h.IOV[0].Len})
			at += h.IOV[0].Len
		}
		require.Len(t, asked, 3, "in pieces of 1 MiB")
		for _, p := range asked {
			d.send(xnet.Header{Op: xnet.ReadResp}, long[p.off:p.off+p.n])
		}
		r, out = d.recvResponse(2)
		require.EqualValues(t, hgwire.More, r.Flags&^hgwire.Checksums)
		if sums {
			require.Equal(t, d.sum, r.Sums.Payload, "of the output itself")
		}
		var b hgwire.Bulk
		_, err := b.Parse(out)
		require.NoError(t, err)
		require.EqualValues(t, len(long), b.Len)
		key := b.Segments[0].Key
		require.Greater(t, key, uint64(1)<<32, "keys are random")
		d.readReq(0, b.Len, key)
		h, got := d.recv()
		require.EqualValues(t, xnet.ReadResp, h.Op)
		require.True(t, bytes.Equal(long, got))
		d.send(xnet.Header{Op: xnet.Tagged, Tag: 2}, []byte{0})
		d.sendRequest(3, echoID, 0, nil)
		d.recvResponse(3)
		require.Zero(t, n.Regions())
		d.readReq(0, 1, key) // acknowledged: no longer there
		d.requireEnded()
	}
}

// TestDoubleNull has a client of Margo put a pair as Yokan's does, with a NULL origin, and calls a
// server of Margo with one.
func TestDoubleNull(t *testing.T) {
	type putIn struct {
		Count  uint64
		Origin *string
		Mode   int32
	}
	put := mercury.DefineMargo[putIn, *string]("yk_put").At(42)
	n := open(t, mercury.Config{Checksums: mercury.Off})
	put.Handle(n, func(_ context.Context, in putIn) (*string, error) {
		if in.Count != 3 || in.Mode != 7 {
			return nil, mercury.ErrPermission
		}
		return in.Origin, nil
	})
	const front, null = "\x00\x00\x00\x00\x00\x00\x00\x00", "\x00\x00\x00\x00\x00\x00\x00\x00"
	in := front + "\x03\x00\x00\x00\x00\x00\x00\x00" + null + "\x07\x00\x00\x00"
	d := dialDouble(t, n, 52)
	d.sendRequest(1, put.ID(), 0, []byte(in))
	r, out := d.recvResponse(1)
	require.Zero(t, r.Code)
	require.Equal(t, "\x00\x00\x00\x00"+null, string(out))

	addr, accept, _ := listen(t)
	ended := make(chan error, 1)
	go func() {
		origin, err := put.Call(testContext(t), n, addr, putIn{3, nil, 7})
		if origin != nil {
			err = errors.New("not NULL: " + *origin)
		}
		ended <- err
	}()
	d, s := accept()
	d.accept(s)
	tag, _, got := d.recvRequest()
	require.Equal(t, in, string(got))
	d.sendResponse(tag, 0, 0, out)
	require.NoError(t, <-ended)
}

// TestDoubleServes has Go call a C server: the probe, the headers that follow from it, lent input,
// lent output and its acknowledgement.
func TestDoubleServes(t *testing.T) {
	for _, version := range []uint8{0, 1} {
		for _, sums := range []bool{false, true} {
			addr, accept, _ := listen(t)
			n := open(t, mercury.Config{})
			type result struct {
				out []byte
				err error
			}
			results := make(chan result)
			call := func(in []byte) {
				go func() {
					out, err := n.Call(testContext(t), addr, 9, in)
					results <- result{out, err}
				}()
			}
			call([]byte("in"))
			d, s := accept()
			require.Zero(t, s.Version)
			d.accept(xnet.Setup{Version: min(version, s.Version), Port: s.Port})
			d.sums = sums
			d.answerProbe()
			tag, r, in := d.recvRequest()
			require.Equal(t, d.flags(), r.Flags)
			require.Equal(t, "in", string(in))
			d.sendResponse(tag, 0, 0, []byte("out"))
			got := <-results
			require.NoError(t, got.err)
			require.Equal(t, "out", string(got.out))

			long := fill(9000)
			call(long)
			tag, r, in = d.recvRequest()
			require.Equal(t, d.flags()|hgwire.More, r.Flags)
			if sums {
				require.Equal(t, hgwire.Sum(long), r.Sums.Payload, "of the input itself")
			}
			var b hgwire.Bulk
			_, err := b.Parse(in)
			require.NoError(t, err)
			d.readReq(0, 4000, b.Segments[0].Key) // two reads: their answers arrive in order
			d.readReq(4000, 5000, b.Segments[0].Key)
			_, first := d.recv()
			_, second := d.recv()
			require.Equal(t, long, append(first, second...))
			d.sum = hgwire.Sum(long[:5000])
			d.sendResponse(tag, 0, hgwire.More, lentHandle(5000, 3, hgwire.Readable))
			h, _ := d.recv()
			require.EqualValues(t, xnet.ReadReq, h.Op)
			d.send(xnet.Header{Op: xnet.ReadResp}, long[:5000])
			h, one := d.recv()
			require.EqualValues(t, xnet.Tagged, h.Op)
			require.Equal(t, tag, h.Tag)
			require.Len(t, one, 1, "the acknowledgement")
			got = <-results
			require.NoError(t, got.err)
			require.Equal(t, long[:5000], got.out)

			eager := hgwire.Bulk{Len: 3, Access: hgwire.Readable, Segments: []hgwire.Segment{{Len: 3, Key: 1, Base: 1}}, Eager: []byte("abc")}
			m, _, err := mercury.ParseBulk(eager.Append(nil))
			require.NoError(t, err)
			p := make([]byte, 2)
			_, err = n.Remote(addr, m).Get(testContext(t), p, 1)
			require.NoError(t, err)
			require.Equal(t, "bc", string(p), "the data was in the handle")
		}
	}
}

// TestDoubleMemory has Go read and write memory of C that has two segments: answers in order, an
// acknowledgement for each write.
func TestDoubleMemory(t *testing.T) {
	n := open(t, mercury.Config{})
	done := make(chan error)
	n.Handle(1, func(r *mercury.Request) {
		b, _, err := mercury.ParseBulk(r.Input())
		if err == nil {
			buf := make([]byte, b.Len())
			if _, err = r.Remote(b).Get(testContext(t), buf, 0); err == nil {
				_, err = r.Remote(b).Put(testContext(t), buf[1:], 1)
			}
		}
		done <- err
		_ = r.Respond(nil)
	})
	d := dialDouble(t, n, 40)
	b := hgwire.Bulk{Len: 30, Access: hgwire.Readable | hgwire.Writable, Segments: []hgwire.Segment{{Len: 10, Key: 4, Base: 1}, {Len: 20, Key: 5, Base: 1}}}
	d.sendRequest(1, 1, 0, b.Append(nil))
	one, _ := d.recv()
	two, _ := d.recv()
	require.Equal(t, xnet.IOV{Addr: 0, Len: 10, Key: 4}, one.IOV[0])
	require.Equal(t, xnet.IOV{Addr: 0, Len: 20, Key: 5}, two.IOV[0])
	d.send(xnet.Header{Op: xnet.ReadResp}, fill(30)[:10])
	d.send(xnet.Header{Op: xnet.ReadResp}, fill(30)[10:])
	one, a := d.recv()
	require.EqualValues(t, xnet.Write, one.Op)
	require.EqualValues(t, xnet.Deliver, one.Flags)
	require.Equal(t, xnet.IOV{Addr: 1, Len: 9, Key: 4}, one.IOV[0])
	two, c := d.recv()
	require.Equal(t, xnet.IOV{Addr: 0, Len: 20, Key: 5}, two.IOV[0])
	require.Equal(t, fill(30)[1:], append(a, c...))
	d.ack()
	select {
	case <-done:
		t.Fatal("done before the second acknowledgement")
	default:
	}
	d.ack()
	require.NoError(t, <-done)
	d.recvResponse(1)
}

// newSegments is a handle of memory of a double in n segments of 3 bytes, which begin with the key 1. Segments without
// bytes are between them.
func newSegments(n int) hgwire.Bulk {
	b := hgwire.Bulk{Len: 3 * uint64(n), Access: hgwire.Readable | hgwire.Writable}
	for i := range n {
		s := hgwire.Segment{Len: 3, Key: uint64(i + 1), Base: 0x7000}
		if b.Segments = append(b.Segments, s); i%100 == 99 {
			s.Len = 0
			b.Segments = append(b.Segments, s)
		}
	}
	return b
}

// TestDoubleSegments has a C client lend memory of as many segments as C takes, as a put of 5,000
// pairs does. Go reads it and writes it.
func TestDoubleSegments(t *testing.T) {
	for _, count := range []int{4055, 10_000} {
		n := open(t, mercury.Config{})
		n.Handle(1, func(r *mercury.Request) {
			b, _, err := mercury.ParseBulk(r.Input())
			buf := make([]byte, b.Len()-4) // from the second byte of the second segment
			if err == nil {
				_, err = r.Remote(b).Get(testContext(t), buf, 4)
			}
			if err == nil {
				_, err = r.Remote(b).Put(testContext(t), buf, 4)
			}
			if err == nil {
				err = r.Respond(nil)
			}
			if err != nil {
				_ = r.RespondError(err)
			}
		})
		d := dialDouble(t, n, 42)
		b := newSegments(count)
		wire := b.Append(nil)
		d.sendRequest(1, 1, hgwire.More, lentHandle(len(wire), 1<<20, hgwire.Readable))
		h, _ := d.recv()
		require.EqualValues(t, 1<<20, h.IOV[0].Key)
		d.send(xnet.Header{Op: xnet.ReadResp}, wire)
		mem := fill(3 * count)
		at := 4
		next := func(op uint8) []byte {
			h, got := d.recv()
			require.Equal(t, op, h.Op)
			off := at % 3
			require.Equal(t, xnet.IOV{Addr: uint64(off), Len: uint64(3 - off), Key: uint64(at/3 + 1)}, h.IOV[0])
			at += 3 - off
			return got
		}
		for at < len(mem) {
			from := at
			next(xnet.ReadReq)
			d.send(xnet.Header{Op: xnet.ReadResp}, mem[from:at])
		}
		for at = 4; at < len(mem); {
			from := at
			got := next(xnet.Write)
			require.Equal(t, mem[from:at], got)
			d.ack()
		}
		r, _ := d.recvResponse(1)
		require.Zero(t, r.Code)
	}
}

// TestDoubleReaches has C read and write memory of Go: each write that requests it is acknowledged.
func TestDoubleReaches(t *testing.T) {
	n := open(t, mercury.Config{})
	mem := fill(300_000)
	region, err := n.Lend(mem, mercury.Read|mercury.Write)
	require.NoError(t, err)
	b, _ := region.Bulk().AppendProc(nil)
	var w hgwire.Bulk
	_, err = w.Parse(b)
	require.NoError(t, err)
	key := w.Segments[0].Key
	d := dialDouble(t, n, 41)
	d.write(10, key, []byte("hello"))
	d.readReq(8, 9, key)
	h := iov(0, 3, key)
	h.Op, h.N = xnet.ReadReq, 2
	h.IOV[1] = xnet.IOV{Addr: 299_999, Len: 1, Key: key}
	d.send(h, nil)
	acks, answers := 0, [][]byte{}
	for range 3 {
		h, got := d.recv()
		if h.IsAck() {
			acks++
		} else {
			answers = append(answers, got)
		}
	}
	require.Equal(t, 1, acks)
	require.Equal(t, mem[8:17], answers[0])
	require.Equal(t, append(fill(3), mem[299_999]), answers[1])
	require.Equal(t, "hello", string(mem[10:15]))
	require.NoError(t, region.Close())
	d.readReq(0, 1, key)
	d.requireEnded()
}

// TestDoubleReachesSegments has C read and write memory of Go in several pieces, each by the key
// and the offset in it that the handle gives. A bound handle names Go's address behind that, as C's
// own do.
func TestDoubleReachesSegments(t *testing.T) {
	n := open(t, mercury.Config{})
	bufs := [][]byte{fill(10), nil, fill(20)}
	region, err := n.LendSegments(bufs, mercury.Read|mercury.Write)
	require.NoError(t, err)
	bound, err := region.Bulk().Bind(n.Addr())
	require.NoError(t, err)
	plain, _ := region.Bulk().AppendProc(nil)
	wire, _ := bound.AppendProc(nil)
	own := netip.MustParseAddrPort(hostPort(n))
	require.Equal(t, plain[9:20], wire[9:20])
	require.EqualValues(t, 0x20, wire[20]&^plain[20])
	require.Equal(t, append(plain[21:], append(hgwire.AppendSource([]byte("\x20\x00\x00\x00\x00\x00\x00\x00"+
		"\x18\x00\x00\x00\x00\x00\x00\x00"+"\x10\x00\x00\x00\x00\x00\x00\x00"), own), 0)...), wire[21:])
	var w hgwire.Bulk
	_, err = w.Parse(wire)
	require.NoError(t, err)
	require.Len(t, w.Segments, 2)
	one, two := w.Segments[0].Key, w.Segments[1].Key
	require.NotEqual(t, one, two)
	d := dialDouble(t, n, 43)
	d.readReq(5, 5, one)
	_, got := d.recv()
	require.Equal(t, fill(10)[5:], got)
	d.readReq(0, 20, two)
	_, got = d.recv()
	require.Equal(t, fill(20), got)
	d.write(3, two, []byte("hello"))
	h, _ := d.recv()
	require.True(t, h.IsAck())
	require.Equal(t, "hello", string(bufs[2][3:8]))
	d.readReq(8, 4, one) // beyond the first
	d.requireEnded()
	require.NoError(t, region.Close())
}

// TestNack checks that a peer that refuses because it still has an older connection is dialed
// again; one that always refuses is unreachable.
func TestNack(t *testing.T) {
	addr, accept, _ := listen(t)
	n := open(t, mercury.Config{Checksums: mercury.Off})
	errs := make(chan error)
	go func() { errs <- n.Notify(testContext(t), addr, 9, nil) }()
	for range 3 {
		d, s := accept()
		d.setup(xnet.Setup{Kind: xnet.Refuse, Port: s.Port})
		d.requireEnded()
	}
	d, s := accept()
	d.accept(s)
	d.recvRequest()
	require.NoError(t, <-errs)

	m := open(t, mercury.Config{SetupTimeout: 50 * time.Millisecond})
	go func() {
		for {
			_, err := m.Call(testContext(t), addr, 9, nil)
			errs <- err
			return
		}
	}()
	for {
		select {
		case err := <-errs:
			require.ErrorIs(t, err, mercury.ErrUnreachable)
			require.Equal(t, mercury.NotRun, mercury.FateOf(err))
			return
		default:
			nc, err := net.DialTimeout("tcp", addr[len("ofi+tcp://"):], time.Second) // lets accept return
			require.NoError(t, err)
			_, err = nc.Write((&xnet.Setup{Port: 1}).Append(nil))
			require.NoError(t, err)
			d, s := accept()
			d.setup(xnet.Setup{Kind: xnet.Refuse, Port: s.Port})
			nc.Close()
		}
	}
}

// TestBothDial has both sides dial at once. The one with the smaller address gives way.
func TestBothDial(t *testing.T) {
	for _, smaller := range []bool{true, false} {
		addr, accept, port := listen(t)
		n := open(t, mercury.Config{Checksums: mercury.Off})
		for own := netip.MustParseAddrPort(hostPort(n)).Port(); (port < own) != smaller; own = netip.MustParseAddrPort(hostPort(n)).Port() {
			addr, accept, port = listen(t)
			n = open(t, mercury.Config{Checksums: mercury.Off})
		}
		serveEcho(n)
		errs := make(chan error)
		go func() {
			_, err := n.Call(testContext(t), addr, 9, nil)
			errs <- err
		}()
		theirs, s := accept() // not answered yet
		nc, err := net.Dial("tcp", hostPort(n))
		require.NoError(t, err)
		ours := newDouble(t, nc, port)
		ours.setup(xnet.Setup{Kind: xnet.Request, Version: 1, Port: port, PID: 7})
		answer := ours.readSetup()
		d := ours
		if smaller {
			require.EqualValues(t, xnet.Refuse, answer.Kind)
			d = theirs.accept(s)
		} else {
			require.EqualValues(t, xnet.Accept, answer.Kind)
			theirs.requireEnded()
		}
		tag, _, _ := d.recvRequest()
		d.sendResponse(tag, 0, 0, nil)
		require.NoError(t, <-errs)
		require.Equal(t, []string{addr}, n.Peers())
	}
}

// TestRestart checks that a process that was restarted on its port replaces the old one; a second
// connection of the same one is refused.
func TestRestart(t *testing.T) {
	n := open(t, mercury.Config{})
	serveEcho(n)
	old := dialDouble(t, n, 60)
	for _, pid := range []uint32{60, 61} {
		nc, err := net.Dial("tcp", hostPort(n))
		require.NoError(t, err)
		d := newDouble(t, nc, 60)
		d.setup(xnet.Setup{Kind: xnet.Request, Port: 60, PID: pid})
		s := d.readSetup()
		if pid == 60 {
			require.EqualValues(t, xnet.Refuse, s.Kind)
			d.requireEnded()
			continue
		}
		require.EqualValues(t, xnet.Accept, s.Kind)
		old.requireEnded()
		d.sendRequest(1, echoID, 0, nil)
		d.recvResponse(1)
	}
}
