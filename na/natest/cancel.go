package natest

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/na"
)

var cancelRules = []rule{
	{name: "CancelNow", check: cancelNow,
		why: "Cancel and then Trigger, with no Progress between, runs the canceled callback: a caller that gives up need not wait"},
	{name: "CancelLookup", check: cancelLookup, needs: pendingLookup, optional: true,
		why: "a lookup at a slow name server can be canceled like any operation"},
	{name: "CancelEverywhere", check: cancelEverywhere,
		why: "canceled at any point, an operation ends once, with success or ErrCanceled, and the session continues"},
	{name: "CancelTwice", engine: true, check: cancelTwice,
		why: "cancels of what is idle, ended, or canceled already change nothing"},
	{name: "CancelFromMany", check: cancelFromMany, needs: concurrent,
		why: "several goroutines may give up the same operation: it ends once"},
	{name: "CancelNotRun", engine: true, check: cancelNotRun,
		why: "a canceled send with the fate NotRun never arrives, and those behind it do"},
	{name: "CancelKeepsEnvelopes", engine: true, check: cancelKeepsEnvelopes,
		why: "canceled sends do not use up the envelopes that the peer guarantees"},
	{name: "CanceledReceiveUntouched", check: canceledReceiveUntouched,
		why: "after a canceled receive its buffer belongs to the program: a late message does not write it"},
	{name: "CanceledGetUntouched", check: canceledGetUntouched,
		why: "after a canceled get its memory belongs to the program: late data does not write it"},
	{name: "CanceledPutUnread", check: canceledPutUnread,
		why: "after a canceled put its memory belongs to the program: what it holds now is not sent"},
	{name: "ReuseAfterCancel", check: reuseAfterCancel,
		why: "an operation that was canceled is used again at once; the late answer to its former life ends nothing and writes nothing"},
	{name: "ReuseReceive", engine: true, check: reuseReceive,
		why: "the same receive, canceled and posted anew for the same tag with another buffer, gets the message in the new one"},
	{name: "RestartInCallback", engine: true, check: restartInCallback,
		why: "a callback may start its own operation again: that is how receives are kept posted"},
	{name: "CancelInCallback", engine: true, check: cancelInCallback,
		why: "a callback may cancel its own operation and others: the first answer wins, the rest is called off"},
	{name: "CancelSelf", engine: true, check: cancelSelf,
		why: "operations of a process with itself are canceled like all others"},
}

// A start describes how to start one kind of operation so that it stays pending for some time.
type start struct {
	what  string
	run   func() *call
	fate  na.Fate // fate if it is canceled immediately, or MaybeRan if unknown
	early na.Code // error with which it may complete by itself
}

// check checks r, the result of an operation that was canceled or closed and should have failed
// with code.
func (s start) check(b *bed, r na.Result, code na.Code, atOnce bool) {
	b.Helper()
	if r.Err == nil || s.early != na.OK && errors.Is(r.Err, s.early) {
		return
	}
	require.ErrorIs(b, r.Err, code, s.what)
	if atOnce && s.fate == na.NotRun {
		require.Equal(b, na.NotRun, r.Fate, "fate of a %s that was called off at once", s.what)
	}
}

// pendingStarts returns starts of operations of a that stay pending until t is driven. It first
// uses all of the envelopes that t guarantees.
func pendingStarts(b *bed, a, t *side) []start {
	theirs := t.mine(moving)
	src, dst := a.private(make([]byte, moving)), a.private(make([]byte, moving))
	for range t.Limits().Envelopes {
		a.send(t.Self(), 1, nil).requireOK()
	}
	tag := na.Tag(1000)
	unmoved := na.NotRun // unless another goroutine drives, in which case it may have begun
	if b.net.Assisted {
		unmoved = na.MaybeRan
	}
	return []start{
		{"send without an envelope", func() *call { return a.send(t.Self(), 2, []byte("x")) }, na.NotRun, na.OK},
		{"send to a peer not reached yet", func() *call {
			return a.send(b.listen(na.Config{}).Self(), 2, []byte("x"))
		}, na.NotRun, na.OK},
		{"expected send to a peer not reached yet", func() *call {
			return a.sendExpected(b.listen(na.Config{}).Self(), 2, []byte("x"))
		}, na.NotRun, na.OK},
		{"send to nobody", func() *call { return a.send(b.unusedAddr(), 2, []byte("x")) }, na.NotRun, na.ErrUnreachable},
		{"receive unexpected", func() *call { return a.recv() }, na.MaybeRan, na.OK},
		{"receive expected", func() *call { tag++; return a.recvExpected(t.Self(), tag, 100) }, na.MaybeRan, na.OK},
		{"receive expected from nobody", func() *call {
			tag++
			return a.recvExpected(b.unusedAddr(), tag, 100)
		}, na.MaybeRan, na.ErrUnreachable},
		{"put", func() *call { return a.put(src, 0, t.Self(), theirs.in, 0, moving) }, na.MaybeRan, na.OK},
		{"get", func() *call { return a.get(dst, 0, t.Self(), theirs.out, 0, moving) }, na.MaybeRan, na.OK},
		{"put to a peer not reached yet", func() *call {
			return a.put(src, 0, b.listen(na.Config{}).Self(), theirs.in, 0, moving)
		}, unmoved, na.ErrRevoked},
		{"lease", func() *call { tag++; c, _ := a.lease(t.Self(), tag, make([]byte, 10)); return c }, na.MaybeRan, na.OK},
	}
}

