package na

import (
	"encoding/binary"
	"errors"
	"io"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/internal/frame"
	"github.com/quicksilver-rpc/quicksilver/internal/test/long"
)

// A streamPeer is a script with streams of every kind open, by which frames are judged.
type streamPeer struct {
	*script
	l                      *session
	up, bulk, out, down, w *scriptStream // up and bulk are read here, out is written; down and w are numbered here: read, and written
}

func newStreamPeer(t *testing.T) *streamPeer {
	s := newScript(t, Config{})
	p := &streamPeer{script: s, l: s.connect(5)}
	p.down, p.w = s.newStream(false, true), s.newStream(true, true)
	s.call(p.l, p.down, p.w)
	p.up, p.bulk, p.out = s.openStream(p.l, 7, true, false), s.openStream(p.l, 8, true, true), s.openStream(p.l, 9, false, false)
	s.drain(p.l)
	return p
}

// raw hands l a frame of a stream.
func (p *streamPeer) raw(k frame.Kind, id, tag uint64, flags uint8, payload []byte) error {
	h := frame.Header{Kind: k, Op: id, Tag: tag, Flags: flags}
	if k == frame.Data {
		return p.deliverPiece(p.l, h, payload)
	}
	return p.deliver(p.l, h, payload)
}

func encodeGrant(n uint64) []byte { return binary.LittleEndian.AppendUint64(nil, n) }

const (
	streamRoom  = frame.FlagRoom
	streamEnd   = frame.FlagEnd
	streamOwn   = frame.FlagAnswer
	streamPiece = frame.FlagStream | frame.FlagRoom
)

