package tcp_test

import (
	"bytes"
	"fmt"
	"io"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/internal/frame"
	"github.com/quicksilver-rpc/quicksilver/internal/test/long"
	"github.com/quicksilver-rpc/quicksilver/na"
	"github.com/quicksilver-rpc/quicksilver/plugins/tcp"
)

// TestFlippedBits flips a bit in a frame of each shape, in every third byte of it (F25; in a long
// run: in every one). The session ends, with a Goaway that has ErrChecksum unless it is the length
// or the kind that is damaged, operations that waited for the peer end once, and no wrong byte is
// delivered. The payload of bulk data is left out: it has no checksum but TCP's.
func TestFlippedBits(t *testing.T) {
	t.Parallel()
	kinds := []frame.Header{ // one of each shape
		{Kind: frame.Unexpected, Tag: 7}, {Kind: frame.Expected, Tag: 5}, {Kind: frame.Ping, Tag: 1},
		{Kind: frame.Get, Op: 1}, {Kind: frame.Data, Flags: frame.FlagAnswer, Op: 1}, {Kind: frame.Put, Op: 1},
	}
	eachCarrier(t, func(t *testing.T, opts tcp.Options) {
		n := open(t, "tcp://127.0.0.1:0", opts, na.Config{}, 1)
		stop := startDriver(n)
		defer stop()
		flips, reported := 0, map[na.Code]int{}
		every := long.Or(3, 1)
		for i, h := range kinds {
			t.Run(fmt.Sprint(h.Kind), func(t *testing.T) {
				for at := i % every; ; at += every {
					r := rawJoin(t, n, greeting())
					to := r.message(n)
					o, end := newOp(n.ctx())
					buf := make([]byte, 16)
					require.NoError(t, n.ctx().RecvExpected(o, to, 5, buf))
					h.Context, h.Credit = r.peer.Context, r.limit
					var b []byte
					switch h.Kind {
					case frame.Unexpected, frame.Expected:
						b = h.Append(nil, []byte("some payload"))
					case frame.Data:
						b = h.AppendFront(nil, 64)
					default:
						b = h.AppendFront(nil, 0)
					}
					if at >= len(b) {
						_ = r.nc.Close()
						driveUntil(t, "the end", end.done, n)
						return
					}
					b[at] ^= 1 << (flips % 8)
					flips++
					_, _ = r.nc.Write(append(b, make([]byte, 64<<10)...)) // it may wait for more than there was, or have closed
					if got, text := r.readEnd(); got != 0 {               // else it was overtaken by the reset
						require.Contains(t, []na.Code{na.ErrChecksum, na.ErrProtocol}, got, "byte %d: %s", at, text)
						reported[got]++
					}
					driveUntil(t, "the end", end.done, n)
					requireCode(t, na.ErrPeerLost, end.Err)
					require.Equal(t, 1, end.n)
					require.True(t, bytes.Equal(buf, make([]byte, 16)), "byte %d: damaged bytes were handed out", at)
				}
			})
		}
		t.Logf("%d bits were flipped, the peer got: %v", flips, reported)
		require.Positive(t, reported[na.ErrChecksum], "checksums that were found wrong")
		require.Zero(t, n.ctx().Stats().Envelopes, "a damaged message was taken in")
	})
}

// TestResetInAFrame resets a connection in the middle of a message, at each part of it (F31): the
// session is lost, and nothing of the message arrives.
func TestResetInAFrame(t *testing.T) {
	eachCarrier(t, func(t *testing.T, opts tcp.Options) {
		n := open(t, "tcp://127.0.0.1:0", opts, na.Config{}, 1)
		h := frame.Header{Kind: frame.Expected, Tag: 5}
		whole := h.Append(nil, make([]byte, 8))
		for at := 1; at < len(whole); at++ {
			r := rawJoin(t, n, greeting())
			to := r.message(n)
			o, end := newOp(n.ctx())
			buf := make([]byte, 16)
			require.NoError(t, n.ctx().RecvExpected(o, to, 5, buf))
			h.Context, h.Credit = r.peer.Context, r.limit
			r.write(h.Append(nil, []byte("finished"))[:at])
			require.NoError(t, r.nc.(interface{ SetLinger(int) error }).SetLinger(0))
			require.NoError(t, r.nc.Close())
			driveUntil(t, "the end", end.done, n)
			requireCode(t, na.ErrPeerLost, end.Err)
			require.Equal(t, make([]byte, 16), buf)
		}
		require.EqualValues(t, len(whole)-1, n.ctx().Stats().PeersLost)
	})
}

// TestDamagedLength checks that a message with a damaged length, which includes the bytes behind
// it, keepalives among them, ends the session all the same, after three PeerTimeouts, and not when
// the announced number of bytes has arrived.
func TestDamagedLength(t *testing.T) {
	t.Parallel()
	eachCarrier(t, func(t *testing.T, opts tcp.Options) {
		t.Parallel()
		n := open(t, "tcp://127.0.0.1:0", opts, na.Config{PeerTimeout: 500 * time.Millisecond}, 1)
		stop := startDriver(n)
		defer stop()
		r := rawJoin(t, n, greeting())
		to := r.message(n)
		o, end := newOp(n.ctx())
		buf := make([]byte, 16)
		require.NoError(t, n.ctx().RecvExpected(o, to, 5, buf))
		h := frame.Header{Kind: frame.Expected, Tag: 5, Context: r.peer.Context, Credit: r.limit}
		b := h.Append(nil, []byte("some payload"))
		b[1] ^= 0x80 // of the length: 32 KiB more
		r.write(b)
		pongs := 0
		for {
			front := make([]byte, frame.HeaderSize)
			if _, err := io.ReadFull(r.nc, front); err != nil {
				break
			}
			h, err := frame.Parse(front)
			require.NoError(t, err)
			_, _ = io.CopyN(io.Discard, r.nc, int64(h.Payload()))
			if h.Kind == frame.Ping {
				pong := frame.Header{Kind: frame.Pong, Tag: h.Tag, Context: r.peer.Context, Credit: r.limit}
				_, _ = r.nc.Write(pong.Append(nil, nil)) // it may be over
				pongs++
			}
		}
		require.Positive(t, pongs, "the peer showed that it is alive")
		require.Less(t, pongs, 100, "it was not the bytes that ended it")
		driveUntil(t, "the end", end.done, n)
		requireCode(t, na.ErrPeerLost, end.Err)
		require.ErrorContains(t, end.Err, "no complete message from the peer")
		require.Equal(t, make([]byte, 16), buf)
	})
}
