package impi_test

import (
	"fmt"
	"io"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/impi"
)

// Two hosts with two processes each.
var (
	alice = impi.Proc{Host: [16]byte{15: 1}, PID: 101}
	anna  = impi.Proc{Host: [16]byte{15: 1}, PID: 102}
	bob   = impi.Proc{Host: [16]byte{15: 2}, PID: 201}
	ben   = impi.Proc{Host: [16]byte{15: 2}, PID: 202}
)

// A link is two agents and the bytes between them, which the test moves.
type link struct {
	t        testing.TB
	a, b     *impi.Agent
	ab, ba   []impi.Packet // headers of all packets that have left
	aEvents  []impi.Event
	bEvents  []impi.Event
	pendingB []byte // has left a, and not arrived at b
	pendingA []byte

	drip       bool // one byte at a time
	transcript strings.Builder
}

func newLink(t testing.TB, c impi.AgentConfig) *link {
	l := &link{t: t}
	c.Local, c.Remote = []impi.Proc{alice, anna}, []impi.Proc{bob, ben}
	l.a = newAgent(t, c)
	c.Local, c.Remote = c.Remote, c.Local
	l.b = newAgent(t, c)
	return l
}

func newAgent(t testing.TB, c impi.AgentConfig) *impi.Agent {
	t.Helper()
	a, err := impi.NewAgent(c)
	require.NoError(t, err)
	return a
}

// takePackets takes all packets that a may send.
func takePackets(t testing.TB, a *impi.Agent) (raw []byte, headers []impi.Packet) {
	t.Helper()
	for {
		at := len(raw)
		next, ok := a.NextPacket(raw)
		if !ok {
			require.Len(t, next, at)
			return raw, headers
		}
		raw = next
		p, err := impi.ParsePacket(raw[at:])
		require.NoError(t, err)
		require.Len(t, raw[at:], impi.PacketSize+int(p.Len))
		headers = append(headers, p)
	}
}

// leaveA lets all that a may send leave, and returns it. It does not arrive yet.
func (l *link) leaveA() []impi.Packet {
	l.t.Helper()
	raw, headers := takePackets(l.t, l.a)
	l.pendingB, l.ab = append(l.pendingB, raw...), append(l.ab, headers...)
	l.recordPackets("A>", raw)
	return headers
}

func (l *link) leaveB() []impi.Packet {
	l.t.Helper()
	raw, headers := takePackets(l.t, l.b)
	l.pendingA, l.ba = append(l.pendingA, raw...), append(l.ba, headers...)
	l.recordPackets("B>", raw)
	return headers
}

func (l *link) arriveB() {
	l.t.Helper()
	l.input(l.b, l.pendingB)
	l.pendingB = nil
}

func (l *link) arriveA() {
	l.t.Helper()
	l.input(l.a, l.pendingA)
	l.pendingA = nil
}

func (l *link) input(to *impi.Agent, b []byte) {
	l.t.Helper()
	if !l.drip {
		require.NoError(l.t, to.Input(b))
		return
	}
	for i := range b {
		require.NoError(l.t, to.Input(b[i:i+1]))
	}
}

// run moves packets in both directions until none is left, and collects the events.
func (l *link) run() {
	l.t.Helper()
	for moved := true; moved; {
		l.leaveA()
		l.leaveB()
		moved = len(l.pendingA)+len(l.pendingB) > 0
		l.arriveB()
		l.arriveA()
	}
	l.aEvents = append(l.aEvents, events(l.a)...)
	l.bEvents = append(l.bEvents, events(l.b)...)
}

func events(a *impi.Agent) (all []impi.Event) {
	for e, ok := a.NextEvent(); ok; e, ok = a.NextEvent() {
		all = append(all, e)
	}
	return all
}

func (l *link) send(s *impi.Send) *impi.Send {
	l.t.Helper()
	require.NoError(l.t, l.a.Send(s))
	return s
}

func (l *link) receive(r *impi.Receive) *impi.Receive {
	l.t.Helper()
	require.NoError(l.t, l.b.Receive(r))
	return r
}

// cancel sends a cancel request for s and returns the answer.
func (l *link) cancel(s *impi.Send) impi.Answer {
	l.t.Helper()
	require.Equal(l.t, impi.Asked, l.a.Cancel(s))
	l.run()
	return l.answer(s)
}

// answer returns the only answer to the cancel of s so far.
func (l *link) answer(s *impi.Send) impi.Answer {
	l.t.Helper()
	var found []impi.Answer
	for _, e := range l.aEvents {
		if e.Kind == impi.Answered && e.Send == s {
			found = append(found, e.Answer)
		}
	}
	require.Len(l.t, found, 1, "answers")
	return found[0]
}

