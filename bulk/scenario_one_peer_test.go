package bulk_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/bulk"
	"github.com/quicksilver-rpc/quicksilver/hg"
	"github.com/quicksilver-rpc/quicksilver/internal/test/transports"
	"github.com/quicksilver-rpc/quicksilver/na"
)

// TestHandleForOnePeer checks that memory for one peer cannot be reached by other processes that
// have the handle, and by none once the session has ended.
func TestHandleForOnePeer(t *testing.T) {
	eachDir(t, func(t *testing.T, p *pair, dir bulk.Dir) {
		const size = 100_000
		var peer na.Addr
		name := "who " + dir.String()
		h, err := p.mctx.Create(p.peer, p.rpc(name, func(h hg.Request) error {
			peer = h.Peer()
			return h.Respond(nil, nil)
		}))
		require.NoError(t, err)
		answered := false
		require.NoError(t, h.Forward(nil, func(*hg.Handle, error) { answered = true }))
		p.Until(func() bool { return answered })
		h.Close()

		s := newTransferTest(t, p, dir, size)
		_, err = bulk.Create(p.octx, bulk.Options{Access: bulk.ReadWrite, Peer: peer.Named()}, make([]byte, 1))
		require.ErrorIs(t, err, hg.ErrInvalid, "an address that is bound to no session")
		require.ErrorContains(t, err, "PeerStats.Addr", "where there is one that is")
		_, err = bulk.Create(p.octx, bulk.Options{Peer: peer}, make([]byte, 1))
		require.ErrorIs(t, err, hg.ErrInvalid, "memory that no peer may reach")
		secret, err := bulk.Create(p.octx, bulk.Options{Access: bulk.ReadOnly, Eager: 64, Peer: peer}, []byte("secret"))
		require.NoError(t, err)
		encoded, err := secret.MarshalBinary()
		require.NoError(t, err)
		require.NotContains(t, string(encoded), "secret", "any process with the handle would have the data")
		require.NoError(t, secret.Close())
		theirs := newHandle(t, p.octx, bulk.Options{Access: bulk.ReadWrite, Eager: -1, Peer: peer}, s.ownerMem.segs...)
		s.spec.Remote = decodeRemote(t, theirs)
		before := s.ownerMem.bytes()

		_, sctx := p.Target(hg.Config{})
		mine := newMemory(size)
		mine.fillByte(0xaa)
		spec := s.spec
		spec.Peer, spec.Local, spec.LocalOffset = p.peer, newLocalHandle(t, sctx, mine.segs...), 0
		var e outcome
		_, err = bulk.Transfer(sctx, spec, e.done)
		require.NoError(t, err)
		p.Until(func() bool { return e.calls == 1 })
		require.ErrorIs(t, e.err, na.ErrPermission)
		require.True(t, mine.isFilledWith(0xaa))
		require.Empty(t, describeDiff(s.ownerMem.bytes(), before), "another process has written")

		e = p.withT(t).transfer(s.spec)
		require.NoError(t, e.err)
		require.Empty(t, describeDiff(s.ownerMem.bytes(), s.moverMem.bytes()))

		p.octx.NA().Disconnect(peer, na.ErrProtocol)
		p.Until(func() bool { return p.mctx.Stats().NA.Peers == 0 })
		e = p.withT(t).transfer(s.spec)
		require.ErrorIs(t, e.err, na.ErrPermission, "another session of the same peer")
	})
}

// TestHandleForTheTarget checks that an origin, too, can restrict its memory to its target: it
// finds the session among its peers.
func TestHandleForTheTarget(t *testing.T) {
	transports.Each(t, func(t *testing.T, n *transports.Net) {
		p := newPair(t, n)
		var origin na.Addr
		h, err := p.mctx.Create(p.peer, p.rpc("who", func(h hg.Request) error {
			origin = h.Peer()
			return h.Respond(nil, nil)
		}))
		require.NoError(t, err)
		answered := false
		require.NoError(t, h.Forward(nil, func(*hg.Handle, error) { answered = true }))
		p.Until(func() bool { return answered })
		h.Close()

		var target na.Addr
		for _, s := range p.mctx.NA().Peers() {
			if s.Addr.Named() == p.peer {
				target = s.Addr
			}
		}
		theirs := []byte("for the target alone")
		spec := bulk.Spec{
			Dir: bulk.Pull, Peer: origin, Size: int64(len(theirs)), Local: newLocalHandle(t, p.octx, make([]byte, len(theirs))),
			Remote: decodeRemote(t, newHandle(t, p.mctx, bulk.Options{Access: bulk.ReadOnly, Eager: -1, Peer: target}, theirs)),
		}
		var e outcome
		_, err = bulk.Transfer(p.octx, spec, e.done)
		require.NoError(t, err)
		p.Until(func() bool { return e.calls == 1 })
		require.NoError(t, e.err)
	})
}

// TestRegisteredMemoryUser checks that Class.Registered names the peer that has used registered
// memory last, none before one has, and lists no more than the requested number.
func TestRegisteredMemoryUser(t *testing.T) {
	eachDir(t, func(t *testing.T, p *pair, dir bulk.Dir) {
		const size = 100_000
		s := newTransferTest(t, p, dir, size)
		unused := newHandle(t, p.octx, bulk.Options{Access: bulk.ReadOnly}, make([]byte, 77))
		user := func(size int64) uint64 {
			for _, m := range p.owner.NA().Registered(1000) {
				if m.Len == size {
					return m.User
				}
			}
			t.Fatalf("no memory of %d bytes is registered", size)
			return 0
		}
		require.Zero(t, user(size))
		require.NoError(t, p.withT(t).transfer(s.spec).err)
		p.Until(func() bool { return user(size) != 0 })
		require.Len(t, p.octx.NA().Peers(), 1)
		require.Equal(t, p.octx.NA().Peers()[0].Addr.Session(), user(size))
		require.Zero(t, user(unused.Len()))
		require.Len(t, p.owner.NA().Registered(1), 1)
		require.Empty(t, p.owner.NA().Registered(0))
		require.Empty(t, p.owner.NA().Registered(-1))
	})
}
