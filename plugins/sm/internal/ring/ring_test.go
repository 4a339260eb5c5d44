package ring

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math/bits"
	"math/rand/v2"
	"slices"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/require"
)

// heap returns n zero bytes that begin at a whole word.
func heap(n int) []byte {
	words := make([]uint64, (n+7)/8)
	return unsafe.Slice((*byte)(unsafe.Pointer(&words[0])), n)
}

// pair returns two ends that are joined, with areas.
func pair(t testing.TB, g Geometry) (a, b *End) {
	left, right := heap(g.Size()), heap(g.Size())
	a, b = New(left, g), New(right, g)
	a.Probe()
	require.NoError(t, a.Join(right, g))
	require.NoError(t, b.Join(left, g))
	area := heap(AreaSize)
	a.SetArea(area)
	require.NoError(t, b.SetPeerArea(area))
	return a, b
}

var usual = Geometry{Envelopes: 32, Eager: 4 << 10}

func TestSize(t *testing.T) {
	require.LessOrEqual(t, 2*usual.Size(), 400<<10, "bytes that a pair reserves")
	require.Zero(t, usual.Size()%page)
	require.GreaterOrEqual(t, slotStride, SlotSize)
}

// largestMessage is what a has room for, by all that is known.
func largestMessage(t testing.TB, a *End, r int) (longest int, bulk bool) {
	longest, bulk, less := a.Room(r)
	if less {
		require.NoError(t, a.Update())
		longest, bulk, _ = a.Room(r)
	}
	return longest, bulk
}

// take takes the next message.
func take(t testing.TB, e *End, r int, buf []byte) (Taken, bool) {
	var m Taken
	ok, needs, err := e.Take(r, &m, buf)
	require.NoError(t, err)
	require.False(t, needs)
	return m, ok
}

// TestTwin checks that every message that is written is read, once and in its order, with its body;
// the model is two slices of messages.
func TestTwin(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 1))
	for _, g := range []Geometry{{1, 256, 0}, {3, 300, Version}, usual} {
		a, b := pair(t, g)
		type sent struct {
			Message
			body []byte
		}
		var twin [rings][]sent
		buf := make([]byte, max(g.Eager, Inline))
		var in, out int
		for range 5_000 {
			r := rng.IntN(rings)
			if rng.IntN(2) == 0 {
				longest, bulk := largestMessage(t, a, r)
				if longest < 0 {
					require.Greater(t, len(twin[r]), 1)
					continue
				}
				body := make([]byte, []int{rng.IntN(Inline + 1), rng.IntN(min(g.Eager, longest) + 1), rng.IntN(longest + 1)}[rng.IntN(20)/9])
				if len(body) > 8 {
					binary.LittleEndian.PutUint64(body, rng.Uint64())
					binary.LittleEndian.PutUint64(body[len(body)-8:], rng.Uint64())
				}
				m := Message{Kind: uint8(1 + rng.IntN(255)), Flags: uint8(rng.IntN(128)), Op: rng.Uint64(), Tag: rng.Uint64(), Credit: rng.Uint32(), Len: len(body)}
				switch {
				case bulk && rng.IntN(4) == 0:
					s := a.PutLater(r, &m)
					a.Void(s)
					m, body = Message{Kind: Void, Op: m.Op, Tag: m.Tag, Credit: m.Credit}, nil
				case bulk && rng.IntN(2) == 0:
					require.Equal(t, len(body), copy(a.PutLater(r, &m).Body, body))
				case r == Bulk && len(body) > Inline:
					continue
				default:
					a.Put(r, &m, body)
				}
				twin[r] = append(twin[r], sent{m, body})
				in++
				a.Publish()
				continue
			}
			for range rng.IntN(40) {
				got, ok := take(t, b, r, buf)
				require.Equal(t, len(twin[r]) > 0, ok)
				if !ok {
					break
				}
				want := twin[r][0]
				twin[r] = twin[r][1:]
				require.Equal(t, want.Message, got.Message)
				require.Equal(t, len(want.body), len(got.Body))
				require.Equal(t, append([]byte{}, want.body...), append([]byte{}, got.Body...))
				b.Free(r)
				out++
			}
			b.Report()
		}
		require.Greater(t, out, 500)
		require.Equal(t, in, out+len(twin[0])+len(twin[1]))
	}
}

