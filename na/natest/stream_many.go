package natest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/internal/raceflag"
	"github.com/quicksilver-rpc/quicksilver/na"
)

// firstWindow is the window of a stream until its reader has shown that it is fast.
const firstWindow = 16 << 10

// A transfer is data in transit through one stream.
type transfer struct {
	what             string
	from, to         *flow
	data, left       []byte
	writing, reading bool
	most             func() int // maximum bytes of the next Write or Read
}

// due reports whether a method of f may be called. After a method has returned ErrAgain, this is
// the case once the step function has been called.
func (f *flow) due() bool {
	if f.again && f.ready == f.tried {
		return false
	}
	f.again = false
	return true
}

// transfers creates a transfer of size(i) bytes for each stream i of k.
func (k *streamed) transfers(size func(i int) int, most func() int) (all []*transfer) {
	for i, up := range k.ups {
		tr := &transfer{from: k.there[i], to: k.here[i], data: pattern(i, size(i)), writing: true, reading: true, most: most}
		if up {
			tr.from, tr.to = tr.to, tr.from
		}
		tr.what = fmt.Sprintf("stream %d of %d, up %v, bulk %v", i, len(k.ups), up, k.bulk)
		tr.left = tr.data
		all = append(all, tr)
	}
	return all
}

// step writes and reads once, if possible, and reports whether the transfer is incomplete.
func (tr *transfer) step() (more bool) {
	if tr.writing && tr.from.due() {
		tr.left, tr.writing = tr.from.write(tr.left, tr.most())
	}
	if tr.reading && tr.to.due() {
		tr.reading = tr.to.read(tr.most())
	}
	return tr.writing || tr.reading
}

// driveTransfers drives the contexts until all transfers are complete, and checks every byte.
func (b *bed) driveTransfers(what string, all []*transfer) {
	b.Helper()
	left := all
	defer func() {
		if b.Failed() {
			for _, tr := range left {
				b.Logf("%s: %d of %d bytes written, %d have left, %d read", tr.what, len(tr.data)-len(tr.left), len(tr.data), tr.from.Moved(), len(tr.to.data))
			}
		}
	}()
	b.until(what, func() bool {
		var more []*transfer
		for _, tr := range left {
			if tr.step() {
				more = append(more, tr)
			}
		}
		left = more
		return len(left) == 0
	})
	for _, tr := range all {
		tr.check()
	}
}

func (tr *transfer) check() {
	b := tr.to.b
	b.Helper()
	require.NoError(b, tr.from.err, tr.what)
	require.ErrorIs(b, tr.to.err, io.EOF, tr.what)
	require.True(b, bytes.Equal(tr.data, tr.to.data), "%s: got %d bytes that are not the %d written", tr.what, len(tr.to.data), len(tr.data))
}

// oneSize, size, and anySize return arguments for transfers.
func oneSize(n int) func() int   { return func() int { return n } }
func size(n int) func(i int) int { return func(int) int { return n } }
func anySize(rng *rand.Rand) func() int {
	return func() int { return 1 + rng.IntN(1<<(1+rng.IntN(17))) }
}

// answer answers the call.
func (k *streamed) answer(t *side) {
	k.call.b.Helper()
	t.sendExpected(k.env.From, k.env.Tag, nil).requireOK()
	k.call.requireOK()
}

// reserves returns the number of bytes that s has reserved for streams and envelopes.
func (s *side) reserves() int64 {
	n := s.Stats().Reserved
	for _, p := range s.Peers() {
		n -= p.Room
	}
	return n
}

// held returns the number of bytes of room at s that are occupied.
func (s *side) held() (n int64) {
	for _, p := range s.Peers() {
		n += p.RoomHeld
	}
	return n
}

