package impi_test

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/impi"
)

// TestViolations checks that a packet that a peer must not send ends the channel, and the error
// names the packet.
func TestViolations(t *testing.T) {
	config := impi.AgentConfig{MaxPacket: 8, Hiwater: 2, Ackmark: 2}
	for name, c := range map[string]struct {
		packet impi.Packet
		text   string
	}{
		"data longer than a packet may be":    {impi.Packet{Type: impi.PacketDataSync, Len: 9, MsgLen: 20}, "of 9 bytes"},
		"the largest length":                  {impi.Packet{Type: impi.PacketData, Len: math.MaxUint32, MsgLen: math.MaxUint64}, "of 4294967295 bytes"},
		"more data than message":              {impi.Packet{Type: impi.PacketData, Len: 4, MsgLen: 3}, "for a message of 3"},
		"a part of a short message":           {impi.Packet{Type: impi.PacketDataSync, Len: 4, MsgLen: 8}, "fragment of a message of 8 bytes"},
		"SYNCACK for nothing":                 {impi.Packet{Type: impi.PacketSyncAck, SrcRequest: 5}, "request 5"},
		"PROTOACK for nothing":                {impi.Packet{Type: impi.PacketProtoAck}, "more than were sent"},
		"from a process that is not there":    {impi.Packet{Type: impi.PacketCancel, Src: ben}, "unknown process"},
		"for a process that is not here":      {impi.Packet{Type: impi.PacketCancel, Dest: anna}, "non-local"},
		"an unknown type":                     {impi.Packet{Type: 8}, "unknown packet type 8"},
		"a type that is negative if one errs": {impi.Packet{Type: math.MaxUint32}, "unknown packet type 4294967295"},
	} {
		t.Run(name, func(t *testing.T) {
			config.Local, config.Remote = []impi.Proc{alice}, []impi.Proc{bob}
			a := newAgent(t, config)
			p := c.packet
			if p.Src == (impi.Proc{}) {
				p.Src = bob
			}
			if p.Dest == (impi.Proc{}) {
				p.Dest = alice
			}
			// Every byte of it at once, or one by one: the header is enough.
			raw := p.Append(nil)
			for _, b := range raw[:len(raw)-1] {
				require.NoError(t, a.Input([]byte{b}))
			}
			err := a.Input(raw[len(raw)-1:])
			require.ErrorIs(t, err, impi.ErrProtocol)
			require.ErrorContains(t, err, c.text)
			require.Equal(t, err, a.Err())
		})
	}
}

// TestBeyondTheWindow checks that a peer that sends more than the window is cut off when it needs
// more memory than it was guaranteed.
func TestBeyondTheWindow(t *testing.T) {
	l := newLink(t, impi.AgentConfig{Hiwater: 3})
	p := impi.Packet{Type: impi.PacketData, Src: alice, Dest: bob}
	for range 3 {
		require.NoError(t, l.b.Input(p.Append(nil)))
	}
	// Another pair has room of its own.
	others := impi.Packet{Type: impi.PacketData, Src: anna, Dest: bob}
	require.NoError(t, l.b.Input(others.Append(nil)))
	require.ErrorIs(t, l.b.Input(p.Append(nil)), impi.ErrProtocol)
	require.Equal(t, 4, l.b.Stats().Held)
}

// TestSyncAcksNotRead checks that SYNCACKs that a peer does not read are bounded too, also when
// receives wait for all that it sends.
func TestSyncAcksNotRead(t *testing.T) {
	l := newLink(t, impi.AgentConfig{Hiwater: 3})
	p := impi.Packet{Type: impi.PacketDataSync, Src: alice, Dest: bob, Context: 7}
	for i := range 7 {
		l.receive(byTag(impi.AnyTag))
		err := l.b.Input(p.Append(nil))
		if i < 6 {
			require.NoError(t, err)
		} else {
			require.ErrorIs(t, err, impi.ErrProtocol)
		}
	}
}

// TestBadRest checks that the parts of a long message must fit together.
func TestBadRest(t *testing.T) {
	for name, change := range map[string]func(*impi.Packet){
		"number":        func(p *impi.Packet) { p.DestRequest++ },
		"source":        func(p *impi.Packet) { p.Src = anna },
		"destination":   func(p *impi.Packet) { p.Dest = ben },
		"total":         func(p *impi.Packet) { p.MsgLen++ },
		"nothing in it": func(p *impi.Packet) { p.Len = 0 },
		"too much":      func(p *impi.Packet) { p.Len = 7 },
	} {
		t.Run(name, func(t *testing.T) {
			l := newLink(t, impi.AgentConfig{MaxPacket: 8})
			l.receive(byTag(1))
			first := impi.Packet{
				Type: impi.PacketDataSync, Src: alice, Dest: bob, Len: 4, MsgLen: 10, Tag: 1, Context: 7, SrcRequest: 1,
			}
			require.NoError(t, l.b.Input(append(first.Append(nil), 1, 2, 3, 4)))
			rest := first
			rest.Type, rest.Len, rest.DestRequest = impi.PacketData, 6, l.leaveB()[0].DestRequest
			change(&rest)
			require.ErrorIs(t, l.b.Input(append(rest.Append(nil), make([]byte, rest.Len)...)), impi.ErrProtocol)
		})
	}
}