// TestGuarantee checks that all envelopes fit, full, wherever the ring stands, and so does a
// withdraw of each.
func TestGuarantee(t *testing.T) {
	for _, g := range []Geometry{{1, 256, 0}, {32, 4096, 0}, {5, 300, Version}} {
		a, b := pair(t, g)
		buf := make([]byte, g.Eager)
		for k := range 100 + 20*g.Envelopes {
			for range k % 3 { // moves the ring on
				largestMessage(t, a, Messages)
				a.Put(Messages, &Message{Kind: 1}, buf[:min(g.Eager, 97+k%160)])
			}
			a.Publish()
			for _, ok := take(t, b, Messages, buf); ok; _, ok = take(t, b, Messages, buf) {
			}
			b.Report()
			if k%25 != 0 {
				continue
			}
			for i := range g.Envelopes {
				longest, _ := largestMessage(t, a, Messages)
				require.GreaterOrEqual(t, longest, g.Eager, "envelope %d of %d", i, g.Envelopes)
				a.Put(Messages, &Message{Kind: 1}, buf)
			}
			for range g.Envelopes {
				longest, _ := largestMessage(t, a, Messages)
				require.GreaterOrEqual(t, longest, 0)
				a.Put(Messages, &Message{Kind: 2}, nil)
			}
			a.Publish()
		}
	}
}

// TestBulkLeavesRoom checks that bulk data leaves room for messages.
func TestBulkLeavesRoom(t *testing.T) {
	a, b := pair(t, usual)
	buf := make([]byte, usual.Eager)
	for k := range 300 { // whatever was sent before, if it was taken
		for range k % 80 {
			largestMessage(t, a, Messages)
			a.Put(Messages, &Message{Kind: 1}, nil)
		}
		a.Publish()
		for _, ok := take(t, b, Messages, buf); ok; _, ok = take(t, b, Messages, buf) {
		}
		b.Report()
		for r := range rings {
			_, bulk := largestMessage(t, a, r)
			require.True(t, bulk, "after %d messages", k%80)
		}
	}
	n := 0
	for ; ; n++ {
		_, bulk := largestMessage(t, a, Messages)
		if !bulk {
			break
		}
		a.Put(Messages, &Message{Kind: 6}, make([]byte, 7))
	}
	require.Greater(t, n, 8)
	for range 2 * usual.Envelopes {
		longest, _ := largestMessage(t, a, Messages)
		require.GreaterOrEqual(t, longest, 0)
		a.Put(Messages, &Message{Kind: 1}, nil)
	}
}

// TestSlots checks that slots are used again as soon as they are free, the first of them before
// others; those that messages use leave some for bulk data.
func TestSlots(t *testing.T) {
	a, b := pair(t, usual)
	buf := make([]byte, usual.Eager)
	long := buf[:cap(buf):cap(buf)]
	long = append(long, make([]byte, SlotSize-len(long))...)
	send := func() {
		longest, _ := largestMessage(t, a, Messages)
		require.Equal(t, SlotSize, longest)
		a.Put(Messages, &Message{Kind: 1}, long)
		a.Publish()
	}
	get := func() int {
		m, ok := take(t, b, Messages, buf)
		require.True(t, ok)
		b.Free(Messages)
		return m.Slot
	}
	send()
	first := get()
	for range 3 * Slots {
		send()
		require.Equal(t, first, get())
	}
	for range Slots - bits.OnesCount64(bulkSlots) {
		send()
	}
	for k := range 3 {
		_, bulk := largestMessage(t, a, Bulk)
		require.True(t, bulk, "beside %d messages", Slots-bits.OnesCount64(bulkSlots))
		a.PutLater(Bulk, &Message{Kind: 6, Len: SlotSize})
		a.Publish()
		m, ok := take(t, b, Bulk, buf)
		require.True(t, ok)
		require.Zero(t, m.Slot, "piece %d", k)
		b.Free(Bulk)
	}
	for range bits.OnesCount64(bulkSlots) {
		send()
	}
	longest, bulk := largestMessage(t, a, Messages)
	require.Less(t, longest, SlotSize)
	require.False(t, bulk)
	require.Equal(t, first, get(), "and there is room without a Report")
	send()
}