// sent returns how s has ended, and false if it has not.
func (l *link) sent(s *impi.Send) (error, bool) {
	l.t.Helper()
	var found []error
	for _, e := range l.aEvents {
		if e.Kind == impi.Sent && e.Send == s {
			found = append(found, e.Err)
		}
	}
	require.LessOrEqual(l.t, len(found), 1, "ends of one send")
	if len(found) == 0 {
		return nil, false
	}
	return found[0], true
}

func (l *link) requireSent(s *impi.Send, want error) {
	l.t.Helper()
	err, ended := l.sent(s)
	require.True(l.t, ended, "the send has not ended")
	if want == nil {
		require.NoError(l.t, err)
	} else {
		require.ErrorIs(l.t, err, want)
	}
}

func (l *link) requireReceived(r *impi.Receive, want string) {
	l.t.Helper()
	found := 0
	for _, e := range l.bEvents {
		if e.Kind == impi.Received && e.Receive == r {
			found++
			require.NoError(l.t, e.Err)
		}
	}
	require.Equal(l.t, 1, found, "ends of one receive")
	require.Equal(l.t, want, string(r.Buf[:r.N]))
}

// countType returns how many of ps have a type.
func countType(ps []impi.Packet, typ impi.PacketType) (n int) {
	for _, p := range ps {
		if p.Type == typ {
			n++
		}
	}
	return n
}

// message makes a send from alice to bob. The text is its data, the request number its tag.
func message(request uint64, text string) *impi.Send {
	return &impi.Send{From: alice, To: bob, Request: request, Tag: int32(request), Context: 7, Data: []byte(text)}
}

func syncMessage(request uint64, text string) *impi.Send {
	s := message(request, text)
	s.Sync = true
	return s
}

// byTag makes a receive by bob for what message sends.
func byTag(tag int32) *impi.Receive {
	return &impi.Receive{
		Match: impi.Match{To: bob, Context: 7, Rank: impi.AnyRank, Tag: tag}, Buf: make([]byte, 64),
	}
}

func TestShortMessage(t *testing.T) {
	l := newLink(t, impi.AgentConfig{})
	s := message(1, "hello")
	s.Rank, s.Count, s.Datatype = 3, 5, 99
	l.send(s)
	r := l.receive(byTag(1))
	l.run()
	l.requireSent(s, nil)
	l.requireReceived(r, "hello")
	require.Equal(t, impi.Packet{
		Type: impi.PacketData, Len: 5, Src: alice, Dest: bob, SrcRequest: 1, MsgLen: 5, Rank: 3, Tag: 1, Context: 7, SeqNum: 1,
		Count: 5, Datatype: 99,
	}, r.Packet)
	require.Empty(t, l.ba, "nothing is returned for a short message before Ackmark")
}

func TestSyncMessage(t *testing.T) {
	l := newLink(t, impi.AgentConfig{})
	s := l.send(syncMessage(1, "hello"))
	l.run()
	_, ended := l.sent(s)
	require.False(t, ended, "it was not received")
	r := l.receive(byTag(1))
	l.run()
	l.requireSent(s, nil)
	l.requireReceived(r, "hello")
	require.Equal(t, []impi.Packet{{Type: impi.PacketSyncAck, Src: bob, Dest: alice, SrcRequest: 1}}, l.ba)
}

func TestEmptyMessage(t *testing.T) {
	l := newLink(t, impi.AgentConfig{})
	for i, s := range []*impi.Send{message(1, ""), syncMessage(2, "")} {
		l.send(s)
		r := l.receive(byTag(int32(i + 1)))
		l.run()
		l.requireSent(s, nil)
		l.requireReceived(r, "")
	}
}

func TestLongMessage(t *testing.T) {
	l := newLink(t, impi.AgentConfig{MaxPacket: 4})
	s := l.send(message(1, "0123456789"))
	l.run()
	require.Len(t, l.ab, 1, "the rest waits for the SYNCACK")
	r := l.receive(byTag(1))
	l.run()
	l.requireSent(s, nil)
	l.requireReceived(r, "0123456789")
	require.Equal(t, impi.PacketSyncAck, l.ba[0].Type)
	id := l.ba[0].DestRequest
	require.NotZero(t, id)
	for i, want := range []impi.Packet{
		{Type: impi.PacketDataSync, Len: 4}, {Type: impi.PacketData, Len: 4, DestRequest: id},
		{Type: impi.PacketData, Len: 2, DestRequest: id},
	} {
		want.Src, want.Dest, want.SrcRequest, want.MsgLen, want.Tag, want.Context, want.SeqNum = alice, bob, 1, 10, 1, 7, 1
		require.Equal(t, want, l.ab[i])
	}
}