func streamHalfClose(b *bed) {
	a, t := b.pair(na.Config{})
	k := a.stream(t.Self(), false, true, false, true).open(t)
	up, down, other := k.here[0], k.there[1], k.here[2]
	up.CloseWrite()
	up.CloseWrite()
	_, err := up.Write([]byte{1})
	require.ErrorIs(b, err, na.ErrInvalid, "Write behind CloseWrite")
	b.until("the end arrives", func() bool { return !k.there[0].read(10) })
	require.ErrorIs(b, k.there[0].err, io.EOF)
	_, err = k.there[0].Next()
	require.ErrorIs(b, err, io.EOF, "once more")
	k.there[0].CloseWrite() // does nothing on a stream received by this side
	k.answer(t)
	for i, f := range []*flow{down, other} {
		_, err = f.Write(pattern(i, 100))
		require.NoError(b, err)
	}
	b.until("the others go on", func() bool {
		return k.here[1].read(1000) && k.there[2].read(1000) && len(k.here[1].data)+len(k.there[2].data) == 200
	})
	require.Equal(b, 2, a.Stats().Streams)
	require.Equal(b, 2, t.Stats().Streams)
	down.CloseWrite()
	other.Close() // before its end
	b.until("they end", func() bool {
		return !k.here[1].read(10) && !k.there[2].read(10)
	})
	require.ErrorIs(b, k.here[1].err, io.EOF)
	require.ErrorIs(b, k.there[2].err, na.ErrCanceled)
	k.closeAll()
}

func streamSelf(b *bed) {
	a := b.listen(na.Config{})
	for _, bulk := range []bool{false, true} {
		k := a.stream(a.Self(), bulk, true, false, true, false).open(a)
		b.driveTransfers("with itself", k.transfers(func(i int) int { return 1 + i*60_000 }, oneSize(50_000)))
		k.answer(a)
		k.closeAll()
	}
	require.Zero(b, a.Stats().Streams)
}

func streamMany(b *bed) {
	rng := rand.New(rand.NewPCG(3, 4))
	for _, n := range []int{129, 200} {
		a, t := b.pair(na.Config{})
		var all []*transfer
		var stalled, calls []*streamed
		for left := n; left > 0; left -= na.MaxStreams {
			ups := make([]bool, min(left, na.MaxStreams))
			for i := range ups {
				ups[i] = rng.IntN(2) == 0
			}
			k := a.stream(t.Self(), rng.IntN(2) == 0, ups...).open(t)
			calls = append(calls, k)
			all = append(all, k.transfers(func(int) int { return rng.IntN(1 << (2 + rng.IntN(15))) }, anySize(rng))...)
			if len(stalled) < 3 { // these are not read
				stalled = append(stalled, a.stream(t.Self(), false, true, false).open(t))
			}
		}
		for _, k := range stalled {
			for _, f := range []*flow{k.here[0], k.there[1]} {
				b.until("a stream that nobody reads is full", func() bool { _, more := f.write(make([]byte, 1<<20), 1<<20); return more && f.again })
			}
		}
		b.driveTransfers(fmt.Sprintf("%d streams", n), all)
		for _, k := range append(calls, stalled...) {
			k.answer(t)
			k.closeAll()
		}
		b.reopen()
	}
}

func streamNotDriven(b *bed) {
	a, t := b.pair(na.Config{})
	k := a.stream(t.Self(), false, true).open(t)
	t.parked = true
	data := pattern(1, 200_000)
	left, w := data, true
	b.until("it is read", func() bool {
		if w && k.here[0].due() {
			left, w = k.here[0].write(left, 1<<20)
		}
		return !k.there[0].read(1 << 20) // without Progress or Trigger
	})
	require.True(b, bytes.Equal(data, k.there[0].data))
	t.parked = false
	k.answer(t)
	k.closeAll()
}

func streamDrain(b *bed) {
	for _, bulk := range []bool{false, true} {
		a, t := b.pair(na.Config{})
		k := a.stream(t.Self(), bulk, true, true, true).open(t)
		k.answer(t)
		data := [][]byte{nil, pattern(1, 1), pattern(2, firstWindow)}
		for i, f := range k.here {
			b.until("it may be written", func() bool {
				_, err := f.Write(data[i])
				return err == nil
			})
			f.CloseWrite()
			f.Close()
		}
		b.triggering.Add(1)
		err := a.Shutdown(context.Background())
		b.triggering.Add(-1)
		require.NoError(b, err)
		for i, f := range k.there {
			b.until("everything arrives", func() bool { return !f.read(1 << 20) })
			require.ErrorIs(b, f.err, io.EOF, "stream %d", i)
			require.True(b, bytes.Equal(data[i], f.data), "stream %d", i)
		}
		k.closeAll()
		b.reopen()
	}
}

