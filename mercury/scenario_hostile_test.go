package mercury_test

import (
	"bytes"
	"context"
	"flag"
	"net"
	"net/netip"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/internal/test/long"
	"github.com/quicksilver-rpc/quicksilver/mercury"
	"github.com/quicksilver-rpc/quicksilver/mercury/internal/hgwire"
	"github.com/quicksilver-rpc/quicksilver/mercury/internal/xnet"
)

var unknowns = flag.Int("mercury.unknown", long.Or(20_000, 1_000_000), "requests of unknown RPCs")

// key returns the key of lent memory.
func key(t testing.TB, r *mercury.Region) uint64 {
	wire, _ := r.Bulk().AppendProc(nil)
	var b hgwire.Bulk
	_, err := b.Parse(wire)
	require.NoError(t, err)
	return b.Segments[0].Key
}

// TestWrongAccess checks that a wrong key, range or access costs the peer its connection. The
// memory stays as it was, and others continue.
func TestWrongAccess(t *testing.T) {
	n := open(t, mercury.Config{})
	serveEcho(n)
	mem := make([]byte, 100)
	lend := func(a mercury.Access, peers ...string) uint64 {
		r, err := n.Lend(mem, a, peers...)
		require.NoError(t, err)
		return key(t, r)
	}
	readable, writable, other := lend(mercury.Read), lend(mercury.Write), lend(mercury.Read|mercury.Write, "ofi+tcp://127.0.0.1:9")
	good := dialDouble(t, n, 70)
	for name, do := range map[string]func(d *double){
		"key":                 func(d *double) { d.readReq(0, 1, 1) },
		"write, key":          func(d *double) { d.write(0, 1, []byte("x")) },
		"access":              func(d *double) { d.readReq(0, 1, writable) },
		"write, access":       func(d *double) { d.write(0, readable, []byte("x")) },
		"range":               func(d *double) { d.readReq(99, 2, readable) },
		"offset":              func(d *double) { d.readReq(1<<64-1, 2, readable) },
		"length":              func(d *double) { d.readReq(1, 1<<64-1, readable) },
		"write, range":        func(d *double) { d.write(98, writable, []byte("xyz")) },
		"write, offset":       func(d *double) { d.write(1<<64-2, writable, []byte("xyz")) },
		"another peer's":      func(d *double) { d.readReq(0, 1, other) },
		"write, another's":    func(d *double) { d.write(0, other, []byte("x")) },
		"an answer to none":   func(d *double) { d.send(xnet.Header{Op: xnet.ReadResp}, []byte("x")) },
		"an acknowledgement":  func(d *double) { d.ack() },
		"rendezvous":          func(d *double) { _, _ = d.nc.Write(append([]byte{3, 5}, make([]byte, 100)...)) },
		"a long message":      func(d *double) { d.send(xnet.Header{Op: xnet.Tagged}, make([]byte, 65<<10)) },
		"not even a message":  func(d *double) { _, _ = d.nc.Write([]byte("GET / HTTP/1.1\r\n\r\n")) },
		"a write too short":   func(d *double) { h := iov(0, 9, writable); h.Op = xnet.Write; d.send(h, []byte("x")) },
		"an address of IPv6":  func(d *double) { d.send(xnet.Header{Flags: xnet.Immediate}, append([]byte{10}, make([]byte, 60)...)) },
		"a message of no tag": func(d *double) { d.send(xnet.Header{}, []byte("x")) },
	} {
		t.Log(name)
		d := dialDouble(t, n, 71)
		do(d)
		d.requireEnded()
		good.sendRequest(1, echoID, 0, []byte("in"))
		_, out := good.recvResponse(1)
		require.Equal(t, "in", string(out))
	}
	require.Equal(t, make([]byte, 100), mem)
}

