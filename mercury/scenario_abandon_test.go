package mercury_test

import (
	"bytes"
	"context"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/mercury"
	"github.com/quicksilver-rpc/quicksilver/mercury/internal/hgwire"
	"github.com/quicksilver-rpc/quicksilver/mercury/internal/xnet"
)

// startMove begins a Get or a Put of a double's memory, in a handler. cancel ends its context, done has its error.
func startMove(t *testing.T, put bool, buf []byte) (d *double, cancel func(), done chan error) {
	n := open(t, mercury.Config{})
	serveEcho(n)
	ctx, cancel := context.WithCancel(testContext(t))
	done = make(chan error, 1)
	n.Handle(1, func(r *mercury.Request) {
		r.Detach()
		b, _, _ := mercury.ParseBulk(r.Input())
		var err error
		if put {
			_, err = r.Remote(b).Put(ctx, buf, 0)
		} else {
			_, err = r.Remote(b).Get(ctx, buf, 0)
		}
		done <- err
	})
	d = dialDouble(t, n, 30)
	require.NoError(t, d.nc.(*net.TCPConn).SetReadBuffer(64<<10))
	n.SmallBuffers()
	d.sendRequest(1, 1, 0, lentHandle(len(buf), 5, 3))
	return d, cancel, done
}

// TestGetAbandoned checks that a Get that is abandoned does not touch its buffer any more, and the
// connection continues: the late answer is dropped.
func TestGetAbandoned(t *testing.T) {
	buf := make([]byte, 2_500_000)
	d, cancel, done := startMove(t, false, buf)
	var want []uint64
	for range 3 {
		h, _ := d.recv()
		want = append(want, h.IOV[0].Len)
	}
	cancel()
	require.ErrorIs(t, <-done, mercury.ErrCanceled)
	for _, n := range want {
		d.send(xnet.Header{Op: xnet.ReadResp}, bytes.Repeat([]byte{9}, int(n)))
	}
	d.sendRequest(2, echoID, 0, []byte("after"))
	_, out := d.recvResponse(2)
	require.Equal(t, "after", string(out))
	require.Equal(t, make([]byte, len(buf)), buf)
}

// sendPart sends the beginning of a message, and returns the rest.
func (d *double) sendPart(h xnet.Header, payload []byte, part int) (rest []byte) {
	_, err := d.nc.Write(append(h.Append(nil, len(payload)), payload[:part]...))
	require.NoError(d.t, err)
	return payload[part:]
}

// TestGetAbandonedInResponse checks that a Get that is abandoned in the middle of an answer does
// not touch its buffer any more, at any point of it.
func TestGetAbandonedInResponse(t *testing.T) {
	for _, part := range []int{1, 100_000, 200_000, 700_000, 1<<20 - 1} {
		buf := make([]byte, 1<<20)
		d, cancel, done := startMove(t, false, buf)
		h, _ := d.recv()
		require.EqualValues(t, len(buf), h.IOV[0].Len)
		rest := d.sendPart(xnet.Header{Op: xnet.ReadResp}, bytes.Repeat([]byte{9}, len(buf)), part)
		cancel()
		require.ErrorIs(t, <-done, mercury.ErrCanceled)
		then := bytes.Clone(buf)
		_, err := d.nc.Write(rest)
		require.NoError(t, err)
		d.sendRequest(2, echoID, 0, []byte("after"))
		_, out := d.recvResponse(2)
		require.Equal(t, "after", string(out))
		require.True(t, bytes.Equal(then, buf), "%d bytes had been sent", part)
		require.Negative(t, bytes.IndexByte(buf[part:], 9))
	}
}

