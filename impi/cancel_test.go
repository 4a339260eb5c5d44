package impi_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/impi"
)

// The numbers in the names are those of docs/internals/REQUIREMENTS.md.

// TestRequestNumberIsPerPair (C1) checks that a message is known by source, destination and number:
// equal numbers of other pairs are other messages.
func TestRequestNumberIsPerPair(t *testing.T) {
	l := newLink(t, impi.AgentConfig{})
	s := l.send(syncMessage(1, "alice to bob"))
	other := syncMessage(1, "anna to bob")
	other.From, other.Tag = anna, 2
	l.send(other)
	same := syncMessage(1, "alice to ben")
	same.To = ben
	require.ErrorIs(t, l.a.Send(same), impi.ErrActive, "one source has it for one destination at a time")
	require.NoError(t, l.b.Send(&impi.Send{From: bob, To: alice, Request: 1, Sync: true}))
	l.run()
	require.Equal(t, impi.Canceled, l.cancel(s))
	_, ok := l.b.Probe(byTag(2).Match)
	require.True(t, ok)
	require.Equal(t, 1, l.a.Stats().Held)
}

// TestCancelFindsOnlyItsOwn (C2, C-T25) checks that the process that a packet names must be one of
// the peer's, and it can only cancel what is its own.
func TestCancelFindsOnlyItsOwn(t *testing.T) {
	l := newLink(t, impi.AgentConfig{})
	l.send(syncMessage(1, "alice to bob"))
	l.run()
	for _, p := range []impi.Packet{
		{Type: impi.PacketCancel, Src: anna, Dest: bob, SrcRequest: 1},
		{Type: impi.PacketCancel, Src: alice, Dest: ben, SrcRequest: 1},
	} {
		require.NoError(t, l.b.Input(p.Append(nil)))
		l.leaveB()
		require.Equal(t, impi.Packet{Type: impi.PacketCancelNo, Src: p.Dest, Dest: p.Src, SrcRequest: 1}, l.ba[len(l.ba)-1])
	}
	require.Equal(t, 1, l.b.Stats().Held)
	foreignPacket := impi.Packet{Type: impi.PacketCancel, Src: impi.Proc{PID: 9}, Dest: bob, SrcRequest: 1}
	require.ErrorIs(t, l.b.Input(foreignPacket.Append(nil)), impi.ErrProtocol)
}

// TestTooLateIsLocal (C3, C-T5) checks that what is over, or was never sent, is not canceled, and
// no packet is sent for it.
func TestTooLateIsLocal(t *testing.T) {
	l := newLink(t, impi.AgentConfig{})
	require.Equal(t, impi.TooLate, l.a.Cancel(message(9, "never sent")))
	left, received := l.send(message(1, "left")), l.send(syncMessage(2, "received"))
	l.receive(byTag(2))
	l.run()
	require.Equal(t, impi.TooLate, l.a.Cancel(left))
	require.Equal(t, impi.TooLate, l.a.Cancel(received))
	l.run()
	require.Zero(t, countType(l.ab, impi.PacketCancel))
	require.Len(t, l.aEvents, 2, "the ends of the sends")
}

// TestCanceledBeforeReceive (C4, C-T1) checks that the peer gets a cancel request for a message
// that has left, is active, and is not known to be received.
func TestCanceledBeforeReceive(t *testing.T) {
	for _, text := range []string{"short", "longer than a packet"} {
		l := newLink(t, impi.AgentConfig{MaxPacket: 8})
		s := l.send(syncMessage(1, text))
		l.leaveA()
		require.Equal(t, impi.Canceled, l.cancel(s))
		l.requireSent(s, impi.ErrCanceled)
		require.Equal(t, impi.Packet{Type: impi.PacketCancel, Src: alice, Dest: bob, SrcRequest: 1}, l.ab[1])
		require.Equal(t, impi.Packet{Type: impi.PacketCancelYes, Src: bob, Dest: alice, SrcRequest: 1}, l.ba[0])
		require.Len(t, l.ab, 2)
		require.Zero(t, l.b.Stats().Held)
		require.Zero(t, l.a.Stats().Operations)
	}
}