// TestTwoLongMessages checks two long messages at a time: the destination request tells their
// packets apart.
func TestTwoLongMessages(t *testing.T) {
	l := newLink(t, impi.AgentConfig{MaxPacket: 3, Hiwater: 4})
	first, second := l.send(message(1, "aaaaaaaaaa")), l.send(message(2, "bbbbbbbbbbbbb"))
	r2, r1 := l.receive(byTag(2)), l.receive(byTag(1))
	l.run()
	l.requireSent(first, nil)
	l.requireSent(second, nil)
	l.requireReceived(r1, "aaaaaaaaaa")
	l.requireReceived(r2, "bbbbbbbbbbbbb")
}

func TestTruncated(t *testing.T) {
	for _, text := range []string{"abcdef", "abcdefghijklmnopq"} {
		l := newLink(t, impi.AgentConfig{MaxPacket: 8})
		r := byTag(1)
		r.Buf = make([]byte, 3)
		l.receive(r)
		s := l.send(message(1, text))
		l.run()
		l.requireSent(s, nil)
		require.Len(t, l.bEvents, 1)
		require.ErrorIs(t, l.bEvents[0].Err, impi.ErrTruncated)
		require.Equal(t, "abc", string(r.Buf[:r.N]))
		require.EqualValues(t, len(text), r.Packet.MsgLen)
	}
}

// TestMatch checks that messages match the oldest receive, receives the oldest message, and both
// only what they name.
func TestMatch(t *testing.T) {
	l := newLink(t, impi.AgentConfig{})
	other := message(1, "other context")
	other.Context = 8
	l.send(other)
	ranked := message(2, "rank 5")
	ranked.Rank = 5
	l.send(ranked)
	l.send(message(3, "first"))
	s := message(4, "second")
	s.Tag = 3
	l.send(s)
	toBen := message(5, "for ben")
	toBen.To = ben
	l.send(toBen)
	l.run()

	exact := byTag(impi.AnyTag)
	exact.Rank = 5
	for _, c := range []struct {
		r    *impi.Receive
		want string
	}{
		{byTag(3), "first"},
		{exact, "rank 5"},
		{byTag(impi.AnyTag), "second"},
		{&impi.Receive{Match: impi.Match{To: bob, Context: 8, Tag: impi.AnyTag, Rank: 0}, Buf: make([]byte, 64)}, "other context"},
		{&impi.Receive{Match: impi.Match{To: ben, Context: 7, Tag: 5}, Buf: make([]byte, 64)}, "for ben"},
	} {
		l.receive(c.r)
		l.run()
		l.requireReceived(c.r, c.want)
	}

	older, younger := l.receive(byTag(impi.AnyTag)), l.receive(byTag(6))
	l.send(message(6, "to the older"))
	l.run()
	l.requireReceived(older, "to the older")
	require.Equal(t, impi.Canceled, l.b.CancelReceive(younger))
	require.Equal(t, impi.TooLate, l.b.CancelReceive(younger))
	l.run()
	require.ErrorIs(t, l.bEvents[len(l.bEvents)-1].Err, impi.ErrCanceled)
}

func TestRefusals(t *testing.T) {
	_, err := impi.NewAgent(impi.AgentConfig{MaxPacket: -1, Hiwater: 2, Ackmark: 3, MaxOperations: -1})
	for _, field := range []string{"Local", "Remote", "MaxPacket", "Ackmark", "MaxOperations"} {
		require.ErrorContains(t, err, field)
	}

	l := newLink(t, impi.AgentConfig{MaxOperations: 3})
	foreign := message(1, "")
	foreign.From = bob
	require.ErrorContains(t, l.a.Send(foreign), "non-local")
	unknown := message(1, "")
	unknown.To = anna
	require.ErrorContains(t, l.a.Send(unknown), "unknown process")
	negative := message(1, "")
	negative.Tag = -1
	require.ErrorContains(t, l.a.Send(negative), "want at least 0")
	require.ErrorContains(t, l.a.Receive(byTag(1)), "non-local")

	r := l.receive(byTag(1))
	require.ErrorIs(t, l.b.Receive(r), impi.ErrActive)
	s := l.send(message(1, ""))
	require.ErrorIs(t, l.a.Send(s), impi.ErrActive)
	require.ErrorIs(t, l.a.Send(message(1, "")), impi.ErrActive)
}

// TestMaxOperations checks that active sends and receives and events that were not taken have one
// limit together.
func TestMaxOperations(t *testing.T) {
	l := newLink(t, impi.AgentConfig{MaxOperations: 2})
	l.send(message(1, ""))
	l.send(message(2, ""))
	require.ErrorIs(t, l.a.Send(message(3, "")), impi.ErrFull)
	l.leaveA()
	require.ErrorIs(t, l.a.Send(message(3, "")), impi.ErrFull, "the events are there")
	require.Equal(t, 2, l.a.Stats().Operations)
	_, ok := l.a.NextEvent()
	require.True(t, ok)
	l.send(message(3, ""))

	l.receive(byTag(1))
	l.receive(byTag(9))
	require.ErrorIs(t, l.b.Receive(byTag(2)), impi.ErrFull)
	l.arriveB()
	require.ErrorIs(t, l.b.Receive(byTag(2)), impi.ErrFull, "the event is there")
	l.run()
	l.receive(byTag(2))
}

