package na_test

import (
	"errors"
	"io"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/internal/test/long"
	"github.com/quicksilver-rpc/quicksilver/na"
)

// A laneStream is a stream between two contexts, both ends.
type laneStream struct {
	from, to    *na.Stream
	data        []byte
	wrote, read int
	killed      bool // an end was closed before its end
	done        bool // the reader has reached its end
}

// TestStreamLanes runs streams of bulk data over two lanes, of which one delivers in any order:
// whatever WINDOW, RESET, ends and pieces cross, every byte of a stream that was not reset arrives
// once and in order, and no such stream has an error.
func TestStreamLanes(t *testing.T) {
	for seed := range long.Or[uint64](60, 3000) {
		rng := rand.New(rand.NewPCG(seed, 11))
		net := newLooseNetwork(seed)
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
			c := []*na.Context{a, b}[rng.IntN(2)] // the other one lags behind
			_ = c.Progress(0)
			c.Trigger(0)
		}
		until := func(done func() bool) {
			for i := 0; !done(); i++ {
				require.Less(t, i, 200_000, "seed %d: something stands still", seed)
				drive()
			}
		}
		step := func(any) int { return 1 }
		for round := range 4 {
			streams := make([]*laneStream, 1+rng.IntN(8))
			spec := na.CallSpec{To: b.Self(), Tag: na.Tag(round + 1), Msg: make([]byte, 8), Buf: make([]byte, 1)}
			for i := range streams {
				data := make([]byte, rng.IntN(1<<(1+rng.IntN(19))))
				for j := range data {
					data[j] = byte(i*5 + j ^ j>>8)
				}
				streams[i] = &laneStream{data: data}
				s, err := a.Upper().NewStream(i%2 == 0, true, step, nil)
				require.NoError(t, err)
				spec.Streams = append(spec.Streams, s)
			}
			ended := false
			call := a.NewOp(func(_ *na.Op, r na.Result) {
				require.NoError(t, r.Err)
				ended = true
			})
			require.NoError(t, a.Upper().Call(call, spec))
			var env *na.Envelope
			recv := b.NewOp(func(_ *na.Op, r na.Result) { env = r.Envelope })
			require.NoError(t, b.RecvUnexpected(recv))
			until(func() bool { return env != nil })
			for i, s := range streams {
				there, err := b.Upper().OpenStream(env, na.StreamID(env.Data)+uint64(i), i%2 == 0, true, step, nil)
				require.NoError(t, err)
				s.from, s.to = spec.Streams[i], there
				if i%2 != 0 {
					s.from, s.to = there, spec.Streams[i]
				}
			}
			answer := b.NewOp(func(*na.Op, na.Result) {})
			require.NoError(t, b.SendExpected(answer, env.From, spec.Tag, []byte{0}))
			env.Free()
			until(func() bool {
				left := !ended
				for _, s := range streams {
					s.turn(t, rng, seed)
					left = left || !s.done
				}
				return !left
			})
			for _, s := range streams {
				s.from.Close()
				s.to.Close()
			}
			until(func() bool { return a.Stats().Streams+b.Stats().Streams == 0 })
		}
		_, _ = aCls.Close(), bCls.Close()
		until(func() bool { return aCls.Closed() && bCls.Closed() })
		require.Zero(t, a.Stats().Reserved+b.Stats().Reserved, "seed %d", seed)
	}
}

// fails reports whether the stream ends with Fail.
func (s *laneStream) fails() bool { return len(s.data)%3 == 1 }

// turn writes or reads some, or kills the stream.
func (s *laneStream) turn(t *testing.T, rng *rand.Rand, seed uint64) {
	if s.done {
		return
	}
	switch k := rng.IntN(200); {
	case k < 1:
		s.killed = true
		if rng.IntN(2) == 0 {
			s.from.Close()
		} else {
			s.to.Reset(na.ErrOverflow, "")
		}
	case k < 70 && !s.killed:
		n, err := s.from.Write(s.data[s.wrote:min(len(s.data), s.wrote+1+rng.IntN(100_000))])
		if err != nil && !errors.Is(err, na.ErrAgain) && !errors.Is(err, na.ErrInvalid) { // behind its end
			require.NoError(t, err, "seed %d", seed)
		}
		if s.wrote += n; s.wrote == len(s.data) {
			if s.fails() {
				s.from.Fail(na.ErrIO, "the disk is full")
			} else {
				s.from.CloseWrite()
			}
			s.from.Close()
		}
	case k < 140:
		b, err := s.to.Next()
		switch {
		case errors.Is(err, na.ErrAgain):
		case errors.Is(err, io.EOF):
			require.Equal(t, len(s.data), s.read, "seed %d: io.EOF", seed)
			require.False(t, s.fails(), "seed %d: io.EOF", seed)
			s.done = true
		case errors.Is(err, na.ErrIO):
			require.True(t, s.fails(), "seed %d: %v", seed, err)
			require.ErrorContains(t, err, "the disk is full")
			require.Equal(t, len(s.data), s.read, "seed %d: an error before the bytes", seed)
			s.done = true
		case err != nil:
			require.True(t, s.killed, "seed %d: %v after %d of %d bytes", seed, err, s.read, len(s.data))
			s.done = true
		default:
			b = b[:1+rng.IntN(len(b))]
			require.Equal(t, string(s.data[s.read:s.read+len(b)]), string(b), "seed %d at %d", seed, s.read)
			s.read += len(b)
			s.to.Release(len(b))
		}
	}
}
