package natest

import (
	"bytes"
	"context"
	"errors"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/na"
)

var closeRules = []rule{
	{name: "PeerClose", check: peerClose,
		why: "when a peer closes, every operation with it ends once, with its fate, and the program is notified"},
	{name: "PeerLeaves", check: peerLeaves,
		why: "a peer that closes, and that nothing is under way with, has left: it is not lost"},
	{name: "PeerCloseElsewhere", check: peerCloseElsewhere,
		why: "the end of one peer, or of one context of a peer, changes nothing for the others"},
	{name: "LocalClose", check: localClose,
		why: "Close ends everything that is pending, wherever it is blocked, and the context is given back after the last callback"},
	{name: "CloseEverywhere", check: closeEverywhere,
		why: "either side may close at any point of a transfer: it ends once, exact or with a reason"},
	{name: "CloseInCallback", engine: true, check: closeInCallback,
		why: "a callback may close its own context: the callbacks that are due then still run"},
	{name: "CloseWithEndedOperations", engine: true, check: closeWithEndedOperations,
		why: "what had ended before Close keeps its result"},
	{name: "CloseTwice", engine: true, check: closeTwice,
		why: "closing again does nothing, also when there was never a context; the address is free afterwards"},
	{name: "Shutdown", check: shutdown,
		why: "Shutdown drains; inside a callback, which it would wait for, it refuses; a context that ends is its error"},
	{name: "Unreachable", check: unreachable,
		why: "without a listener every operation fails with NotRun within the connect timeout, and that is no loss of a peer"},
	{name: "FrozenPeer", check: frozenPeer, needs: frozen,
		why: "a peer that is silent for PeerTimeout is given up, and cancel does not wait for that, however often it is used"},
	{name: "FrozenCaller", check: frozenCaller, needs: frozen,
		why: "work for a peer ends within PeerTimeout of its loss, although the peer owes nothing"},
	{name: "OwnFreeze", check: ownFreeze, needs: frozen,
		why: "a process that was frozen itself does not accuse its peers when it wakes up"},
}

// lost holds the possible codes of an operation whose peer has been lost.
var lost = []na.Code{na.ErrPeerLost, na.ErrUnreachable}

func peerClose(b *bed) {
	a, t := b.pair(na.Config{Envelopes: 3})
	by := b.listen(na.Config{})
	toA, _ := b.connect(a, t)
	type loss struct {
		peer na.Addr
		err  error
	}
	var losses []loss
	a.OnFault(func(peer na.Addr, err error) {
		require.Positive(b, b.triggering.Load(), "OnFault runs outside of Trigger")
		losses = append(losses, loss{peer, err})
	})
	t.recv()
	b.connect(a, by)
	a.sendMany(t.Self(), 3)
	b.until("the envelopes are used", func() bool { return t.Stats().Envelopes+t.Upper().Queued() == 3 })
	theirs := t.mine(moving)
	queued := a.sendMany(t.Self(), 4)
	expected := a.recvExpected(t.Self(), 7, 100)
	lease, _ := a.lease(t.Self(), 8, make([]byte, 100))
	theirLease, _ := t.lease(toA, 8, make([]byte, 100))
	get := a.get(a.private(make([]byte, moving)), 0, t.Self(), theirs.out, 0, moving)
	put := a.put(a.private(make([]byte, moving)), 0, t.Self(), theirs.in, 0, moving)
	any := a.recv()
	t.Close()
	// The first may have been sent when t's receive, or Close, freed its envelope.
	for _, c := range queued[1:] {
		c.requireNotRun(lost...)
	}
	expected.requireFails(lost...)
	lease.requireFails(lost...)
	for _, c := range []*call{get, put} {
		if r := c.wait(); r.Err != nil {
			c.requireFails(lost...)
		}
	}
	theirLease.requireFails(na.ErrClosed)
	b.until("OnFault runs", func() bool { return len(losses) > 0 })
	b.drain(a, by)
	require.Len(b, losses, 1, "calls of OnFault for one session")
	require.Equal(b, t.Self(), losses[0].peer.Named())
	require.ErrorIs(b, losses[0].err, na.ErrPeerLost)
	require.EqualValues(b, 1, a.Stats().PeersLeft+a.Stats().PeersLost, "it may have closed in the middle of a frame")
	require.Equal(b, 1, a.Stats().Peers, "sessions that are left")
	require.False(b, any.ended(), "a receive from any peer ended with one peer")
	by.send(a.Self(), 5, nil).wait()
}

