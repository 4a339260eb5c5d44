package natest

import (
	"fmt"
	"net/netip"
	"os"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/na"
)

var addressRules = []rule{
	{name: "Limits", check: limits,
		why: "limits are queried, not guessed: the values that the plugin states must make sense and follow Config"},
	{name: "Lookup", check: lookup,
		why: "the text of an address finds its process; text that names nothing fails with a reason, and costs no session"},
	{name: "InvalidName", check: invalidNames, needs: invalidName, optional: true,
		why: "text that is no name of the network is an error of the caller, at once, without waiting for a connection"},
	{name: "Remote", check: remote,
		why: "the operator of a server can identify the program of a client that does not listen, and its host"},
	{name: "BadAddress", check: badAddress,
		why: "no address, or one of another transport, is an error of the caller that states it"},
	{name: "BoundAddress", check: boundAddress,
		why: "an answer is sent to the process of its request, never to another one that has taken its address meanwhile"},
	{name: "OriginVanishes", check: originVanishes,
		why: "a process that does not listen cannot be called back once its session has ended, and the error states it at once"},
	{name: "FirstCallAfterIdle", check: firstCallAfterIdle,
		why: "a program that did nothing for longer than the connect timeout can connect all the same"},
}

func limits(b *bed) {
	s := b.listen(na.Config{Eager: 2048, Envelopes: 5, Contexts: 3})
	l := s.Limits()
	require.Equal(b, s.cls.Limits(), l)
	require.Equal(b, 2048, l.MaxUnexpected)
	require.Equal(b, 2048, l.MaxExpected)
	require.Equal(b, 5, l.Envelopes)
	require.Equal(b, 3, l.MaxContexts)
	require.GreaterOrEqual(b, l.MaxSegments, 2)
	require.GreaterOrEqual(b, l.MaxTag, na.Tag(1)<<31)
	require.Equal(b, s.Self().Scheme(), l.Scheme)
	b.context(s.cls)
	b.context(s.cls)
	_, err := s.cls.NewContext()
	require.ErrorIs(b, err, na.ErrAgain, "a context more than Config.Contexts allows")
}

func lookup(b *bed) {
	a, t := b.pair(na.Config{})
	second := b.context(t.cls)
	for _, s := range []*side{t, second} {
		r := a.lookup(s.Self().String()).requireOK()
		require.Equal(b, s.Self(), r.Addr, "lookup of %v", s.Self())
		a.send(r.Addr, 1, []byte("x")).requireOK()
		s.next()
	}
	parsed, err := na.ParseAddr(t.Self().String())
	require.NoError(b, err)
	require.Equal(b, t.Self(), parsed)
	require.NotEqual(b, a.Self(), t.Self())
	require.Equal(b, t.Self(), t.lookup(t.Self().String()).requireOK().Addr, "lookup of the own address")

	for _, text := range []string{"", "nothing", t.Self().Scheme() + "://", t.Self().String() + "#x", "#1"} {
		a.lookup(text).requireFails(na.ErrInvalid)
	}
	a.lookup("unheard-of://host:1").requireFails(na.ErrUnsupported, na.ErrInvalid)
	require.Equal(b, a.Stats().Peers, 2, "sessions: the two that were used")
}

func invalidNames(b *bed) {
	a, t := b.pair(na.Config{})
	a.lookup(b.net.Invalid).requireFails(na.ErrInvalid)
	to, err := na.ParseAddr(b.net.Invalid)
	require.NoError(b, err)
	c := a.send(to, 1, nil)
	a.trigger()
	require.True(b, c.ended(), "a send to %v waits for Progress", to)
	c.requireNotRun(na.ErrInvalid)
	a.send(t.Self(), 1, nil).requireOK()
	t.next()
}

func remote(b *bed) {
	a, t := b.pair(na.Config{Name: "worker"})
	toA, toT := b.connect(a, t)
	seen, ok := t.Identity(toA)
	require.True(b, ok)
	there, ok := a.Identity(toT)
	require.True(b, ok)
	for _, id := range []na.Identity{seen, there} {
		require.NotEmpty(b, id.Remote)
		require.Equal(b, "worker", id.Process)
		switch id.Transport {
		case "tcp", "udp":
			_, err := netip.ParseAddrPort(id.Remote)
			require.NoError(b, err)
		case "sm":
			require.Equal(b, fmt.Sprintf("pid %d", os.Getpid()), id.Remote)
		}
	}
	require.Equal(b, "worker ("+seen.Remote+")", toA.Label(), "of a peer that does not listen")
	require.Equal(b, "worker ("+t.Self().String()+")", toT.Label(), "of one that listens")
	require.Equal(b, t.Self().String(), t.Self().Label(), "of an address that did not arrive with a message")
	peers := t.Peers()
	require.Len(b, peers, 1)
	require.Equal(b, []any{toA, "worker", seen.Remote}, []any{peers[0].Addr, peers[0].Process, peers[0].Remote})
	if s := there.Transport; s == t.Self().Scheme() && (s == "tcp" || s == "udp") {
		require.Equal(b, t.Self().Name(), s+"://"+there.Remote, "a dialed peer has the dialed address")
	}

	in := t.recv()
	a.send(toT, 1, nil).requireOK()
	env := in.requireOK().Envelope
	require.Equal(b, seen, env.Identity())
	require.NoError(b, a.cls.Close())
	b.until("the session is seen to be over", func() bool { return t.Stats().Peers == 0 })
	require.Equal(b, seen.Remote, env.Identity().Remote, "after the session")
	in.freeEnvelope()

	in = t.recv()
	t.send(t.Self(), 1, nil).requireOK()
	env = in.requireOK().Envelope
	require.Empty(b, env.Identity().Remote, "of oneself")
	in.freeEnvelope()
}

