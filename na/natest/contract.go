package natest

import (
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/na"
)

// These rules check the calls between package na and the plugin; see audit.
var contractRules = []rule{
	{name: "ContractKept", check: contractKept, needs: oneTransport,
		why: "a violation of the contract of package carrier that no program sees at once takes memory, or damages it, on some other day: " +
			"each View ends once, memory is borrowed, what waits for a peer is bounded, nothing follows Cut"},
	{name: "FreedMemoryNotSent", check: freedMemoryNotSent, needs: oneTransport,
		why: "over an Exact network what arrives is data: zeroes in place of memory that is gone would be taken for it"},
	{name: "ShutAdmitsNone", check: shutAdmitsNone, needs: oneTransport,
		why: "a context that is about to end admits no peer, and a peer that connects is notified at once that nothing ran"},
	{name: "PeerDies", check: peerDies, needs: connections, optional: true,
		why: "a process that is killed sends no BYE: the end of the connection reveals it, without a timeout"},
}

func contractKept(b *bed) {
	b.audit = &audit{}
	b.rounds([]int{1, 3, 6, 12}, func(k int) {
		a, t := b.pair(na.Config{})
		toA, toT := b.connect(a, t)
		for i, n := range []int{0, 1, 100, 4096} {
			in := t.recv()
			a.send(toT, na.Tag(i), pattern(i, n)).requireOK()
			in.requireOK()
			in.freeEnvelope()
			back := a.recvExpected(toT, na.Tag(i), n)
			t.sendExpected(toA, na.Tag(i), pattern(i, n)).requireOK()
			back.requireOK()
		}
		b.grant(a, t, toA, na.MaxRoom)
		long := t.recv()
		a.sendLong(t.Self(), 9, pattern(9, na.MaxRoom)).requireOK()
		long.requireOK()
		long.freeEnvelope()

		theirs := t.mine(moving)
		ours := a.private(make([]byte, moving))
		a.put(ours, 0, t.Self(), theirs.in, 0, moving).requireOK()
		a.get(ours, 0, t.Self(), theirs.out, 0, moving).requireOK()
		for range 4 { // pieces in flight no longer have a destination, and some no longer have a source
			for range 2 {
				get := a.get(ours, 0, t.Self(), theirs.out, 0, moving)
				put := a.put(a.private(make([]byte, moving)), 0, t.Self(), theirs.in, 0, moving)
				for range k {
					b.step()
				}
				get.cancelNow()
				put.cancelNow()
			}
			b.drain(a, t)
		}
		b.until("each View has been ended by Sent or Placed, those with Discard too", func() bool { return b.audit.out() == 0 })
		b.audit.check(b)
	})
	b.reopen()

	const size = pullMax * 3 / 2
	a, t := b.pair(na.Config{})
	in := t.register(na.WriteOnly, make([]byte, size))
	a.put(a.private(pattern(1, size)), 0, t.Self(), in.Key(), 0, size).requireOK()
	a.send(b.unusedAddr(), 1, nil).requireNotRun(na.ErrUnreachable)
	b.audit.check(b)
}

func freedMemoryNotSent(b *bed) {
	b.audit = &audit{}
	a, t := b.pair(na.Config{})
	b.connect(a, t)
	if !b.audit.exact {
		b.Logf("the network is not Exact: zeroes are sent, and the peer is notified that they are no data")
	}
	for _, n := range []int{100, 5000, 300_000} {
		mem := t.register(na.WriteOnly, make([]byte, n))
		b.audit.gone.Store(true)
		put := a.put(a.private(pattern(1, n)), 0, t.Self(), mem.Key(), 0, int64(n))
		b.until("a piece loses its memory", func() bool { return !b.audit.gone.Load() })
		b.drain(a, t)
		put.cancelNow()
		b.drain(a, t)
		t.deregister(mem).requireOK()
	}
	b.audit.check(b)
}

func shutAdmitsNone(b *bed) {
	b.audit = &audit{}
	a, t := b.pair(na.Config{})
	b.connect(a, t)
	b.audit.linger.Store(true) // as if final frames had yet to be sent to peers
	t.Close()
	late := b.origin(na.Config{ConnectTimeout: 300 * time.Millisecond}) // the plugin may not respond at all
	late.send(t.Self(), 1, nil).requireNotRun(na.ErrUnreachable, na.ErrPeerLost)
	require.Zero(b, late.Stats().Peers)
	b.audit.linger.Store(false)
	b.audit.check(b)
}

func peerDies(b *bed) {
	b.audit = &audit{}
	for _, origin := range []bool{true, false} {
		a, t := b.pair(na.Config{})
		toA, toT := b.connect(a, t)
		dies, waits := t, a.recvExpected(toT, 7, 8)
		if origin {
			dies, waits = a, t.recvExpected(toA, 7, 8)
		}
		b.audit.silent.Store(true)
		require.NoError(b, dies.cls.Close())
		waits.requireFails(na.ErrPeerLost)
		b.audit.silent.Store(false)
		b.reopen()
	}
}