func streamLate(b *bed) {
	a, t := b.pair(na.Config{})
	for round := range 6 {
		k := a.stream(t.Self(), round%2 == 0, true, false).open(t)
		for i, f := range []*flow{k.here[0], k.there[1]} {
			to := []*flow{k.there[0], k.here[1]}[i]
			b.until("some is written", func() bool { n, _ := f.Write(make([]byte, 60_000)); return n > 0 })
			if round >= 2 {
				b.until("some arrives", func() bool { return to.Moved() > 0 })
			}
			if round >= 4 {
				_, _ = f.Write(make([]byte, 60_000))
			}
			to.Close()
			b.until("the sender learns it", func() bool { _, err := f.Write([]byte{1}); return err != nil && !errors.Is(err, na.ErrAgain) })
			_, err := f.Write([]byte{1})
			require.ErrorIs(b, err, na.ErrCanceled)
		}
		k.answer(t)
		k.closeAll()
		b.drain(a, t)
		b.until("room is free", func() bool { return a.held()+t.held() == 0 })
		require.Zero(b, a.Stats().Streams+t.Stats().Streams)
		next := a.stream(t.Self(), round%2 == 0, true, false).open(t)
		b.driveTransfers("the next streams", next.transfers(size(100_000), oneSize(1<<20)))
		next.answer(t)
		next.closeAll()
	}
}

func streamFairToMessages(b *bed) {
	a, t := b.pair(na.Config{Envelopes: 256})
	for _, bulk := range []bool{false, true} {
		k := a.stream(t.Self(), bulk, true, false).open(t)
		all := k.transfers(size(200_000), oneSize(1<<20))
		stop, sent, got := false, 0, 0
		for range 128 { // number of messages always in flight
			var send *call
			msg := pattern(1, 4000)
			start := func() {
				send.sent = msg
				send.start(func(op *na.Op) error { return a.SendUnexpected(op, t.Self(), 1, msg) })
			}
			send = a.call("one of a flood")
			send.then = func(r na.Result) {
				if sent++; !stop && r.Err == nil {
					start()
				}
			}
			start()
		}
		recv := t.call("receive of a flood")
		recv.then = func(r na.Result) {
			got++
			recv.freeEnvelope()
			if r.Err == nil {
				recv.start(func(op *na.Op) error { return t.RecvUnexpected(op) })
			}
		}
		recv.start(func(op *na.Op) error { return t.RecvUnexpected(op) })
		b.driveTransfers("a stream through a flood of messages", all)
		stop = true
		b.until("the flood ends", func() bool { return got == sent && len(b.pending()) <= 2 })
		recv.then = nil
		recv.op.Cancel()
		recv.wait()
		k.answer(t)
		k.closeAll()

		k = a.stream(t.Self(), bulk, true).open(t) // now with a flood of bytes
		flood := func() {
			if k.here[0].due() {
				k.here[0].write(make([]byte, 1<<18), 1<<18)
			}
			if k.there[0].due() {
				k.there[0].read(1 << 20)
				k.there[0].data = nil
			}
		}
		for range 50 {
			in, m := t.recv(), a.send(t.Self(), 1, []byte("beside"))
			b.until("a message beside a flood of bytes", func() bool { flood(); return m.ended() && in.ended() })
			in.freeEnvelope()
		}
		k.answer(t)
		k.closeAll()
	}
}