// TestCloseUnderWrite checks that a peer that writes to lent memory, which is closed in the middle,
// loses its connection, and the memory stays as it was then.
func TestCloseUnderWrite(t *testing.T) {
	for i, part := range []int{100_000, 700_000, 1<<20 - 1} {
		n := open(t, mercury.Config{})
		mem := make([]byte, 1<<20)
		region, err := n.Lend(mem, mercury.Write)
		require.NoError(t, err)
		d := dialDouble(t, n, uint16(60+i))
		h := iov(0, uint64(len(mem)), key(t, region))
		h.Op, h.Flags = xnet.Write, xnet.Deliver
		rest := d.sendPart(h, bytes.Repeat([]byte{9}, len(mem)), part)
		require.NoError(t, region.Close())
		then := bytes.Clone(mem)
		_, _ = d.nc.Write(rest)
		d.requireEnded()
		require.True(t, bytes.Equal(then, mem))
		require.Negative(t, bytes.IndexByte(mem[part:], 9))
	}
}

// TestResponseBeforeWrite checks that a handler's answer leaves before the rest of a write arrives
// that is behind its request.
func TestResponseBeforeWrite(t *testing.T) {
	n := open(t, mercury.Config{})
	n.HandleInline(1, func(r *mercury.Request) { _ = r.Respond([]byte("now")) })
	mem := make([]byte, 1<<20)
	region, err := n.Lend(mem, mercury.Write)
	require.NoError(t, err)
	d := dialDouble(t, n, 64)
	in := (&hgwire.Request{ID: 1}).Append(hgwire.AppendSource(nil, d.self), nil)
	both := append((&xnet.Header{Op: xnet.Msg, Flags: xnet.Immediate, Tag: 7}).Append(nil, len(in)), in...)
	h := iov(0, uint64(len(mem)), key(t, region))
	h.Op, h.Flags = xnet.Write, xnet.Deliver
	both = h.Append(both, len(mem))
	_, err = d.nc.Write(append(both, make([]byte, 1000)...))
	require.NoError(t, err)
	_, out := d.recvResponse(7)
	require.Equal(t, "now", string(out))
	_, err = d.nc.Write(bytes.Repeat([]byte{9}, len(mem)-1000))
	require.NoError(t, err)
	ack, _ := d.recv()
	require.True(t, ack.IsAck())
	require.EqualValues(t, 9, mem[len(mem)-1])
}

// TestPutAbandoned checks that a Put that is abandoned in the middle of a piece, at a peer that
// does not read, does not read its buffer any more. The rest of the piece has the earlier contents
// of the buffer.
func TestPutAbandoned(t *testing.T) {
	buf := bytes.Repeat([]byte{1}, 64<<20)
	d, cancel, done := startMove(t, true, buf)
	_, err := d.r.Peek(1) // it is in flight, and more than the socket takes
	require.NoError(t, err)
	cancel()
	require.ErrorIs(t, <-done, mercury.ErrCanceled)
	for i := range buf {
		buf[i] = 2
	}
	d.sendRequest(2, echoID, 0, []byte("after"))
	pieces := 0
	for {
		h, got := d.recv()
		if h.Op != xnet.Write {
			require.EqualValues(t, 2, h.Tag)
			break
		}
		require.Negative(t, bytes.IndexByte(got, 2))
		pieces++
	}
	require.Less(t, pieces, 4, "those that were not begun are not sent")
}

// TestPutsAbandoned checks that writes that are abandoned at a peer that does not read leave
// nothing behind, and those that begin too late are not sent.
func TestPutsAbandoned(t *testing.T) {
	d, cancel, done := startMove(t, true, make([]byte, 64<<20))
	_, err := d.r.Peek(1)
	require.NoError(t, err)
	b, _, err := mercury.ParseBulk(lentHandle(8<<20, 5, hgwire.Writable))
	require.NoError(t, err)
	before := heapInUse()
	buf := make([]byte, 8<<20)
	var all sync.WaitGroup
	for range 20 {
		all.Go(func() {
			for range 100 {
				ctx, cancel := context.WithTimeout(context.Background(), 50*time.Microsecond)
				_, err := d.n.Remote("ofi+tcp://127.0.0.1:30", b).Put(ctx, buf, 0)
				cancel()
				assert.ErrorIs(t, err, mercury.ErrTimeout)
			}
		})
	}
	all.Wait()
	require.Less(t, heapInUse(), before+1<<20)
	cancel()
	require.ErrorIs(t, <-done, mercury.ErrCanceled)
}

