package natest

import (
	"bytes"
	"encoding/binary"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/na"
)

var messageRules = []rule{
	{name: "OrderUnexpected", check: orderUnexpected,
		why: "messages of one peer arrive in the order in which they were sent; protocols above count on it"},
	{name: "OrderExpected", check: orderExpected,
		why: "expected messages of one peer end their receives in the order in which they were sent, whatever the order of posting"},
	{name: "SizesUnexpected", check: sizesUnexpected,
		why: "every size up to the limit arrives intact; one byte more is refused at once, and nothing was sent"},
	{name: "SizesExpected", check: sizesExpected,
		why: "every size up to the limit arrives intact; one byte more is refused at once, and nothing was sent"},
	{name: "Tags", engine: true, check: tags,
		why: "tag 0 and the highest tag are tags like all others; a receive gets the message of its own tag only"},
	{name: "TagsOfPeers", engine: true, check: tagsOfPeers,
		why: "two peers may use the same tag: answers of one must not end receives from the other"},
	{name: "DropLate", engine: true, check: dropLate,
		why: "an expected message that meets no receive is dropped and counted, and the session lives: late answers are normal"},
	{name: "ExpectedTooLong", engine: true, check: expectedTooLong,
		why: "a message longer than the buffer ends the receive with ErrOverflow and does not write beyond it"},
	{name: "BusyOperation", engine: true, check: busyOperation,
		why: "an operation under way cannot be started again: the second start is refused and the first one is not disturbed"},
	{name: "DuplicateReceive", engine: true, check: duplicateReceive,
		why: "two receives of the same peer and tag could not be told apart"},
	{name: "SendBufferReusable", check: sendBufferReusable,
		why: "after the callback of a send its buffer may be changed, and the message that arrives is the one that was sent"},
	{name: "SelfMessages", engine: true, check: selfMessages,
		why: "a process may send to itself as to any other: services call each other without knowing where they run"},
	{name: "Contexts", engine: true, check: contexts,
		why: "a message reaches the context that its address names, and the answer the context of the request"},
	{name: "NoSuchContext", engine: true, check: noSuchContext,
		why: "a wrong target id fails with an answer, and does not disturb the sessions with other contexts"},
	{name: "SmallerEager", check: smallerEager,
		why: "the smaller of two message sizes counts: a longer one is refused with NotRun and those behind it go on"},
}

func orderUnexpected(b *bed) {
	const n = 300
	t := b.listen(na.Config{Envelopes: 7})
	peers := []*side{b.origin(na.Config{}), b.listen(na.Config{}), b.origin(na.Config{})}
	for i := range n {
		for p, a := range peers {
			a.send(t.Self(), na.Tag(p), binary.LittleEndian.AppendUint32(nil, uint32(i)))
		}
	}
	next := make([]uint32, len(peers))
	from := map[na.Addr]na.Tag{}
	for range n * len(peers) {
		m := t.next()
		got := binary.LittleEndian.Uint32(m.data)
		require.Equal(b, next[m.tag], got, "number of the message of peer %d", m.tag)
		next[m.tag]++
		if tag, ok := from[m.from]; ok {
			require.Equal(b, tag, m.tag, "peer of the messages from %v", m.from)
		}
		from[m.from] = m.tag
	}
	require.Len(b, from, len(peers), "senders")
}

func orderExpected(b *bed) {
	const n = 100
	a, t := b.pair(na.Config{})
	toA, _ := b.connect(a, t)
	var order []na.Tag
	for i := n; i > 0; i-- {
		c := a.recvExpected(t.Self(), na.Tag(100+i), 8)
		c.then = func(r na.Result) { order = append(order, r.Tag) }
	}
	want := make([]na.Tag, n)
	for i := range n {
		want[i] = na.Tag(100 + 1 + i*37%n)
		t.sendExpected(toA, want[i], nil)
	}
	b.until("all have arrived", func() bool { return len(order) == n })
	require.Equal(b, want, order, "order of arrival")
}

// sizesUpTo returns message sizes to test, up to limit.
func sizesUpTo(limit int) []int {
	return []int{0, 1, 2, 31, 32, 33, 255, 256, limit/2 + 1, limit - 1, limit}
}