// TestStreamHostileFields sends every field of the frames of streams at its limits and beyond: a
// value beyond ends the session, with ErrProtocol and before it has had an effect.
func TestStreamHostileFields(t *testing.T) {
	b := func(n int) []byte { return make([]byte, n) }
	for name, c := range map[string]struct {
		before func(p *streamPeer) error
		good   func(p *streamPeer) error // nil: there is none
		bad    func(p *streamPeer) error // nil: there is none
	}{
		"offset": {
			good: func(p *streamPeer) error { return p.raw(frame.Stream, 7, firstWindow-100, streamRoom, b(100)) },
			bad:  func(p *streamPeer) error { return p.raw(frame.Stream, 7, firstWindow, streamRoom, b(1)) },
		},
		"offset, of an end": {
			good: func(p *streamPeer) error { return p.raw(frame.Stream, 7, firstWindow, streamEnd, nil) },
			bad:  func(p *streamPeer) error { return p.raw(frame.Stream, 7, firstWindow+1, streamEnd, nil) },
		},
		"offset, largest":      {bad: func(p *streamPeer) error { return p.raw(frame.Stream, 7, math.MaxInt64, 0, b(1)) }},
		"offset, negative":     {bad: func(p *streamPeer) error { return p.raw(frame.Stream, 7, math.MaxUint64, 0, b(2)) }},
		"offset, of no stream": {bad: func(p *streamPeer) error { return p.raw(frame.Stream, 70, math.MaxInt64+1, 0, b(2)) }},
		"reserve": {
			good: func(p *streamPeer) error { return p.raw(frame.Stream, 7, 0, 0, b(StreamReserve)) },
			bad:  func(p *streamPeer) error { return p.raw(frame.Stream, 7, StreamReserve, 0, b(1)) },
		},
		"reserve, at once": {bad: func(p *streamPeer) error { return p.raw(frame.Stream, 7, 0, 0, b(StreamReserve+1)) }},
		"reserve, of what was read and not granted again": {
			before: func(p *streamPeer) error {
				err := p.raw(frame.Stream, 7, 0, 0, b(StreamReserve))
				p.read(p.up, StreamReserve)
				return err
			},
			bad: func(p *streamPeer) error { return p.raw(frame.Stream, 7, StreamReserve, 0, b(1)) },
		},
		"reserve, granted again": {
			before: func(p *streamPeer) error {
				err := p.raw(frame.Stream, 7, 0, 0, b(StreamReserve))
				p.read(p.up, StreamReserve)
				p.drain(p.l)
				return err
			},
			good: func(p *streamPeer) error { return p.raw(frame.Stream, 7, StreamReserve, 0, b(StreamReserve)) },
			bad:  func(p *streamPeer) error { return p.raw(frame.Stream, 7, 2*StreamReserve, 0, b(1)) },
		},
		"room": {
			before: func(p *streamPeer) (err error) { // streams of closed numbers take room and give it back: these are open
				for id := range uint64(firstRoom/firstWindow - 1) {
					p.openStream(p.l, 100+id, true, false)
					p.drain(p.l)
					err = errors.Join(err, p.raw(frame.Stream, 100+id, 0, streamRoom, b(firstWindow)))
				}
				p.e.Lock()
				p.l.room.announced = p.l.room.taken + 1000
				p.e.Unlock()
				return err
			},
			good: func(p *streamPeer) error { return p.raw(frame.Stream, 7, 0, streamRoom, b(1000)) },
			bad:  func(p *streamPeer) error { return p.raw(frame.Stream, 7, 1000, streamRoom, b(1)) },
		},
		"room, for a dead stream": {
			before: func(p *streamPeer) error { p.l.room.announced = p.l.room.taken + 1000; return nil },
			bad:    func(p *streamPeer) error { return p.raw(frame.Stream, 70, 0, streamRoom, b(1001)) },
		},
		"no bytes":             {bad: func(p *streamPeer) error { return p.raw(frame.Stream, 7, 0, 0, nil) }},
		"no bytes of the room": {bad: func(p *streamPeer) error { return p.raw(frame.Stream, 7, 0, streamEnd|streamRoom, nil) }},
		"long frame": {
			good: func(p *streamPeer) error { return p.raw(frame.Stream, 70, 0, streamRoom, b(maxStreamFrame)) },
			bad:  func(p *streamPeer) error { return p.raw(frame.Stream, 70, 0, streamRoom, b(maxStreamFrame+1)) },
		},
		"number, of ours": {
			good: func(p *streamPeer) error { return p.raw(frame.Stream, p.w.id-1, 0, streamOwn, b(1)) },
			bad:  func(p *streamPeer) error { return p.raw(frame.Stream, p.w.id+1, 0, streamOwn, b(1)) },
		},
		"number, of a WINDOW": {bad: func(p *streamPeer) error { return p.raw(frame.Window, p.w.id+1, 0, streamOwn, encodeGrant(0)) }},
		"number, of a RESET":  {bad: func(p *streamPeer) error { return p.raw(frame.Reset, math.MaxUint64, 0, streamOwn, nil) }},
		"number, of a piece":  {bad: func(p *streamPeer) error { return p.raw(frame.Data, p.w.id+1, 0, streamOwn|streamPiece, b(1)) }},
		"bytes of what we send": {
			bad: func(p *streamPeer) error { return p.raw(frame.Stream, 9, 0, 0, b(1)) },
		},
		"bytes of what we send, ours": {bad: func(p *streamPeer) error { return p.raw(frame.Stream, p.w.id, 0, streamOwn, b(1)) }},
		"end, at another offset": {
			before: func(p *streamPeer) error { return p.raw(frame.Stream, 7, 100, streamEnd, nil) },
			good:   func(p *streamPeer) error { return p.raw(frame.Stream, 7, 100, streamEnd, nil) },
			bad:    func(p *streamPeer) error { return p.raw(frame.Stream, 7, 101, streamEnd, nil) },
		},
		"end, at an offset before": {
			before: func(p *streamPeer) error { return p.raw(frame.Stream, 7, 100, streamEnd, nil) },
			bad:    func(p *streamPeer) error { return p.raw(frame.Stream, 7, 99, streamEnd, nil) },
		},
		"end, before what has come": {
			before: func(p *streamPeer) error { return p.raw(frame.Stream, 7, 50, 0, b(50)) },
			good:   func(p *streamPeer) error { return p.raw(frame.Stream, 7, 100, streamEnd, nil) },
			bad:    func(p *streamPeer) error { return p.raw(frame.Stream, 7, 99, streamEnd, nil) },
		},
		"bytes beyond the end": {
			before: func(p *streamPeer) error { return p.raw(frame.Stream, 7, 100, streamEnd, nil) },
			good:   func(p *streamPeer) error { return p.raw(frame.Stream, 7, 90, 0, b(10)) },
			bad:    func(p *streamPeer) error { return p.raw(frame.Stream, 7, 80, 0, b(21)) },
		},
		"bytes twice": {
			before: func(p *streamPeer) error { return p.raw(frame.Stream, 7, 0, 0, b(100)) },
			good:   func(p *streamPeer) error { return p.raw(frame.Stream, 7, 100, 0, b(1)) },
			bad:    func(p *streamPeer) error { return p.raw(frame.Stream, 7, 99, 0, b(2)) },
		},
		"bytes twice, behind a gap": {
			before: func(p *streamPeer) error { return p.raw(frame.Stream, 7, 100, 0, b(100)) },
			good:   func(p *streamPeer) error { return p.raw(frame.Stream, 7, 0, 0, b(100)) },
			bad:    func(p *streamPeer) error { return p.raw(frame.Stream, 7, 199, 0, b(1)) },
		},
		"overlap from before": {
			before: func(p *streamPeer) error { return p.raw(frame.Stream, 7, 100, 0, b(100)) },
			bad:    func(p *streamPeer) error { return p.raw(frame.Stream, 7, 50, 0, b(51)) },
		},
		"gaps": {
			before: func(p *streamPeer) (err error) {
				for i := range uint64(maxGaps) {
					err = errors.Join(err, p.raw(frame.Stream, 7, 2*i+2, streamRoom, b(1)))
				}
				return err
			},
			good: func(p *streamPeer) error { return p.raw(frame.Stream, 7, 0, streamRoom, b(1)) },
			bad:  func(p *streamPeer) error { return p.raw(frame.Stream, 7, 2*maxGaps+3, streamRoom, b(1)) },
		},
		"piece": {
			good: func(p *streamPeer) error { return p.raw(frame.Data, 8, 0, streamPiece, b(firstWindow)) },
			bad:  func(p *streamPeer) error { return p.raw(frame.Data, 8, firstWindow, streamPiece, b(1)) },
		},
		"piece of messages":     {bad: func(p *streamPeer) error { return p.raw(frame.Data, 7, 0, streamPiece, b(1)) }},
		"piece without room":    {bad: func(p *streamPeer) error { return p.raw(frame.Data, 8, 0, frame.FlagStream, b(1)) }},
		"piece with an end":     {bad: func(p *streamPeer) error { return p.raw(frame.Data, 8, 0, streamPiece|streamEnd, b(1)) }},
		"piece without bytes":   {bad: func(p *streamPeer) error { return p.raw(frame.Data, 8, 0, streamPiece, nil) }},
		"piece of two chunks":   {bad: func(p *streamPeer) error { return p.raw(frame.Data, 70, bulkChunk-1, streamPiece, b(2)) }},
		"piece at the last":     {bad: func(p *streamPeer) error { return p.raw(frame.Data, 8, math.MaxInt64, streamPiece, b(1)) }},
		"piece at a negative":   {bad: func(p *streamPeer) error { return p.raw(frame.Data, 8, math.MaxInt64+1, streamPiece, b(1)) }},
		"piece of what we send": {bad: func(p *streamPeer) error { return p.raw(frame.Data, p.w.id, 0, streamOwn|streamPiece, b(1)) }},
		"window": {
			good: func(p *streamPeer) error { return p.raw(frame.Window, 9, maxGrant, 0, encodeGrant(0)) },
			bad:  func(p *streamPeer) error { return p.raw(frame.Window, 9, maxGrant+1, 0, encodeGrant(0)) },
		},
		"window, reserve": {
			good: func(p *streamPeer) error { return p.raw(frame.Window, 9, 0, 0, encodeGrant(maxGrant)) },
			bad:  func(p *streamPeer) error { return p.raw(frame.Window, 9, 0, 0, encodeGrant(maxGrant+1)) },
		},
		"window, before": {
			good: func(p *streamPeer) error { return p.raw(frame.Window, 9, 0, 0, encodeGrant(math.MaxUint64)) },
			bad:  func(p *streamPeer) error { return p.raw(frame.Window, 9, math.MaxInt64+1, 0, encodeGrant(0)) },
		},
		"window, short": {
			good: func(p *streamPeer) error { return p.raw(frame.Window, 70, 0, 0, b(8)) },
			bad:  func(p *streamPeer) error { return p.raw(frame.Window, 70, 0, 0, b(7)) },
		},
		"window, long":            {bad: func(p *streamPeer) error { return p.raw(frame.Window, 9, 0, 0, b(9)) }},
		"window, none":            {bad: func(p *streamPeer) error { return p.raw(frame.Window, 9, 0, 0, nil) }},
		"window, of what we read": {bad: func(p *streamPeer) error { return p.raw(frame.Window, 7, 0, 0, b(8)) }},
		"reset, text": {
			good: func(p *streamPeer) error { return p.raw(frame.Reset, 7, 0, 0, b(maxResetText)) },
			bad:  func(p *streamPeer) error { return p.raw(frame.Reset, 8, 0, 0, b(maxResetText+1)) },
		},
		"reset, code": {
			good: func(p *streamPeer) error { return p.raw(frame.Reset, 7, 255, 0, nil) },
			bad:  func(p *streamPeer) error { return p.raw(frame.Reset, 70, 256, 0, nil) },
		},
		"reset, of the end": {
			good: func(p *streamPeer) error { return p.raw(frame.Reset, 7, 3, streamEnd, b(5)) },
			bad:  func(p *streamPeer) error { return p.raw(frame.Reset, p.w.id, 3, streamOwn|streamEnd, nil) },
		},
	} {
		t.Run(name, func(t *testing.T) {
			p := newStreamPeer(t)
			if c.before != nil {
				require.NoError(t, c.before(p))
			}
			if c.good != nil {
				require.NoError(t, c.good(p))
				require.Empty(t, p.cuts[p.l])
			}
			if c.bad == nil {
				return
			}
			held := p.l.room.held
			require.ErrorIs(t, c.bad(p), ErrProtocol)
			require.Len(t, p.cuts[p.l], 1, "the session ends")
			require.Equal(t, held, p.l.room.held, "room of what was refused")
			require.Zero(t, p.nctx.Stats().Streams)
			_, err := p.out.Write([]byte{1})
			require.ErrorIs(t, err, ErrPeerLost)
		})
	}
}

