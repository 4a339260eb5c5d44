package protocol_test

import (
	"errors"
	"io"
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/rendezvous/protocol"
)

// TestSetsAreInOrderOfRank (L11, L-T2) checks that parts arrive in any order and are sent in the
// order of ranks.
func TestSetsAreInOrderOfRank(t *testing.T) {
	b := newStrictTest(t, 3)
	ids := b.joinClients(3)
	b.send(ids[2], coll(0x1100, 'c'))
	b.send(ids[0], coll(0x1100, 'a'))
	b.send(ids[1], coll(0x1100, 'b'))
	for _, id := range ids {
		b.requireSent(id, set(0x1100, 7, "abc"))
	}
}

// TestSetIsSentWhenComplete (L14, L-T3) checks that nothing is sent before the last part, and
// everything as soon as it has arrived, DONE or not.
func TestSetIsSentWhenComplete(t *testing.T) {
	b := newStrictTest(t, 3)
	ids := b.joinClients(3)
	b.send(ids[0], coll(7, 'a'))
	b.send(ids[1], coll(7, 'b'))
	for _, id := range ids {
		b.requireSent(id)
	}
	b.send(ids[2], coll(7, 'c'))
	for _, id := range ids {
		b.requireSent(id, set(7, 7, "abc"))
	}
}

// TestSkippedLabel (L13, L16, L-T4) checks that a higher label means that the lower one will not be
// submitted.
func TestSkippedLabel(t *testing.T) {
	b := newStrictTest(t, 3)
	ids := b.joinClients(3)
	b.send(ids[0], coll(7, 'a'))
	b.send(ids[2], coll(7, 'c'))
	b.send(ids[1], coll(8, 'B'))
	for _, id := range ids {
		b.requireSent(id, set(7, 5, "ac"))
	}
	b.send(ids[0], coll(8, 'A'))
	b.requireSent(ids[0])
	b.send(ids[2], coll(8, 'C'))
	b.requireSent(ids[0], set(8, 7, "ABC"))
}

// TestDoneEarly (L13, L23, L-T5) checks that after DONE nothing more is expected of a client, and
// the others continue.
func TestDoneEarly(t *testing.T) {
	b := newStrictTest(t, 3)
	ids := b.joinClients(3)
	b.send(ids[2], coll(7, 'c'), command("DONE"))
	b.send(ids[0], coll(7, 'a'), coll(9, 'A'))
	b.send(ids[1], coll(7, 'b'), coll(9, 'B'))
	b.requireSent(ids[2], set(7, 7, "abc"), set(9, 3, "AB"))
	b.send(ids[0], command("DONE"))
	b.requireSent(ids[2])
	b.send(ids[1], command("DONE"))
	b.requireSent(ids[2], command("DONE"))
}

// TestHigherLabelCompletesSeveral (L15, L20, L-T6) checks that one event completes several labels;
// they are sent in ascending order, and labels without a submission are not.
func TestHigherLabelCompletesSeveral(t *testing.T) {
	b := newStrictTest(t, 2)
	ids := b.joinClients(2)
	b.send(ids[0], coll(1, 'a'), coll(2, 'b'), coll(3, 'c'), coll(4, 'd'), coll(5, 'e'))
	b.requireSent(ids[0])
	b.send(ids[1], coll(6, 'F'))
	b.requireSent(ids[0], set(1, 1, "a"), set(2, 1, "b"), set(3, 1, "c"), set(4, 1, "d"), set(5, 1, "e"))
	b.send(ids[0], command("DONE"))
	b.requireSent(ids[0], set(6, 2, "F"))
}

// TestUnknownLabelIsRelayed (L18, L-T8) checks that a label that the server does not know is
// handled like any other.
func TestUnknownLabelIsRelayed(t *testing.T) {
	b := newStrictTest(t, 2)
	ids := b.joinClients(2)
	b.send(ids[0], coll(0x7FFF0000, 1))
	b.send(ids[1], coll(0x7FFF0000, 2))
	b.requireSent(ids[1], set(0x7FFF0000, 3, "\x01\x02"))
}