func peerLeaves(b *bed) {
	a, t := b.pair(na.Config{})
	b.connect(a, t)
	b.drain(a, t)
	t.Close()
	b.until("it has left", func() bool { return a.Stats().Peers == 0 })
	require.EqualValues(b, 1, a.Stats().PeersLeft)
	require.Zero(b, a.Stats().PeersLost)
}

func peerCloseElsewhere(b *bed) {
	a, t := b.pair(na.Config{})
	other, by := b.context(t.cls), b.listen(na.Config{})
	toA := map[*side]na.Addr{}
	waits := map[*side]*call{}
	for _, s := range []*side{t, other, by} {
		toA[s], _ = b.connect(a, s)
		waits[s] = a.recvExpected(s.Self(), 7, 8)
	}
	other.Close()
	waits[other].requireFails(lost...)
	b.drain(a, t)
	b.drain(a, by)
	for _, s := range []*side{t, by} {
		require.False(b, waits[s].ended(), "a receive from %s ended with another context", s.name)
		s.sendExpected(toA[s], 7, []byte("x"))
		waits[s].requireOK()
	}
	require.False(b, other.cls.Closed())
}

func localClose(b *bed) {
	a, t := b.pair(na.Config{})
	var cs []*call
	starts := pendingStarts(b, a, t)
	for range 2 {
		for _, s := range starts {
			cs = append(cs, s.run())
		}
	}
	local := a.register(na.ReadWrite, make([]byte, 10))
	a.Close()
	before := a.Live()
	require.Positive(b, before)
	for _, c := range cs {
		require.False(b, c.ended(), "a callback ran inside Close")
	}
	a.trigger() // no Progress, because everything here is local
	for i, c := range cs {
		require.True(b, c.ended(), "%s is pending after Close and Trigger", starts[i%len(starts)].what)
		starts[i%len(starts)].check(b, c.result(), na.ErrClosed, true)
	}
	b.until("the context has been given back", a.Closed)
	require.ErrorIs(b, a.Progress(-1), na.ErrClosed)
	require.ErrorIs(b, a.Progress(0), na.ErrClosed)
	for what, start := range map[string]func(op *na.Op) error{
		"lookup":           func(op *na.Op) error { return a.Lookup(op, t.Self().String()) },
		"send":             func(op *na.Op) error { return a.SendUnexpected(op, t.Self(), 0, nil) },
		"receive":          func(op *na.Op) error { return a.RecvUnexpected(op) },
		"send expected":    func(op *na.Op) error { return a.SendExpected(op, t.Self(), 0, nil) },
		"receive expected": func(op *na.Op) error { return a.RecvExpected(op, t.Self(), 0, nil) },
		"get":              func(op *na.Op) error { return a.Get(op, local, 0, t.Self(), local.Key(), 0, 1) },
		"put":              func(op *na.Op) error { return a.Put(op, local, 0, t.Self(), local.Key(), 0, 1) },
		"lease":            func(op *na.Op) error { _, err := a.Upper().Lease(op, t.Self(), 9, nil); return err },
	} {
		a.call(what+" after Close").requireRefused(na.ErrClosed, start)
	}
	a.Upper().GiveBack(t.Self(), local.Key())
	a.Wake()
	a.takeBack(local) // registered memory can still be deregistered
	require.Zero(b, a.cls.Regions())
}

func closeEverywhere(b *bed) {
	for _, local := range []bool{true, false} {
		b.rounds(steps[:12], func(k int) {
			a, t := b.pair(na.Config{})
			toA, _ := b.connect(a, t)
			theirs := t.mine(moving)
			ours := make([]byte, moving)
			get := a.get(a.private(ours), 0, t.Self(), theirs.out, 0, moving)
			put := a.put(a.private(pattern(1, moving)), 0, t.Self(), theirs.in, 0, moving)
			expected := a.recvExpected(t.Self(), 7, 4096)
			t.sendExpected(toA, 7, pattern(2, 4096))
			in := t.recv()
			out := a.send(t.Self(), 1, pattern(3, 4096))
			for range k {
				b.step()
			}
			ends := append([]na.Code{na.ErrClosed}, lost...)
			if local {
				a.Close()
			} else {
				t.Close()
			}
			for _, c := range []*call{get, put, expected, out} {
				if r := c.wait(); r.Err != nil {
					c.requireFails(ends...)
				}
			}
			if get.result().Err == nil {
				require.True(b, bytes.Equal(pattern(0, moving), ours))
			}
			if expected.result().Err == nil {
				require.Equal(b, pattern(2, 4096), expected.buf)
			}
			if local && !in.ended() {
				for range 5 {
					b.pass()
				}
				in.op.Cancel()
			}
			if r := in.wait(); r.Err == nil {
				require.Equal(b, pattern(3, 4096), r.Envelope.Data)
			}
		})
		b.reopen()
	}
}