// TestBlocks checks that bodies in blocks do not touch each other, whatever their lengths and the
// order in which they end; the block that was freed first is used again.
func TestBlocks(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 1))
	a, b := pair(t, usual)
	type held struct {
		Block
		mark byte
	}
	var reserved, sent []held
	write := func(b []byte, mark byte) { // some bytes, at the same places of the area
		for i := 0; i < len(b); i += 4096 {
			b[i] = mark
		}
		b[len(b)-1] = mark
	}
	whole := func(b []byte, mark byte) bool {
		for i := 0; i < len(b); i += 4096 {
			if b[i] != mark {
				return false
			}
		}
		return b[len(b)-1] == mark
	}
	for k := range 2000 {
		if n := 1 + rng.IntN(3<<20); rng.IntN(2) == 0 {
			at, ok := a.Reserve(n)
			used := 0
			for _, h := range slices.Concat(reserved, sent) {
				used += roundUp(h.Len, blockSize)
			}
			require.True(t, ok || used > BodyRoom/4, "%d bytes beside %d", n, used)
			if ok {
				h := held{at, byte(k)}
				write(a.Body(at), h.mark)
				reserved = append(reserved, h)
			}
			continue
		}
		if len(reserved) > 0 {
			i := rng.IntN(len(reserved))
			h := reserved[i]
			reserved = slices.Delete(reserved, i, i+1)
			require.True(t, whole(a.Body(h.Block), h.mark))
			if rng.IntN(3) == 0 {
				a.Drop(h.Block)
			} else {
				largestMessage(t, a, Messages)
				a.PutBlock(&Message{Kind: 18, Tag: uint64(h.At)}, h.Block)
				a.Publish()
				sent = append(sent, h)
			}
		}
		for len(sent) > 0 && rng.IntN(2) == 0 {
			m, ok := take(t, b, Messages, nil)
			require.True(t, ok)
			require.True(t, m.Block)
			got, err := b.PeerBlock(m.Tag, sent[0].Len)
			require.NoError(t, err)
			require.True(t, len(got) == sent[0].Len && whole(got, sent[0].mark))
			sent = sent[1:]
			b.Free(Messages)
			require.NoError(t, a.Update())
		}
	}
	for _, h := range reserved {
		a.Drop(h.Block)
	}
	for range sent {
		_, _ = take(t, b, Messages, nil)
	}
	b.Report()
	require.NoError(t, a.Update())
	at, ok := a.Reserve(BodyRoom)
	require.True(t, ok, "all is free at the end")
	_, ok = a.Reserve(1)
	require.False(t, ok)
	a.Drop(at)
	at, _ = a.Reserve(1)
	require.Zero(t, at.At)
	for _, bad := range []struct {
		at uint64
		n  int
	}{{BodyRoom, 1}, {BodyRoom + 1, 0}, {1 << 63, 1}, {^uint64(0), 1}, {0, BodyRoom + 1}, {1, BodyRoom}, {0, -1}} {
		_, err := b.PeerBlock(bad.at, bad.n)
		require.ErrorIs(t, err, ErrBroken, bad)
	}
}

