package hgwire_test

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"net/netip"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/internal/test/beginnings"
	"github.com/quicksilver-rpc/quicksilver/internal/test/leak"
	"github.com/quicksilver-rpc/quicksilver/mercury/internal/golden"
	"github.com/quicksilver-rpc/quicksilver/mercury/internal/hgwire"
	"github.com/quicksilver-rpc/quicksilver/mercury/internal/xnet"
)

func TestMain(m *testing.M) { leak.Main(m) }

// TestGolden checks that each request, response and bulk handle that C sent is parsed and encoded
// again, byte for byte. C fills in no checksums unless it is configured to, and leaves garbage
// behind the code of a refusal.
func TestGolden(t *testing.T) {
	seen := map[string]int{}
	for _, name := range golden.Names {
		messages, err := golden.Read(name)
		require.NoError(t, err)
		for _, m := range messages[2:] {
			n, err := xnet.HeaderLen(m.Bytes)
			require.NoError(t, err)
			var h xnet.Header
			require.NoError(t, h.Parse(m.Bytes[:n]))
			b := m.Bytes[n:]
			switch {
			case h.Unexpected():
				seen["request"]++
				goldenRequest(t, b, seen)
			case h.Op == xnet.Tagged && len(b) == 1:
				seen["acknowledgement"]++
				require.Equal(t, []byte{0}, b)
			case h.Op == xnet.Tagged:
				seen["response"]++
				goldenResponse(t, b, seen)
			}
		}
	}
	for _, kind := range []string{"request", "response", "bulk", "eager", "more input", "more output", "acknowledgement", "no entry", "sums"} {
		require.NotZero(t, seen[kind], kind)
	}
}

func goldenRequest(t *testing.T, b []byte, seen map[string]int) {
	from, rest, err := hgwire.ParseSource(b)
	require.NoError(t, err)
	require.Equal(t, "127.0.0.1", from.Addr().String())
	r, payload, err := hgwire.ParseRequest(rest)
	require.NoError(t, err)
	made := r.Append(hgwire.AppendSource(nil, from), payload)
	if r.Flags&hgwire.Checksums != 0 {
		seen["sums"]++
		clear(made[hgwire.SourceSize+12 : hgwire.SourceSize+20])
	}
	require.Equal(t, b, made)
	if r.Flags&hgwire.More != 0 || r.ID >= 4 && r.ID <= 6 { // these begin with a bulk handle
		bulk := goldenBulk(t, payload, seen)
		if bulk.Eager != nil {
			seen["eager"]++
			require.Len(t, bulk.Eager, 64)
		}
		if r.Flags&hgwire.More != 0 {
			seen["more input"]++
			require.EqualValues(t, 0x2004, bulk.Len)
			require.EqualValues(t, hgwire.Readable, bulk.Access)
		}
	}
}

func goldenResponse(t *testing.T, b []byte, seen map[string]int) {
	r, payload, err := hgwire.ParseResponse(b)
	require.NoError(t, err)
	made := r.Append(nil, payload)
	if r.Code != 0 {
		seen["no entry"]++
		require.EqualValues(t, 2, r.Code)
		require.Equal(t, b[:4], made[:4])
		return
	}
	if r.Flags&hgwire.Checksums != 0 {
		clear(made[4:6])
		clear(made[16:20])
	}
	require.Equal(t, b, made)
	if r.Flags&hgwire.More != 0 {
		seen["more output"]++
		bulk := goldenBulk(t, payload, seen)
		require.EqualValues(t, 2*(4096-len(made)+len(payload))+11, bulk.Len, "a string that is twice what a message holds")
	}
}

func goldenBulk(t *testing.T, payload []byte, seen map[string]int) (bulk hgwire.Bulk) {
	seen["bulk"]++
	after, err := bulk.Parse(payload)
	require.NoError(t, err)
	require.Equal(t, payload, append(bulk.Append(nil), after...))
	return bulk
}

