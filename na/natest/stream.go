package natest

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math"
	"math/rand/v2"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/internal/raceflag"
	"github.com/quicksilver-rpc/quicksilver/na"
)

var streamRules = []rule{
	{name: "StreamOrder", check: streamOrder,
		why: "bytes arrive in order, each once, in both directions, of whatever sizes they were written and read"},
	{name: "StreamBeforeHandler", check: streamBeforeHandler,
		why: "nothing of a stream that goes up moves before the target has opened it and reads: a call that did not run has moved nothing"},
	{name: "StreamExpected", check: streamExpected,
		why: "a reader that expects a number of bytes opens the window for it, within its room, also before it reads"},
	{name: "StreamResetEachSide", check: streamResetEachSide,
		why: "either side ends a stream at any time, and the other learns the code and the text"},
	{name: "StreamFail", check: streamFail,
		why: "a stream that its sender ends with Fail gives its reader all that was written before, and then the code and the text"},
	{name: "StreamAnswerFirst", check: streamAnswerFirst,
		why: "the answer of the call may arrive before the end of the stream, which continues"},
	{name: "StreamPeerLost", check: streamPeerLost,
		why: "a session that ends ends its streams; bytes that have arrived in order can still be read"},
	{name: "StreamHalfClose", check: streamHalfClose,
		why: "a received end is io.EOF behind the last byte, and changes nothing for other streams of the call"},
	{name: "StreamSelf", check: streamSelf,
		why: "a context can have streams with itself"},
	{name: "StreamMany", check: streamMany,
		why: "hundreds of streams at once, of both directions and kinds, deliver every byte, whichever of them are blocked"},
	{name: "StreamNotDriven", needs: assisted, check: streamNotDriven,
		why: "bytes arrive, and windows open, though the context of the reader is not driven"},
	{name: "StreamDrain", needs: assisted, check: streamDrain,
		why: "what was written before CloseWrite arrives, though Close and Shutdown follow at once"},
	{name: "StreamLate", check: streamLate,
		why: "what is on its way to an end that is gone is dropped, and its room can be used again"},
	{name: "StreamFairToMessages", check: streamFairToMessages,
		why: "a flood of messages does not keep a stream from going on, nor a stream the messages"},
}

// streamFlowRules are about accounts and states that do not depend on the carrier.
var streamFlowRules = []rule{
	{name: "StreamWindowExact", engine: true, check: streamWindowExact,
		why: "unread bytes are bounded by window, room and reserve, to the byte; a reader that stands still stops its sender, and moves it on"},
	{name: "StreamReserveUnderPressure", engine: true, check: streamReserveUnderPressure,
		why: "a stream whose reader continues is completed without any room, whatever the state of a hundred others"},
	{name: "StreamCancelEverywhere", engine: true, check: streamCancelEverywhere,
		why: "either side can end a stream at every stage: the other one learns it, and nothing of it is left"},
	{name: "StreamWithdrawMovedNothing", engine: true, check: streamWithdrawMovedNothing,
		why: "a request that was taken back has moved nothing of its streams, and one that is opened too late ends them at both sides"},
	{name: "StreamIdle", engine: true, check: streamIdle,
		why: "two thousand streams of one peer may be open and idle: they keep the session, and delay no other"},
}

// A flow is one end of a stream in a rule, together with the bytes that it has transferred.
type flow struct {
	*na.Stream
	b     *bed
	s     *side
	ready int // number of step calls
	tried int // value of ready when the last method returned ErrAgain
	again bool
	data  []byte
	err   error // error of the last Next or Write other than ErrAgain
}

// flow creates one end of a stream using NewStream or OpenStream.
func (s *side) flow(make func(step func(any) int) (*na.Stream, error)) *flow {
	s.b.Helper()
	f := &flow{b: s.b, s: s}
	var err error
	f.Stream, err = make(func(any) int { f.ready++; return 1 })
	require.NoError(s.b, err, "a stream")
	s.b.streams = append(s.b.streams, f)
	return f
}

// streamIDAt is the offset of the stream number in a request.
const streamIDAt = 3

// A streamed is a call with streams, including both ends of each.
type streamed struct {
	call        *call
	env         *na.Envelope
	here, there []*flow // ends at the origin, and those at the target once it has opened them
	ups         []bool
	bulk        bool
}

