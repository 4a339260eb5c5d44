package mercury_test

import (
	"bufio"
	"io"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/mercury"
	"github.com/quicksilver-rpc/quicksilver/mercury/internal/hgwire"
	"github.com/quicksilver-rpc/quicksilver/mercury/internal/xnet"
)

// A double is a connection as a C process has it. Like libfabric it leaves old bytes in its headers.
type double struct {
	t     testing.TB
	nc    net.Conn
	r     *bufio.Reader
	stale uint8
	self  netip.AddrPort // as it names itself in requests
	sums  bool
	sum   uint32        // of the memory that the next message with flag More lends
	n     *mercury.Node // that it has dialled
}

func newDouble(t testing.TB, nc net.Conn, port uint16) *double {
	require.NoError(t, nc.SetDeadline(time.Now().Add(30*time.Second)))
	t.Cleanup(func() { nc.Close() })
	return &double{t: t, nc: nc, r: bufio.NewReader(nc), self: netip.AddrPortFrom(netip.MustParseAddr("127.0.0.1"), port)}
}

func hostPort(n *mercury.Node) string { return n.Addr()[len("ofi+tcp://"):] }

// dialDouble connects to n as a C process that listens on port.
func dialDouble(t testing.TB, n *mercury.Node, port uint16) *double {
	nc, err := net.Dial("tcp", hostPort(n))
	require.NoError(t, err)
	d := newDouble(t, nc, port)
	d.n = n
	d.setup(xnet.Setup{Kind: xnet.Request, Version: 1, Port: port, PID: uint32(port)})
	s := d.readSetup()
	require.EqualValues(t, xnet.Accept, s.Kind)
	require.Zero(t, s.Version, "no rendezvous")
	require.Equal(t, port, s.Port)
	return d
}

func (d *double) setup(s xnet.Setup) {
	_, err := d.nc.Write(s.Append(nil))
	require.NoError(d.t, err)
}

func (d *double) readSetup() xnet.Setup {
	b := make([]byte, xnet.SetupSize)
	_, err := io.ReadFull(d.r, b)
	require.NoError(d.t, err)
	s, err := xnet.ParseSetup(b)
	require.NoError(d.t, err)
	return s
}

// listen returns where a double is called, and a function that takes a connection and its request.
func listen(t testing.TB) (addr string, accept func() (*double, xnet.Setup), port uint16) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { ln.Close() })
	port = uint16(ln.Addr().(*net.TCPAddr).Port)
	return "ofi+tcp://" + ln.Addr().String(), func() (*double, xnet.Setup) {
		nc, err := ln.Accept()
		require.NoError(t, err)
		d := newDouble(t, nc, port)
		return d, d.readSetup()
	}, port
}

// accept answers a request for a connection, as libfabric of version 0 or 1 does.
func (d *double) accept(s xnet.Setup) *double {
	d.setup(xnet.Setup{Kind: xnet.Accept, Version: min(s.Version, 1), Port: s.Port, PID: 77})
	return d
}

func (d *double) send(h xnet.Header, payload []byte) {
	b := h.Append(nil, len(payload))
	if h.N == 0 {
		b[5] = d.stale
	} else {
		d.stale = b[5]
	}
	b[7] = 0xcc
	_, err := d.nc.Write(append(b, payload...))
	require.NoError(d.t, err)
}

// recv returns the next message.
func (d *double) recv() (xnet.Header, []byte) {
	h, b, err := d.read()
	require.NoError(d.t, err)
	return h, b
}

func (d *double) read() (h xnet.Header, b []byte, err error) {
	head := make([]byte, xnet.MaxHeader)
	if _, err = io.ReadFull(d.r, head[:xnet.Base]); err != nil {
		return h, nil, err
	}
	n, err := xnet.HeaderLen(head)
	require.NoError(d.t, err)
	if _, err = io.ReadFull(d.r, head[xnet.Base:n]); err != nil {
		return h, nil, err
	}
	require.NoError(d.t, h.Parse(head[:n]))
	b = make([]byte, h.Payload())
	_, err = io.ReadFull(d.r, b)
	return h, b, err
}

// requireEnded requires that the other side ends the connection, whatever it still sends.
func (d *double) requireEnded() {
	_, err := io.Copy(io.Discard, d.r)
	if ne, ok := err.(net.Error); ok {
		require.False(d.t, ne.Timeout(), "the connection was not closed")
	}
}

func (d *double) flags() uint8 {
	if d.sums {
		return hgwire.Checksums
	}
	return 0
}

// sendRequest sends a request.
func (d *double) sendRequest(tag, id uint64, flags uint8, in []byte) {
	r := hgwire.Request{ID: id, Flags: flags | d.flags(), Sums: hgwire.Sums{Payload: d.sum}}
	d.send(xnet.Header{Op: xnet.Msg, Flags: xnet.Immediate, Tag: tag}, r.Append(hgwire.AppendSource(nil, d.self), in))
}

// recvResponse takes the response with tag.
func (d *double) recvResponse(tag uint64) (hgwire.Response, []byte) {
	h, b := d.recv()
	require.EqualValues(d.t, xnet.Tagged, h.Op)
	require.Equal(d.t, tag, h.Tag)
	r, out, err := hgwire.ParseResponse(b)
	require.NoError(d.t, err)
	require.Equal(d.t, d.flags(), r.Flags&hgwire.Checksums)
	return r, out
}

// recvRequest returns the next request of the other side.
func (d *double) recvRequest() (tag uint64, r hgwire.Request, in []byte) {
	h, b := d.recv()
	require.True(d.t, h.Unexpected())
	from, b, err := hgwire.ParseSource(b)
	require.NoError(d.t, err)
	require.Equal(d.t, "127.0.0.1", from.Addr().String())
	r, in, err = hgwire.ParseRequest(b)
	require.NoError(d.t, err)
	return h.Tag, r, in
}

// sendResponse answers a request.
func (d *double) sendResponse(tag uint64, code int8, flags uint8, out []byte) {
	r := hgwire.Response{Code: code, Flags: flags | d.flags(), Sums: hgwire.Sums{Payload: d.sum}}
	d.send(xnet.Header{Op: xnet.Tagged, Tag: tag}, r.Append(nil, out))
}

// answerProbe answers the request by which the other side finds out about checksums.
func (d *double) answerProbe() {
	tag, r, _ := d.recvRequest()
	require.Zero(d.t, r.Flags, "either build understands it")
	require.Equal(d.t, hgwire.Nameless(r.ID), r.ID, "and one that verifies checksums accepts it")
	d.sendResponse(tag, 2, 0, []byte("rubbish"))
}

func iov(addr, n, key uint64) xnet.Header {
	return xnet.Header{N: 1, IOV: [4]xnet.IOV{{Addr: addr, Len: n, Key: key}}}
}

func (d *double) readReq(addr, n, key uint64) {
	h := iov(addr, n, key)
	h.Op = xnet.ReadReq
	d.send(h, nil)
}

func (d *double) write(addr, key uint64, b []byte) {
	h := iov(addr, uint64(len(b)), key)
	h.Op, h.Flags = xnet.Write, xnet.Deliver
	d.send(h, b)
}

func (d *double) ack() { d.send(xnet.Header{Op: xnet.Msg, Data: xnet.Ack}, nil) }

// lentHandle is a handle of memory of the double at key.
func lentHandle(n int, key uint64, access uint8) []byte {
	b := hgwire.Bulk{Len: uint64(n), Access: access, Segments: []hgwire.Segment{{Len: uint64(n), Key: key, Base: 0x7000}}}
	return b.Append(nil)
}