func sizesUnexpected(b *bed) {
	a, t := b.pair(na.Config{})
	limit := a.Limits().MaxUnexpected
	for i, n := range sizesUpTo(limit) {
		want := pattern(i, n)
		c := a.send(t.Self(), na.Tag(i), want)
		got := t.next()
		c.requireOK()
		require.True(b, bytes.Equal(want, got.data), "message of %d bytes: got %d other ones", n, len(got.data))
	}
	a.call("send too long").requireRefused(na.ErrMsgSize, func(op *na.Op) error {
		return a.SendUnexpected(op, t.Self(), 0, make([]byte, limit+1))
	})
}

func sizesExpected(b *bed) {
	a, t := b.pair(na.Config{})
	toA, _ := b.connect(a, t)
	limit := t.Limits().MaxExpected
	for i, n := range sizesUpTo(limit) {
		want := pattern(i, n)
		tag := na.Tag(10 + i)
		exact, roomy := a.recvExpected(t.Self(), tag, n), a.recvExpected(t.Self(), tag+100, limit+10)
		t.sendExpected(toA, tag, want).requireOK()
		t.sendExpected(toA, tag+100, want).requireOK()
		require.Equal(b, int64(n), exact.requireOK().N, "length of a message of %d bytes", n)
		require.True(b, bytes.Equal(want, exact.buf), "message of %d bytes arrives damaged", n)
		require.Equal(b, int64(n), roomy.requireOK().N, "length of a message of %d bytes in a larger buffer", n)
		require.True(b, bytes.Equal(want, roomy.buf[:n]), "message of %d bytes arrives damaged", n)
		require.True(b, bytes.Equal(fill(limit+10-n, guard), roomy.buf[n:]), "bytes behind a message of %d bytes were written", n)
	}
	t.call("send too long").requireRefused(na.ErrMsgSize, func(op *na.Op) error {
		return t.SendExpected(op, toA, 0, make([]byte, limit+1))
	})
}

func tags(b *bed) {
	a, t := b.pair(na.Config{})
	toA, _ := b.connect(a, t)
	highest := a.Limits().MaxTag
	all := []na.Tag{0, 1, 2, highest / 2, highest - 1, highest}
	for _, tag := range all {
		a.send(t.Self(), tag, nil)
		require.Equal(b, tag, t.next().tag, "tag of an unexpected message")
	}
	posted := map[na.Tag]*call{}
	for _, tag := range all {
		posted[tag] = a.recvExpected(t.Self(), tag, 8)
	}
	for i := range all {
		tag := all[(i+3)%len(all)]
		want := binary.LittleEndian.AppendUint64(nil, uint64(tag))
		t.sendExpected(toA, tag, want).requireOK()
		r := posted[tag].requireOK()
		require.Equal(b, tag, r.Tag, "tag of an expected message")
		require.Equal(b, want, posted[tag].buf, "message of tag %d", tag)
		require.Equal(b, len(all)-i-1, len(b.pending()), "receives that are still pending")
	}
}

func tagsOfPeers(b *bed) {
	a := b.origin(na.Config{})
	t, u := b.listen(na.Config{}), b.listen(na.Config{})
	fromT, _ := b.connect(a, t)
	fromU, _ := b.connect(a, u)
	one, two := a.recvExpected(t.Self(), 7, 8), a.recvExpected(u.Self(), 7, 8)
	u.sendExpected(fromU, 7, []byte("u"))
	require.Equal(b, "u", string(two.buf[:two.requireOK().N]))
	b.drain(a, u)
	require.False(b, one.ended(), "the receive from another peer has ended")
	t.sendExpected(fromT, 7, []byte("t"))
	require.Equal(b, "t", string(one.buf[:one.requireOK().N]))
}

func dropLate(b *bed) {
	a, t := b.pair(na.Config{})
	toA, _ := b.connect(a, t)
	for tag := range na.Tag(10) {
		t.sendExpected(toA, 100+tag, []byte("nobody waits")).requireOK()
	}
	fence := a.recvExpected(t.Self(), 5, 8)
	t.sendExpected(toA, 5, nil)
	fence.requireOK()
	require.EqualValues(b, 10, a.Stats().LateDropped, "messages counted as dropped")
	late := a.recvExpected(t.Self(), 100, 32)
	t.sendExpected(toA, 100, []byte("again")).requireOK()
	require.Equal(b, "again", string(late.buf[:late.requireOK().N]), "what a receive got that was posted after a message was dropped")
	require.EqualValues(b, 10, a.Stats().LateDropped, "messages counted as dropped at the end")
}