// unusedAddr returns an address without a listener.
func (b *bed) unusedAddr() na.Addr {
	b.Helper()
	addr, err := na.ParseAddr(b.net.Nobody)
	require.NoError(b, err, "Network.Nobody")
	return addr
}

func cancelNow(b *bed) {
	a, t := b.pair(na.Config{})
	for _, s := range pendingStarts(b, a, t) {
		for _, turns := range []int{0, 0, 1, 3} { // twice immediately, to check that nothing remains of the first
			c := s.run()
			for range turns {
				b.step()
			}
			r := c.cancelNow()
			s.check(b, r, na.ErrCanceled, turns == 0)
		}
	}
	b.drain(a, t)
	require.Equal(b, t.Limits().Envelopes, t.Stats().Envelopes, "messages that arrived: those that were not canceled")
}

func cancelLookup(b *bed) {
	a := b.origin(na.Config{})
	for _, turns := range []int{0, 0, 1, 5} {
		c := a.lookup(b.net.Pending)
		for range turns {
			b.step()
		}
		require.ErrorIs(b, c.cancelNow().Err, na.ErrCanceled)
	}
	c := a.lookup(b.net.Pending)
	a.Close()
	c.requireFails(na.ErrClosed)
}

func cancelEverywhere(b *bed) {
	a, t := b.pair(na.Config{})
	toA, _ := b.connect(a, t)
	theirs := t.mine(moving)
	src, dst := a.private(make([]byte, moving)), a.private(make([]byte, moving))
	received := 0
	take := t.call("receive unexpected")
	again := func() { take.start(func(op *na.Op) error { return t.RecvUnexpected(op) }) }
	take.then = func(r na.Result) {
		if r.Err == nil {
			received++
			take.freeEnvelope()
			again()
		}
	}
	again()
	sent := 0
	for _, s := range []start{
		{what: "send unexpected", run: func() *call { return a.send(t.Self(), 1, make([]byte, 1000)) }},
		{what: "send expected", run: func() *call { return t.sendExpected(toA, 1, make([]byte, 1000)) }},
		{what: "receive expected", run: func() *call {
			c := a.recvExpected(t.Self(), 2, 1000)
			t.sendExpected(toA, 2, make([]byte, 1000))
			return c
		}},
		{what: "put", run: func() *call { return a.put(src, 0, t.Self(), theirs.in, 0, moving) }},
		{what: "get", run: func() *call { return a.get(dst, 0, t.Self(), theirs.out, 0, moving) }},
		{what: "lookup", run: func() *call { return a.lookup(t.Self().String()) }},
	} {
		for _, k := range steps {
			c := s.run()
			for range k {
				b.step()
			}
			r := c.cancelNow()
			if r.Err == nil && s.what == "send unexpected" {
				sent++
			}
			s.check(b, r, na.ErrCanceled, false)
			require.Equal(b, 1, c.times(), "callbacks of %s canceled after %d turns", s.what, k)
		}
	}
	b.until("every message has arrived", func() bool { return received >= sent })
	b.drain(a, t)
	require.Equal(b, sent, received, "messages that arrived, of those that were not canceled")
	require.Zero(b, a.Stats().PeersLost+t.Stats().PeersLost, "sessions lost by cancels")
	require.Zero(b, a.Stats().Violations+t.Stats().Violations)
}