// read reads n bytes.
func (s *script) read(st *scriptStream, n int) {
	s.Helper()
	for n > 0 {
		b, err := st.Next()
		require.NoError(s, err)
		k := min(n, len(b))
		st.Release(k)
		n -= k
	}
}

// TestStreamResetCodes checks that a stream that its peer ends with no code, or with an unknown
// one, has an error all the same.
func TestStreamResetCodes(t *testing.T) {
	for code, want := range map[uint64]error{0: ErrCanceled, uint64(ErrOverflow): ErrOverflow, 255: Code(255)} {
		p := newStreamPeer(t)
		require.NoError(t, p.raw(frame.Reset, 7, code, 0, nil))
		_, err := p.up.Next()
		require.ErrorIs(t, err, want)
		require.NotEmpty(t, err.Error())
	}
}

// TestStreamFloodOfClosed checks that frames of streams that do not exist leave nothing behind,
// however many arrive. Those that open a stream of ours are answered: a peer that does not read the
// answers is cut.
func TestStreamFloodOfClosed(t *testing.T) {
	p := newStreamPeer(t)
	for i := range uint64(3 * maxControl) {
		for _, err := range []error{
			p.raw(frame.Reset, i+1000, 3, 0, []byte("text")),
			p.raw(frame.Window, i+1000, firstWindow, 0, encodeGrant(StreamReserve)),
			p.raw(frame.Stream, i+1000, 0, 0, []byte("bytes")),
			p.raw(frame.Stream, i+1000, 1, streamRoom|streamEnd, []byte("bytes")),
			p.raw(frame.Data, i+1000, 5, streamPiece, []byte("bytes")),
			p.raw(frame.Reset, 0, 3, streamOwn, nil),
			p.raw(frame.Window, 0, 2*firstWindow, streamOwn, encodeGrant(StreamReserve)),
			p.raw(frame.Stream, 0, 5, streamOwn, []byte("bytes")),
		} {
			require.NoError(t, err)
		}
		if i%100 == 0 {
			p.drain(p.l)
		}
	}
	p.drain(p.l)
	require.Len(t, p.l.streams, 5)
	require.Zero(t, p.l.owing.len()+p.l.starved.len()+p.l.flows[0].ctl.len())
	require.Zero(t, p.l.room.held)
	require.NoError(t, p.up.bytes(0, []byte("go on"), streamEnd))
	p.read(p.up, 5)
	_, err := p.up.Next()
	require.ErrorIs(t, err, io.EOF)

	for _, opens := range []func() error{
		func() error { return p.raw(frame.Window, 0, firstWindow, streamOwn, encodeGrant(StreamReserve)) },
		func() error { return p.raw(frame.Stream, 0, 0, streamOwn, []byte{1}) },
	} {
		p = newStreamPeer(t)
		require.NoError(t, opens())
		all := p.drain(p.l)
		require.Equal(t, []string{"RESET"}, kinds(all))
		require.Zero(t, all[0].Flags&streamOwn)
		for range maxControl {
			require.NoError(t, opens())
		}
		require.Empty(t, p.cuts[p.l])
		_ = opens()
		require.Len(t, p.cuts[p.l], 1)
		require.Contains(t, p.cuts[p.l][0], "does not read the responses")
	}
}