func streamWindowExact(b *bed) {
	for _, c := range []struct {
		cfg  na.Config
		n    int   // number of streams
		each int64 // maximum bytes that arrive on one stream
		room int64 // room available to all streams
	}{
		{na.Config{}, 1, firstWindow, firstWindow},
		{na.Config{}, 15, firstWindow, 15 * firstWindow},
		{na.Config{Room: 1}, 1, na.StreamReserve, 0},
		{na.Config{Room: 1}, 15, na.StreamReserve, 0},
		{na.Config{Room: 20_000}, 5, firstWindow, firstWindow},
		{na.Config{Room: 40_000}, 15, firstWindow, 30_000},
	} {
		for _, bulk := range []bool{false, true} {
			a, t := b.pair(c.cfg)
			what := fmt.Sprintf("%d streams, Room %d, bulk %v", c.n, c.cfg.Room, bulk)
			ups := make([]bool, c.n)
			for i := range ups {
				ups[i] = true
			}
			k := a.stream(t.Self(), bulk, ups...).open(t)
			// A stream fills its window, or its reserve and the shared room.
			moved := func() (n int64, stalled bool) {
				full := 0
				for i, f := range k.here {
					_, _ = f.Write(make([]byte, 20_000))
					require.LessOrEqual(b, f.Moved(), c.each, what)
					require.LessOrEqual(b, k.there[i].Moved(), f.Moved(), what)
					n += k.there[i].Moved()
					if k.there[i].Moved() == c.each {
						full++
					}
				}
				reserve := n - t.held()
				return n, full == c.n || c.room > 0 && t.held() == c.room && reserve >= int64(c.n-full)*na.StreamReserve
			}
			b.until(what+": it comes to the limit", func() bool { _, stalled := moved(); return stalled })
			b.drain(a, t)
			all, stalled := moved()
			require.True(b, stalled, what)
			require.LessOrEqual(b, t.held(), c.room, what)
			require.LessOrEqual(b, all, t.held()+int64(c.n)*na.StreamReserve, what)

			k.there[0].read(1) // less than half of the reserve and of the window, so it opens nothing
			b.drain(a, t)
			now, _ := moved()
			require.LessOrEqual(b, now, all+1, "%s: one byte is read", what)
			first := k.here[0].Moved()
			b.until(what+": it is read", func() bool { return k.there[0].read(1<<20) && int64(len(k.there[0].data)) >= first })
			b.until(what+": it goes on", func() bool { _, _ = k.here[0].Write([]byte{1}); return k.here[0].Moved() > first })
			k.answer(t)
			k.closeAll()
			b.until(what+": room is free", func() bool { return t.held() == 0 })
			b.reopen()
		}
	}
	// A reader that was fast and then stops holds no more than the largest window.
	for _, bulk := range []bool{false, true} {
		most := int64(256 << 10)
		if bulk {
			most = 4 << 20
		}
		if bulk && raceflag.Enabled {
			continue
		}
		a, t := b.pair(na.Config{})
		k := a.stream(t.Self(), bulk, true).open(t)
		data := make([]byte, 1<<20)
		b.until("a fast reader", func() bool {
			_, _ = k.here[0].Write(data)
			k.there[0].read(1 << 20)
			n := len(k.there[0].data)
			return n > 3<<20
		})
		read := int64(len(k.there[0].data))
		b.until("more comes than the first window: it has grown", func() bool {
			_, _ = k.here[0].Write(data)
			return k.there[0].Moved()-read > int64(firstWindow)
		})
		for last, same := int64(-1), 0; same < 20; {
			for range 20 {
				_, _ = k.here[0].Write(data)
				b.pass()
			}
			if now := k.there[0].Moved(); now == last {
				same++
			} else {
				last, same = now, 0
			}
		}
		unread := k.there[0].Moved() - read
		require.LessOrEqual(b, unread, most, "bulk %v", bulk)
		require.LessOrEqual(b, unread, t.held()+na.StreamReserve)
		k.answer(t)
		k.closeAll()
		b.reopen()
	}
}

