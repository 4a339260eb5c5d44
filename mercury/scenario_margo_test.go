package mercury_test

import (
	"bytes"
	"context"
	"runtime"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/mercury"
	"github.com/quicksilver-rpc/quicksilver/mercury/internal/hgwire"
	"github.com/quicksilver-rpc/quicksilver/mercury/internal/xnet"
)

// TestDoubleLengths exchanges input and output of each length around that of a message, from C and
// back: those that fit are in the message, the others are lent.
func TestDoubleLengths(t *testing.T) {
	n := open(t, mercury.Config{})
	serveEcho(n)
	for i, sums := range []bool{false, true} {
		d := dialDouble(t, n, uint16(54+i))
		d.sums = sums
		fits := 4096 - hgwire.HeaderSize(sums)
		for size := fits - 26; size <= fits+10; size++ {
			in := fill(size)
			d.sum = hgwire.Sum(in)
			if size+hgwire.SourceSize <= fits {
				d.sendRequest(uint64(size), echoID, 0, in)
			} else {
				d.sendRequest(uint64(size), echoID, hgwire.More, lentHandle(size, 5, hgwire.Readable))
				d.recv()
				d.send(xnet.Header{Op: xnet.ReadResp}, in)
			}
			r, out := d.recvResponse(uint64(size))
			require.Zero(t, r.Code)
			require.Equal(t, size > fits, r.Flags&hgwire.More != 0, "%d bytes", size)
			if size > fits {
				var b hgwire.Bulk
				_, err := b.Parse(out)
				require.NoError(t, err)
				d.readReq(0, b.Len, b.Segments[0].Key)
				_, out = d.recv()
				d.send(xnet.Header{Op: xnet.Tagged, Tag: uint64(size)}, []byte{0})
			}
			require.True(t, bytes.Equal(in, out), "%d bytes", size)
		}
	}
}

// TestDoubleClients has eight C clients at once send requests without response, half of them with
// lent input. All of these run, and each lent input is acknowledged.
func TestDoubleClients(t *testing.T) {
	n := open(t, mercury.Config{})
	serveEcho(n)
	var mu sync.Mutex
	got := map[int]int{}
	n.Handle(1, func(r *mercury.Request) {
		mu.Lock()
		defer mu.Unlock()
		got[len(r.Input())]++
		_ = r.Respond([]byte("nobody wants it"))
	})
	var doubles []*double
	for port := range uint16(8) {
		doubles = append(doubles, dialDouble(t, n, 100+port))
	}
	for i := range uint64(20) {
		for _, d := range doubles {
			if i%2 == 0 {
				d.sendRequest(i, 1, hgwire.NoReply, make([]byte, 10))
				continue
			}
			d.sendRequest(i, 1, hgwire.NoReply|hgwire.More, lentHandle(6000, 5, hgwire.Readable))
			h, _ := d.recv()
			require.EqualValues(t, xnet.ReadReq, h.Op)
			d.send(xnet.Header{Op: xnet.ReadResp}, make([]byte, 6000))
			h, one := d.recv()
			require.EqualValues(t, xnet.Tagged, h.Op)
			require.Equal(t, i, h.Tag)
			require.Len(t, one, 1)
		}
	}
	for ctx := testContext(t); ; runtime.Gosched() {
		mu.Lock()
		all := got[10] + got[6000]
		mu.Unlock()
		if all == 160 {
			break
		}
		require.NoError(t, ctx.Err())
	}
	require.Equal(t, map[int]int{10: 80, 6000: 80}, got)
}

// TestDoubleShortLived has C clients connect, call and disconnect without a message. None leaves
// anything behind.
func TestDoubleShortLived(t *testing.T) {
	n := open(t, mercury.Config{MaxPeers: 8})
	serveEcho(n)
	for i := range 300 {
		d := dialDouble(t, n, uint16(200+i%5)) // a port that an earlier process had
		for tag := range uint64(5) {
			d.sendRequest(tag, echoID, 0, []byte("in"))
			_, out := d.recvResponse(tag)
			require.Equal(t, "in", string(out))
		}
		require.NoError(t, d.nc.Close())
		for ctx := testContext(t); len(n.Peers()) > 0; runtime.Gosched() {
			require.NoError(t, ctx.Err())
		}
	}
	require.Zero(t, n.Regions())
}

// TestLateResponses checks that a Margo service that answers after its caller has given up, as by
// margo_forward_timed, does not disturb the next call. Nor does a late answer to C.
func TestLateResponses(t *testing.T) {
	addr, accept, _ := listen(t)
	n := open(t, mercury.Config{Checksums: mercury.Off})
	ctx, cancel := context.WithCancel(testContext(t))
	type result struct {
		out string
		err error
	}
	results := make(chan result, 1)
	call := func(ctx context.Context) {
		out, err := get.At(42).Call(ctx, n, addr, 5)
		results <- result{out, err}
	}
	go call(ctx)
	d, s := accept()
	d.accept(s)
	late, _, _ := d.recvRequest()
	cancel()
	require.ErrorIs(t, (<-results).err, mercury.ErrCanceled)
	go call(testContext(t))
	tag, _, _ := d.recvRequest()
	margo := func(text string) []byte {
		return []byte("\x00\x00\x00\x00" + string(rune(len(text)+1)) + "\x00\x00\x00\x00\x00\x00\x00" + text + "\x00" + "\x00\x01")
	}
	d.sendResponse(late, 0, 0, margo("late"))
	d.sendResponse(tag, 0, 0, margo("in time"))
	got := <-results
	require.NoError(t, got.err)
	require.Equal(t, "in time", got.out)

	held := make(chan *mercury.Request, 1)
	n.Handle(1, func(r *mercury.Request) {
		r.Detach()
		held <- r
	})
	serveEcho(n)
	d = dialDouble(t, n, 56)
	d.sendRequest(1, 1, 0, nil)
	r := <-held
	d.sendRequest(2, echoID, 0, []byte("next"))
	_, out := d.recvResponse(2)
	require.Equal(t, "next", string(out))
	require.NoError(t, r.Respond([]byte("late")))
	_, out = d.recvResponse(1)
	require.Equal(t, "late", string(out))
}

// TestDoubleCalledBack has a Go service call its clients back, over the connection of the request.
func TestDoubleCalledBack(t *testing.T) {
	n := open(t, mercury.Config{Checksums: mercury.Off})
	p, err := n.Provide(3, "calls back")
	require.NoError(t, err)
	get.HandleAt(p, func(ctx context.Context, key uint32) (string, error) {
		return get.At(4).Call(ctx, n, mercury.RequestOf(ctx).Peer(), key+1)
	})
	d := dialDouble(t, n, 57)
	d.sendRequest(1, get.At(3).ID(), 0, []byte("\x00\x00\x00\x00\x00\x00\x00\x00"+"\x05\x00\x00\x00"))
	tag, r, in := d.recvRequest()
	require.Equal(t, get.At(4).ID(), r.ID)
	require.Equal(t, "\x00\x00\x00\x00\x00\x00\x00\x00"+"\x06\x00\x00\x00", string(in))
	answer := "\x00\x00\x00\x00" + "\x02\x00\x00\x00\x00\x00\x00\x00" + "6\x00" + "\x00\x01"
	d.sendResponse(tag, 0, 0, []byte(answer))
	_, out := d.recvResponse(1)
	require.Equal(t, answer, string(out))

	d.sendRequest(2, get.At(3).ID(), 0, []byte("\x00\x00\x00\x00\x00\x00\x00\x00"+"\x05")) // another type
	resp, _ := d.recvResponse(2)
	require.EqualValues(t, 12, resp.Code)
}