// TestViolationAborts (L12, L19, L27, L29, L-T9, L-T10, L-T17, L-T22, L-T29, L-T30) checks that a
// client that has joined and breaks the protocol ends the startup, and the reason names it.
func TestViolationAborts(t *testing.T) {
	for _, c := range []struct {
		name, why string
		words     [][]byte
	}{
		{"repeated", "label 0x7 after label 0x7", [][]byte{coll(7), coll(7)}},
		{"lower", "label 0x6 after label 0x7", [][]byte{coll(7), coll(6)}},
		{"zero", "label 0x0", [][]byte{coll(0)}},
		{"negative", "label -0x5", [][]byte{coll(-5)}},
		{"after DONE", "COLL out of order", [][]byte{command("DONE"), coll(7)}},
		{"DONE twice", "DONE out of order", [][]byte{command("DONE"), command("DONE")}},
		{"joins twice", "IMPI out of order", [][]byte{rank(1)}},
		{"AUTH late", "AUTH out of order", [][]byte{command("AUTH", i32(1))}},
		{"FINI before all are done", "FINI out of order", [][]byte{command("DONE"), command("FINI")}},
		{"negative length", "COLL with a length of -1, limit", [][]byte{join([]byte("COLL"), i32(-1))}},
		{"longest length", "COLL with a length of 2147483647, limit", [][]byte{join([]byte("COLL"), i32(0x7FFFFFFF))}},
		{"too short", "COLL with a length of 3", [][]byte{command("COLL", []byte{0, 0, 1})}},
		{"DONE of a megabyte", "DONE with a length of 1048576, limit 64", [][]byte{join([]byte("DONE"), i32(1<<20))}},
		{"unknown command", "WHAT out of order", [][]byte{command("WHAT")}},
		{"unknown command with the high bit", "out of order", [][]byte{command("\xd7HAT", []byte("abc"))}},
	} {
		t.Run(c.name, func(t *testing.T) {
			b := newStrictTest(t, 3)
			ids := b.joinClients(3)
			b.send(ids[1], c.words...)
			err := b.requireAborted(ids...)
			require.ErrorIs(t, err, protocol.ErrViolation)
			require.ErrorContains(t, err, c.why)
			var who *protocol.MemberError
			require.ErrorAs(t, err, &who)
			require.Equal(t, 1, who.Rank)
			b.requireSent(ids[0]) // the strict form has no command for a reason
		})
	}
}

// TestEmptyPart (L16, L-T11) checks that an empty part is a part.
func TestEmptyPart(t *testing.T) {
	b := newStrictTest(t, 3)
	ids := b.joinClients(3)
	b.send(ids[0], coll(7, 'a'))
	b.send(ids[1], coll(7))
	b.send(ids[2], command("DONE"))
	b.requireSent(ids[0], set(7, 3, "a"))
}

// TestRank31 (L16, L-T12) checks that rank 31 is the sign bit.
func TestRank31(t *testing.T) {
	b := newStrictTest(t, 32)
	ids := b.joinClients(32)
	for _, id := range ids[:31] {
		b.send(id, command("DONE"))
	}
	b.send(ids[31], coll(7, 'z'))
	b.requireSent(ids[0], set(7, 1<<31, "z"))
}

// TestSize (L-T13) checks that the mask has 32 bits; the native form has no such limit.
func TestSize(t *testing.T) {
	_, err := protocol.NewServer(protocol.ServerConfig{Form: protocol.Strict, Size: 33, Auth: open})
	require.EqualError(t, err, "rendezvous: 33 clients, want 1 to 32")
	_, err = protocol.NewServer(protocol.ServerConfig{Form: protocol.Strict, Size: 0, Auth: open})
	require.EqualError(t, err, "rendezvous: 0 clients, want 1 to 32")
	_, err = protocol.NewServer(protocol.ServerConfig{Form: protocol.Native, Size: 33, Auth: open})
	require.NoError(t, err)
}