func expectedTooLong(b *bed) {
	a, t := b.pair(na.Config{})
	toA, _ := b.connect(a, t)
	short, empty, other := a.recvExpected(t.Self(), 7, 9), a.recvExpected(t.Self(), 8, 0), a.recvExpected(t.Self(), 9, 10)
	for tag := na.Tag(7); tag <= 9; tag++ {
		t.sendExpected(toA, tag, pattern(1, 10)).requireOK()
	}
	short.requireFails(na.ErrOverflow)
	empty.requireFails(na.ErrOverflow)
	other.requireOK()
	require.Equal(b, fill(9, guard), short.buf, "the buffer that was too short")
	require.Equal(b, pattern(1, 10), other.buf)
}

func busyOperation(b *bed) {
	a, t := b.pair(na.Config{})
	b.connect(a, t)
	buf := make([]byte, 8)
	mem, key := a.private(buf), t.register(na.ReadWrite, make([]byte, 8)).Key()
	c := a.recvExpected(t.Self(), 7, 8)
	for what, start := range map[string]func(op *na.Op) error{
		"lookup":             func(op *na.Op) error { return a.Lookup(op, t.Self().String()) },
		"send unexpected":    func(op *na.Op) error { return a.SendUnexpected(op, t.Self(), 0, buf) },
		"receive unexpected": func(op *na.Op) error { return a.RecvUnexpected(op) },
		"send expected":      func(op *na.Op) error { return a.SendExpected(op, t.Self(), 0, buf) },
		"receive expected":   func(op *na.Op) error { return a.RecvExpected(op, t.Self(), 8, buf) },
		"put":                func(op *na.Op) error { return a.Put(op, mem, 0, t.Self(), key, 0, 8) },
		"get":                func(op *na.Op) error { return a.Get(op, mem, 0, t.Self(), key, 0, 8) },
		"lease":              func(op *na.Op) error { _, err := a.Upper().Lease(op, t.Self(), 9, buf); return err },
		"deregister":         func(op *na.Op) error { return a.Deregister(op, mem) },
	} {
		require.ErrorIs(b, c.try(start), na.ErrBusy, "%s with an operation that is busy", what)
	}
	require.True(b, c.op.Busy())
	b.drain(a, t)
	require.Zero(b, c.times(), "callbacks of the operation that was started once and has not ended")
	require.Zero(b, a.cls.Regions(), "regions registered by a lease that was refused")
	c.op.Cancel()
	c.requireFails(na.ErrCanceled)
	a.deregister(mem).requireOK() // the refused start did not deregister it
}

func duplicateReceive(b *bed) {
	a, t := b.pair(na.Config{})
	toA, _ := b.connect(a, t)
	first := a.recvExpected(t.Self(), 7, 8)
	second := a.call("second receive")
	second.buffer(8)
	err := second.try(func(op *na.Op) error { return a.RecvExpected(op, t.Self(), 7, second.buf) })
	if err == nil {
		second.requireNotRun(na.ErrBusy)
	} else {
		require.ErrorIs(b, err, na.ErrBusy)
	}
	t.sendExpected(toA, 7, []byte("x"))
	first.requireOK()
	third := a.recvExpected(t.Self(), 7, 8) // the tag is free again
	t.sendExpected(toA, 7, []byte("y"))
	third.requireOK()
	require.Equal(b, byte('y'), third.buf[0])
}

func sendBufferReusable(b *bed) {
	// The ledger overwrites each buffer in the callback of its send.
	a, t := b.pair(na.Config{Envelopes: 3})
	toA, _ := b.connect(a, t)
	const n = 40
	for i := range n {
		a.send(t.Self(), na.Tag(i), pattern(i, 1000))
	}
	for i := range n {
		require.Equal(b, pattern(i, 1000), t.next().data, "message %d", i)
	}
	var posted [n]*call
	for i := range n {
		posted[i] = a.recvExpected(t.Self(), na.Tag(i), 1000)
	}
	for i := range n {
		t.sendExpected(toA, na.Tag(i), pattern(i, 1000))
	}
	for i := range n {
		posted[i].requireOK()
		require.Equal(b, pattern(i, 1000), posted[i].buf, "expected message %d", i)
	}
}