// TestCancelQueuedMessage (C5, C-T3) checks that a message that waits for the window is withdrawn
// locally: nothing of it is sent, and the window is not used.
func TestCancelQueuedMessage(t *testing.T) {
	l := newLink(t, impi.AgentConfig{Hiwater: 1, Ackmark: 1})
	l.send(syncMessage(1, "takes the window"))
	s := l.send(syncMessage(2, "waits"))
	third := l.send(syncMessage(3, "waits too"))
	l.run()
	require.Equal(t, impi.Canceled, l.a.Cancel(s))
	require.Equal(t, impi.TooLate, l.a.Cancel(s), "it is over")
	l.receive(byTag(1))
	r := l.receive(byTag(3))
	l.run()
	l.requireSent(s, impi.ErrCanceled)
	l.requireSent(third, nil)
	l.requireReceived(r, "waits too")
	for _, p := range l.ab {
		require.NotEqual(t, uint64(2), p.SrcRequest)
	}
	l.send(syncMessage(2, "the number is free"))
}

// TestReceivedBeforeCancelRequest (C5) checks that a SYNCACK that arrives before the cancel request
// has left makes it too late, and no request is sent.
func TestReceivedBeforeCancelRequest(t *testing.T) {
	l := newLink(t, impi.AgentConfig{})
	s := l.send(syncMessage(1, ""))
	l.receive(byTag(1))
	l.leaveA()
	l.arriveB()
	l.leaveB()
	require.Equal(t, impi.Asked, l.a.Cancel(s))
	l.arriveA()
	l.run()
	require.Equal(t, impi.TooLate, l.answer(s))
	l.requireSent(s, nil)
	require.Zero(t, countType(l.ab, impi.PacketCancel))
}

// TestCancelTwice (C5, C-T6) checks that a second cancel joins the first, at any stage of that.
func TestCancelTwice(t *testing.T) {
	l := newLink(t, impi.AgentConfig{})
	s := l.send(syncMessage(1, ""))
	l.leaveA()
	require.Equal(t, impi.Asked, l.a.Cancel(s))
	require.Equal(t, impi.Asked, l.a.Cancel(s))
	l.leaveA()
	require.Equal(t, impi.Canceled, l.cancel(s))
	require.Equal(t, impi.TooLate, l.a.Cancel(s))
	l.run()
	require.Equal(t, 1, countType(l.ab, impi.PacketCancel))
}

// TestCancelReceiveIsLocal (C5) checks that a receive is withdrawn without a packet.
func TestCancelReceiveIsLocal(t *testing.T) {
	l := newLink(t, impi.AgentConfig{})
	r := l.receive(byTag(1))
	require.Equal(t, impi.Canceled, l.b.CancelReceive(r))
	l.run()
	require.Empty(t, l.ba)
	require.ErrorIs(t, l.bEvents[0].Err, impi.ErrCanceled)
	l.send(message(1, "a"))
	l.run()
	l.bEvents = nil
	l.receive(r) // it can be used again
	l.run()
	l.requireReceived(r, "a")
}

// TestOneReplyPerCancel (C6, C-T9) checks that each request that arrives gets one reply, whatever
// the state of its number, and whether or not a SYNCACK was sent.
func TestOneReplyPerCancel(t *testing.T) {
	l := newLink(t, impi.AgentConfig{})
	for i := range 3 {
		l.send(syncMessage(uint64(i), ""))
	}
	l.receive(byTag(0))
	l.run() // 0 is received, and its SYNCACK was sent
	l.ba = nil
	for _, id := range []uint64{0, 0, 1, 1, 77} { // 1 is held, 77 was never there
		p := impi.Packet{Type: impi.PacketCancel, Src: alice, Dest: bob, SrcRequest: id}
		require.NoError(t, l.b.Input(p.Append(nil)))
		l.leaveB()
	}
	var got []string
	for _, p := range l.ba {
		got = append(got, fmt.Sprint(p.Type, " ", p.SrcRequest))
	}
	require.Equal(t, []string{"CANCELNO 0", "CANCELNO 0", "CANCELYES 1", "CANCELNO 1", "CANCELNO 77"}, got)
	require.Equal(t, 1, l.b.Stats().Held, "2 is still there")
}