// TestStreamQueuesOneWindow checks that a peer that opens windows again and again, or resets what is open,
// makes nothing grow: a stream has one WINDOW and one RESET to send at most.
func TestStreamQueuesOneWindow(t *testing.T) {
	p := newStreamPeer(t)
	for i := range int64(1000) {
		require.NoError(t, p.up.bytes(i, []byte{1}, streamRoom))
		p.read(p.up, 1)
		p.e.Lock()
		p.l.oweWindow(p.up.Stream)
		p.e.Unlock()
	}
	require.Equal(t, 1, p.l.owing.len())
	p.up.Reset(ErrOverflow, "enough")
	require.Equal(t, 1, p.l.owing.len())
	all := p.drain(p.l)
	n := 0
	for _, f := range all {
		if f.Kind == frame.Window || f.Kind == frame.Reset {
			n++
			require.Equal(t, frame.Reset, f.Kind)
			require.Equal(t, "enough", string(f.payload))
		}
	}
	require.Equal(t, 1, n)
}

// TestStreamTurns checks that a stream has its turn after 64 KiB of messages, and messages have
// theirs between the bytes of streams.
func TestStreamTurns(t *testing.T) {
	s := newScript(t, Config{})
	l := s.connect(4000)
	up := s.newStream(true, false)
	s.call(l, up)
	s.drain(l)
	require.NoError(t, s.deliver(l, frame.Header{Kind: frame.Credit, Tag: 1 << 20}, nil))
	require.NoError(t, up.window(1<<20, StreamReserve))
	n, err := up.Write(make([]byte, maxUnsent))
	require.NoError(t, err)
	require.Equal(t, maxUnsent, n)
	for range 100 {
		s.send(string(make([]byte, 4000)))
	}
	messages, pieces, row := 0, 0, 0
	for _, f := range s.drain(l) {
		switch f.Kind {
		case frame.Unexpected:
			messages++
			row += f.Payload()
			require.Less(t, row, maxBurst+4000+1, "bytes of messages in a row while a stream waits")
		case frame.Stream:
			if pieces++; pieces == maxUnsent/maxStreamFrame {
				row = -1 << 30 // nothing waits any more
				break
			}
			row = 0
		}
	}
	require.Equal(t, 100, messages)
	require.Equal(t, maxUnsent/maxStreamFrame, pieces)
}

