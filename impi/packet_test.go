package impi_test

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/impi"
	"github.com/quicksilver-rpc/quicksilver/internal/test/beginnings"
)

var update = flag.Bool("update", false, "write the golden files of messages anew")

// TestPacketLayout (C-T32) checks the layout against a second copy of it: offset, size and value of
// each field of IMPI_Packet.
func TestPacketLayout(t *testing.T) {
	fields := []struct {
		offset, size int
		value        uint64
	}{
		{0, 4, 1}, {4, 4, 0x11121314}, // pk_type, pk_len
		{8, 8, 0x2122232425262728}, {16, 8, 0x292a2b2c2d2e2f30}, {24, 8, 0x3132333435363738}, // pk_src
		{32, 8, 0x4142434445464748}, {40, 8, 0x494a4b4c4d4e4f50}, {48, 8, 0xf152535455565758}, // pk_dest
		{56, 8, 0x6162636465666768}, {64, 8, 0x7172737475767778}, // pk_srqid, pk_drqid
		{72, 8, 0x8182838485868788},              // pk_msglen
		{80, 4, 0x91929394}, {84, 4, 0xa1a2a3a4}, // pk_lsrank, pk_tag
		{88, 8, 0xb1b2b3b4b5b6b7b8}, {96, 8, 0xc1c2c3c4c5c6c7c8}, // pk_cid, pk_seqnum
		{104, 8, 0xd1d2d3d4d5d6d7d8}, {112, 8, 0xe1e2e3e4e5e6e7e8}, // pk_count, pk_dtype
		{120, 8, 0xf1f2f3f4f5f6f7f8}, // pk_reserved
	}
	raw := make([]byte, 128)
	for _, f := range fields {
		if f.size == 4 {
			binary.BigEndian.PutUint32(raw[f.offset:], uint32(f.value))
		} else {
			binary.BigEndian.PutUint64(raw[f.offset:], f.value)
		}
	}
	i32, i64 := func(x uint32) int32 { return int32(x) }, func(x uint64) int64 { return int64(x) }
	p := impi.Packet{
		Type: impi.PacketDataSync, Len: 0x11121314,
		Src:        impi.Proc{Host: [16]byte(raw[8:24]), PID: 0x3132333435363738},
		Dest:       impi.Proc{Host: [16]byte(raw[32:48]), PID: i64(0xf152535455565758)},
		SrcRequest: 0x6162636465666768, DestRequest: 0x7172737475767778, MsgLen: 0x8182838485868788,
		Rank: i32(0x91929394), Tag: i32(0xa1a2a3a4), Context: 0xb1b2b3b4b5b6b7b8, SeqNum: 0xc1c2c3c4c5c6c7c8,
		Count: i64(0xd1d2d3d4d5d6d7d8), Datatype: 0xe1e2e3e4e5e6e7e8, Reserved: 0xf1f2f3f4f5f6f7f8,
	}
	require.Equal(t, raw, p.Append(nil))
	got, err := impi.ParsePacket(raw)
	require.NoError(t, err)
	require.Equal(t, p, got)
	_, err = impi.ParsePacket(raw[:127])
	require.ErrorIs(t, err, impi.ErrProtocol)
}

// TestGoldenExchanges checks exchanges whose every byte is in testdata: the packets of both agents,
// in order. Each is run with whole writes and with one byte at a time.
func TestGoldenExchanges(t *testing.T) {
	for name, run := range map[string]func(l *link){
		"short":    func(l *link) { l.receive(byTag(1)); l.send(message(1, "hello")); l.run() },
		"sync":     func(l *link) { l.receive(byTag(1)); l.send(syncMessage(1, "hello")); l.run() },
		"long":     func(l *link) { l.receive(byTag(1)); l.send(message(1, "three packets of 8")); l.run() },
		"canceled": func(l *link) { require.Equal(l.t, impi.Canceled, l.cancel(l.sendNow(syncMessage(1, "hello")))) },
		"too-late": func(l *link) {
			s := l.send(syncMessage(1, "hello"))
			l.leaveA()
			l.arriveB()
			l.receive(byTag(1))
			require.Equal(l.t, impi.TooLate, l.cancel(s))
		},
		"number-twice": func(l *link) {
			l.sendNow(message(1, "older"))
			require.Equal(l.t, impi.Canceled, l.cancel(l.sendNow(syncMessage(1, "newer"))))
			l.receive(byTag(1))
			l.run()
		},
		"window": func(l *link) {
			for i := range 5 {
				l.send(message(uint64(i), ""))
			}
			l.run()
			for range 5 {
				l.receive(byTag(impi.AnyTag))
			}
			l.run()
		},
		"finish": func(l *link) {
			require.NoError(l.t, l.a.Finish())
			require.NoError(l.t, l.b.Finish())
			l.run()
			require.True(l.t, l.a.Finished() && l.b.Finished())
		},
	} {
		for _, drip := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s/drip=%v", name, drip), func(t *testing.T) {
				l := newLink(t, impi.AgentConfig{MaxPacket: 8, Hiwater: 4, Ackmark: 3})
				l.drip = drip
				run(l)
				golden(t, filepath.Join("testdata", "message-"+name+".txt"), l.transcript.String())
			})
		}
	}
}

