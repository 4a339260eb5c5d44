package na_test

import (
	"errors"
	"io"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/na"
)

// TestStreamRoomGrows checks a session whose whole room is held by readers that have stopped. A
// stream whose reader reads on is completed in pieces larger than the reserve, within a bound of
// turns: at a kibibyte for each time that both sides run it would stand still on a busy machine.
func TestStreamRoomGrows(t *testing.T) {
	const stopped, length = 40, 100_000
	net := newLooseNetwork(1)
	open := func(name string) (*na.Class, *na.Context) {
		cls, err := na.Open("loose://"+name, na.Config{Plugins: []na.Plugin{net}})
		require.NoError(t, err)
		c, err := cls.NewContext()
		require.NoError(t, err)
		return cls, c
	}
	aCls, a := open("a")
	bCls, b := open("b")
	drive := func() {
		for _, c := range []*na.Context{a, b} {
			_ = c.Progress(0)
			c.Trigger(0)
		}
	}
	until := func(what string, done func() bool) {
		for i := 0; !done(); i++ {
			require.Less(t, i, 100_000, what)
			drive()
		}
	}
	step := func(any) int { return 1 }
	calls := na.Tag(0)
	// call begins a call with streams that go down, and returns their ends: at the reader and at the writer.
	call := func(streams int) (to, from []*na.Stream) {
		calls++
		spec := na.CallSpec{To: b.Self(), Tag: calls, Msg: make([]byte, 8), Buf: make([]byte, 1)}
		for range streams {
			s, err := a.Upper().NewStream(false, true, step, nil)
			require.NoError(t, err)
			spec.Streams = append(spec.Streams, s)
		}
		ended := false
		require.NoError(t, a.Upper().Call(a.NewOp(func(*na.Op, na.Result) { ended = true }), spec))
		var env *na.Envelope
		require.NoError(t, b.RecvUnexpected(b.NewOp(func(_ *na.Op, r na.Result) { env = r.Envelope })))
		until("no request", func() bool { return env != nil })
		for i := range streams {
			s, err := b.Upper().OpenStream(env, na.StreamID(env.Data)+uint64(i), false, true, step, nil)
			require.NoError(t, err)
			from = append(from, s)
		}
		require.NoError(t, b.SendExpected(b.NewOp(func(*na.Op, na.Result) {}), env.From, spec.Tag, []byte{0}))
		env.Free()
		until("no answer", func() bool { return ended })
		return spec.Streams, from
	}
	write := func(s *na.Stream, n int) {
		k, err := s.Write(make([]byte, n))
		require.NoError(t, err)
		require.Equal(t, n, k)
		s.CloseWrite()
	}
	var all []*na.Stream
	for len(all) < 2*stopped {
		to, from := call(10)
		for _, s := range from {
			write(s, length)
		}
		all = append(append(all, to...), from...)
	}
	for range 1000 {
		drive()
	}
	require.Equal(t, a.Peers()[0].Room, a.Peers()[0].RoomHeld, "there is room left: the test shows nothing")

	to, from := call(1)
	write(from[0], length)
	got, pieces := 0, 0
	until("the stream stands still", func() bool {
		switch b, err := to[0].Next(); {
		case err == io.EOF:
			return true
		case errors.Is(err, na.ErrAgain):
		default:
			require.NoError(t, err)
			got += len(b)
			pieces++
			to[0].Release(len(b))
		}
		return false
	})
	require.Equal(t, length, got)
	require.Less(t, pieces, length/na.StreamReserve/2, "pieces in which the stream has arrived")
	t.Logf("%d pieces, room %d", pieces, a.Peers()[0].Room)

	for _, s := range append(append(all, to...), from...) {
		s.Close()
	}
	until("streams are left", func() bool { return a.Stats().Streams+b.Stats().Streams == 0 })
	_, _ = aCls.Close(), bCls.Close()
	until("a class is left", func() bool { return aCls.Closed() && bCls.Closed() })
}