// TestJoinIsABarrier (L7, L-T14) checks that the size is sent to all when the last has joined.
func TestJoinIsABarrier(t *testing.T) {
	b := newStrictTest(t, 3)
	first, second := b.connect(rank(2)), b.connect(rank(0))
	b.requireSent(first)
	b.requireSent(second)
	third := b.connect(rank(1))
	for _, id := range []int{first, second, third} {
		b.requireSent(id, command("IMPI", i32(3)))
	}
}

// TestRankNotAvailable (L8, L9, L-T15) checks that an invalid rank costs the connection, and no
// other.
func TestRankNotAvailable(t *testing.T) {
	b := newStrictTest(t, 2)
	first := b.connect(rank(0))
	for _, r := range []int{0, -1, 2, 1 << 30} {
		require.ErrorIs(t, b.requireRefused(b.connect(rank(r))), protocol.ErrRank)
	}
	second := b.connect(rank(1))
	b.requireSent(first, command("IMPI", i32(2)))
	b.requireSent(second, command("IMPI", i32(2)))
	require.ErrorIs(t, b.requireRefused(b.connect(rank(1))), protocol.ErrRank) // one too many
	b.send(first, command("DONE"))
	b.send(second, command("DONE"))
	b.requireSent(first, command("DONE"))
}

// TestRankIsReusable (L9, L-T16) checks that a client that disconnects before all have joined may
// connect again.
func TestRankIsReusable(t *testing.T) {
	b := newStrictTest(t, 2)
	gone := b.connect(rank(0))
	b.lost(gone, nil)
	require.ErrorIs(t, b.requireRefused(gone), io.ErrUnexpectedEOF)
	back, other := b.connect(rank(0)), b.connect(rank(1))
	b.requireSent(back, command("IMPI", i32(2)))
	b.requireSent(other, command("IMPI", i32(2)))
}

// TestOutOfOrderBeforeAllJoined (L10, L27, L-T17) checks that a message that arrives too early
// costs the connection, and frees its rank.
func TestOutOfOrderBeforeAllJoined(t *testing.T) {
	for name, words := range map[string][][]byte{
		"COLL first":       {coll(7)},
		"DONE first":       {command("DONE")},
		"FINI first":       {command("FINI")},
		"COLL before all":  {rank(0), coll(7)},
		"FINI before all":  {rank(0), command("FINI")},
		"joins twice":      {rank(0), rank(0)},
		"AUTH twice":       {command("AUTH", i32(1)), command("AUTH", i32(1))},
		"AUTH of 5 bytes":  {command("AUTH", []byte("12345"))},
		"IMPI of 5 bytes":  {command("IMPI", []byte("12345"))},
		"negative length":  {join([]byte("IMPI"), i32(-4))},
		"longest length":   {join([]byte("COLL"), i32(0x7FFFFFFF))},
		"unknown command":  {command("WHAT")},
		"what a server is": {[]byte("GET / HTTP/1.1\r\n\r\n")},
	} {
		t.Run(name, func(t *testing.T) {
			b := newStrictTest(t, 2)
			id := b.connect(words...)
			require.True(t, b.closed[id])
			b.sent[id] = nil // the answer to AUTH
			require.ErrorIs(t, b.requireRefused(id), protocol.ErrViolation)
			b.joinClients(2)
		})
	}
}

// TestPendingConnectionsAreLimited (L5, L-T21) checks that connections that have not joined are
// bounded, and the newest is kept.
func TestPendingConnectionsAreLimited(t *testing.T) {
	b := newServerTest(t, protocol.ServerConfig{Form: protocol.Strict, Size: 2, Auth: open, Pending: 10})
	var idle []int
	for range 1000 {
		idle = append(idle, b.connect([]byte("IM")))
	}
	for i, id := range idle {
		require.Equal(t, i < 990, b.closed[id], "connection %d", id)
	}
	require.ErrorIs(t, b.events[0].Err, protocol.ErrCrowded)
	b.joinClients(2)
	b.lost(idle[999], protocol.ErrLate)
	require.ErrorIs(t, b.requireRefused(idle[999]), protocol.ErrLate)
}