// TestForged checks that requests that claim another source address, have a wrong version, or lend
// input that cannot be read are answered on their own connection.
func TestForged(t *testing.T) {
	n := open(t, mercury.Config{MaxBody: 1000})
	n.Handle(2, func(r *mercury.Request) { _ = r.Respond([]byte(r.Peer())) })
	addr, accept, _ := listen(t)
	called := make(chan struct{})
	go func() {
		if d, _ := func() (d *double, s xnet.Setup) { defer func() { _ = recover() }(); return accept() }(); d != nil {
			close(called)
		}
	}()
	d := dialDouble(t, n, 72)
	d.self = netip.MustParseAddrPort(addr[len("ofi+tcp://"):])
	d.sendRequest(1, 2, 0, nil)
	_, out := d.recvResponse(1)
	require.Equal(t, "ofi+tcp://127.0.0.1:72", string(out), "not the name in the request")
	select {
	case <-called:
		t.Fatal("it called the address in the request")
	default:
	}
	nc, err := net.Dial("tcp", addr[len("ofi+tcp://"):]) // lets the other goroutine end
	require.NoError(t, err)
	_, err = nc.Write((&xnet.Setup{Port: 1}).Append(nil))
	require.NoError(t, err)
	<-called
	nc.Close()

	d.self = netip.MustParseAddrPort("127.0.0.1:72")
	for _, in := range [][]byte{nil, []byte("x"), lentHandle(1001, 1, 1), lentHandle(1<<30, 1, 1), lentHandle(10, 1, 2), fill(88)} {
		d.sendRequest(3, 2, hgwire.More, in)
		r, _ := d.recvResponse(3)
		require.Contains(t, []int8{4, 12}, r.Code)
	}
	wire := (&hgwire.Request{ID: 2}).Append(hgwire.AppendSource(nil, d.self), nil)
	wire[17] = 4
	d.send(xnet.Header{Flags: xnet.Immediate, Tag: 4}, wire)
	r, _ := d.recvResponse(4)
	require.EqualValues(t, 15, r.Code)
}

// TestUnknown checks that any number of requests of unknown RPCs is refused, one by one, and leaves
// nothing behind.
func TestUnknown(t *testing.T) {
	n := open(t, mercury.Config{})
	serveEcho(n)
	d := dialDouble(t, n, 73)
	before := heapInUse()
	under := make(chan struct{}, 10_000) // requests: the connection of a peer that does not read 16 MiB of responses is closed
	go func() {
		for i := range *unknowns {
			under <- struct{}{}
			d.sendRequest(uint64(i), 1<<40+uint64(i), 0, nil)
		}
	}()
	for i := range *unknowns {
		r, _ := d.recvResponse(uint64(i))
		require.EqualValues(t, 2, r.Code)
		<-under
	}
	require.Less(t, heapInUse(), before+8<<20)
}

// TestDamagedRequest changes each bit of a request with checksums in flight: no handler sees wrong
// input, and the origin gets an error. The same for input that is sent separately.
func TestDamagedRequest(t *testing.T) {
	n := open(t, mercury.Config{})
	serveEcho(n)
	d := dialDouble(t, n, 78)
	d.sums = true
	d.sendRequest(1, echoID, 0, []byte("input"))
	d.recvResponse(1)
	r := hgwire.Request{ID: echoID, Flags: hgwire.Checksums}
	wire := r.Append(hgwire.AppendSource(nil, d.self), []byte("input"))
	for at := hgwire.SourceSize; at < len(wire); at++ {
		if off := at - hgwire.SourceSize; off == 14 || off == 15 { // these bytes are ignored
			continue
		}
		for bit := range 8 {
			wire[at] ^= 1 << bit
			d.send(xnet.Header{Flags: xnet.Immediate, Tag: uint64(at)}, wire)
			wire[at] ^= 1 << bit
			if at == hgwire.SourceSize+10 && 1<<bit == hgwire.NoReply {
				continue
			}
			h, b := d.recv()
			got, _, err := hgwire.ParseResponse(b)
			require.NoError(t, err)
			require.EqualValues(t, at, h.Tag)
			require.Contains(t, []int8{24, 12, 15}, got.Code, "byte %d", at)
		}
	}
	d.sum = hgwire.Sum([]byte("inpot"))
	d.sendRequest(2, echoID, hgwire.More, lentHandle(5, 1, 1))
	d.recv()
	d.send(xnet.Header{Op: xnet.ReadResp}, []byte("input"))
	got, _ := d.recvResponse(2)
	require.EqualValues(t, 24, got.Code)
	d.sendRequest(3, echoID, 0, []byte("input"))
	_, out := d.recvResponse(3)
	require.Equal(t, "input", string(out))
}