func selfMessages(b *bed) {
	t := b.listen(na.Config{Envelopes: 4})
	o := b.origin(na.Config{})
	for _, pair := range [][2]*side{{t, t}, {t, b.context(t.cls)}, {o, o}, {o, b.context(o.cls)}} {
		from, to := pair[0], pair[1]
		limit := from.Limits().MaxUnexpected
		const n = 20
		for i := range n {
			from.send(to.Self(), na.Tag(i), pattern(i, i*limit/n))
		}
		var back na.Addr
		for i := range n {
			m := to.next()
			require.Equal(b, na.Tag(i), m.tag)
			require.True(b, bytes.Equal(pattern(i, i*limit/n), m.data), "message %d to %s", i, to.name)
			require.Equal(b, from.Self(), m.from.Named(), "sender")
			back = m.from
		}
		// Answer the sender of the message, and then the sender's name.
		for i, addr := range []na.Addr{back, from.Self()} {
			tag := na.Tag(50 + i)
			c := from.recvExpected(to.Self(), tag, 100)
			to.sendExpected(addr, tag, pattern(i, 100)).requireOK()
			c.requireOK()
			require.Equal(b, pattern(i, 100), c.buf, "expected message to %s", from.name)
		}
	}
}

func contexts(b *bed) {
	t, a := b.listen(na.Config{}), b.origin(na.Config{})
	targets := []*side{t, b.context(t.cls), b.context(t.cls)}
	origins := []*side{a, b.context(a.cls)}
	for i, s := range targets {
		require.Equal(b, i, s.ID())
		require.Equal(b, t.cls.Addr().WithTarget(i), s.Self())
	}
	talk := func() {
		for i, from := range origins {
			for j, to := range targets {
				tag := na.Tag(10*i + j)
				decoy := from.recvExpected(targets[(j+1)%len(targets)].Self(), tag, 8)
				c := from.recvExpected(to.Self(), tag, 8)
				from.send(to.Self(), tag, []byte{byte(tag)})
				m := to.next()
				require.Equal(b, tag, m.tag)
				require.Equal(b, i, m.from.Target(), "context of the sender")
				to.sendExpected(m.from, tag, []byte{byte(tag)})
				r := c.requireOK()
				require.Equal(b, j, r.Addr.Target(), "context of the answer's sender")
				require.Equal(b, byte(tag), c.buf[0])
				require.False(b, decoy.ended(), "the answer of one context ended a receive from another")
				decoy.op.Cancel()
				decoy.requireFails(na.ErrCanceled)
			}
		}
	}
	talk()
	targets = append(targets, b.context(t.cls)) // created after the peers had connected
	origins = append(origins, b.context(a.cls))
	talk()
}

func noSuchContext(b *bed) {
	a, t := b.pair(na.Config{})
	b.connect(a, t)
	for _, id := range []int{1, 7, 255, 65535} {
		a.send(t.Self().WithTarget(id), 1, []byte("x")).requireNotRun(na.ErrUnreachable)
		a.recvExpected(t.Self().WithTarget(id), 1, 8).requireFails(na.ErrUnreachable)
		t.send(t.Self().WithTarget(id), 1, []byte("x")).requireNotRun(na.ErrUnreachable) // in the same process
	}
	b.connect(a, t)
	late, later := b.context(t.cls), b.context(t.cls)
	begin := a.Now()
	b.connect(a, later)
	require.Less(b, a.Now()-begin, 500*time.Millisecond, "time to reach a context after others could not be reached")
	b.sendUntilReached(a, late.Self(), []byte("x"))
	require.Equal(b, "x", string(late.next().data))
	t.send(late.Self(), 1, []byte("y"))
	require.Equal(b, "y", string(late.next().data))
}

func smallerEager(b *bed) {
	t := b.listen(na.Config{Eager: 512, Envelopes: 1})
	a := b.origin(na.Config{Eager: 4096})
	require.Equal(b, 512, t.Limits().MaxUnexpected)
	// These are sent before the peer has announced its limit.
	first := a.send(t.Self(), 1, pattern(1, 513))
	second := a.send(t.Self(), 2, pattern(2, 512))
	third := a.send(t.Self(), 3, pattern(3, 4096))
	last := a.send(t.Self(), 4, pattern(4, 1))
	first.requireNotRun(na.ErrMsgSize)
	require.Equal(b, pattern(2, 512), t.next().data)
	second.requireOK()
	third.requireNotRun(na.ErrMsgSize)
	require.Equal(b, pattern(4, 1), t.next().data)
	last.requireOK()
	// From here on, the peer has announced its limit.
	a.send(t.Self(), 5, pattern(5, 513)).requireNotRun(na.ErrMsgSize)
	a.sendExpected(t.Self(), 5, pattern(5, 513)).requireNotRun(na.ErrMsgSize)
	a.send(t.Self(), 6, pattern(6, 512))
	require.Equal(b, pattern(6, 512), t.next().data)
}