// TestLimits (L28, L-T23) checks that the part that would be too much is refused before it is kept.
func TestLimits(t *testing.T) {
	for _, c := range []struct {
		name, why string
		limits    protocol.Limits
		words     [][]byte
	}{
		{"part", "COLL with a length of 9, limit 8", protocol.Limits{Part: 4}, [][]byte{coll(7, 1, 2, 3, 4, 5)}},
		{"set", "more than 5 bytes in total", protocol.Limits{Set: 5}, [][]byte{coll(7, 1, 2, 3)}},
		{"labels", "more than 2 labels", protocol.Limits{Labels: 2}, [][]byte{coll(7), coll(8), coll(9)}},
		{"total", "more than 200 bytes in all", protocol.Limits{Total: 200}, [][]byte{coll(7, 1, 2, 3), coll(8, 1, 2, 3)}},
	} {
		t.Run(c.name, func(t *testing.T) {
			b := newServerTest(t, protocol.ServerConfig{Form: protocol.Strict, Size: 2, Auth: open, Limits: c.limits})
			ids := b.joinClients(2)
			if c.name != "labels" {
				b.send(ids[0], coll(7, 1, 2, 3))
			}
			over, _ := b.server.Over()
			require.False(t, over)
			b.send(ids[1], c.words...)
			err := b.requireAborted(ids...)
			require.ErrorIs(t, err, protocol.ErrViolation)
			require.ErrorContains(t, err, c.why)
		})
	}
	for _, bad := range []protocol.Limits{{Part: -1}, {Set: 1<<31 - 1}, {Labels: -2}, {Total: -1}} {
		_, err := protocol.NewServer(protocol.ServerConfig{Size: 2, Auth: open, Limits: bad})
		require.ErrorContains(t, err, "rendezvous: limit ")
	}
}

// TestLostWhileCollecting (L25, L32, L-T25, L-T26) checks that a client that is lost while parts
// are collected ends the startup for all.
func TestLostWhileCollecting(t *testing.T) {
	for name, done := range map[string]bool{"before its DONE": false, "after its DONE": true} {
		t.Run(name, func(t *testing.T) {
			b := newStrictTest(t, 3)
			ids := b.joinClients(3)
			b.send(ids[0], coll(7, 'a'))
			if done {
				b.send(ids[1], command("DONE"))
			}
			b.lost(ids[1], nil)
			err := b.requireAborted(ids...)
			require.ErrorIs(t, err, io.ErrUnexpectedEOF)
			require.ErrorContains(t, err, "rank 1: ")
		})
	}
}

// TestLostAfterStart (L25, L29, L-T25, L-T27) checks that a client that is lost after the start is
// reported, and no other is affected.
func TestLostAfterStart(t *testing.T) {
	slow := errors.New("slow")
	b := newStrictTest(t, 4)
	ids := b.startClients(4)
	b.lost(ids[1], nil)
	b.lost(ids[2], slow)
	b.send(ids[3], coll(7))
	require.True(t, b.closed[ids[3]])
	require.False(t, b.closed[ids[0]])
	b.requireSent(ids[0])
	b.send(ids[0], command("FINI"))
	err := b.requireAborted(ids...)
	require.ErrorIs(t, err, slow)
	require.ErrorIs(t, err, protocol.ErrViolation)
	require.ErrorContains(t, err, "rank 1: connection closed")
}