func cancelTwice(b *bed) {
	a, t := b.pair(na.Config{})
	toA, _ := b.connect(a, t)
	c := a.call("receive expected")
	c.buffer(8)
	post := func() { c.start(func(op *na.Op) error { return a.RecvExpected(op, t.Self(), 7, c.buf) }) }
	c.op.Cancel() // idle
	post()
	t.sendExpected(toA, 7, []byte("x"))
	c.requireOK() // the cancel did not apply to any start
	c.op.Cancel()
	c.op.Cancel()
	post()
	c.op.Cancel()
	c.op.Cancel()
	a.trigger()
	require.ErrorIs(b, c.result().Err, na.ErrCanceled)
	c.op.Cancel()
	require.Equal(b, 2, c.times())
	post()
	t.sendExpected(toA, 7, []byte("x"))
	a.driveUntilPending("the receive has ended, its callback has not run")
	c.op.Cancel() // too late, because it has completed
	c.requireOK()
	require.Equal(b, 3, c.times())
}

func cancelFromMany(b *bed) {
	a, t := b.pair(na.Config{})
	starts := pendingStarts(b, a, t)
	for range 10 {
		for _, s := range starts {
			c := s.run()
			var wg sync.WaitGroup
			for range 8 {
				wg.Go(c.op.Cancel)
			}
			wg.Wait()
			s.check(b, c.wait(), na.ErrCanceled, true)
			require.Equal(b, 1, c.times(), "callbacks of a %s that eight goroutines canceled", s.what)
		}
	}
}

func cancelNotRun(b *bed) {
	a, t := b.pair(na.Config{Envelopes: 2})
	run := map[na.Tag]*call{}
	for round := range 4 {
		for i := range 10 {
			tag := na.Tag(10*round + i)
			run[tag] = a.send(t.Self(), tag, nil)
		}
		for range round {
			b.step()
		}
		for i := 1; i < 10; i += 2 {
			run[na.Tag(10*round+i)].op.Cancel()
		}
		arrived := map[na.Tag]bool{}
		b.until("all have ended", func() bool {
			for t.Stats().Envelopes > 0 {
				arrived[t.next().tag] = true
			}
			for i := range 10 {
				if !run[na.Tag(10*round+i)].ended() {
					return false
				}
			}
			return true
		})
		b.drain(a, t)
		for t.Stats().Envelopes > 0 {
			arrived[t.next().tag] = true
		}
		for i := range 10 {
			tag := na.Tag(10*round + i)
			r := run[tag].result()
			switch {
			case r.Err == nil:
				require.True(b, arrived[tag], "message %d was sent and did not arrive", tag)
			case r.Fate == na.NotRun:
				require.ErrorIs(b, r.Err, na.ErrCanceled)
				require.False(b, arrived[tag], "message %d was canceled, reported as not run, and arrived", tag)
			}
		}
	}
}

func cancelKeepsEnvelopes(b *bed) {
	const g = 3
	a, t := b.pair(na.Config{Envelopes: g})
	b.connect(a, t)
	for round := range 20 {
		var cs []*call
		for range g + 5 {
			cs = append(cs, a.send(t.Self(), 1, nil))
		}
		for range round % 4 {
			b.step()
		}
		if round%2 == 1 {
			slices.Reverse(cs)
		}
		for _, c := range cs {
			c.op.Cancel()
		}
		for _, c := range cs {
			c.wait()
		}
		b.receiveAll(t)
	}
	b.drain(a, t)
	b.receiveAll(t)
	for range g { // all of them are available
		a.send(t.Self(), 1, nil).requireOK()
	}
	require.False(b, func() bool { c := a.send(t.Self(), 1, nil); b.drain(a, t); return c.ended() }(), "one more than was guaranteed")
}

func canceledReceiveUntouched(b *bed) {
	a, t := b.pair(na.Config{})
	toA, _ := b.connect(a, t)
	for i, k := range steps[:10] {
		tag := na.Tag(10 + i)
		c := a.recvExpected(t.Self(), tag, 4096)
		t.sendExpected(toA, tag, fill(4096, secret))
		for range k {
			b.step()
		}
		if r := c.cancelNow(); r.Err == nil {
			continue
		}
		copy(c.buf, pattern(i, 4096))
		c.rooms[0].snapshot = bytes.Clone(c.rooms[0].arena)
		b.drain(a, t)
		require.Equal(b, pattern(i, 4096), c.buf, "the buffer of a canceled receive, %d turns after the message was sent", k)
	}
}

func canceledGetUntouched(b *bed) {
	a, t := b.pair(na.Config{})
	b.connect(a, t)
	mem := t.register(na.ReadOnly, fill(moving, secret))
	for i, k := range steps {
		ours := make([]byte, moving)
		c := a.get(a.private(ours[:moving/3], ours[moving/3:]), 0, t.Self(), mem.Key(), 0, moving)
		c.then = func(na.Result) { copy(ours, pattern(i, moving)) }
		for range k {
			b.step()
		}
		c.cancelNow()
		b.drain(a, t)
		require.True(b, bytes.Equal(pattern(i, moving), ours), "memory of a get that was canceled after %d turns was written later", k)
	}
	require.Zero(b, a.Stats().PeersLost)
}