// TestLongMessageDestroyed (C7, C-T14) checks that yes destroys a long message that is held: the
// rest is never sent, and the first part is freed.
func TestLongMessageDestroyed(t *testing.T) {
	l := newLink(t, impi.AgentConfig{MaxPacket: 4})
	s := l.send(message(1, "0123456789"))
	l.run()
	require.EqualValues(t, 4, l.b.Stats().HeldBytes)
	require.Equal(t, impi.Canceled, l.cancel(s))
	require.Zero(t, l.b.Stats().HeldBytes)
	l.receive(byTag(1))
	l.run()
	require.Empty(t, l.bEvents)
	require.Zero(t, countType(l.ab, impi.PacketData))
}

// TestFirstPacketMatches (C8, C-T2) checks that a message is received when its first packet
// matches. The state of the rest makes no difference, nor does a probe.
func TestFirstPacketMatches(t *testing.T) {
	l := newLink(t, impi.AgentConfig{MaxPacket: 4})
	s := l.send(message(1, "0123456789"))
	l.run()
	r := l.receive(byTag(1)) // nothing of the rest has left, and the SYNCACK has not
	require.Equal(t, impi.TooLate, l.cancel(s))
	l.requireSent(s, nil)
	l.requireReceived(r, "0123456789")

	probed := l.send(syncMessage(2, "probed"))
	l.run()
	for range 3 {
		p, ok := l.b.Probe(byTag(2).Match)
		require.True(t, ok)
		require.EqualValues(t, 6, p.MsgLen)
	}
	require.Equal(t, impi.Canceled, l.cancel(probed))
	_, ok := l.b.Probe(byTag(2).Match)
	require.False(t, ok)
}

// TestProbeNeedsWholePacket (C8) checks that a probe finds a message when its first packet is read
// as a whole, and not before.
func TestProbeNeedsWholePacket(t *testing.T) {
	l := newLink(t, impi.AgentConfig{MaxPacket: 4})
	l.send(message(1, "0123456789"))
	raw, _ := takePackets(t, l.a)
	for i, b := range raw {
		_, ok := l.b.Probe(byTag(1).Match)
		require.False(t, ok, "after %d of %d bytes", i, len(raw))
		require.NoError(t, l.b.Input([]byte{b}))
	}
	p, ok := l.b.Probe(byTag(1).Match)
	require.True(t, ok)
	require.EqualValues(t, 10, p.MsgLen)
}

// TestCancelFollowsItsMessage (C9, C-T4) checks that the request leaves behind the whole of its
// message, in the same stream, wherever that is cut.
func TestCancelFollowsItsMessage(t *testing.T) {
	l := newLink(t, impi.AgentConfig{})
	s := l.send(syncMessage(1, "hello"))
	raw, ok := l.a.NextPacket(nil)
	require.True(t, ok)
	const part = 60 // of the header
	require.NoError(t, l.b.Input(raw[:part]))
	require.Equal(t, impi.Asked, l.a.Cancel(s)) // while a part of its message has left
	request, _ := takePackets(t, l.a)
	require.NoError(t, l.b.Input(append(raw[part:], request...)))
	l.run()
	require.Equal(t, impi.Canceled, l.answer(s))
}