// byteSource is a script of bytes: after its end it continues with a generator.
type byteSource struct {
	in   []byte
	rest *rand.PCG
}

func (s *byteSource) Uint64() uint64 {
	if len(s.in) == 0 {
		return s.rest.Uint64()
	}
	b := s.in[0]
	s.in = s.in[1:]
	return uint64(b)<<56 | uint64(b)<<24
}

// streamPrograms are the seeds of the fuzzers.
func streamPrograms(f *testing.F) {
	for seed := range long.Or[uint64](60, 2000) {
		rng := rand.New(rand.NewPCG(seed, 7))
		b := make([]byte, 1+rng.IntN(400))
		for i := range b {
			if b[i] = byte(rng.Uint32()); rng.IntN(3) > 0 {
				b[i] &= 0x1f
			}
		}
		f.Add(b)
	}
}

// FuzzStreamReceiver hands a receiver any bytes, whose values its sender draws: those that it
// accepts arrive once and in their place, and the accounts hold.
func FuzzStreamReceiver(f *testing.F) {
	streamPrograms(f)
	f.Fuzz(func(t *testing.T, program []byte) {
		in := program
		next := func() int64 {
			if len(in) == 0 {
				return 0
			}
			b := in[0]
			in = in[1:]
			return int64(b)
		}
		r := newReceiver()
		r.limit, r.granted = firstWindow, StreamReserve
		content := func(off int64) byte { return byte(off>>8) ^ byte(off*31) }
		fill := func(b []byte, off int64) {
			for i := range b {
				b[i] = content(off + int64(i))
			}
		}
		type filling struct {
			c      *chunk
			at     int
			off, n int64
		}
		var out []filling
		come := map[int64]bool{}
		held := int64(0)
		for len(in) > 0 {
			switch op := next() % 8; op {
			case 0, 1, 2, 3: // bytes arrive
				off, n := r.next+next()-3, next()
				if op == 1 {
					off += 64 * next()
				}
				if op == 2 {
					n *= 16
				}
				end, toRoom := next()%16 == 0, next()%4 != 0
				if n == 0 && !end || r.check(off, n, end, toRoom, 1) != nil {
					continue
				}
				for i := off; i < off+n; i++ {
					if come[i] {
						t.Fatalf("byte %d arrives twice", i)
					}
					come[i] = true
				}
				r.charge(off, n, end, toRoom)
				if toRoom {
					held += n
				}
				if n > 0 && off/streamChunk == (off+n-1)/streamChunk && next()%2 == 0 {
					c, at := r.chunks.place(off, n)
					out = append(out, filling{c, at, off, n})
					continue
				}
				b := make([]byte, n)
				fill(b, off)
				r.write(off, b)
			case 4: // a carrier has placed
				if len(out) > 0 {
					i := int(next()) % len(out)
					p := out[i]
					out = append(out[:i], out[i+1:]...)
					fill(p.c.buf[p.at:][:p.n], p.off)
					r.notePlaced(p.c, p.off, p.n)
					p.c.drop()
				}
			case 5, 6: // the program reads
				b := r.peek()
				for i := range b {
					if b[i] != content(r.read+int64(i)) {
						t.Fatalf("byte %d of %d is %d", r.read+int64(i), r.most, b[i])
					}
				}
				held -= r.consume(min(int64(len(b)), next()*8))
			case 7:
				if r.owesWindow() {
					before, granted := r.limit, r.granted
					limit, g := r.windowToSend(256 << 10)
					if limit < before || g < granted {
						t.Fatalf("a WINDOW goes back: %d after %d, %d after %d", limit, before, g, granted)
					}
				}
			}
			filled, ahead := int64(0), int64(0)
			for _, p := range out {
				filled += p.n
			}
			for i, a := range r.ahead {
				if ahead += a.to - a.from; a.from <= r.next || i > 0 && a.from <= r.ahead[i-1].to {
					t.Fatalf("runs %v, %d has arrived", r.ahead, r.next)
				}
			}
			if r.unreadBytes() != r.next-r.read+ahead+filled || r.room != held || r.reserved < 0 || r.reserved > StreamReserve || r.unreadBytes() > r.limit-r.read {
				t.Fatalf("got %d unread, %d and %d charged, %d held; %d to %d arrived, ahead %d, filled %d", r.unreadBytes(), r.reserved, r.room, held, r.read, r.next, ahead, filled)
			}
			if len(r.ahead) > maxGaps {
				t.Fatalf("%d gaps", len(r.ahead))
			}
		}
		if held -= r.drop(); held != 0 || r.unreadBytes() != 0 {
			t.Fatalf("got %d of room held at the end", held)
		}
		refs := map[*chunk]int{}
		for _, p := range out {
			refs[p.c]++
		}
		for c, n := range refs {
			if c.refs != n {
				t.Fatalf("a chunk that carriers fill in %d places has %d references", n, c.refs)
			}
		}
	})
}