// TestEnd (L24, L-T28) checks that nothing is sent after FINI, and the server ends without an error
// with the last client.
func TestEnd(t *testing.T) {
	b := newStrictTest(t, 2)
	ids := b.startClients(2)
	b.send(ids[1], command("FINI"))
	require.True(t, b.closed[ids[1]])
	over, _ := b.server.Over()
	require.False(t, over)
	require.ErrorIs(t, b.requireRefused(b.connect(command("FINI"))), protocol.ErrViolation) // it has no part in this
	b.send(ids[0], command("FINI"))
	require.NoError(t, b.requireAborted(ids...))
	b.requireSent(ids[0])
	b.requireSent(ids[1])
	late := b.connect()
	require.True(t, b.closed[late])
}

// TestStop checks that a server that is stopped returns the reason if clients still need it, and no
// error if none does.
func TestStop(t *testing.T) {
	why := errors.New("enough")
	for _, started := range []bool{false, true} {
		b, ids := newNativeTest(t, 2)
		want := command("ABRT", i32(-1), []byte("enough"))
		if started {
			b.send(ids[0], command("DONE"))
			b.send(ids[1], command("DONE"))
			want = command("DONE")
		}
		b.server.Stop(why)
		b.take()
		b.requireSent(ids[0], want)
		require.Equal(t, why, b.requireAborted(ids...))
	}
}

// TestOddPayload (L26, L-T29) checks that a small payload where none belongs is reported, and
// skipped.
func TestOddPayload(t *testing.T) {
	b := newStrictTest(t, 1)
	ids := b.joinClients(1)
	b.send(ids[0], command("DONE", make([]byte, 16)))
	b.requireSent(ids[0], command("DONE"))
	b.send(ids[0], command("FINI", make([]byte, 64)))
	require.NoError(t, b.requireAborted(ids...))
	var odd []string
	for _, e := range b.events {
		if e.Kind == protocol.Odd {
			odd = append(odd, e.Err.Error())
		}
	}
	require.Equal(t, []string{"DONE with a payload of 16 bytes", "FINI with a payload of 64 bytes"}, odd)
}

// TestDeadline (L31, L-T31) checks that the error names the missing clients, and the label.
func TestDeadline(t *testing.T) {
	b := newStrictTest(t, 4)
	first := b.connect(rank(0))
	b.connect(rank(1))
	b.expire()
	err := b.requireAborted(first)
	require.ErrorIs(t, err, os.ErrDeadlineExceeded)
	require.EqualError(t, err, "startup timed out: missing rank 2, 3")

	b = newStrictTest(t, 3)
	ids := b.joinClients(3)
	b.send(ids[0], coll(7, 'a'), coll(9, 'A'))
	b.send(ids[1], coll(7, 'b'))
	b.expire()
	err = b.requireAborted(ids...)
	require.EqualError(t, err, "startup timed out: label 0x7 waits for rank 2; label 0x9 waits for rank 1, 2")

	b = newStrictTest(t, 3)
	ids = b.joinClients(3)
	b.send(ids[1], command("DONE"))
	b.expire()
	require.EqualError(t, b.requireAborted(ids...), "startup timed out: not done: rank 0, 2")

	b = newStrictTest(t, 1)
	b.startClients(1)
	b.expire()
	over, _ := b.server.Over()
	require.False(t, over)
}

// TestByteByByte (L-T37) checks that a command may arrive in several reads.
func TestByteByByte(t *testing.T) {
	b := newStrictTest(t, 2)
	ids := []int{b.connect(), b.connect()}
	say := func(id int, words ...[]byte) {
		for _, x := range join(words...) {
			b.send(id, []byte{x})
		}
	}
	say(ids[0], command("AUTH", i32(1)), rank(0))
	say(ids[1], command("AUTH", make([]byte, 8)), rank(1))
	say(ids[0], coll(7, 'a'), command("DONE", []byte("?")))
	say(ids[1], coll(7, 'b'), command("DONE"))
	b.requireSent(ids[0], i32(0, 0), command("IMPI", i32(2)), set(7, 3, "ab"), command("DONE"))
	b.requireSent(ids[1], command("IMPI", i32(2)), set(7, 3, "ab"), command("DONE"))
}