// TestCloseUnderRead checks that Close of lent memory does not wait for a peer that reads it and is
// stopped: the peer loses its connection.
func TestCloseUnderRead(t *testing.T) {
	n := open(t, mercury.Config{})
	mem := bytes.Repeat([]byte{1}, 64<<20)
	region, err := n.Lend(mem, mercury.Read)
	require.NoError(t, err)
	d := dialDouble(t, n, 31)
	d.readReq(0, uint64(len(mem)), key(t, region))
	_, err = d.r.Peek(1) // it has begun
	require.NoError(t, err)
	require.NoError(t, region.Close())
	clear(mem)
	b := make([]byte, 1<<20)
	all := 0
	for {
		n, err := d.r.Read(b)
		if err != nil {
			break
		}
		if all > 0 || n > 16 {
			require.Negative(t, bytes.IndexByte(b[min(n, max(0, 16-all)):n], 0))
		}
		all += n
	}
	require.Less(t, all, len(mem))
}

// TestCallGivenUp abandons a call while the target still reads its long input: the target gets the
// input as it was, and the caller's memory is the caller's. The late answer ends the loan.
func TestCallGivenUp(t *testing.T) {
	addr, accept, _ := listen(t)
	n := open(t, mercury.Config{Checksums: mercury.Off})
	in := bytes.Repeat([]byte{1}, 1<<20)
	ctx, cancel := context.WithCancel(testContext(t))
	errs := make(chan error, 1)
	go func() {
		_, err := n.Call(ctx, addr, 9, in)
		errs <- err
	}()
	d, s := accept()
	d.accept(s)
	tag, _, b := d.recvRequest()
	var lentIn hgwire.Bulk
	_, err := lentIn.Parse(b)
	require.NoError(t, err)
	key := lentIn.Segments[0].Key
	d.readReq(0, 1<<19, key)
	_, first := d.recv()
	cancel()
	require.ErrorIs(t, <-errs, mercury.ErrCanceled)
	clear(in)
	d.readReq(1<<19, 1<<19, key)
	_, second := d.recv()
	require.Negative(t, bytes.IndexByte(append(first, second...), 0))
	d.sendResponse(tag, 0, hgwire.More, lentHandle(100, 1, 1))
	h, one := d.recv()
	require.EqualValues(t, xnet.Tagged, h.Op, "unwanted output is acknowledged unread")
	require.Len(t, one, 1)
	d.readReq(0, 1, key)
	d.requireEnded()
}

// TestConnectionEnds checks that when the connection ends, or the node does, so do calls, reads and
// writes, and the contexts of handlers.
func TestConnectionEnds(t *testing.T) {
	for _, put := range []bool{false, true} {
		buf := make([]byte, 64<<20)
		d, _, done := startMove(t, put, buf)
		d.recv()
		d.nc.Close()
		require.ErrorIs(t, <-done, mercury.ErrPeerLost)
	}
	addr, accept, _ := listen(t)
	n := open(t, mercury.Config{Checksums: mercury.Off})
	errs := make(chan error, 1)
	for _, byPeer := range []bool{true, false} {
		go func() {
			_, err := n.Call(testContext(t), addr, 9, nil)
			errs <- err
		}()
		d, s := accept()
		d.accept(s)
		d.recvRequest()
		want := mercury.ErrPeerLost
		if byPeer {
			d.nc.Close()
		} else {
			require.NoError(t, n.Close())
			want = mercury.ErrClosed
		}
		err := <-errs
		require.ErrorIs(t, err, want)
		require.Equal(t, mercury.MaybeRan, mercury.FateOf(err))
	}
}

// TestOldLibfabric checks that the address of a process with libfabric's own protocol over tcp is
// refused with an error that has the remedy.
func TestOldLibfabric(t *testing.T) {
	n := open(t, mercury.Config{})
	_, err := n.Call(testContext(t), "ofi+tcp;ofi_rxm://127.0.0.1:1", 1, nil)
	require.ErrorIs(t, err, mercury.ErrUnsupported)
	require.ErrorContains(t, err, "update libfabric to 1.18 there")
}