// TestRefusal checks that refusals of the C library have garbage behind their code, and their
// length has no meaning.
func TestRefusal(t *testing.T) {
	for _, s := range []string{"0200000077778888" + strings.Repeat("99", 16), "0280000077778888" + strings.Repeat("99", 24), "02800000"} {
		b, err := hex.DecodeString(s)
		require.NoError(t, err)
		r, payload, err := hgwire.ParseResponse(b)
		require.NoError(t, err)
		require.EqualValues(t, 2, r.Code)
		require.Empty(t, payload)
		require.Equal(t, len(s) > 50 || len(s) == 8, r.Flags&hgwire.Checksums != 0)
	}
}

// TestChecksums checks that with checksums the header is four bytes longer. The checksums match the
// descriptions of the two algorithms.
func TestChecksums(t *testing.T) {
	r := hgwire.Request{ID: 0x3130393837363534, Flags: hgwire.Checksums}
	b := r.Append(nil, []byte("123456789"))
	require.Len(t, b, 20+9)
	require.Equal(t, uint32(0xe3069283), binary.BigEndian.Uint32(b[16:]), "the check value of CRC-32C")
	require.Equal(t, slowCRC16([]byte{0xd7, 5, 0x34, 0x35, 0x36, 0x37, 0x38, 0x39, 0x30, 0x31, 0x80, 0}), binary.BigEndian.Uint16(b[12:]))
	require.Equal(t, uint16(0xd0db), slowCRC16([]byte("123456789")), "the check value of CRC-16/T10-DIF")
	back, payload, err := hgwire.ParseRequest(b)
	require.NoError(t, err)
	require.Equal(t, r.ID, back.ID)
	require.Equal(t, "123456789", string(payload))
	require.Equal(t, b, back.Append(nil, payload))
	resp := hgwire.Response{Flags: hgwire.Checksums, Cookie: 0x102}
	b = resp.Append(nil, nil)
	require.Len(t, b, 20)
	require.Equal(t, slowCRC16([]byte{0, 0x80, 2, 1}), binary.BigEndian.Uint16(b[4:]))
	require.Equal(t, make([]byte, 14), b[6:])
	for _, random := range []uint64{0, 1<<63 | 0x123456789abcdef, 1<<64 - 1} {
		id := hgwire.Nameless(random)
		require.Equal(t, random>>16, id>>16)
		b := (&hgwire.Request{ID: id}).Append(nil, nil)
		require.Zero(t, slowCRC16([]byte{0xd7, 5, b[9], b[8], b[7], b[6], b[5], b[4], b[3], b[2], 0, 0}))
	}
}

// TestVerifier checks that a wrong checksum is detected. 0 means that the peer fills in none, until
// it has filled in one.
func TestVerifier(t *testing.T) {
	r := hgwire.Request{ID: 7, Flags: hgwire.Checksums}
	wire := r.Append(nil, []byte("input"))
	none := bytes.Clone(wire)
	clear(none[12:20])
	parse := func(b []byte) (hgwire.Request, []byte) {
		r, payload, err := hgwire.ParseRequest(b)
		require.NoError(t, err)
		return r, payload
	}
	var v hgwire.Verifier
	check := func(b []byte) (bool, bool) {
		r, payload := parse(b)
		return v.Header(r.Sums, r.Flags), v.Payload(r.Sums, payload)
	}
	for _, ok := range []bool{true, false} {
		header, payload := check(none)
		require.Equal(t, []bool{ok, ok}, []bool{header, payload})
		for at := range wire {
			if at == 0 || at == 1 || at == 10 || at == 14 || at == 15 { // bytes that the parser refuses, the length, and unused bytes
				continue
			}
			for bit := range 8 {
				wire[at] ^= 1 << bit
				header, payload = check(wire)
				wire[at] ^= 1 << bit
				require.Equal(t, []bool{at >= 16, at < 16}, []bool{header, payload}, "byte %d", at)
			}
		}
		header, payload = check(wire)
		require.True(t, header && payload)
	}
	plain := hgwire.Request{ID: 7}
	plain, in := parse(plain.Append(nil, []byte("input")))
	require.False(t, v.Header(plain.Sums, plain.Flags), "a peer that has checksums always has")
	require.False(t, v.Payload(plain.Sums, in))
	require.True(t, v.Payload(hgwire.Sums{Payload: 9}, nil), "C leaves an old one where there is no input")

	resp := hgwire.Response{Flags: hgwire.Checksums | hgwire.More, Sums: hgwire.Sums{Payload: hgwire.Sum([]byte("the output"))}}
	back, _, err := hgwire.ParseResponse(resp.Append(nil, []byte("a handle")))
	require.NoError(t, err)
	require.True(t, v.Header(back.Sums, back.Flags))
	require.True(t, v.Payload(back.Sums, []byte("the output")), "that of what the handle stands for")
	refused, _, err := hgwire.ParseResponse([]byte{2, 0x80, 0, 0})
	require.NoError(t, err)
	require.False(t, v.Header(refused.Sums, refused.Flags), "cut, where the checksum should be")
}