// stream starts a call from a with streams. The call is answered by the expected message with its
// tag.
func (a *side) stream(t na.Addr, bulk bool, ups ...bool) *streamed {
	a.b.Helper()
	k := &streamed{ups: ups, bulk: bulk}
	var streams []*na.Stream
	for _, up := range ups {
		f := a.flow(func(step func(any) int) (*na.Stream, error) { return a.Upper().NewStream(up, bulk, step, nil) })
		k.here = append(k.here, f)
		streams = append(streams, f.Stream)
	}
	msg := make([]byte, 16)
	k.call = a.call("call with streams")
	k.call.buffer(16)
	k.call.start(func(op *na.Op) error {
		return a.Upper().Call(op, na.CallSpec{To: t, Tag: na.Tag(len(a.b.streams)), Msg: msg, Buf: k.call.buf, Streams: streams, StreamsAt: streamIDAt})
	})
	return k
}

// take receives the oldest unexpected message. The caller must free it.
func (s *side) take() *na.Envelope {
	s.b.Helper()
	c := s.recv()
	c.requireOK()
	return c.keepEnvelope()
}

// open receives the request at t, opens its streams, and allows the origin to send on those that go
// to the target.
func (k *streamed) open(t *side) *streamed {
	t.b.Helper()
	k.env = t.take()
	return k.openLater(t).begin()
}

// begin allows the origin to send on the streams that go to the target.
func (k *streamed) begin() *streamed {
	for _, f := range k.there {
		f.Expect(0)
	}
	return k
}

// openLater opens the streams of a request that t has received. The origin cannot send on them
// before begin is called.
func (k *streamed) openLater(t *side) *streamed {
	t.b.Helper()
	id := na.StreamID(k.env.Data[streamIDAt:])
	for i, up := range k.ups {
		k.there = append(k.there, t.flow(func(step func(any) int) (*na.Stream, error) {
			return t.Upper().OpenStream(k.env, id+uint64(i), up, k.bulk, step, nil)
		}))
	}
	return k
}

func streamExpected(b *bed) {
	a, t := b.pair(na.Config{})
	for _, bulk := range []bool{false, true} {
		for _, n := range []int64{0, 1000, 100_000, 200_000, math.MaxInt64} {
			k := a.stream(t.Self(), bulk, true)
			k.env = t.take()
			k.openLater(t)
			k.there[0].Expect(-1)
			k.there[0].Expect(n)
			k.there[0].Expect(1)
			window := min(max(n, 16<<10), 200_000) // at least, since each session has room for this much
			left := make([]byte, window)
			b.until(fmt.Sprintf("%d of %d expected bytes leave, bulk %v, though nobody reads", window, n, bulk), func() bool {
				if len(left) > 0 {
					left, _ = k.here[0].write(left, len(left))
				}
				return k.here[0].Moved() == window
			})
			k.here[0].CloseWrite()
			b.until("it is read", func() bool { return !k.there[0].read(1 << 20) })
			require.ErrorIs(b, k.there[0].err, io.EOF)
			require.Len(b, k.there[0].data, int(window))
			k.there[0].Expect(1 << 20) // the stream has ended
			t.sendExpected(k.env.From, k.env.Tag, []byte("end")).requireOK()
			k.call.requireOK()
			k.closeAll()
		}
	}
}

// write writes up to most bytes of data, or closes the stream for writing if data is empty. It
// returns the bytes that remain to be written, and reports whether write must be called again.
func (f *flow) write(data []byte, most int) (left []byte, more bool) {
	if len(data) == 0 {
		f.CloseWrite()
		return nil, false
	}
	n, err := f.Write(data[:min(most, len(data))])
	switch {
	case errors.Is(err, na.ErrAgain):
		f.again, f.tried = true, f.ready
	case err != nil:
		f.err = err
		return nil, false
	case n == 0:
		f.b.Errorf("a Write of %d bytes returned 0 and no error", len(data))
	}
	return data[n:], true
}