func closeInCallback(b *bed) {
	a, t := b.pair(na.Config{})
	toA, _ := b.connect(a, t)
	var others []*call
	for i := range 5 {
		others = append(others, a.recvExpected(t.Self(), na.Tag(10+i), 8))
	}
	ran := 0
	for _, o := range others {
		o.then = func(na.Result) { ran++ }
	}
	c := a.recvExpected(t.Self(), 7, 8)
	c.then = func(na.Result) {
		a.Close()
		a.Close()
		require.Zero(b, ran, "callbacks that ran inside Close")
		require.False(b, a.Closed(), "closed while a callback runs")
		a.call("send after Close").requireRefused(na.ErrClosed, func(op *na.Op) error { return a.SendUnexpected(op, t.Self(), 0, nil) })
		require.NoError(b, a.cls.Close())
	}
	t.sendExpected(toA, 7, []byte("x"))
	c.requireOK()
	for _, o := range others {
		o.requireFails(na.ErrClosed)
	}
	b.until("all is given back", a.cls.Closed)
}

func closeWithEndedOperations(b *bed) {
	a, t := b.pair(na.Config{})
	toA, _ := b.connect(a, t)
	mem := t.register(na.ReadWrite, pattern(1, 100))
	cs := []*call{a.recvExpected(t.Self(), 7, 8), a.recv(), a.get(a.private(make([]byte, 100)), 0, t.Self(), mem.Key(), 0, 100)}
	t.sendExpected(toA, 7, []byte("x"))
	t.send(toA, 8, []byte("y"))
	a.driveUntilPending("some have ended, no callback has run")
	ended := a.Upper().Queued()
	a.Close()
	good := 0
	for _, c := range cs {
		switch r := c.wait(); {
		case r.Err != nil:
			c.requireFails(na.ErrClosed)
		case r.Envelope != nil:
			require.Equal(b, "y", string(r.Envelope.Data))
			fallthrough
		default:
			good++
		}
	}
	require.GreaterOrEqual(b, good, ended, "operations that ended with success, of those that had before Close")
}

func closeTwice(b *bed) {
	s := b.listen(na.Config{})
	name := s.cls.Addr().Name()
	_, err := na.Open(name, na.Config{Plugins: b.net.Plugins})
	require.ErrorIs(b, err, na.ErrAddrInUse, "open an address on which a class listens")
	for range 3 {
		require.NoError(b, s.cls.Close())
	}
	b.until("closed", s.cls.Closed)
	require.NoError(b, s.cls.Close())
	_, err = s.cls.NewContext()
	require.ErrorIs(b, err, na.ErrClosed)
	for range 3 { // the address is free again, even after a class without contexts
		cls, err := na.Open(name, na.Config{Plugins: b.net.Plugins})
		require.NoError(b, err)
		require.Equal(b, name, cls.Addr().Name())
		require.NoError(b, cls.Close())
		require.True(b, cls.Closed())
		require.NoError(b, cls.Close())
		_, err = cls.NewContext()
		require.ErrorIs(b, err, na.ErrClosed)
	}
	for _, bad := range []na.Config{{Envelopes: -1, Eager: 1, Budget: -1}, {Contexts: 1000}} {
		bad.Plugins = b.net.Plugins
		_, err := na.Open(name, bad)
		require.ErrorIs(b, err, na.ErrInvalid)
	}
}

func shutdown(b *bed) {
	a, t := b.pair(na.Config{})
	toA, _ := b.connect(a, t)
	other := b.listen(na.Config{})
	inside := a.recvExpected(t.Self(), 7, 8)
	inside.then = func(na.Result) {
		err := a.Shutdown(context.Background())
		require.ErrorIs(b, err, na.ErrBusy, "Shutdown inside a callback")
		require.NoError(b, other.Shutdown(context.Background()), "Shutdown of another context inside a callback")
	}
	t.sendExpected(toA, 7, nil)
	inside.requireOK()
	require.False(b, a.Closed(), "a Shutdown that refused has closed the context")
	b.connect(a, t)

	pending := []*call{a.recvExpected(t.Self(), 8, 8), a.recv(), a.send(b.unusedAddr(), 1, nil)}
	b.triggering.Add(1) // Shutdown calls Trigger itself
	err := a.Shutdown(context.Background())
	b.triggering.Add(-1)
	require.NoError(b, err)
	require.True(b, a.Closed())
	for _, c := range pending {
		require.True(b, c.ended(), "%s is pending after Shutdown", c.what)
		c.requireFails(na.ErrClosed, na.ErrUnreachable) // the dial may have failed before
	}
	require.NoError(b, a.Shutdown(context.Background()), "once more")

	cause := errors.New("the program is in a hurry")
	ctx, cancel := context.WithCancelCause(context.Background())
	cancel(cause)
	last := t.recv()
	b.triggering.Add(1)
	err = t.Shutdown(ctx)
	b.triggering.Add(-1)
	if err != nil {
		require.ErrorIs(b, err, cause)
	}
	last.requireFails(na.ErrClosed)
}