func slowCRC16(b []byte) uint16 {
	var sum uint16
	for _, c := range b {
		for bit := 7; bit >= 0; bit-- {
			in := uint16(c)>>bit&1 ^ sum>>15
			sum = sum<<1 ^ in*0x8bb7
		}
	}
	return sum
}

func TestIDs(t *testing.T) {
	require.Equal(t, uint64(5381), hgwire.ID(""))
	require.Equal(t, uint64((5381*33+'a')*33+'b'), hgwire.ID("ab"))
	require.Less(t, hgwire.ID(strings.Repeat("\xff", 100)), uint64(1)<<32)
	for name, want := range map[string]uint64{ // as the macro HASH_JEN of uthash has them
		"sum": 0x1c8857ad, "hello": 0xe0be16ba, "__identity__": 0x6e31f542, "yokan_put": 0x2ce18b59,
		"a_name_that_is_longer_than_twelve_bytes": 0x1329ada8,
	} {
		require.Equal(t, want<<32|3, hgwire.MargoID(name, 3), name)
	}
	seen := map[uint64]bool{}
	for n := range 40 { // every length modulo 12, and the last byte of each counts
		for _, last := range []string{"a", "b"} {
			id := hgwire.MargoID(strings.Repeat("x", n)+last, 7)
			require.EqualValues(t, 7, uint32(id))
			require.False(t, seen[id])
			seen[id] = true
		}
	}
}

func handle() hgwire.Bulk {
	return hgwire.Bulk{Len: 30, Access: hgwire.Readable, Segments: []hgwire.Segment{
		{Len: 10, Key: 5, Base: 1}, {Len: 20, Key: 6, Base: 2},
	}}
}

// TestBoundBulk checks that a bound handle names its owner, whatever else a library adds to it.
func TestBoundBulk(t *testing.T) {
	for _, eager := range [][]byte{nil, fillBytes(30)} {
		b := handle()
		b.Eager, b.Owner, b.Context = eager, netip.MustParseAddrPort("10.1.2.3:4567"), 3
		wire := b.Append(nil)
		var back hgwire.Bulk
		rest, err := back.Parse(append(bytes.Clone(wire), "after"...))
		require.NoError(t, err)
		require.Equal(t, "after", string(rest))
		require.Equal(t, b, back)
		owner := bytes.Index(wire, binary.LittleEndian.AppendUint64([]byte{32, 0, 0, 0, 0, 0, 0, 0}, 24))
		require.Positive(t, owner)
		for _, c := range []struct{ at, v int }{{owner, 31}, {owner, 255}, {owner + 7, 1}, {owner + 8, 15}, {owner + 16, 10}, {owner + 24, 10}} {
			bad := bytes.Clone(wire)
			bad[c.at] = uint8(c.v)
			_, err = back.Parse(bad)
			require.Error(t, err, "%+v", c)
		}
		if eager == nil { // with shared memory there is more behind the address
			long := append(bytes.Clone(wire[:owner+8+32]), 1, 2, 3, 4, 5, 6, 7, 8, 3)
			long[owner] += 8
			long[0] += 8
			_, err = back.Parse(long)
			require.NoError(t, err)
			require.Equal(t, b, back)
		}
	}
}

func fillBytes(n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(i)
	}
	return b
}