// TestCancelLeavesOthers (C11) checks that waiting for the reply blocks nothing else.
func TestCancelLeavesOthers(t *testing.T) {
	l := newLink(t, impi.AgentConfig{})
	s := l.send(syncMessage(1, "canceled"))
	l.leaveA()
	require.Equal(t, impi.Asked, l.a.Cancel(s))
	l.leaveA() // the reply is not there yet
	other := l.send(syncMessage(2, "goes on"))
	r := l.receive(byTag(2))
	l.run()
	l.requireSent(other, nil)
	l.requireReceived(r, "goes on")
	require.Equal(t, impi.Canceled, l.answer(s))
}

// TestCanceledMessageFreesWindow (C13, C-T12) checks that a message that is destroyed returns its
// place in the window, once.
func TestCanceledMessageFreesWindow(t *testing.T) {
	for _, ackmark := range []int{1, 2, 4} {
		l := newLink(t, impi.AgentConfig{Hiwater: 4, Ackmark: ackmark})
		for i := range 1000 {
			s := l.send(syncMessage(uint64(i), "x"))
			l.run()
			require.Equal(t, impi.Canceled, l.cancel(s))
			l.aEvents = nil
		}
		require.Zero(t, l.b.Stats().Held)
		counted := len(l.ab) - countType(l.ab, impi.PacketProtoAck)
		require.Equal(t, counted/ackmark, countType(l.ba, impi.PacketProtoAck))
		for i := range 9 { // the window is as large as it was, and no larger
			l.send(message(uint64(i), ""))
		}
		require.LessOrEqual(t, len(l.leaveA()), 4)
	}
}

// TestCancelReplyInAnyOrder (C14, C-T10) checks that SYNCACK and CANCELNO may arrive in either
// order: the send ends with the one, the cancel with the other.
func TestCancelReplyInAnyOrder(t *testing.T) {
	syncAck := impi.Packet{Type: impi.PacketSyncAck, Src: bob, Dest: alice, SrcRequest: 1}
	no := impi.Packet{Type: impi.PacketCancelNo, Src: bob, Dest: alice, SrcRequest: 1}
	for _, order := range [][]impi.Packet{{syncAck, no}, {no, syncAck}} {
		l := newLink(t, impi.AgentConfig{})
		s := l.send(syncMessage(1, ""))
		l.leaveA()
		require.Equal(t, impi.Asked, l.a.Cancel(s))
		l.leaveA()
		for i, p := range order {
			require.NoError(t, l.a.Input(p.Append(nil)))
			require.Len(t, events(l.a), 1, "event %d", i)
			if i == 0 && p.Type == impi.PacketCancelNo {
				require.Equal(t, impi.TooLate, l.a.Cancel(s), "it is received, as the peer reports")
			}
		}
		require.Zero(t, l.a.Stats().Operations)
		require.Empty(t, l.leaveA())
	}
}

// TestTransferContinuesAfterLateCancel (C15, C-T13) checks that a SYNCACK while a cancel is under
// way does not stop the transfer.
func TestTransferContinuesAfterLateCancel(t *testing.T) {
	l := newLink(t, impi.AgentConfig{MaxPacket: 4})
	s := l.send(message(1, "0123456789"))
	l.leaveA()
	l.arriveB()
	r := l.receive(byTag(1))
	l.leaveB() // the SYNCACK crosses
	require.Equal(t, impi.Asked, l.a.Cancel(s))
	l.leaveA() // the request
	l.run()
	require.Equal(t, 1, countType(l.ab, impi.PacketCancel))
	require.Equal(t, impi.TooLate, l.answer(s))
	l.requireSent(s, nil)
	l.requireReceived(r, "0123456789")
}

