package arq

import (
	"bytes"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestVersions checks that two sides use the newest version that both speak, and without one the
// HELLO is refused, in a form that both sides read.
func TestVersions(t *testing.T) {
	const own = Version
	words := func(oldest, newest uint8) []byte { return fmt.Append(nil, "you speak ", oldest, " to ", newest) }
	for _, row := range []struct {
		dialer, listener [2]uint8
		refused          string
	}{
		{[2]uint8{own, own + 1}, [2]uint8{own, own}, ""},
		{[2]uint8{own, own}, [2]uint8{own, own + 1}, ""},
		{[2]uint8{own - 1, own}, [2]uint8{own, own + 1}, ""},
		{[2]uint8{own, own}, [2]uint8{own + 1, own + 2}, "you speak 3 to 3"},
		{[2]uint8{own + 1, own + 2}, [2]uint8{own - 1, own}, "you speak 4 to 5"},
	} {
		t.Run(fmt.Sprint(row.dialer, row.listener), func(t *testing.T) {
			n := newNetwork(t, 1, faults{delay: ms})
			a := n.add(1, Config{oldest: row.dialer[0], newest: row.dialer[1]})
			b := n.add(2, Config{oldest: row.listener[0], newest: row.listener[1], WrongVersion: words})
			if row.refused == "" {
				n.join(a, b)
				require.Equal(t, formOf(own), a.assoc.form)
				require.Equal(t, formOf(own), b.assoc.form)
				n.stream(a, b, 10, 64, time.Minute)
				return
			}
			_, err := a.m.Dial(n.now, b.addr, 0, a.path, a)
			require.NoError(t, err)
			n.idle(time.Minute)
			require.Len(t, a.ends, 1)
			require.Equal(t, Refusal, a.ends[0].Outcome)
			require.Equal(t, row.refused, a.ends[0].Words)
			require.Zero(t, b.m.Stats().Peers)
			require.Zero(t, b.admitted)
		})
	}
}

// TestOtherForm checks that a packet of a version that this side does not speak changes nothing.
// One of an association that is not known is answered with RESET, so that a peer detects at once
// that this side is another process.
func TestOtherForm(t *testing.T) {
	n := newNetwork(t, 1, faults{delay: ms})
	a, b := n.pair(Config{}, Config{})
	n.idle(time.Second)
	as := a.assoc
	other := Packet{form: formOf(Version + 1), kind: 9, flags: 0xff, id: as.id, token: as.token, body: []byte("of a later version")}
	datagram := reencode(append(other.append(nil), other.body...))
	p, err := Parse(datagram)
	require.NoError(t, err)
	was, invalid := as.numbers(), a.m.Stats().Invalid
	a.m.Receive(n.now, b.addr, &p)
	require.Equal(t, was, as.numbers())
	require.Equal(t, invalid+1, a.m.Stats().Invalid)
	resets := a.m.Stats().Resets
	p.token++
	a.m.Receive(n.now, b.addr, &p)
	require.Equal(t, resets+1, a.m.Stats().Resets)
	for i := range datagram {
		damaged := bytes.Clone(datagram)
		damaged[i] ^= 1
		_, err := Parse(damaged)
		require.Error(t, err, "byte %d", i)
	}
}

// TestLongerGreeting checks that bytes that a later release puts between the greeting and the
// engine's HELLO, and unknown bits of the profile, are skipped.
func TestLongerGreeting(t *testing.T) {
	g := greeting{oldest: OldestVersion, newest: Version, id: 1, token: 2, session: 3, size: BaseSize, profile: 0xffff, hello: []byte("hello")}
	b := g.append(nil)
	longer := append(append(bytes.Clone(b[:greetingSize]), "of a later release"...), g.hello...)
	longer[58] += uint8(len("of a later release"))
	got, ok := parseGreeting(longer)
	require.True(t, ok)
	require.Equal(t, g, got)
	for _, change := range []func(b []byte){
		func(b []byte) { b[58]-- },           // shorter than this version's
		func(b []byte) { b[59] = 0xff },      // longer than the packet
		func(b []byte) { b[56] = 0 },         // no version
		func(b []byte) { b[56] = b[57] + 1 }, // no range
	} {
		bad := bytes.Clone(b)
		change(bad)
		_, ok := parseGreeting(bad)
		require.False(t, ok)
	}
}

// TestGoldenPackets checks the bytes of packets as release 0.1.0 has sent them. Those of form 0
// never change; the others belong to version 3.
func TestGoldenPackets(t *testing.T) {
	g := greeting{id: 0x01020304, token: 0x05060708, session: 0x1112131415161718, first: [2]uint32{0x21, 0x22}, window: [2]uint32{0x23, 0x24},
		size: 1400, profile: isSelective, oldest: 3, newest: 3, hello: []byte("HELLO of the engine")}
	copy(g.cookie[:], "sixteen bytes...")
	require.Equal(t, "0403020108070605181716151413121121000000230000002200000024000000780500000100130073697874656"+
		"56e2062797465732e2e2e03033c0048454c4c4f206f662074686520656e67696e65", fmt.Sprintf("%x", g.append(nil)))
	got, ok := parseGreeting(g.append(nil))
	require.True(t, ok)
	require.Equal(t, g, got)
	for want, p := range map[string]Packet{
		"030000000102030400000000000000000000000000000000000000000000000000000000": {kind: kindHello, id: 0x04030201},
		"114002000403020108070605090000000a0000000b0000000c0000000d00000000000000": {form: formOf(3), kind: kindData, flags: flagEcho, delay: 2,
			id: 0x01020304, token: 0x05060708, seq: 9, ack: 10, edge: 11, ts: 12, echo: 13},
		"120400000403020108070605090000000a0000000b0000000c0000000000000000000000": {form: formOf(3), kind: kindAck, flags: flagGap,
			id: 0x01020304, token: 0x05060708, seq: 9, ack: 10, edge: 11, ts: 12},
	} {
		require.Equal(t, want, fmt.Sprintf("%x", p.append(nil)))
	}
}