func TestBulk(t *testing.T) {
	b := handle()
	wire := b.Append(nil)
	require.Len(t, wire, 8+16+2*(16+8+48))
	var back hgwire.Bulk
	rest, err := back.Parse(append(bytes.Clone(wire), "after"...))
	require.NoError(t, err)
	require.Equal(t, "after", string(rest))
	require.Equal(t, b, back)
	c := back.Seek(3)
	require.Equal(t, hgwire.Piece{Addr: 3, Key: 5, Len: 7}, c.Next(100))
	require.Equal(t, hgwire.Piece{Addr: 0, Key: 6, Len: 4}, c.Next(4))
	require.Equal(t, hgwire.Piece{Addr: 4, Key: 6, Len: 16}, c.Next(100))
	require.Zero(t, c.Next(1))
	c = back.Seek(11)
	require.Equal(t, hgwire.Piece{Addr: 1, Key: 6, Len: 4}, c.Next(4))
	c = back.Seek(30)
	require.Zero(t, c.Next(1))

	old := bytes.Clone(wire) // before 2.4.1 the flags are a byte, and three follow that mean nothing
	copy(old[8+13:], "\x77\x66\x55")
	_, err = back.Parse(old)
	require.NoError(t, err)
	require.Equal(t, b, back)

	rest, err = back.Parse(append(make([]byte, 8), 1))
	require.NoError(t, err)
	require.Len(t, rest, 1)
	require.True(t, back.IsNull())
}

// TestVirtual checks that memory that is registered by address is addressed by it.
func TestVirtual(t *testing.T) {
	b := handle()
	wire := b.Append(nil)
	wire[8+12] |= 0x80
	wire[8+16+2*24+32] = 0x40
	var back hgwire.Bulk
	_, err := back.Parse(wire)
	require.NoError(t, err)
	c := back.Seek(3)
	require.Equal(t, hgwire.Piece{Addr: 0x43, Key: 5, Len: 7}, c.Next(7))
	require.Equal(t, wire, back.Append(nil), "as it is passed on")
}

// TestHostileBulk checks handles with every 8 bytes set to a large number: an error, or a handle
// within its bounds, and never a large allocation.
func TestHostileBulk(t *testing.T) {
	b := handle()
	wire := b.Append(nil)
	for at := 0; at+8 <= len(wire); at += 4 {
		for _, v := range []uint64{1 << 63, 1<<64 - 1, 1 << 32, 1 << 31, 0} {
			bad := bytes.Clone(wire)
			binary.LittleEndian.PutUint64(bad[at:], v)
			requireBounded(t, bad)
		}
	}
	for n := range wire {
		var back hgwire.Bulk
		_, err := back.Parse(wire[:n])
		require.Error(t, err)
	}
}

func requireBounded(t *testing.T, b []byte) {
	var back hgwire.Bulk
	if _, err := back.Parse(b); err != nil {
		return
	}
	var total uint64
	for _, s := range back.Segments {
		total += s.Len
	}
	if total != back.Len || len(back.Segments)*72 > len(b) && back.Eager == nil || back.Eager != nil && uint64(len(back.Eager)) != total {
		t.Fatalf("%d segments of %d bytes in all, want %d", len(back.Segments), total, back.Len)
	}
}

func FuzzBulk(f *testing.F) {
	b := handle()
	beginnings.Seed(f, b.Append(nil))
	f.Fuzz(requireBounded)
}

func FuzzRequest(f *testing.F) {
	r := hgwire.Request{ID: 9, Flags: hgwire.Checksums}
	beginnings.Seed(f, r.Append(hgwire.AppendSource(nil, netip.MustParseAddrPort("10.0.0.7:9000")), []byte("in")))
	f.Fuzz(func(t *testing.T, b []byte) {
		_, rest, err := hgwire.ParseSource(b)
		if err != nil {
			return
		}
		r, payload, err := hgwire.ParseRequest(rest)
		if err == nil && len(payload)+hgwire.HeaderSize(r.Flags&hgwire.Checksums != 0) != len(rest) {
			t.Fatalf("a payload of %d bytes in a request of %d", len(payload), len(rest))
		}
	})
}

func FuzzResponse(f *testing.F) {
	beginnings.Seed(f, (&hgwire.Response{}).Append(nil, []byte("out")))
	f.Fuzz(func(t *testing.T, b []byte) {
		r, payload, err := hgwire.ParseResponse(b)
		if err == nil && r.Code == 0 && len(payload)+hgwire.HeaderSize(r.Flags&hgwire.Checksums != 0) != len(b) {
			t.Fatalf("a payload of %d bytes in a response of %d", len(payload), len(b))
		}
	})
}