// TestShowBlock checks that a message of ShowBlock has the place of its body, which stays until the
// peer has taken the message, whichever others are taken meanwhile.
func TestShowBlock(t *testing.T) {
	a, b := pair(t, usual)
	for r := range rings {
		for k := range 100 {
			at, ok := a.Reserve(200_000)
			require.True(t, ok)
			copy(a.Body(at), fmt.Sprint("body ", r, k))
			largestMessage(t, a, r)
			part := Block{At: at.At, Len: 100_000 + k}
			a.ShowBlock(r, &Message{Kind: 5, Op: 7, Tag: uint64(k)}, part)
			a.Publish()
			m, ok := take(t, b, r, make([]byte, Inline))
			require.True(t, ok)
			require.Equal(t, Message{Kind: 5, Op: 7, Tag: uint64(k), Len: refSize}, m.Message)
			from, n, ok := m.Ref()
			require.True(t, ok)
			require.EqualValues(t, part.At, from)
			require.Equal(t, part.Len, n)
			got, err := b.PeerBlock(from, n)
			require.NoError(t, err)
			require.True(t, bytes.HasPrefix(got, []byte(fmt.Sprint("body ", r, k))))
			require.NoError(t, a.Update())
			require.Zero(t, a.Shown(r), "it is still being read")
			b.Free(r)
			require.NoError(t, a.Update())
			require.Zero(t, a.Shown(1-r))
			require.Equal(t, 1, a.Shown(r))
			require.Zero(t, a.Shown(r))
			a.Drop(at)
		}
	}
	_, ok := a.Reserve(BodyRoom)
	require.True(t, ok, "all is free at the end")
	a.PutBlock(&Message{Kind: 18}, Block{})
	a.Publish()
	m, ok := take(t, b, Messages, nil)
	require.True(t, ok && m.Block)
	_, _, ok = m.Ref()
	require.False(t, ok, "it names no body")
}

// TestVoid checks that a piece that was given up takes no slot.
func TestVoid(t *testing.T) {
	a, b := pair(t, usual)
	for k := range 3 * Slots {
		_, bulk := largestMessage(t, a, Bulk)
		require.True(t, bulk, "after %d pieces that were given up", k)
		a.Void(a.PutLater(Bulk, &Message{Kind: 6, Len: SlotSize}))
		a.Publish()
		m, ok := take(t, b, Bulk, nil)
		require.True(t, ok)
		require.EqualValues(t, Void, m.Kind)
		b.Report()
	}
}

// TestHalfWritten checks that data that is not published is not read.
func TestHalfWritten(t *testing.T) {
	a, b := pair(t, usual)
	buf := make([]byte, usual.Eager)
	a.Put(Messages, &Message{Kind: 1}, []byte("half"))
	_, ok := take(t, b, Messages, buf)
	require.False(t, ok)
	require.False(t, b.Look())
	a.Publish()
	require.True(t, b.Look())
	m, ok := take(t, b, Messages, buf)
	require.True(t, ok)
	require.Equal(t, "half", string(m.Body))
}

// TestAreaComesLate checks that a body waits until the peer's area has arrived.
func TestAreaComesLate(t *testing.T) {
	g := usual
	left, right := heap(g.Size()), heap(g.Size())
	a, b := New(left, g), New(right, g)
	require.NoError(t, a.Join(right, g))
	require.NoError(t, b.Join(left, g))
	body := make([]byte, 20_000)
	body[19_999] = 7
	longest, _ := largestMessage(t, a, Messages)
	require.Equal(t, SlotSize, longest)
	require.True(t, a.NeedsArea(Messages, len(body)))
	area := heap(AreaSize)
	a.SetArea(area)
	require.False(t, a.NeedsArea(Messages, len(body)))
	a.Put(Messages, &Message{Kind: 1}, body)
	a.Publish()
	var m Taken
	buf := make([]byte, g.Eager)
	for range 2 {
		ok, needs, err := b.Take(Messages, &m, buf)
		require.NoError(t, err)
		require.False(t, ok)
		require.True(t, needs)
	}
	require.Error(t, b.SetPeerArea(area[1:]))
	require.NoError(t, b.SetPeerArea(area))
	require.Error(t, b.SetPeerArea(area))
	got, ok := take(t, b, Messages, buf)
	require.True(t, ok)
	require.Equal(t, body, got.Body)
}