// TestHugeMessage checks that a message of any length costs no more than its first packet and the
// buffer of its receive.
func TestHugeMessage(t *testing.T) {
	l := newLink(t, impi.AgentConfig{MaxPacket: 8})
	first := impi.Packet{
		Type: impi.PacketDataSync, Src: alice, Dest: bob, Len: 4, MsgLen: math.MaxUint64, Tag: 1, Context: 7,
	}
	require.NoError(t, l.b.Input(append(first.Append(nil), 1, 2, 3, 4)))
	require.EqualValues(t, 4, l.b.Stats().HeldBytes)
	r := byTag(1)
	r.Buf = make([]byte, 6)
	l.receive(r)
	rest := first
	rest.Type, rest.DestRequest = impi.PacketData, l.leaveB()[0].DestRequest
	for range 5 {
		require.NoError(t, l.b.Input(append(rest.Append(nil), 5, 6, 7, 8)))
	}
	require.Equal(t, []byte{1, 2, 3, 4, 5, 6}, r.Buf)
}

// TestControlPacketLength (C-T32) checks the length of 128 that LAM/MPI writes into packets without
// data.
func TestControlPacketLength(t *testing.T) {
	l := newLink(t, impi.AgentConfig{})
	s := l.send(syncMessage(1, ""))
	l.leaveA()
	require.Equal(t, impi.Asked, l.a.Cancel(s))
	l.leaveA()
	var raw []byte
	for _, typ := range []impi.PacketType{impi.PacketCancelNo, impi.PacketSyncAck, impi.PacketFini} {
		p := impi.Packet{Type: typ, Len: 128, MsgLen: 128, Src: bob, Dest: alice, SrcRequest: 1, Rank: -1, Tag: -1, Context: 73}
		raw = p.Append(raw)
	}
	require.NoError(t, l.a.Input(raw))
	l.aEvents = events(l.a)
	require.Equal(t, impi.TooLate, l.answer(s))
	l.requireSent(s, nil)
	require.NoError(t, l.a.Finish())
	l.leaveA()
	require.True(t, l.a.Finished())
}

// FuzzAgent checks that the agent survives random packets, most of them nearly valid, and
// operations between them, and stays within its bounds.
func FuzzAgent(f *testing.F) {
	for seed := range uint64(8) {
		f.Add(seed, []byte("seed"))
	}
	f.Fuzz(func(t *testing.T, seed uint64, noise []byte) {
		rnd := rand.New(rand.NewPCG(seed, uint64(len(noise))))
		config := impi.AgentConfig{
			Local: []impi.Proc{alice}, Remote: []impi.Proc{bob, ben}, MaxPacket: 8, Hiwater: 4, Ackmark: 2, MaxOperations: 16,
		}
		a := newAgent(t, config)
		open := map[any]bool{}
		var sends []*impi.Send
		for step := 0; step < 200 && a.Err() == nil; step++ {
			pick := func(n int) int {
				if step < len(noise) {
					return int(noise[step]) % n
				}
				return rnd.IntN(n)
			}
			switch pick(8) {
			case 0:
				s := &impi.Send{
					From: alice, To: config.Remote[rnd.IntN(2)], Request: rnd.Uint64N(4), Sync: pick(2) == 0, Data: make([]byte, rnd.IntN(20)),
				}
				if a.Send(s) == nil {
					open[s] = true
					sends = append(sends, s)
				}
			case 1:
				r := &impi.Receive{Match: impi.Match{To: alice, Rank: impi.AnyRank, Tag: impi.AnyTag}, Buf: make([]byte, 12)}
				if a.Receive(r) == nil {
					open[r] = true
				}
			case 2:
				if len(sends) > 0 {
					a.Cancel(sends[pick(len(sends))])
				}
			case 3:
				a.NextPacket(nil)
			default:
				p := impi.Packet{
					Type: impi.PacketType(rnd.IntN(7)), Src: config.Remote[rnd.IntN(2)], Dest: alice,
					SrcRequest: rnd.Uint64N(4), DestRequest: rnd.Uint64N(3), Len: uint32(rnd.IntN(9)), MsgLen: rnd.Uint64N(16),
				}
				if pick(4) > 0 {
					p.MsgLen = uint64(p.Len)
				}
				raw := append(p.Append(nil), make([]byte, p.Len)...)
				if len(noise) > step && noise[step] > 250 {
					raw[rnd.IntN(len(raw))] ^= noise[step]
				}
				a.Input(raw)
			}
			stats := a.Stats()
			require.LessOrEqual(t, stats.Held, 8)
			require.LessOrEqual(t, stats.HeldBytes, int64(64))
			require.LessOrEqual(t, stats.Operations, 3*16)
			if rnd.IntN(3) == 0 {
				takeEvents(t, a, open)
			}
		}
		a.Fail(impi.ErrFinished)
		takeEvents(t, a, open)
		require.Empty(t, open, "operations without an end")
		require.Zero(t, a.Stats().Operations)
	})
}

// takeEvents takes the events, each of which ends one of the open operations but for answers.
func takeEvents(t *testing.T, a *impi.Agent, open map[any]bool) {
	for _, e := range events(a) {
		var op any = e.Send
		switch e.Kind {
		case impi.Answered:
			continue
		case impi.Received:
			op = e.Receive
		}
		require.True(t, open[op], "an end of nothing")
		delete(open, op)
	}
}