// read reads at most most bytes and reports whether there may be more to read.
func (f *flow) read(most int) (more bool) {
	b, err := f.Next()
	switch {
	case errors.Is(err, na.ErrAgain):
		f.again, f.tried = true, f.ready
		return true
	case err != nil:
		f.err = err
		return false
	case len(b) == 0:
		f.b.Errorf("Next returned no bytes and no error")
	}
	b = b[:min(most, len(b))]
	f.data = append(f.data, b...)
	f.Release(len(b))
	return true
}

// closeAll closes all ends of the streams and frees the request.
func (k *streamed) closeAll() {
	for _, f := range append(k.here, k.there...) {
		f.Close()
	}
	k.env.Free()
}

func streamOrder(b *bed) {
	rng := rand.New(rand.NewPCG(1, 2))
	a, t := b.pair(na.Config{})
	for _, n := range []int{0, 1, 100, 1023, 1024, 1025, 5000, 65535, 65536, 65537, 300_000, 1_500_000} {
		for _, bulk := range []bool{false, true} {
			if raceflag.Enabled && n > 500_000 {
				continue
			}
			k := a.stream(t.Self(), bulk, true, false).open(t)
			what := fmt.Sprintf("%d bytes, bulk %v", n, bulk)
			up, down := pattern(n, n), pattern(n+1, n)
			left, leftDown := up, down
			w1, w2, r1, r2 := true, true, true, true
			size := func() int { return 1 + n/500 + rng.IntN(1<<(1+rng.IntN(18))) }
			b.until(what, func() bool {
				if w1 {
					left, w1 = k.here[0].write(left, size())
				}
				if w2 {
					leftDown, w2 = k.there[1].write(leftDown, size())
				}
				if r1 {
					r1 = k.there[0].read(size())
				}
				if r2 {
					r2 = k.here[1].read(size())
				}
				return !r1 && !r2
			})
			require.ErrorIs(b, k.there[0].err, io.EOF, "up, %s", what)
			require.ErrorIs(b, k.here[1].err, io.EOF, "down, %s", what)
			require.True(b, bytes.Equal(up, k.there[0].data), "up, %s", what)
			require.True(b, bytes.Equal(down, k.here[1].data), "down, %s", what)
			t.sendExpected(k.env.From, k.env.Tag, []byte("end")).requireOK()
			k.call.requireOK()
			k.closeAll()
		}
	}
}

func streamBeforeHandler(b *bed) {
	a, t := b.pair(na.Config{})
	k := a.stream(t.Self(), false, true, false)
	k.env = t.take()
	_, err := k.here[0].Write([]byte("early"))
	require.ErrorIs(b, err, na.ErrAgain)
	b.drain(a, t)
	require.Zero(b, k.here[0].ready, "it may be written before the handler begins")
	require.Zero(b, k.here[0].Moved())
	k.openLater(t)
	b.drain(a, t)
	require.Zero(b, k.here[0].ready, "it may be written before the handler reads")
	_, err = k.there[0].Next()
	require.ErrorIs(b, err, na.ErrAgain)
	b.until("it may be written", func() bool { return k.here[0].ready > 0 })
	_, err = k.here[0].Write([]byte("now"))
	require.NoError(b, err)
	b.until("it arrives", func() bool { return k.there[0].read(10) && len(k.there[0].data) > 0 })
	require.Equal(b, "now", string(k.there[0].data))
	k.closeAll()
	k.call.op.Cancel()
}

func streamResetEachSide(b *bed) {
	a, t := b.pair(na.Config{})
	for i := range 8 { // bits of i: which stream, which side resets it, and whether bytes are in flight
		k := a.stream(t.Self(), false, true, false).open(t)
		who, other := k.here[i&1], k.there[i&1]
		if i&2 != 0 {
			who, other = other, who
		}
		from := k.here[0]
		if i&1 == 1 {
			from = k.there[1]
		}
		if i&4 != 0 {
			b.until("it is written", func() bool { n, _ := from.Write(make([]byte, 5000)); return n > 0 })
		}
		var lent []byte
		if i&4 != 0 && who != from { // the side that resets is using the result of Next
			b.until("it can be read", func() bool { lent, _ = who.Next(); return lent != nil })
		}
		who.Reset(na.ErrOverflow, "too much of it")
		if lent != nil {
			who.Release(len(lent))
			_, err := who.Next()
			require.ErrorIs(b, err, na.ErrOverflow)
		}
		b.until("the other side learns it", func() bool {
			if from == other {
				_, err := other.Write([]byte{1})
				other.err = err
			} else {
				other.read(1 << 20)
			}
			return other.err != nil && !errors.Is(other.err, na.ErrAgain)
		})
		require.ErrorIs(b, other.err, na.ErrOverflow, "situation %d", i)
		require.ErrorContains(b, other.err, "too much of it", "situation %d", i)
		t.sendExpected(k.env.From, k.env.Tag, nil).requireOK()
		k.call.requireOK()
		k.closeAll()
	}
}