func TestFinish(t *testing.T) {
	l := newLink(t, impi.AgentConfig{Hiwater: 1})
	s := l.send(syncMessage(1, "a"))
	require.ErrorIs(t, l.a.Finish(), impi.ErrActive)
	l.run()

	// Messages before the FINI can still be received after it, and its SYNCACK follows the other
	// FINI.
	require.NoError(t, l.b.Finish())
	l.run()
	require.Equal(t, impi.PacketFini, l.ba[len(l.ba)-1].Type)
	require.False(t, l.b.Finished())
	l.receive(byTag(1))
	l.run()
	l.requireSent(s, nil)
	require.NoError(t, l.a.Finish())
	require.ErrorIs(t, l.a.Send(message(2, "")), impi.ErrFinished)
	l.run()
	require.True(t, l.a.Finished())
	require.True(t, l.b.Finished())
	require.Equal(t, 1, countType(l.ab, impi.PacketFini))

	for _, p := range []impi.Packet{
		{Type: impi.PacketData}, {Type: impi.PacketDataSync}, {Type: impi.PacketCancel}, {Type: impi.PacketFini},
	} {
		l := newLink(t, impi.AgentConfig{})
		require.NoError(t, l.a.Finish())
		l.run()
		p.Src, p.Dest = alice, bob
		require.ErrorIs(t, l.b.Input(p.Append(nil)), impi.ErrProtocol, "%v", p.Type)
	}
}

// TestFail checks that the end of the channel ends every operation, each with its known outcome.
func TestFail(t *testing.T) {
	l := newLink(t, impi.AgentConfig{MaxPacket: 4, Hiwater: 3, Ackmark: 1})
	exposed := l.send(syncMessage(1, "1"))
	asked := l.send(syncMessage(2, "2"))
	taken := l.send(message(3, "33333333"))
	queued := l.send(message(4, "4"))
	l.leaveA()
	l.arriveB()
	l.receive(byTag(3))
	l.leaveB()
	l.arriveA()
	require.Equal(t, impi.Asked, l.a.Cancel(asked))
	l.leaveA()
	l.arriveB() // the answer is lost
	require.Empty(t, events(l.b), "parts of the long message are missing")
	l.receive(byTag(5))

	// A part of a packet, so that the stream ends within a packet.
	require.NoError(t, l.a.Input(make([]byte, 5)))
	l.a.Fail(io.EOF)
	l.a.Fail(fmt.Errorf("the first reason counts"))
	require.Equal(t, io.ErrUnexpectedEOF, l.a.Err())
	l.b.Fail(io.EOF)

	type end struct {
		kind   impi.EventKind
		send   *impi.Send
		answer impi.Answer
	}
	var ends []end
	for _, e := range events(l.a) {
		ends = append(ends, end{e.Kind, e.Send, e.Answer})
		if e.Kind == impi.Sent {
			want := impi.ErrUnknown
			if e.Send == queued {
				want = impi.ErrNotSent
			}
			require.ErrorIs(t, e.Err, want)
			require.ErrorIs(t, e.Err, io.ErrUnexpectedEOF)
		}
	}
	require.Equal(t, []end{
		{impi.Sent, exposed, 0}, {impi.Sent, asked, 0}, {impi.Answered, asked, impi.Unknown}, {impi.Sent, taken, 0},
		{impi.Sent, queued, 0},
	}, ends)
	require.Equal(t, impi.Unknown, l.a.Cancel(exposed))
	require.Equal(t, impi.TooLate, l.a.Cancel(queued))
	require.Equal(t, io.ErrUnexpectedEOF, l.a.Send(message(9, "")))
	require.Equal(t, io.ErrUnexpectedEOF, l.a.Finish())
	require.Equal(t, io.ErrUnexpectedEOF, l.a.Input([]byte{1}))
	more, _ := takePackets(t, l.a)
	require.Empty(t, more)

	lost := events(l.b)
	require.Len(t, lost, 2, "the long message, and the receive that nothing matched")
	for _, e := range lost {
		require.Equal(t, io.EOF, e.Err)
	}
	// What had arrived as a whole can still be received; the second was destroyed.
	r := l.receive(byTag(1))
	l.bEvents = events(l.b)
	l.requireReceived(r, "1")
	require.Equal(t, io.EOF, l.b.Receive(byTag(2)))
}