// TestBell checks that a bell rings once for each sleep.
func TestBell(t *testing.T) {
	a, b := pair(t, usual)
	buf := make([]byte, usual.Eager)
	put := func() bool {
		a.Put(Messages, &Message{Kind: 1}, nil)
		return a.Publish()
	}
	require.False(t, put(), "b is awake")
	require.True(t, b.Arm(), "there is something")
	take(t, b, Messages, buf)
	require.False(t, b.Arm())
	require.True(t, put())
	require.False(t, put(), "it has rung")
	take(t, b, Messages, buf)
	take(t, b, Messages, buf)
	require.False(t, b.Arm())
	require.True(t, put(), "another sleep")
	b.Disarm()
	require.False(t, put())
	require.False(t, a.Publish(), "nothing was written")
}

// TestRoomBell checks that a writer that waits for room is woken when there is some, and only if it
// waits.
func TestRoomBell(t *testing.T) {
	a, b := pair(t, usual)
	buf := make([]byte, usual.Eager)
	fill := func() {
		for longest := 0; longest >= 0; longest, _ = largestMessage(t, a, Bulk) {
			a.Put(Bulk, &Message{Kind: 1}, nil)
		}
		a.Publish()
	}
	a.Put(Bulk, &Message{Kind: 1}, nil)
	a.Publish()
	require.False(t, a.Arm())
	take(t, b, Bulk, buf)
	require.False(t, b.Report(), "a does not wait")
	fill()
	a.Wait()
	require.False(t, a.Arm())
	take(t, b, Bulk, buf)
	require.False(t, a.Look(), "b has not announced it")
	require.True(t, b.Report())
	require.True(t, a.Look())
	a.Go()
	require.False(t, a.Look())
}

// TestHostile checks that any bytes that the peer writes are refused or read, and no other messages
// are affected.
func TestHostile(t *testing.T) {
	g := Geometry{Envelopes: 2, Eager: 256}
	buf := make([]byte, g.Eager)
	first := offMessages
	word := func(n uint64, m Message) uint64 { return commit(n, &m) }
	for name, spoil := range map[string]func(peer, own memory){
		"a message too far":        func(p, _ memory) { p.store(first, word(1, Message{Kind: 1})) },
		"another lap":              func(p, _ memory) { p.store(first, word(64, Message{Kind: 1})) },
		"longer than an envelope":  func(p, _ memory) { p.store(first, word(0, Message{Kind: 1, Len: 257})); p[first+descSlot] = inRing },
		"longer than a slot":       func(p, _ memory) { p.store(first, word(0, Message{Kind: 1, Len: SlotSize + 1})) },
		"no such slot":             func(p, _ memory) { p.store(first, word(0, Message{Kind: 1, Len: 100})); p[first+descSlot] = inRing + 1 },
		"in the ring of bulk data": func(p, _ memory) { p.store(offBulk, word(0, Message{Kind: 1, Len: 100})); p[offBulk+descSlot] = inRing },
		"more taken than sent":     func(p, _ memory) { p.store(offTaken, 3) },
		"less taken than before":   func(p, _ memory) { p.store(offTaken, ^uint64(0)) },
	} {
		t.Run(name, func(t *testing.T) {
			mine, its := heap(g.Size()), heap(g.Size())
			e := New(mine, g)
			_ = New(its, g)
			require.NoError(t, e.Join(its, g))
			e.SetArea(heap(AreaSize))
			require.NoError(t, e.SetPeerArea(heap(AreaSize)))
			e.Put(Messages, &Message{Kind: 1}, make([]byte, 200))
			e.Publish()
			spoil(its, mine)
			e.Look()
			var m Taken
			_, _, err := e.Take(Messages, &m, buf)
			if err == nil {
				_, _, err = e.Take(Bulk, &m, buf)
			}
			if err == nil {
				err = e.Update()
			}
			require.ErrorIs(t, err, ErrBroken)
		})
	}
	e := New(heap(g.Size()), g)
	require.ErrorIs(t, e.Join(heap(g.Size()), g), ErrBroken, "no magic")
	require.ErrorIs(t, e.Join(heap(g.Size()+8), g), ErrBroken, "another size")
}