func streamFail(b *bed) {
	const text = "the disk is gone"
	a, t := b.pair(na.Config{})
	for _, bulk := range []bool{false, true} {
		for _, n := range []int{0, 1, 5000, 70_000, 300_000} {
			k := a.stream(t.Self(), bulk, true, false)
			k.env = t.take()
			k.openLater(t)
			for i, up := range k.ups {
				from, to := k.here[i], k.there[i]
				if !up {
					from, to = to, from
				}
				data := pattern(n+i, n)
				left, failed := data, false
				what := fmt.Sprintf("a stream fails behind %d bytes, up %v, bulk %v", n, up, bulk)
				b.until(what, func() bool {
					switch {
					case len(left) > 0:
						left, _ = from.write(left, 1<<20)
					case !failed:
						failed = true
						from.Fail(na.ErrIO, text)
						from.Fail(na.ErrOverflow, "twice") // does nothing
						_, err := from.Write([]byte{1})
						require.ErrorIs(b, err, na.ErrInvalid, what)
						if bulk {
							from.Close() // written bytes are still sent
						}
					}
					return !to.read(1 << 20)
				})
				require.True(b, bytes.Equal(data, to.data), "%s: got %d bytes, which are not those", what, len(to.data))
				require.ErrorIs(b, to.err, na.ErrIO, what)
				require.ErrorContains(b, to.err, text, what)
				_, err := to.Next()
				require.ErrorIs(b, err, na.ErrIO, "%s, once more", what)
				to.Fail(na.ErrOverflow, "of the reader") // does nothing
			}
			t.sendExpected(k.env.From, k.env.Tag, nil).requireOK()
			k.call.requireOK()
			k.closeAll()
		}
	}
	b.until("nothing is left", func() bool { return a.Stats().Streams+t.Stats().Streams == 0 })
	require.Zero(b, a.held()+t.held())
}

func streamAnswerFirst(b *bed) {
	a, t := b.pair(na.Config{})
	k := a.stream(t.Self(), true, true, false).open(t)
	t.sendExpected(k.env.From, k.env.Tag, []byte("early")).requireOK()
	k.call.requireOK()
	for i, f := range k.here { // up and down
		from, to := f, k.there[i]
		if i == 1 {
			from, to = to, from
		}
		data := pattern(i, 700_000)
		left, w := data, true
		b.until("it goes through", func() bool {
			if w {
				left, w = from.write(left, 1<<20)
			}
			return !to.read(1 << 20)
		})
		require.True(b, bytes.Equal(data, to.data))
	}
	k.closeAll()
}

func streamPeerLost(b *bed) {
	a, t := b.pair(na.Config{})
	k := a.stream(t.Self(), false, false, false, true).open(t)
	whole, cut := k.there[0], k.there[1]
	_, _ = whole.write([]byte("whole"), 10)
	whole.CloseWrite()
	_, _ = cut.write([]byte("cut"), 10)
	b.until("the bytes have come", func() bool { return k.here[0].Moved() == 5 && k.here[1].Moved() == 3 })
	b.drain(a, t)
	require.NoError(b, t.cls.Close())
	for _, f := range k.here[:2] {
		b.until("it ends", func() bool { return !f.read(10) })
	}
	require.Equal(b, "whole", string(k.here[0].data))
	require.ErrorIs(b, k.here[0].err, io.EOF)
	require.Equal(b, "cut", string(k.here[1].data))
	require.ErrorIs(b, k.here[1].err, na.ErrPeerLost)
	_, err := k.here[2].Write([]byte{1})
	require.ErrorIs(b, err, na.ErrPeerLost)
	k.call.requireFails(na.ErrPeerLost)
	k.closeAll()
}