func canceledPutUnread(b *bed) {
	a, t := b.pair(na.Config{})
	b.connect(a, t)
	for i, k := range steps {
		theirs := make([]byte, moving)
		mem := t.register(na.WriteOnly, theirs)
		ours := pattern(i, moving)
		c := a.put(a.private(ours[:moving/3], ours[moving/3:]), 0, t.Self(), mem.Key(), 0, moving)
		c.then = func(na.Result) { copy(ours, fill(moving, secret)) }
		for range k {
			b.step()
		}
		r := c.cancelNow()
		b.drain(a, t)
		require.Negative(b, bytes.IndexByte(theirs, secret), "memory of a put that was canceled after %d turns was read later", k)
		if r.Err == nil {
			require.True(b, bytes.Equal(pattern(i, moving), theirs), "a put that ended with success, %d turns", k)
		}
		t.deregister(mem).requireOK()
	}
	require.Zero(b, a.Stats().PeersLost)
}

func reuseAfterCancel(b *bed) {
	a, t := b.pair(na.Config{})
	b.connect(a, t)
	first, second := t.register(na.ReadOnly, fill(moving, secret)), t.register(na.ReadOnly, pattern(1, moving))
	sink := t.register(na.WriteOnly, make([]byte, moving))
	for _, k := range steps {
		old, ours := make([]byte, moving), make([]byte, moving)
		c := a.call("get")
		c.then = func(r na.Result) {
			if c.times() > 1 {
				return
			}
			copy(old, pattern(2, moving))
			c.start(func(op *na.Op) error { return a.Get(op, a.private(ours), 0, t.Self(), second.Key(), 0, moving) })
		}
		c.start(func(op *na.Op) error { return a.Get(op, a.private(old), 0, t.Self(), first.Key(), 0, moving) })
		for range k {
			b.step()
		}
		if c.times() == 0 {
			c.op.Cancel()
			a.trigger()
		}
		b.until("the second get ends", func() bool { return c.times() == 2 })
		require.NoError(b, c.result().Err, "the second life of a get that was canceled after %d turns", k)
		require.EqualValues(b, moving, c.result().N)
		require.True(b, bytes.Equal(pattern(1, moving), ours), "the second get, first canceled after %d turns", k)
		require.True(b, bytes.Equal(pattern(2, moving), old), "memory of the first get was written after its end, %d turns", k)

		p := a.call("put")
		src := pattern(3, moving)
		p.then = func(r na.Result) {
			if p.times() > 1 {
				return
			}
			copy(src, fill(moving, secret))
			p.start(func(op *na.Op) error {
				return a.Put(op, a.private(pattern(4, moving)), 0, t.Self(), sink.Key(), 0, moving)
			})
		}
		p.start(func(op *na.Op) error { return a.Put(op, a.private(src), 0, t.Self(), sink.Key(), 0, moving) })
		for range k {
			b.step()
		}
		if p.times() == 0 {
			p.op.Cancel()
			a.trigger()
		}
		b.until("the second put ends", func() bool { return p.times() == 2 })
		require.NoError(b, p.result().Err)
		b.drain(a, t)
		require.True(b, bytes.Equal(pattern(4, moving), sink.Segments()[0]), "the second put, first canceled after %d turns", k)
	}
	require.Zero(b, a.Stats().PeersLost)
}

func reuseReceive(b *bed) {
	a, t := b.pair(na.Config{})
	toA, _ := b.connect(a, t)
	for i, k := range steps[:10] {
		c := a.call("receive expected")
		c.then = func(r na.Result) {
			if c.times() > 1 {
				return
			}
			c.buffer(200)
			c.start(func(op *na.Op) error { return a.RecvExpected(op, t.Self(), 7, c.buf) })
		}
		c.buffer(200)
		c.start(func(op *na.Op) error { return a.RecvExpected(op, t.Self(), 7, c.buf) })
		t.sendExpected(toA, 7, pattern(i, 100))
		for range k {
			b.step()
		}
		if c.times() == 0 {
			c.op.Cancel()
			a.trigger()
		}
		require.Equal(b, 1, c.times())
		b.drain(a, t)
		if c.times() == 1 { // the first start received the message
			t.sendExpected(toA, 7, pattern(50+i, 150))
		}
		b.until("the second receive ends", func() bool { return c.times() == 2 })
		r := c.result()
		require.NoError(b, r.Err)
		want := pattern(i, 100)
		if r.N == 150 {
			want = pattern(50+i, 150)
		}
		require.Equal(b, want, c.buf[:r.N], "message in the second buffer, %d turns", k)
		require.Equal(b, fill(200-int(r.N), guard), c.buf[r.N:])
	}
}