// TestCancelYesAndSyncAckIsViolation (C16, C-T15) checks that a message cannot be received and
// destroyed. A peer that sends both has broken the protocol.
func TestCancelYesAndSyncAckIsViolation(t *testing.T) {
	syncAck := impi.Packet{Type: impi.PacketSyncAck, Src: bob, Dest: alice, SrcRequest: 1, DestRequest: 1}
	yes := impi.Packet{Type: impi.PacketCancelYes, Src: bob, Dest: alice, SrcRequest: 1}
	for _, order := range [][]impi.Packet{{syncAck, yes}, {yes, syncAck}} {
		for _, text := range []string{"short", "longer than a packet"} {
			l := newLink(t, impi.AgentConfig{MaxPacket: 8})
			s := l.send(syncMessage(1, text))
			l.leaveA()
			l.a.Cancel(s)
			l.leaveA()
			require.NoError(t, l.a.Input(order[0].Append(nil)))
			require.ErrorIs(t, l.a.Input(order[1].Append(nil)), impi.ErrProtocol)
			l.aEvents = events(l.a)
			if order[0].Type == impi.PacketSyncAck {
				require.Equal(t, impi.TooLate, l.answer(s))
			} else {
				require.Equal(t, impi.Canceled, l.answer(s))
			}
		}
	}
}

// TestStrayCancelReply (C17) checks that a reply to no request changes nothing, and is counted. A
// yes for an active message is a violation.
func TestStrayCancelReply(t *testing.T) {
	l := newLink(t, impi.AgentConfig{})
	s := l.send(syncMessage(1, ""))
	l.leaveA()
	for i, p := range []impi.Packet{
		{Type: impi.PacketCancelNo, Src: bob, Dest: alice, SrcRequest: 1},
		{Type: impi.PacketCancelNo, Src: bob, Dest: alice, SrcRequest: 2},
		{Type: impi.PacketCancelYes, Src: bob, Dest: alice, SrcRequest: 2},
		{Type: impi.PacketCancelYes, Src: ben, Dest: alice, SrcRequest: 1}, // not the process that has it
	} {
		require.NoError(t, l.a.Input(p.Append(nil)))
		require.EqualValues(t, i+1, l.a.Stats().Stray)
	}
	require.Empty(t, events(l.a))
	yes := impi.Packet{Type: impi.PacketCancelYes, Src: bob, Dest: alice, SrcRequest: 1}
	require.ErrorIs(t, l.a.Input(yes.Append(nil)), impi.ErrProtocol)
	l.aEvents = events(l.a)
	l.requireSent(s, impi.ErrUnknown)
}

// TestCancelWithClosedWindow (C20, C-T18) checks that requests and replies do not wait for the
// window, which is closed when programs cancel. It is closed in the other direction too, and the
// replies are sent all the same.
func TestCancelWithClosedWindow(t *testing.T) {
	l := newLink(t, impi.AgentConfig{Hiwater: 4, Ackmark: 4})
	var sends []*impi.Send
	for i := range 10 {
		sends = append(sends, l.send(syncMessage(uint64(i), "")))
		require.NoError(t, l.b.Send(&impi.Send{From: bob, To: alice, Request: uint64(i)}))
	}
	l.run()
	require.Equal(t, 4, countType(l.ab, impi.PacketDataSync))
	require.Equal(t, 4, countType(l.ba, impi.PacketData))
	for _, s := range sends {
		l.a.Cancel(s)
	}
	l.run()
	for i, s := range sends {
		l.requireSent(s, impi.ErrCanceled)
		if i < 4 {
			require.Equal(t, impi.Canceled, l.answer(s))
		}
	}
	require.Equal(t, 4, countType(l.ab, impi.PacketCancel))
	require.Zero(t, l.b.Stats().Held)
}

// TestCancelRequestsAreLimited (C20) checks that no more than Hiwater requests of a pair are
// without a reply. The others wait here.
func TestCancelRequestsAreLimited(t *testing.T) {
	l := newLink(t, impi.AgentConfig{Hiwater: 2, Ackmark: 1})
	var sends []*impi.Send
	for i := range 6 { // a peer that sends PROTOACK before SYNCACK lets more messages be out than the window holds
		sends = append(sends, l.send(syncMessage(uint64(i), "")))
		if len(l.leaveA()) == 0 {
			ack := impi.Packet{Type: impi.PacketProtoAck, Src: bob, Dest: alice}
			require.NoError(t, l.a.Input(ack.Append(nil)))
			l.leaveA()
		}
	}
	for _, s := range sends {
		l.a.Cancel(s)
	}
	require.Equal(t, 2, countType(l.leaveA(), impi.PacketCancel))
	no := impi.Packet{Type: impi.PacketCancelNo, Src: bob, Dest: alice, SrcRequest: 0}
	require.NoError(t, l.a.Input(no.Append(nil)))
	require.Equal(t, 1, countType(l.leaveA(), impi.PacketCancel))
}

