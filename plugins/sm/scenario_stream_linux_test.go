package sm_test

import (
	"bytes"
	"errors"
	"io"
	"math/rand/v2"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/internal/test/long"
	"github.com/quicksilver-rpc/quicksilver/na"
	"github.com/quicksilver-rpc/quicksilver/plugins/sm"
)

// TestStreamsShareShelf checks streams of bulk data whose writes, reads and processes take turns in
// any order, with their data in one shared memory. Each byte that is read is the one that was
// written. It failed when memory of a stream that grew was given back twice: another stream wrote
// there.
func TestStreamsShareShelf(t *testing.T) {
	for seed := range long.Or[uint64](60, 5000) {
		if !(&shelfStreams{T: t, seed: seed, rng: rand.New(rand.NewPCG(seed, 3))}).run() {
			return
		}
	}
}

type shelfStreams struct {
	*testing.T
	seed uint64
	rng  *rand.Rand
	ctx  [2]*na.Context // of the origin, and of the target
	all  []*shelfStream
}

type shelfStream struct {
	from, to *na.Stream
	data     []byte
	wrote    int
	read     int
	reset    int // after so many bytes written; -1: never
}

func (s *shelfStreams) drive(i int) {
	s.ctx[i].Trigger(0)
	if err := s.ctx[i].Progress(0); !errors.Is(err, na.ErrTimeout) {
		require.NoError(s, err)
	}
}

func (s *shelfStreams) run() (ok bool) {
	rng, dir := s.rng, filepath.Join(s.TempDir(), "sm")
	for i := range s.ctx {
		cls, err := na.Open("sm://*", na.Config{Plugins: []na.Plugin{sm.New(sm.Options{Dir: dir, Unassisted: true})}})
		require.NoError(s, err)
		s.ctx[i], err = cls.NewContext()
		require.NoError(s, err)
		defer func() {
			_ = cls.Close()
			for !cls.Closed() {
				s.ctx[i].Trigger(0)
				_ = s.ctx[i].Progress(0)
			}
		}()
	}
	s.begin()
	least, most := []int{1, 1 << rng.IntN(16), 16 << 10, 16 << 10}[rng.IntN(4)], 1<<(8+rng.IntN(10))
	for left := len(s.all); left > 0; {
		i := rng.IntN(len(s.all))
		f := s.all[i]
		switch rng.IntN(4) {
		case 0, 1:
			s.drive(rng.IntN(2))
		case 2:
			f.write(s, least+rng.IntN(most))
		case 3:
			over, ok := f.next(s)
			if !ok {
				s.Errorf("seed %d: stream %d gives other bytes than were written, from %d on", s.seed, i, f.read)
				return false
			}
			if over {
				s.all = append(s.all[:i], s.all[i+1:]...)
				f.from.Close()
				f.to.Close()
				left--
			}
		}
	}
	return true
}

// begin opens the streams.
func (s *shelfStreams) begin() {
	rng := s.rng
	var from []*na.Stream
	step := func(any) int { return 1 }
	for range 2 + rng.IntN(5) {
		f := &shelfStream{data: make([]byte, rng.IntN(1<<(10+rng.IntN(12)))), reset: -1}
		for i := range f.data {
			f.data[i] = byte(rng.Uint32())
		}
		if rng.IntN(6) == 0 {
			f.reset = rng.IntN(1 + len(f.data))
		}
		var err error
		f.from, err = s.ctx[0].Upper().NewStream(true, true, step, nil)
		require.NoError(s, err)
		from = append(from, f.from)
		s.all = append(s.all, f)
	}
	var env *na.Envelope
	require.NoError(s, s.ctx[1].RecvUnexpected(s.ctx[1].NewOp(func(_ *na.Op, r na.Result) { env = r.Envelope })))
	require.NoError(s, s.ctx[0].Upper().Call(s.ctx[0].NewOp(func(*na.Op, na.Result) {}),
		na.CallSpec{To: s.ctx[1].Self(), Tag: 1, Msg: make([]byte, 16), OneWay: true, Streams: from}))
	for env == nil {
		s.drive(0)
		s.drive(1)
	}
	for i, f := range s.all {
		var err error
		f.to, err = s.ctx[1].Upper().OpenStream(env, na.StreamID(env.Data)+uint64(i), true, true, step, nil)
		require.NoError(s, err)
		f.to.Expect(int64(len(f.data)))
	}
	env.Free()
}

// write writes up to n bytes, or ends the stream behind the last.
func (f *shelfStream) write(s *shelfStreams, n int) {
	b := f.data[f.wrote:min(f.wrote+n, len(f.data))]
	switch {
	case len(b) == 0:
		f.from.CloseWrite()
		return
	case f.reset >= 0 && f.wrote >= f.reset:
		f.from.Reset(na.ErrFault, "enough")
		return
	case s.rng.IntN(2) == 0:
		room, err := f.from.Reserve(len(b))
		if !errors.Is(err, na.ErrAgain) {
			require.NoError(s, err)
		}
		k := copy(room, b)
		if err == nil {
			f.from.Commit(k)
		}
		f.wrote += k
		return
	}
	k, err := f.from.Write(b)
	if !errors.Is(err, na.ErrAgain) {
		require.NoError(s, err)
	}
	f.wrote += k
}

// next reads some bytes, and reports whether they are those that were written, or the end.
func (f *shelfStream) next(s *shelfStreams) (over, ok bool) {
	b, err := f.to.Next()
	switch {
	case errors.Is(err, na.ErrAgain):
		return false, true
	case errors.Is(err, io.EOF):
		return true, f.read == len(f.data)
	case err != nil:
		require.ErrorIs(s, err, na.ErrFault)
		return true, f.reset >= 0
	case f.read+len(b) > f.wrote || !bytes.Equal(b, f.data[f.read:f.read+len(b)]):
		return false, false
	}
	n := len(b)
	if s.rng.IntN(4) == 0 {
		n = 1 + s.rng.IntN(n)
	}
	f.to.Release(n)
	f.read += n
	return false, true
}