func badAddress(b *bed) {
	a, t := b.pair(na.Config{})
	m := a.private(make([]byte, 8))
	key := t.register(na.ReadWrite, make([]byte, 8)).Key()
	other, err := na.ParseAddr("unheard-of://host:1")
	require.NoError(b, err)
	for what, start := range map[string]func(op *na.Op, to na.Addr) error{
		"send unexpected":  func(op *na.Op, to na.Addr) error { return a.SendUnexpected(op, to, 0, nil) },
		"send expected":    func(op *na.Op, to na.Addr) error { return a.SendExpected(op, to, 0, nil) },
		"receive expected": func(op *na.Op, to na.Addr) error { return a.RecvExpected(op, to, 0, nil) },
		"put":              func(op *na.Op, to na.Addr) error { return a.Put(op, m, 0, to, key, 0, 8) },
		"get":              func(op *na.Op, to na.Addr) error { return a.Get(op, m, 0, to, key, 0, 8) },
		"lease":            func(op *na.Op, to na.Addr) error { _, err := a.Upper().Lease(op, to, 0, make([]byte, 8)); return err },
	} {
		c := a.call(what)
		c.requireRefused(na.ErrInvalid, func(op *na.Op) error { return start(op, na.Addr{}) })
		if err := c.try(func(op *na.Op) error { return start(op, other) }); err != nil {
			require.ErrorIs(b, err, na.ErrUnsupported, "%s to another transport", what)
		} else {
			c.requireNotRun(na.ErrUnsupported, na.ErrUnreachable)
		}
	}
	require.Zero(b, a.cls.Regions(), "regions left by leases that were refused")
}

func boundAddress(b *bed) {
	a, t := b.pair(na.Config{})
	toA, toT := b.connect(a, t)
	require.Equal(b, t.Self(), toT.Named(), "the address from which answers arrive")
	require.NotEqual(b, toT.Named(), toT, "an address that arrived with a message is bound to its session")
	require.Equal(b, toT.String(), t.Self().String(), "the text does not contain the session")
	old := t.recvExpected(toA, 3, 8)
	a.sendExpected(toT, 3, nil).requireOK() // the bound address works as well
	old.requireOK()

	name := t.cls.Addr().Name()
	require.NoError(b, t.cls.Close())
	b.until("the old instance is gone", t.cls.Closed)
	b.until("the session is seen to be over", func() bool { return a.Stats().Peers == 0 })
	again := b.open(name, na.Config{})
	require.Equal(b, t.Self(), again.Self(), "the same address again")
	a.send(toT, 1, []byte("for the old one")).requireNotRun(na.ErrPeerLost)
	a.recvExpected(toT, 1, 8).requireFails(na.ErrPeerLost)
	var m message
	b.until("the name reaches the new instance", func() bool { // immediately, or after the pause that follows the loss
		if a.send(t.Self(), 2, []byte("for the new one")).wait().Err != nil {
			return false
		}
		m = again.next()
		return true
	})
	require.Equal(b, "for the new one", string(m.data))
	again.send(toA, 1, []byte("x")).requireFails(na.ErrPeerLost, na.ErrUnreachable) // toA is bound to a session of the old instance
	b.connect(a, again)
}

func originVanishes(b *bed) {
	a, t := b.pair(na.Config{})
	toA, _ := b.connect(a, t)
	require.NoError(b, a.cls.Close())
	b.until("the session is seen to be over", func() bool { return t.Stats().Peers == 0 })
	t.send(toA, 1, []byte("x")).requireNotRun(na.ErrPeerLost)
	t.sendExpected(toA, 1, []byte("x")).requireNotRun(na.ErrPeerLost)
	t.send(toA.Named(), 1, []byte("x")).requireNotRun(na.ErrUnreachable)
}

func firstCallAfterIdle(b *bed) {
	a, t := b.pair(na.Config{ConnectTimeout: 1e9})
	b.pass()
	a.parked = true
	b.passTime(1.2e9)
	a.parked = false
	b.connect(a, t)
}