// TestCancelFlood (C20, C-T19) checks that a peer that sends requests without end and does not read
// the replies is cut off.
func TestCancelFlood(t *testing.T) {
	l := newLink(t, impi.AgentConfig{Hiwater: 4})
	p := impi.Packet{Type: impi.PacketCancel, Src: alice, Dest: bob}
	for range 8 {
		require.NoError(t, l.b.Input(p.Append(nil)))
	}
	require.ErrorIs(t, l.b.Input(p.Append(nil)), impi.ErrProtocol)
}

// TestCancelFindsNewestMessage (C21, C22, C-T20) checks that of two messages with one number the
// newest is destroyed; the older survives.
func TestCancelFindsNewestMessage(t *testing.T) {
	l := newLink(t, impi.AgentConfig{})
	older := l.send(message(1, "older"))
	l.run()
	l.requireSent(older, nil)
	newer := l.send(syncMessage(1, "newer"))
	l.run()
	require.Equal(t, impi.Canceled, l.cancel(newer))
	r := l.receive(byTag(1))
	l.run()
	l.requireReceived(r, "older")
	require.Zero(t, l.b.Stats().Held)
}

// BenchmarkCancel (C22, C-T23) checks that the time of a cancel does not depend on how many
// messages are held. Those of both ends are meant in turn.
func BenchmarkCancel(b *testing.B) {
	for _, held := range []int{100, 100_000} {
		b.Run(fmt.Sprintf("held=%d", held), func(b *testing.B) {
			l := newLink(b, impi.AgentConfig{Hiwater: held, MaxOperations: 2 * held})
			message := impi.Packet{Type: impi.PacketDataSync, Src: alice, Dest: bob}
			for i := range held {
				message.SrcRequest = uint64(i)
				require.NoError(b, l.b.Input(message.Append(nil)))
			}
			ask, at := message, 0
			ask.Type = impi.PacketCancel
			for b.Loop() { // destroyed messages are sent again
				if ask.SrcRequest = uint64(at / 2); at%2 == 1 {
					ask.SrcRequest = uint64(held - 1 - at/2)
				}
				at = (at + 1) % held
				if err := l.b.Input(ask.Append(nil)); err != nil {
					b.Fatal(err)
				}
				if _, ok := l.b.NextPacket(nil); !ok {
					b.Fatal("no reply")
				}
				message.SrcRequest = ask.SrcRequest
				if err := l.b.Input(message.Append(nil)); err != nil {
					b.Fatal(err)
				}
				l.b.NextPacket(nil) // packets of the window
			}
		})
	}
}

// TestCancelSparesOlderMessage (C23, C-T21) checks that the newest of a number has been received.
// An older one that is still held must not be destroyed instead.
func TestCancelSparesOlderMessage(t *testing.T) {
	for _, early := range []bool{false, true} { // the receive is posted before the message arrives, or after
		l := newLink(t, impi.AgentConfig{})
		l.send(message(1, "older"))
		l.run()
		newer := syncMessage(1, "newer")
		newer.Tag = 2
		r := byTag(2)
		if early {
			l.receive(r)
		}
		l.send(newer)
		l.leaveA()
		l.arriveB()
		if !early {
			l.receive(r)
		}
		require.Equal(t, impi.TooLate, l.cancel(newer)) // before the SYNCACK has arrived
		l.requireReceived(r, "newer")
		older := l.receive(byTag(1))
		l.run()
		l.requireReceived(older, "older")
	}
}