// TestReadsOnce checks that changes of the peer after a check have no effect: each word is read
// once.
func TestReadsOnce(t *testing.T) {
	a, b := pair(t, usual)
	first := a.own.desc(offMessages, 0)
	Step = func(p Point) {
		if p == Consume {
			first.store(descCommit, commit(0, &Message{Kind: 9, Len: SlotSize}))
		}
	}
	defer func() { Step = nil }()
	a.Put(Messages, &Message{Kind: 1}, []byte("once"))
	a.Publish()
	m, ok := take(t, b, Messages, make([]byte, usual.Eager))
	require.True(t, ok)
	require.Equal(t, "once", string(m.Body))
	require.EqualValues(t, 1, m.Kind)
}

// FuzzPeer reads from a segment and an area that hold anything, and writes by their contents.
func FuzzPeer(f *testing.F) {
	f.Add([]byte{0}, uint16(0))
	f.Add([]byte{1, 0, 0, 0, 1}, uint16(offMessages))
	g := Geometry{Envelopes: 1, Eager: 256}
	f.Fuzz(func(t *testing.T, junk []byte, at uint16) {
		its := heap(g.Size())
		_ = New(its, g)
		e := New(heap(g.Size()), g)
		require.NoError(t, e.Join(its, g))
		e.SetArea(heap(AreaSize))
		require.NoError(t, e.SetPeerArea(heap(AreaSize)))
		buf := make([]byte, g.Eager)
		var m Taken
		for k := range 200 {
			if len(junk) > 0 {
				copy(its[min(int(at)+k*len(junk), len(its)):], junk)
			}
			for r := range rings {
				if e.Update() != nil {
					return
				}
				if longest, bulk, _ := e.Room(r); bulk {
					e.PutLater(r, &Message{Kind: 6, Len: SlotSize})
				} else if longest >= 0 {
					e.Put(r, &Message{Kind: 1}, buf[:min(longest, k, Inline)])
				}
				ok, _, err := e.Take(r, &m, buf)
				if err != nil {
					return
				}
				if ok {
					require.LessOrEqual(t, len(m.Body), SlotSize)
					e.Free(r)
				}
			}
			e.Publish()
			e.Look()
			e.Report()
		}
	})
}

// TestAllocations checks that no memory is allocated for a message.
func TestAllocations(t *testing.T) {
	a, b := pair(t, usual)
	body, buf := make([]byte, 1000), make([]byte, usual.Eager)
	var m Taken
	require.Zero(t, testing.AllocsPerRun(1000, func() {
		largestMessage(t, a, Messages)
		a.Put(Messages, &Message{Kind: 1}, body)
		a.Publish()
		if ok, _, err := b.Take(Messages, &m, buf); !ok || err != nil {
			t.Error(ok, err)
		}
		b.Report()
	}))
}

func BenchmarkMessage(b *testing.B) {
	x, y := pair(b, usual)
	body, buf := make([]byte, 88), make([]byte, usual.Eager)
	var m Taken
	for b.Loop() {
		largestMessage(b, x, Messages)
		x.Put(Messages, &Message{Kind: 1}, body)
		x.Publish()
		_, _, _ = y.Take(Messages, &m, buf)
		y.Report()
	}
}
