package na

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/internal/test/long"
)

// streamModel sends pieces of one stream over two lanes, each in its order, with the accounts of both sides.
type streamModel struct {
	t    *testing.T
	rng  *rand.Rand
	out  sender
	in   receiver
	room int64 // that the sender may use
	held int64 // of it, by bytes that were not read

	lanes   [2][]modelPiece
	filling [2]*modelFill // a lane continues when its piece is there
	acks    []modelWindow
	data    []byte
	wrote   int
	read    []byte
}

type modelPiece struct {
	off    int64
	b      []byte
	toRoom bool
	end    bool
}

// A modelFill is a piece that a carrier is writing.
type modelFill struct {
	piece modelPiece
	c     *chunk
	at    int
}

type modelWindow struct {
	limit   int64
	granted uint64
}

// step does something that may happen next.
func (m *streamModel) step() {
	switch m.rng.IntN(5) {
	case 0: // write
		n := min(1+m.rng.IntN(20_000), len(m.data)-m.wrote)
		if n == 0 {
			m.out.ending = true
			return
		}
		to := m.out.reserve(n)
		k := copy(to, m.data[m.wrote:m.wrote+n])
		m.out.written += int64(k)
		m.wrote += k
	case 1: // send
		n, toRoom := m.out.allowance(m.room)
		if n == 0 {
			if m.out.ending && m.out.unsentBytes() == 0 && !m.out.ended {
				m.out.ended = true
				m.lanes[0] = append(m.lanes[0], modelPiece{off: m.out.sent, end: true})
			}
			return
		}
		_, b := m.out.piece(n)
		b = b[:1+m.rng.IntN(len(b))]
		lane := m.rng.IntN(2)
		m.lanes[lane] = append(m.lanes[lane], modelPiece{off: m.out.sent, b: bytes.Clone(b), toRoom: toRoom})
		if toRoom {
			m.room -= int64(len(b))
		}
		m.out.noteLeft(int64(len(b)), toRoom)
	case 2: // arrive
		i := m.rng.IntN(2)
		if f := m.filling[i]; f != nil {
			copy(f.c.buf[f.at:], f.piece.b)
			m.in.notePlaced(f.c, f.piece.off, int64(len(f.piece.b)))
			f.c.drop()
			m.filling[i] = nil
			return
		}
		lane := &m.lanes[i]
		if len(*lane) == 0 {
			return
		}
		p := (*lane)[0]
		*lane = (*lane)[1:]
		n := int64(len(p.b))
		require.NoError(m.t, m.in.check(p.off, n, p.end, p.toRoom, 1))
		m.in.charge(p.off, n, p.end, p.toRoom)
		if p.toRoom {
			m.held += n
		}
		if n > 0 && m.rng.IntN(2) == 0 {
			c, at := m.in.chunks.place(p.off, n)
			m.filling[i] = &modelFill{p, c, at}
		} else {
			m.in.write(p.off, p.b)
		}
	case 3: // read
		b := m.in.peek()
		if b == nil {
			return
		}
		b = b[:1+m.rng.IntN(len(b))]
		m.read = append(m.read, b...)
		room := m.in.consume(int64(len(b)))
		m.held -= room
		m.room += room
		if m.in.owesWindow() {
			limit, granted := m.in.windowToSend(256 << 10)
			m.acks = append(m.acks, modelWindow{limit, granted})
		}
	case 4: // the sender receives the window
		if len(m.acks) == 0 {
			return
		}
		m.out.limit, m.out.granted = m.acks[0].limit, m.acks[0].granted
		m.acks = m.acks[1:]
	}
	require.LessOrEqual(m.t, m.in.reserved, int64(StreamReserve), "bytes charged to the reserve")
	require.Equal(m.t, m.held, m.in.room, "bytes charged to the room")
	require.LessOrEqual(m.t, m.in.unreadBytes(), m.in.window+firstWindow, "bytes that were not read")
}

// run sends n bytes with some room, and checks the result.
func (m *streamModel) run(n, room int) {
	m.in = newReceiver()
	m.data = make([]byte, n)
	for i := range m.data {
		m.data[i] = byte(i) ^ byte(i>>8)*7 ^ byte(i>>16)
	}
	m.room = int64(room)
	m.in.limit, m.in.granted = firstWindow, StreamReserve
	m.out.limit, m.out.granted = firstWindow, StreamReserve
	for i := 0; !m.in.isRead(); i++ {
		require.Less(m.t, i, 10_000_000, "the stream stands still at %d of %d bytes", m.in.read, n)
		m.step()
	}
	require.True(m.t, bytes.Equal(m.data, m.read))
	require.EqualValues(m.t, room, m.room)
	require.Zero(m.t, m.in.unreadBytes())
	for _, c := range m.in.chunks.list.all() {
		require.Nil(m.t, c, "a chunk of a stream that is over")
	}
}

// TestStreamModel checks that in any order every byte arrives once, nothing is charged beyond its
// account, and the stream is completed without any room.
func TestStreamModel(t *testing.T) {
	for seed := range long.Or[uint64](60, 3000) {
		ok := t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			m := &streamModel{t: t, rng: rand.New(rand.NewPCG(seed, 1))}
			m.run(m.rng.IntN(1<<m.rng.IntN(20)), m.rng.IntN(1<<m.rng.IntN(18)))
		})
		if !ok {
			return
		}
	}
}
