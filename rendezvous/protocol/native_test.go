package protocol_test

import (
	"bytes"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/rendezvous/protocol"
)

func newNativeTest(t *testing.T, size int) (*serverTest, []int) {
	t.Helper()
	b := newServerTest(t, protocol.ServerConfig{Size: size, Auth: open})
	ids := make([]int, size)
	for i := range ids {
		ids[i] = b.connect(command("JOIN", i32(1, i, size)))
	}
	for _, id := range ids {
		b.requireSent(id, command("JOIN", i32(size)))
	}
	return b, ids
}

// TestNativeSet (L-T40) checks any number of clients, a mask of as many bits, and the length of
// each part; absent is not empty.
func TestNativeSet(t *testing.T) {
	b, ids := newNativeTest(t, 33)
	b.send(ids[32], coll(0x10000, 'c', 'c'))
	b.send(ids[1], coll(0x10000))
	b.send(ids[0], coll(0x10000, 'a'))
	for _, id := range ids {
		b.send(id, command("DONE"))
	}
	b.requireSent(ids[5], command("COLL", i32(0x10000, 3, 1, 1, 0, 2), []byte("acc")), command("DONE"))
}

// TestNativeAbort (L29) checks that every joined client gets the reason why a startup has failed,
// with the client that caused it.
func TestNativeAbort(t *testing.T) {
	b, ids := newNativeTest(t, 3)
	b.send(ids[2], coll(0))
	reason := "rank 2: startup protocol violation: label 0x0"
	b.requireSent(ids[0], command("ABRT", i32(2), []byte(reason)))
	require.EqualError(t, b.requireAborted(ids...), reason)

	b, ids = newNativeTest(t, 2)
	b.expire()
	b.requireSent(ids[1], command("ABRT", i32(0), []byte("startup timed out: not done: rank 0, 1")))
}

// TestNativeRefusal checks that a client that cannot join gets the reason, once it is
// authenticated.
func TestNativeRefusal(t *testing.T) {
	for _, c := range []struct {
		word []byte
		why  string
	}{
		{command("JOIN", i32(1, 0, 3)), "rank not available: the client expects 3 processes, the server 2"},
		{command("JOIN", i32(1, 7, 0)), "rank not available: 7 is not in 0 to 1"},
		{command("JOIN", i32(2, 0, 0)), "startup protocol violation: no common version: client supports 0x2, server 1 (upgrade the server)"},
		{command("JOIN", i32(2<<16|3, 0, 0)), "startup protocol violation: no common version: client supports 0x20003, server 1 (upgrade the server)"},
		{command("JOIN", i32(0, 0, 0)), "startup protocol violation: no common version: client supports 0x0, server 1 (upgrade the client)"},
		{command("JOIN", i32(1, 0)), "startup protocol violation: JOIN with a length of 8"},
	} {
		b := newServerTest(t, protocol.ServerConfig{Size: 2, Auth: open})
		id := b.connect(c.word)
		b.requireSent(id, command("ABRT", i32(-1), []byte(c.why)))
		require.EqualError(t, b.requireRefused(id), c.why)
	}
}

// TestNativeOptional (L30, L-T30) checks that an unknown command with the high bit is skipped, in
// both directions.
func TestNativeOptional(t *testing.T) {
	b, ids := newNativeTest(t, 2)
	b.send(ids[0], command("\xd7HAT", make([]byte, 4096)), coll(7))
	b.send(ids[1], coll(7))
	b.requireSent(ids[0], command("COLL", i32(7, 3, 0, 0)))
	b.send(ids[1], command("\xd7HAT", make([]byte, 4097)))
	require.ErrorIs(t, b.requireAborted(ids...), protocol.ErrViolation)

	c := joinedClient(t, protocol.Native, 0, 2)
	require.NoError(t, c.Receive(command("\xd7HAT", []byte("abc"))))
	require.ErrorIs(t, c.Receive(command("WHAT")), protocol.ErrViolation)
}

// TestNativeLater checks that clients of a later release, and one of a server, that use this
// version as well, and send more, are accepted.
func TestNativeLater(t *testing.T) {
	b := newServerTest(t, protocol.ServerConfig{Size: 2, Auth: open})
	ids := []int{b.connect(command("JOIN", i32(1<<16|2, 0, 2), []byte("later"))), b.connect(command("JOIN", i32(1<<16|1, 1, 0)))}
	for _, id := range ids {
		b.requireSent(id, command("JOIN", i32(2)))
	}
	c, err := protocol.NewClient(protocol.ClientConfig{Form: protocol.Native, Rank: 0, Auth: open})
	require.NoError(t, err)
	require.NoError(t, c.Receive(join(i32(0, 0), command("JOIN", i32(2), []byte("later")))))
	require.Equal(t, 2, c.Size())
}

// TestNativeParts (L-T40) checks 200 members, half of which are silent, or submit nothing.
func TestNativeParts(t *testing.T) {
	const size = 200
	r := newStartupSim(t, protocol.ServerConfig{Size: size, Auth: open}, 1)
	r.joinAll()
	want := make([][]byte, size)
	for i := range want {
		switch i % 4 {
		case 0:
			want[i] = []byte(fmt.Sprint("part of ", i))
		case 1:
			want[i] = []byte{}
		default:
			continue
		}
		require.NoError(t, r.clients[i].Submit(0x10000, want[i]))
	}
	for _, c := range r.clients {
		require.NoError(t, c.Done())
	}
	r.run()
	for i := range r.clients {
		require.True(t, r.clients[i].Started())
		require.Len(t, r.sets[i], 1)
		require.Equal(t, want, r.sets[i][0].Parts())
	}
}

// TestReason checks that a reason is printable text: long ones are cut, and it contains no control
// characters.
func TestReason(t *testing.T) {
	c := joinedClient(t, protocol.Native, 0, 2)
	err := c.Receive(command("ABRT", i32(1), []byte("bad\x1b[2J\nnews\xff")))
	var abort *protocol.AbortError
	require.ErrorAs(t, err, &abort)
	require.Equal(t, protocol.AbortError{Rank: 1, Reason: "bad [2J news?"}, *abort)

	c = joinedClient(t, protocol.Native, 0, 2)
	require.ErrorIs(t, c.Receive(command("ABRT", i32(1), bytes.Repeat([]byte("x"), 1025))), protocol.ErrViolation)
}