// TestOlderMessageIsDetached (C23, C-T22) checks that when the newest of three has been destroyed,
// another cancel of their number finds nothing.
func TestOlderMessageIsDetached(t *testing.T) {
	l := newLink(t, impi.AgentConfig{})
	l.send(message(1, "first"))
	l.run()
	l.send(message(1, "second"))
	l.run()
	require.Equal(t, impi.Canceled, l.cancel(l.sendNow(syncMessage(1, "third"))))
	p := impi.Packet{Type: impi.PacketCancel, Src: alice, Dest: bob, SrcRequest: 1}
	require.NoError(t, l.b.Input(p.Append(nil)))
	require.Equal(t, impi.PacketCancelNo, l.leaveB()[0].Type)
	for _, want := range []string{"first", "second"} {
		r := l.receive(byTag(1))
		l.bEvents = events(l.b)
		l.requireReceived(r, want)
	}
}

// sendNow sends s and lets it arrive.
func (l *link) sendNow(s *impi.Send) *impi.Send {
	l.t.Helper()
	l.send(s)
	l.run()
	return s
}

// TestRequestNumberInUse (C24, C-T24) checks that a number cannot be used again while a cancel of
// it has no answer, though its message has ended.
func TestRequestNumberInUse(t *testing.T) {
	l := newLink(t, impi.AgentConfig{})
	s := l.send(syncMessage(1, ""))
	l.leaveA()
	l.receive(byTag(1))
	l.arriveB()
	l.leaveB()
	require.Equal(t, impi.Asked, l.a.Cancel(s))
	l.leaveA()
	l.arriveA() // the SYNCACK
	require.Len(t, events(l.a), 1)
	require.ErrorIs(t, l.a.Send(message(1, "")), impi.ErrActive)
	require.ErrorIs(t, l.a.Finish(), impi.ErrActive)
	l.run()
	require.Equal(t, impi.TooLate, l.answer(s))
	l.send(message(1, ""))
}

// TestWindowOfPair (C-T33) checks that the window closes at Hiwater packets that are not received.
// Every Ackmark packets that are received open it by so many. Packets that only arrive do not.
func TestWindowOfPair(t *testing.T) {
	l := newLink(t, impi.AgentConfig{Hiwater: 4, Ackmark: 2})
	for i := range 10 {
		l.send(message(uint64(i), ""))
	}
	l.run()
	require.Len(t, l.ab, 4)
	require.Empty(t, l.ba)
	l.receive(byTag(impi.AnyTag))
	l.run()
	require.Len(t, l.ab, 4)
	l.receive(byTag(impi.AnyTag))
	l.run()
	require.Len(t, l.ab, 6)
	require.Equal(t, []impi.Packet{{Type: impi.PacketProtoAck, Src: bob, Dest: alice}}, l.ba)
	for range 8 {
		l.receive(byTag(impi.AnyTag))
	}
	l.run()
	require.Len(t, l.ab, 10)
	require.Equal(t, 5, countType(l.ba, impi.PacketProtoAck))
	require.Zero(t, l.b.Stats().Held)
}

// TestPairsTakeTurns checks that one pair whose window is closed does not stop the others, which
// take turns.
func TestPairsTakeTurns(t *testing.T) {
	l := newLink(t, impi.AgentConfig{Hiwater: 2, Ackmark: 1})
	for i := range 4 {
		l.send(message(uint64(i), ""))
	}
	l.run()
	for i := range 2 {
		toBen := message(uint64(10+i), "")
		toBen.To = ben
		l.send(toBen)
		annas := message(uint64(10+i), "")
		annas.From = anna
		l.send(annas)
	}
	var got []string
	for _, p := range l.leaveA() {
		got = append(got, fmt.Sprint(p.Src.PID, " ", p.Dest.PID))
	}
	require.Equal(t, []string{"101 202", "102 201", "101 202", "102 201"}, got)
}
