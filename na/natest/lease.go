package natest

import (
	"bytes"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/na"
)

var leaseRules = []rule{
	{name: "LeaseRead", engine: true, check: leaseRead,
		why: "memory that is lent for one answer is read by its peer, and released when the peer returns it"},
	{name: "LeaseDropped", engine: true, check: leaseDropped,
		why: "when the peer has stopped waiting for the answer, the memory that was lent with it is released by itself"},
	{name: "LeaseOtherPeer", engine: true, check: leaseOtherPeer,
		why: "a lease is for one peer: another one that learned the key is refused"},
	{name: "LeaseCanceled", engine: true, check: leaseCanceled,
		why: "the lender takes its memory back at any time: afterwards it is not read"},
	{name: "LeasePeerGone", engine: true, check: leasePeerGone,
		why: "a peer that goes away does not keep memory that was lent to it"},
	{name: "LeaseTwice", engine: true, check: leaseTwice,
		why: "two leases of one peer and tag could not be told apart; many of different tags can"},
	{name: "LeaseSelf", engine: true, check: leaseSelf,
		why: "a process lends memory to itself as to any other"},
}

func leaseRead(b *bed) {
	a, t := b.pair(na.Config{})
	toA, toT := b.connect(a, t)
	for i, n := range []int{0, 1, 100_000} {
		lease, m := t.lease(toA, na.Tag(i), pattern(i, n))
		require.Equal(b, na.ReadOnly, m.Key().Access)
		answer := a.recvExpected(t.Self(), na.Tag(i), na.KeySize)
		t.sendExpected(toA, na.Tag(i), m.Key().Append(nil))
		answer.requireOK()
		key, err := na.DecodeKey(answer.buf)
		require.NoError(b, err)
		ours := make([]byte, n)
		for range 2 {
			a.get(a.private(ours), 0, toT, key, 0, int64(n)).requireOK()
			require.Equal(b, pattern(i, n), ours)
		}
		require.False(b, lease.ended())
		require.Equal(b, 1, t.Stats().Leases)
		a.Upper().GiveBack(toT, key)
		require.EqualValues(b, n, lease.requireOK().N)
		a.get(a.private(ours), 0, toT, key, 0, int64(n)).requireFails(na.ErrRevoked)
		a.Upper().GiveBack(toT, key) // returning it again does no harm
		require.Zero(b, t.cls.Regions())
	}
	b.connect(a, t)
}

func leaseDropped(b *bed) {
	a, t := b.pair(na.Config{})
	toA, _ := b.connect(a, t)
	other, _ := t.lease(toA, 8, make([]byte, 10))
	waits := a.recvExpected(t.Self(), 7, na.KeySize)
	waits.cancelNow()
	lease, m := t.lease(toA, 7, make([]byte, 10))
	t.sendExpected(toA, 7, m.Key().Append(nil)).requireOK()
	lease.requireFails(na.ErrNoEntry)
	a.get(a.private(make([]byte, 10)), 0, t.Self(), m.Key(), 0, 10).requireFails(na.ErrRevoked)
	require.False(b, other.ended(), "the lease of another tag has ended")
}

func leaseOtherPeer(b *bed) {
	a, t := b.pair(na.Config{})
	c := b.origin(na.Config{})
	toA, _ := b.connect(a, t)
	b.connect(c, t)
	lease, m := t.lease(toA, 7, pattern(1, 100))
	ours := fill(100, guard)
	c.get(c.private(ours), 0, t.Self(), m.Key(), 0, 100).requireFails(na.ErrPermission, na.ErrRevoked)
	require.Equal(b, fill(100, guard), ours)
	c.Upper().GiveBack(t.Self(), m.Key())
	b.drain(c, t)
	require.False(b, lease.ended(), "another peer gave the lease back")
	forged := m.Key()
	forged.Access = na.ReadWrite
	a.put(a.private(fill(100, secret)), 0, t.Self(), forged, 0, 100).requireFails(na.ErrPermission)
	a.get(a.private(ours), 0, t.Self(), m.Key(), 0, 100).requireOK()
	require.Equal(b, pattern(1, 100), ours)
}

func leaseCanceled(b *bed) {
	a, t := b.pair(na.Config{})
	toA, _ := b.connect(a, t)
	for _, k := range steps {
		lent := pattern(k, moving)
		lease, m := t.lease(toA, 7, lent)
		ours := make([]byte, moving)
		get := a.get(a.private(ours), 0, t.Self(), m.Key(), 0, moving)
		for range k {
			b.step()
		}
		require.ErrorIs(b, lease.cancelNow().Err, na.ErrCanceled)
		copy(lent, fill(moving, secret))
		if r := get.wait(); r.Err != nil {
			require.ErrorIs(b, r.Err, na.ErrRevoked)
		} else {
			require.Equal(b, pattern(k, moving), ours)
		}
		require.Negative(b, bytes.IndexByte(ours, secret), "memory was read after its lease had been canceled, %d turns into the transfer", k)
		require.Zero(b, t.cls.Regions())
	}
}

func leasePeerGone(b *bed) {
	a, t := b.pair(na.Config{})
	toA, _ := b.connect(a, t)
	lease, _ := t.lease(toA, 7, make([]byte, 10))
	require.NoError(b, a.cls.Close())
	lease.requireFails(na.ErrPeerLost)
	require.Zero(b, t.cls.Regions())
	late := t.call("lease to a peer that is gone")
	if err := late.try(func(op *na.Op) error { _, err := t.Upper().Lease(op, toA, 8, make([]byte, 10)); return err }); err == nil {
		late.requireNotRun(na.ErrPeerLost)
	} else {
		require.ErrorIs(b, err, na.ErrPeerLost)
	}
	require.Zero(b, t.cls.Regions())
}

func leaseTwice(b *bed) {
	a, t := b.pair(na.Config{})
	toA, toT := b.connect(a, t)
	first, m := t.lease(toA, 7, pattern(1, 10))
	second := t.call("second lease")
	if err := second.try(func(op *na.Op) error { _, err := t.Upper().Lease(op, toA, 7, make([]byte, 10)); return err }); err == nil {
		second.requireNotRun(na.ErrBusy)
	} else {
		require.ErrorIs(b, err, na.ErrBusy)
	}
	require.False(b, first.ended())
	require.EqualValues(b, 1, t.cls.Regions())
	keys := map[na.Tag]na.Key{7: m.Key()}
	all := map[na.Tag]*call{7: first}
	for tag := na.Tag(8); tag < 60; tag++ {
		c, m := t.lease(toA, tag, pattern(1, 10))
		all[tag], keys[tag] = c, m.Key()
	}
	require.Equal(b, len(all), t.Stats().Leases)
	for tag, key := range keys {
		a.Upper().GiveBack(toT, key)
		all[tag].requireOK()
	}
	require.Zero(b, t.Stats().Leases)
}

func leaseSelf(b *bed) {
	t := b.listen(na.Config{})
	for _, to := range []*side{t, b.context(t.cls)} {
		to.send(t.Self(), 1, nil)
		from := t.next().from
		lease, m := t.lease(from, 7, pattern(1, 1000))
		ours := make([]byte, 1000)
		to.get(to.private(ours), 0, t.Self(), m.Key(), 0, 1000).requireOK()
		require.Equal(b, pattern(1, 1000), ours)
		to.Upper().GiveBack(t.Self(), m.Key())
		lease.requireOK()
		lease, m = t.lease(from, 8, pattern(1, 1000))
		t.sendExpected(from, 8, m.Key().Append(nil)) // there is no receive for it
		lease.requireFails(na.ErrNoEntry)
	}
}