func unreachable(b *bed) {
	const timeout = 300e6
	a := b.origin(na.Config{ConnectTimeout: timeout})
	a.OnFault(func(peer na.Addr, err error) {
		b.Errorf("OnFault of %v, with which there never was a session: %v", peer, err)
	})
	begin := a.Now()
	local := a.private(make([]byte, 10))
	key := na.Key{Len: 10, Access: na.ReadWrite}
	lease, _ := a.lease(b.unusedAddr(), 2, make([]byte, 10))
	for _, c := range []*call{
		a.send(b.unusedAddr(), 1, []byte("x")),
		a.sendExpected(b.unusedAddr(), 1, []byte("x")),
		a.recvExpected(b.unusedAddr(), 1, 8),
		a.put(local, 0, b.unusedAddr(), key, 0, 10),
		a.get(local, 0, b.unusedAddr(), key, 0, 10),
		lease,
	} {
		c.requireNotRun(na.ErrUnreachable)
	}
	require.Less(b, a.Now()-begin, 10*timeoutOf(timeout), "time until all had failed")
	for range 5 { // and again, faster than the address is dialed again
		a.send(b.unusedAddr(), 1, nil).requireNotRun(na.ErrUnreachable)
	}
	require.Zero(b, a.Stats().PeersLost)
	require.Zero(b, a.Stats().Reserved, "bytes reserved for envelopes of a peer that is not there")
}

func frozenPeer(b *bed) {
	const timeout = 2e9
	a, t := b.pair(na.Config{PeerTimeout: timeout})
	b.connect(a, t)
	theirs := t.mine(moving)
	t.parked = true
	expected := a.recvExpected(t.Self(), 7, 8)
	put := a.put(a.private(make([]byte, moving)), 0, t.Self(), theirs.in, 0, moving)
	local := a.private(make([]byte, 10))
	begin := a.Now()
	for i := range 6000 { // more than the peer has room for
		c := a.get(local, 0, t.Self(), theirs.out, 0, 10)
		if i%3 == 0 {
			b.drive(a, 0)
		}
		if r := c.cancelNow(); !errors.Is(r.Err, na.ErrCanceled) {
			c.requireFails(lost...)
			break
		}
	}
	expected.requireFails(lost...)
	put.requireFails(lost...)
	require.Less(b, a.Now()-begin, 2*timeoutOf(timeout), "time until the peer was given up")
	t.parked = false
	b.sendUntilReached(a, t.Self(), nil)
	t.next()
}

func frozenCaller(b *bed) {
	const timeout = 500e6
	a, t := b.pair(na.Config{PeerTimeout: timeout})
	gone := 0
	t.OnFault(func(_ na.Addr, err error) {
		require.ErrorIs(b, err, na.ErrPeerLost)
		gone++
	})
	b.connect(a, t)
	c := t.recv()
	a.send(t.Self(), 1, []byte("work for long")).requireOK()
	c.requireOK()
	env := c.keepEnvelope()
	env.Accept()
	b.passTime(2 * timeout)
	require.Zero(b, gone, "a peer that answers probes is lost")
	answer := a.recvExpected(t.Self(), 3, 8)
	a.parked = true
	b.until("the peer of an open message is lost", func() bool { return gone == 1 })
	require.Equal(b, "work for long", string(env.Data))
	env.Free()
	require.EqualValues(b, 1, t.Stats().PeersLost)
	a.parked = false
	answer.requireFails(lost...)
	a.send(t.Self(), 2, nil).requireOK()
	t.next()
}

func ownFreeze(b *bed) {
	const timeout = 500e6
	a, t := b.pair(na.Config{PeerTimeout: timeout})
	toA, _ := b.connect(a, t)
	c := a.recvExpected(t.Self(), 7, 8)
	b.pass()
	for range 2 {
		a.parked = true
		b.passTime(2 * timeout)
		a.parked = false
		b.passTime(timeout / 2)
		require.False(b, c.ended(), "a peer was accused after a freeze of this process")
	}
	t.sendExpected(toA, 7, nil)
	c.requireOK()
	require.Zero(b, a.Stats().PeersLost)
}