func golden(t *testing.T, file, got string) {
	t.Helper()
	if *update {
		require.NoError(t, os.WriteFile(file, []byte(got), 0o666))
	}
	want, err := os.ReadFile(file)
	require.NoError(t, err)
	require.Equal(t, string(want), got)
}

// recordPackets writes the packets in raw down: the direction and the type, then rows of 16 bytes, headers and data apart.
func (l *link) recordPackets(direction string, raw []byte) {
	for len(raw) > 0 {
		p, err := impi.ParsePacket(raw)
		require.NoError(l.t, err)
		size := impi.PacketSize + int(p.Len)
		fmt.Fprintf(&l.transcript, "%s %v\n", direction, p.Type)
		for at := 0; at < size; at += 16 {
			fmt.Fprintln(&l.transcript, " ", hex.EncodeToString(raw[at:min(at+16, size)]))
		}
		raw = raw[size:]
	}
}

// TestGoldenIsUnderstood checks the bytes in the files with new agents: they decode what the files
// describe.
func TestGoldenIsUnderstood(t *testing.T) {
	raw, err := os.ReadFile(filepath.Join("testdata", "message-number-twice.txt"))
	require.NoError(t, err)
	l := newLink(t, impi.AgentConfig{MaxPacket: 8, Hiwater: 4, Ackmark: 3})
	var blocks []string
	for _, block := range strings.Split(string(raw), "\n") {
		row, isData := strings.CutPrefix(block, "  ")
		if !isData {
			blocks = append(blocks, block)
		} else if strings.HasPrefix(blocks[len(blocks)-1], "A>") {
			b, err := hex.DecodeString(row)
			require.NoError(t, err)
			require.NoError(t, l.b.Input(b))
		}
	}
	r := l.receive(byTag(impi.AnyTag))
	l.bEvents = events(l.b)
	l.requireReceived(r, "older")
	require.Zero(t, l.b.Stats().Held, "the newer was destroyed")
	require.Equal(t, []string{"A> DATA", "A> DATASYNC", "A> CANCEL", "B> CANCELYES", "B> PROTOACK", ""}, blocks)
}

func FuzzParsePacket(f *testing.F) {
	beginnings.Seed(f, make([]byte, impi.PacketSize))
	beginnings.Seed(f, bytes.Repeat([]byte{0, 0, 0, 5}, 40))
	beginnings.Seed(f, []byte{1, 2, 3})
	f.Fuzz(func(t *testing.T, b []byte) {
		p, err := impi.ParsePacket(b)
		if err != nil {
			require.ErrorIs(t, err, impi.ErrProtocol)
			return
		}
		require.Equal(t, b[:impi.PacketSize], p.Append(nil))
	})
}

// FuzzInput checks that bytes mean the same however the stream is cut, and memory stays within its
// bounds.
func FuzzInput(f *testing.F) {
	p := impi.Packet{Type: impi.PacketDataSync, Src: alice, Dest: bob, Len: 5, MsgLen: 5, SrcRequest: 1}
	first := append(p.Append(nil), "hello"...)
	p = impi.Packet{Type: impi.PacketCancel, Src: alice, Dest: bob, SrcRequest: 1}
	beginnings.Seed(f, p.Append(first), uint8(1))
	beginnings.Seed(f, first, uint8(7))
	f.Fuzz(func(t *testing.T, b []byte, cut uint8) {
		config := impi.AgentConfig{Local: []impi.Proc{bob}, Remote: []impi.Proc{alice}, MaxPacket: 64, Hiwater: 2}
		whole, parts := newAgent(t, config), newAgent(t, config)
		whole.Input(b)
		for rest := b; len(rest) > 0; {
			n := min(len(rest), int(cut)+1)
			parts.Input(rest[:n])
			rest = rest[n:]
		}
		require.Equal(t, whole.Err(), parts.Err())
		require.Equal(t, whole.Stats(), parts.Stats())
		wants, _ := takePackets(t, whole)
		got, _ := takePackets(t, parts)
		require.Equal(t, wants, got)
		require.LessOrEqual(t, whole.Stats().HeldBytes, int64(2*64))
	})
}