func streamReserveUnderPressure(b *bed) {
	a, t := b.pair(na.Config{Room: 1})
	rng := rand.New(rand.NewPCG(5, 6))
	var all []*transfer
	var calls []*streamed
	for left := 100; left > 0; left -= 10 {
		ups := make([]bool, 10)
		for i := range ups {
			ups[i] = rng.IntN(2) == 0
		}
		k := a.stream(t.Self(), rng.IntN(2) == 0, ups...).open(t)
		calls = append(calls, k)
		for i, tr := range k.transfers(func(int) int { return 1000 + rng.IntN(8000) }, anySize(rng)) {
			if i%3 == 0 { // not read
				b.until("its reserve is full", func() bool {
					_, _ = tr.from.write(make([]byte, 5000), 5000)
					return tr.from.Moved() == na.StreamReserve
				})
				continue
			}
			all = append(all, tr)
		}
	}
	b.driveTransfers("streams without room", all)
	require.Zero(b, a.held()+t.held())
	for _, k := range calls {
		for i, up := range k.ups {
			if i%3 == 0 {
				from := k.there[i]
				if up {
					from = k.here[i]
				}
				require.EqualValues(b, na.StreamReserve, from.Moved(), "of a stream that is not read")
			}
		}
		k.answer(t)
		k.closeAll()
	}
}

// ends reports whether f has ended, normally or with an error. sends reports whether f is the
// sending end.
func (f *flow) ends(sends bool) bool {
	if !sends {
		return !f.read(1 << 20)
	}
	_, err := f.Write([]byte{1})
	f.err = err
	return err != nil && !errors.Is(err, na.ErrAgain)
}

func streamCancelEverywhere(b *bed) {
	const (
		beforeItLeaves = iota
		queued
		opened
		flowing
		full
		ended
		read
		stages
	)
	a, t := b.pair(na.Config{})
	b.connect(a, t)
	before := [2]int64{a.reserves(), t.reserves()}
	for stage := range stages {
		for action := range 8 {
			up, bulk, here, reset := action&1 != 0, stage%2 == 0 != (action&2 != 0), action&2 == 0, action&4 != 0
			if !here && stage < opened {
				continue
			}
			what := fmt.Sprintf("stage %d, up %v, bulk %v, by the origin %v, Reset %v", stage, up, bulk, here, reset)
			k := a.stream(t.Self(), bulk, up)
			end := func() {
				f := k.here[0]
				if !here {
					f = k.there[0]
				}
				if reset {
					f.Reset(na.ErrOverflow, what)
				}
				f.Close()
			}
			if stage == beforeItLeaves {
				k.call.op.Cancel()
				end()
				k.call.requireFails(na.ErrCanceled)
				b.drain(a, t)
				b.receiveAll(t)
				require.Zero(b, a.Stats().Streams, what)
				require.Equal(b, before, [2]int64{a.reserves(), t.reserves()}, what)
				continue
			}
			k.env = t.take()
			if stage == queued {
				end()
				b.drain(a, t)
			}
			k.openLater(t)
			if stage > opened {
				k.begin()
			}
			from, to := k.here[0], k.there[0]
			if !up {
				from, to = to, from
			}
			if stage >= flowing {
				b.until(what, func() bool { n, err := from.Write(make([]byte, 3000)); return n > 0 || stage == queued && err != nil })
			}
			switch stage {
			case full:
				b.until(what, func() bool { _, _ = from.Write(make([]byte, 30_000)); return from.Moved() == firstWindow })
			case ended, read:
				from.CloseWrite()
				b.drain(a, t)
			}
			if stage == read {
				b.until(what, func() bool { return !to.read(10_000) })
			}
			if stage != queued {
				end()
			}
			other, sends := k.there[0], !up
			if !here {
				other, sends = k.here[0], up
			}
			b.until(what+": the other side learns it", func() bool { return other.ends(sends) })
			if k.answer(t); stage < ended && reset && stage != queued {
				require.ErrorIs(b, other.err, na.ErrOverflow, what)
				require.ErrorContains(b, other.err, what)
			}
			k.closeAll()
			b.drain(a, t)
			require.Zero(b, a.Stats().Streams+t.Stats().Streams, what)
			require.Zero(b, a.held()+t.held(), what)
			require.Equal(b, before, [2]int64{a.reserves(), t.reserves()}, what)
		}
	}
}