// FuzzStreamPair is TestStreamModel with the choices drawn from bytes.
func FuzzStreamPair(f *testing.F) {
	streamPrograms(f)
	f.Fuzz(func(t *testing.T, program []byte) {
		m := &streamModel{t: t, rng: rand.New(&byteSource{program, rand.NewPCG(1, 1)})}
		m.run(m.rng.IntN(1<<18), m.rng.IntN(1<<m.rng.IntN(17)))
	})
}

// FuzzStreamFrames hands a session frames of streams with any fields, and makes any allowed call of
// the program meanwhile. An invalid frame ends the session; in the end nothing is held.
func FuzzStreamFrames(f *testing.F) {
	streamPrograms(f)
	f.Fuzz(func(t *testing.T, program []byte) {
		in := program
		next := func() uint64 {
			if len(in) == 0 {
				return 0
			}
			b := in[0]
			in = in[1:]
			return uint64(b)
		}
		p := newStreamPeer(t)
		all := []*scriptStream{p.up, p.bulk, p.out, p.down, p.w}
		reads := []*scriptStream{p.up, p.bulk, p.down}
		for len(in) > 0 && p.l.Up() {
			of := all[next()%5]
			id, flags := of.id, of.flag()
			switch next() % 16 {
			case 0:
				id = next()
			case 1:
				flags ^= streamOwn
			}
			near := uint64(of.Moved()) + next()
			if next()%8 == 0 {
				near = next() << (next() % 64)
			}
			if next()%8 == 0 {
				flags |= 1 << (next()%6 + 1)
			}
			if next()%2 == 0 {
				flags |= streamRoom
			}
			b := make([]byte, next()<<(next()%7))
			var err error
			switch op := next() % 12; op {
			case 0, 1, 2:
				err = p.raw(frame.Stream, id, near, flags&^frame.FlagPayload, b)
			case 3, 4:
				err = p.raw(frame.Data, id, near, flags|frame.FlagStream, b)
			case 5, 6:
				err = p.raw(frame.Window, id, near<<(next()%16), flags, encodeGrant(next()<<(next()%16)))
			case 7:
				err = p.raw(frame.Reset, id, next(), flags, b[:min(len(b), 600)])
			case 8:
				err = p.raw(frame.Stream, id, near, flags|streamEnd, b[:min(len(b), 300)])
			case 9:
				r := reads[next()%3]
				if b, err := r.Next(); err == nil {
					if next()%8 == 0 {
						r.Reset(ErrOverflow, "it is enough")
					}
					r.Release(int(next()) % (len(b) + 1))
				}
			case 10:
				w := []*scriptStream{p.out, p.w}[next()%2]
				if _, err := w.Write(b); err == nil && next()%16 == 0 {
					w.CloseWrite()
				}
			case 11:
				if next()%4 == 0 {
					of.Close()
				} else {
					p.drain(p.l)
					p.trigger()
				}
			}
			if code := CodeOf(err); err != nil && code != ErrProtocol {
				t.Fatalf("got %v, want ErrProtocol", err)
			}
			if err != nil && p.l.Up() {
				t.Fatalf("the session continues after %v", err)
			}
			sum := int64(0)
			for _, st := range reads {
				sum += st.in.room
				if st.in.room < 0 || st.in.reserved < 0 || st.in.reserved > StreamReserve {
					t.Fatalf("got %+v", st.in)
				}
			}
			if p.l.room.held != sum {
				t.Fatalf("got %d of room held, the streams have %d", p.l.room.held, sum)
			}
		}
		for _, st := range all {
			st.Close()
		}
		if p.l.Up() {
			p.drain(p.l)
			require.Zero(t, p.nctx.Stats().Streams-len(p.unsentClosed(all)))
		}
		require.Zero(t, p.l.room.held)
		for _, st := range all {
			require.True(t, st.sent || st.finished, "a reserve that was not given back")
		}
	})
}

// unsentClosed are those that are closed, and of which bytes have not left.
func (p *streamPeer) unsentClosed(all []*scriptStream) (left []*scriptStream) {
	for _, st := range all {
		if st.open && st.sent && st.out.ending {
			left = append(left, st)
		}
	}
	return left
}