// TestDamagedResponse does the same with a response: the call ends with ErrChecksum, and an unknown
// fate.
func TestDamagedResponse(t *testing.T) {
	addr, accept, _ := listen(t)
	n := open(t, mercury.Config{Checksums: mercury.On})
	errs := make(chan error)
	call := func() {
		_, err := n.Call(testContext(t), addr, 9, nil)
		errs <- err
	}
	go call()
	d, s := accept()
	d.accept(s).sums = true
	tag, _, _ := d.recvRequest()
	d.sendResponse(tag, 0, 0, []byte("output"))
	require.NoError(t, <-errs)
	r := hgwire.Response{Flags: hgwire.Checksums}
	wire := r.Append(nil, []byte("output"))
	for at := range wire {
		if at >= 6 && at < 16 { // these bytes are ignored
			continue
		}
		for bit := range 8 {
			if at == 1 && 1<<bit == hgwire.More { // "output" is no handle either
				continue
			}
			go call()
			tag, _, _ = d.recvRequest()
			wire[at] ^= 1 << bit
			d.send(xnet.Header{Op: xnet.Tagged, Tag: tag}, wire)
			wire[at] ^= 1 << bit
			err := <-errs
			require.ErrorIs(t, err, mercury.ErrChecksum, "byte %d", at)
			want := mercury.Ran
			if at < 6 {
				want = mercury.MaybeRan
			}
			require.Equal(t, want, mercury.FateOf(err))
		}
	}
	go call()
	tag, _, _ = d.recvRequest()
	d.sum = hgwire.Sum([]byte("outpot"))
	d.sendResponse(tag, 0, hgwire.More, lentHandle(6, 1, 1))
	d.recv()
	d.send(xnet.Header{Op: xnet.ReadResp}, []byte("output"))
	d.recv() // the acknowledgement
	err := <-errs
	require.ErrorIs(t, err, mercury.ErrChecksum)
	require.Equal(t, mercury.Ran, mercury.FateOf(err))
}

func heapInUse() uint64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

// TestNeverReads checks that a peer that sends requests and never reads the answers is cut; the
// others continue.
func TestNeverReads(t *testing.T) {
	n := open(t, mercury.Config{})
	serveEcho(n)
	d, good := dialDouble(t, n, 74), dialDouble(t, n, 75)
	before := heapInUse()
	in := make([]byte, 4000)
	r := hgwire.Request{ID: echoID}
	h := xnet.Header{Op: xnet.Msg, Flags: xnet.Immediate, Tag: 1}
	msg := append(h.Append(nil, 16+16+len(in)), r.Append(hgwire.AppendSource(nil, d.self), in)...)
	for sent := 0; ; sent += len(msg) {
		if _, err := d.nc.Write(msg); err != nil {
			break
		}
		require.Less(t, sent, 1<<30)
	}
	good.sendRequest(1, echoID, 0, nil)
	good.recvResponse(1)
	require.Less(t, heapInUse(), before+64<<20)
}

// TestHandlersOfClosedConnection checks that handlers that run when their peers have exited keep
// their input, and not the buffers for reading more.
func TestHandlersOfClosedConnection(t *testing.T) {
	n := open(t, mercury.Config{})
	running, goOn := make(chan struct{}), make(chan struct{})
	n.Handle(1, func(*mercury.Request) {
		running <- struct{}{}
		<-goOn
	})
	before := heapInUse()
	const peers = 300
	for i := range uint16(peers) {
		d := dialDouble(t, n, 1000+i)
		d.sendRequest(1, 1, 0, nil)
		<-running
		d.nc.Close()
		d.r = nil
	}
	for ctx := testContext(t); len(n.Peers()) > 0; runtime.Gosched() {
		require.NoError(t, ctx.Err())
	}
	require.Less(t, heapInUse(), before+peers*64<<10)
	close(goOn)
}

// TestHostileBytes sets each byte of a conversation to other values, one at a time. In every case
// the node continues.
func TestHostileBytes(t *testing.T) {
	n := open(t, mercury.Config{MaxBody: 1 << 20, Timeout: time.Second})
	n.Handle(1, func(r *mercury.Request) {
		ctx, cancel := context.WithTimeout(r.Context(), time.Millisecond)
		defer cancel()
		if b, _, err := mercury.ParseBulk(r.Input()); err == nil && b.Len() <= 1<<20 {
			_, _ = r.Remote(b).Get(ctx, make([]byte, b.Len()), 0)
		}
		_ = r.Respond(nil)
	})
	serveEcho(n)
	region, err := n.Lend(make([]byte, 64), mercury.Read|mercury.Write)
	require.NoError(t, err)
	setup := (&xnet.Setup{Kind: xnet.Request, Version: 1, Port: 80, PID: 1}).Append(nil)
	r := hgwire.Request{ID: 1, Flags: hgwire.More}
	body := r.Append(hgwire.AppendSource(nil, netip.MustParseAddrPort("127.0.0.1:80")), lentHandle(100, 1, 1))
	request := append((&xnet.Header{Flags: xnet.Immediate, Tag: 1}).Append(nil, len(body)), body...)
	read, write := iov(0, 8, key(t, region)), iov(0, 8, key(t, region))
	read.Op, write.Op = xnet.ReadReq, xnet.Write
	conversation := append(setup, request...)
	conversation = read.Append(conversation, 0)
	conversation = append(write.Append(conversation, 8), "12345678"...)
	before := heapInUse()
	for at := range conversation {
		for _, v := range []byte{0, 1, 0x7f, 0x80, 0xff} {
			if !long.On && at >= len(setup) && v != 0xff && v != 0 {
				continue
			}
			nc, err := net.Dial("tcp", hostPort(n))
			require.NoError(t, err)
			old := conversation[at]
			conversation[at] = v
			_, _ = nc.Write(conversation)
			conversation[at] = old
			nc.Close()
		}
	}
	d := dialDouble(t, n, 81)
	d.sendRequest(1, echoID, 0, []byte("in"))
	_, out := d.recvResponse(1)
	require.Equal(t, "in", string(out))
	require.Less(t, heapInUse(), before+64<<20)
}