func restartInCallback(b *bed) {
	a, t := b.pair(na.Config{Envelopes: 3})
	const n = 200
	in := t.call("receive unexpected")
	post := func() { in.start(func(op *na.Op) error { return t.RecvUnexpected(op) }) }
	var got []na.Tag
	in.then = func(r na.Result) {
		require.NoError(b, r.Err)
		got = append(got, r.Tag)
		in.freeEnvelope()
		if len(got) < n {
			post()
		}
	}
	post()
	out := a.call("send unexpected")
	send := func() {
		out.start(func(op *na.Op) error { return a.SendUnexpected(op, t.Self(), na.Tag(out.times()), nil) })
	}
	out.then = func(r na.Result) {
		require.NoError(b, r.Err)
		if out.times() < n {
			send()
		}
	}
	send()
	b.until("all have arrived", func() bool { return len(got) == n && out.times() == n })
	for i, tag := range got {
		require.Equal(b, na.Tag(i), tag)
	}

	local, mem := a.private(make([]byte, 8)), t.register(na.ReadWrite, make([]byte, 8))
	move := a.call("get and put in turn")
	next := func() {
		move.start(func(op *na.Op) error {
			if move.times()%2 == 0 {
				return a.Get(op, local, 0, t.Self(), mem.Key(), 0, 8)
			}
			return a.Put(op, local, 0, t.Self(), mem.Key(), 0, 8)
		})
	}
	move.then = func(r na.Result) {
		require.NoError(b, r.Err)
		if move.times() < n {
			next()
		}
	}
	next()
	b.until("all have ended", func() bool { return move.times() == n })
}

func cancelInCallback(b *bed) {
	a, t := b.pair(na.Config{})
	toA, _ := b.connect(a, t)
	var others []*call
	for i := range 5 {
		others = append(others, a.recvExpected(t.Self(), na.Tag(10+i), 8))
	}
	others = append(others, a.recv())
	c := a.call("receive that calls the others off")
	c.buffer(8)
	post := func() { c.start(func(op *na.Op) error { return a.RecvExpected(op, t.Self(), 7, c.buf) }) }
	c.then = func(r na.Result) {
		c.op.Cancel() // it is idle, so nothing happens
		for _, o := range others {
			o.op.Cancel()
		}
		if c.times() == 1 {
			post()
			c.op.Cancel() // cancels the second start
		}
	}
	post()
	t.sendExpected(toA, 7, []byte("x"))
	b.until("the canceled second life ends", func() bool { return c.times() == 2 })
	require.ErrorIs(b, c.result().Err, na.ErrCanceled)
	for i, o := range others {
		require.ErrorIs(b, o.wait().Err, na.ErrCanceled, fmt.Sprint("operation ", i))
	}
}

func cancelSelf(b *bed) {
	t := b.listen(na.Config{Envelopes: 2})
	for _, to := range []*side{t, b.context(t.cls)} {
		theirs := to.mine(moving)
		src, dst := t.private(make([]byte, moving)), t.private(make([]byte, moving))
		to.parked = true
		for range 2 {
			t.send(to.Self(), 1, nil)
		}
		for range 2 {
			for _, s := range []start{
				{"send without an envelope", func() *call { return t.send(to.Self(), 2, []byte("x")) }, na.NotRun, na.OK},
				{"receive unexpected", func() *call { return t.recv() }, na.MaybeRan, na.OK},
				{"receive expected", func() *call { return t.recvExpected(to.Self(), 7, 100) }, na.MaybeRan, na.OK},
				{"put", func() *call { return t.put(src, 0, to.Self(), theirs.in, 0, moving) }, na.MaybeRan, na.OK},
				{"get", func() *call { return t.get(dst, 0, to.Self(), theirs.out, 0, moving) }, na.MaybeRan, na.OK},
				{"lease", func() *call { c, _ := t.lease(to.Self(), 9, make([]byte, 10)); return c }, na.MaybeRan, na.OK},
				{"expected send", func() *call { return t.sendExpected(to.Self(), 9, make([]byte, 10)) }, na.MaybeRan, na.OK},
			} {
				s.check(b, s.run().cancelNow(), na.ErrCanceled, true)
			}
		}
		to.parked = false
		b.drain(t, to)
		b.receiveAll(to)
	}
}