func streamWithdrawMovedNothing(b *bed) {
	a, t := b.pair(na.Config{})
	b.connect(a, t)
	before := [2]int64{a.reserves(), t.reserves()}
	// The request is waiting at the target and is withdrawn.
	k := a.stream(t.Self(), false, true, false)
	b.until("it is held", func() bool { return t.Stats().Envelopes == 1 && k.here[0].Begun() })
	_, err := k.here[0].Write([]byte{1})
	require.ErrorIs(b, err, na.ErrAgain)
	k.here[0].CloseWrite()
	to, id, left := a.Upper().CancelIfUnsent(k.call.op)
	require.True(b, left)
	a.call("withdraw").start(func(op *na.Op) error { return a.Withdraw(op, to, id) }).requireOK()
	k.call.op.Cancel()
	k.call.requireFails(na.ErrCanceled)
	for _, f := range k.here {
		require.Zero(b, f.Moved())
		f.Reset(na.ErrCanceled, "withdrawn")
		f.Close()
	}
	b.drain(a, t)
	require.Zero(b, a.Stats().Streams+t.Stats().Streams+t.Stats().Envelopes)
	require.Equal(b, before, [2]int64{a.reserves(), t.reserves()})

	// The request has no envelope and is canceled.
	var full []*call
	for range 32 {
		full = append(full, a.send(t.Self(), 1, nil))
	}
	k = a.stream(t.Self(), false, true, false)
	b.drain(a, t)
	require.False(b, k.here[0].Begun())
	k.call.op.Cancel()
	k.call.requireNotRun(na.ErrCanceled)
	for _, f := range k.here {
		require.False(b, f.Begun())
		require.Zero(b, f.Moved())
		f.Close()
	}
	b.receiveAll(t)
	for _, c := range full {
		c.requireOK()
	}
	require.Equal(b, before, [2]int64{a.reserves(), t.reserves()})

	// The target opens the streams of a call that its origin has canceled.
	for _, write := range []int{0, 1, 100, 40_000} {
		k = a.stream(t.Self(), write > 1000, true, false)
		k.env = t.take()
		k.call.op.Cancel()
		for _, f := range k.here {
			f.Close()
		}
		b.drain(a, t)
		k.openLater(t)
		up, down := k.there[0], k.there[1]
		b.until("the target learns that nobody sends", func() bool { return !up.read(1) })
		require.ErrorIs(b, up.err, na.ErrCanceled)
		if write > 0 {
			_, err = down.Write(make([]byte, write))
			require.NoError(b, err)
			b.until("the target learns that nobody reads", func() bool { return down.ends(true) })
			require.ErrorIs(b, down.err, na.ErrCanceled)
		} else {
			down.CloseWrite()
		}
		down.Close()
		up.Close()
		k.call.requireFails(na.ErrCanceled)
		k.env.Free()
		b.drain(a, t)
		require.Zero(b, a.Stats().Streams+t.Stats().Streams)
		require.Zero(b, a.held()+t.held())
		require.Equal(b, before, [2]int64{a.reserves(), t.reserves()})
	}
}

func streamIdle(b *bed) {
	cfg := hasty
	a, t := b.pair(cfg)
	n := 2048
	if raceflag.Enabled {
		n = 300
	}
	var calls []*streamed
	for left := n; left > 0; left -= na.MaxStreams {
		ups := make([]bool, min(left, na.MaxStreams))
		for i := range ups {
			ups[i] = i%2 == 0
		}
		k := a.stream(t.Self(), left%2 == 0, ups...).open(t)
		k.answer(t)
		k.env.Free()
		k.env = nil
		calls = append(calls, k)
	}
	require.Equal(b, n, a.Stats().Streams)
	require.Equal(b, n, t.Stats().Streams)
	b.passTime(300 * time.Millisecond)
	b.requireNoFault(a, t)
	require.Equal(b, 1, t.Stats().Peers, "the session is not idle")
	b.exchange(a, t)
	last := calls[len(calls)-1]
	b.driveTransfers("one of them goes on", last.transfers(size(5000), oneSize(1000)))
	for _, k := range calls {
		for _, f := range append(k.here, k.there...) {
			f.Close()
		}
	}
	b.until("the session is idle", func() bool { return a.Stats().Peers == 0 && t.Stats().Peers == 0 })
	b.requireNoFault(a, t)
	require.Zero(b, a.Stats().Reserved+t.Stats().Reserved)
}