// TestSlowSetup checks that connections without a set-up hold a place for SetupTimeout at most, and
// never one of those that are made.
func TestSlowSetup(t *testing.T) {
	n := open(t, mercury.Config{SetupTimeout: 200 * time.Millisecond, MaxPeers: 4})
	serveEcho(n)
	good := dialDouble(t, n, 90)
	var slow []*double
	for i := range 8 {
		nc, err := net.Dial("tcp", hostPort(n))
		require.NoError(t, err)
		d := newDouble(t, nc, 91)
		_, _ = nc.Write((&xnet.Setup{Port: 91}).Append(nil)[:5*i])
		slow = append(slow, d)
	}
	for range 100 {
		good.sendRequest(1, echoID, 0, nil)
		good.recvResponse(1)
	}
	for _, d := range slow {
		d.requireEnded()
	}
	dialDouble(t, n, 92)
}

// TestLongOutputs has many callers with output that is sent separately at a time, more than a peer
// may leave unread. All of it arrives.
func TestLongOutputs(t *testing.T) {
	target, origin := open(t, mercury.Config{}), open(t, mercury.Config{})
	out := fill(1 << 20)
	target.Handle(1, func(r *mercury.Request) { _ = r.Respond(out) })
	var wg sync.WaitGroup
	for range 128 {
		wg.Go(func() {
			got, err := origin.Call(testContext(t), target.Addr(), 1, nil)
			assert.NoError(t, err)
			assert.True(t, bytes.Equal(out, got))
		})
	}
	wg.Wait()
}

// TestNeverAcknowledges checks that output that is lent and never acknowledged is bounded: first
// there is no room for more, then the oldest is taken back.
func TestNeverAcknowledges(t *testing.T) {
	n := open(t, mercury.Config{MaxBody: 20 << 20})
	out := make([]byte, 8<<20)
	n.Handle(1, func(r *mercury.Request) { _ = r.Respond(out) })
	d := dialDouble(t, n, 76)
	for i := range uint64(12) {
		d.sendRequest(i, 1, 0, nil)
		if r, _ := d.recvResponse(i); i < 10 {
			require.EqualValues(t, hgwire.More, r.Flags)
		} else {
			require.EqualValues(t, 26, r.Code)
		}
	}
	require.Equal(t, 10, n.Regions(), "four times MaxBody")
	n.AgeRegions()
	d.sendRequest(50, 1, 0, nil)
	r, _ := d.recvResponse(50)
	require.EqualValues(t, hgwire.More, r.Flags)
	require.Equal(t, 8, n.Regions(), "64 MiB")
	d.nc.Close()
	for ctx := testContext(t); n.Regions() > 0; runtime.Gosched() {
		require.NoError(t, ctx.Err())
	}
}

// TestBudget checks that input beyond the budget is refused, and the memory of a handler is free
// again when it ends.
func TestBudget(t *testing.T) {
	n := open(t, mercury.Config{Budget: 10_000})
	goOn := make(chan struct{})
	n.Handle(1, func(r *mercury.Request) {
		<-goOn
		_ = r.Respond(nil)
	})
	d := dialDouble(t, n, 77)
	in := make([]byte, 3000)
	for i := range uint64(3) {
		d.sendRequest(i, 1, 0, in)
	}
	d.sendRequest(3, 1, 0, in)
	r, _ := d.recvResponse(3)
	require.EqualValues(t, 4, r.Code)
	d.sendRequest(4, 1, hgwire.More, lentHandle(3000, 1, 1))
	r, _ = d.recvResponse(4)
	require.EqualValues(t, 4, r.Code)
	close(goOn)
	for range 3 {
		h, _ := d.recv()
		require.Less(t, h.Tag, uint64(3))
	}
	for code := int8(4); code == 4; { // the last one has answered, and ends now
		d.sendRequest(5, 1, 0, in)
		r, _ = d.recvResponse(5)
		code = r.Code
	}
	require.Zero(t, r.Code)
}
