package bulk_test

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/bulk"
	"github.com/quicksilver-rpc/quicksilver/hg"
	"github.com/quicksilver-rpc/quicksilver/hg/codec"
	"github.com/quicksilver-rpc/quicksilver/internal/test/beginnings"
	"github.com/quicksilver-rpc/quicksilver/internal/test/transports"
	"github.com/quicksilver-rpc/quicksilver/na"
)

// descriptor builds the encoded form of a handle from its parts.
func descriptor(flags byte, length uint64, access byte, rest ...[]byte) []byte {
	b := []byte{4, flags, 0}
	b = append(b, token...)
	b = binary.LittleEndian.AppendUint64(b, length)
	b = append(b, access)
	return append(b, bytes.Join(rest, nil)...)
}

// token begins with a byte that is no text in any form that fmt might print it in.
var token = []byte{0xfe, 0xed, 0xfa, 0xce, 0xba, 0xad, 0xf0, 0x0d, 0xde, 0xad, 0xc0, 0xde, 0xca, 0xfe, 0xd0, 0x0d}

func address(text string) []byte {
	return append(binary.LittleEndian.AppendUint16(nil, uint16(len(text))), text...)
}

const (
	eager  = 1
	bound  = 2
	placed = 4
)

// TestDescriptorGolden checks the form on the wire: docs/internals/WIRE.md.
func TestDescriptorGolden(t *testing.T) {
	for _, c := range []struct {
		name, want string
		in         []byte
	}{
		{"plain", "040000" + "feedfacebaadf00ddeadc0decafed00d" + "0010000000000000" + "03", descriptor(0, 4096, 3)},
		{"bound", "040200" + "feedfacebaadf00ddeadc0decafed00d" + "0500000000000000" + "02" + "0700" + "7463703a2f2f61",
			descriptor(bound, 5, 2, address("tcp://a"))},
		{"eager", "040100" + "feedfacebaadf00ddeadc0decafed00d" + "0300000000000000" + "01" + "616263", descriptor(eager, 3, 1, []byte("abc"))},
		{"both", "040300" + "feedfacebaadf00ddeadc0decafed00d" + "0200000000000000" + "01" + "0900" + "7463703a2f2f612333" + "7879",
			descriptor(eager|bound, 2, 1, address("tcp://a#3"), []byte("xy"))},
	} {
		t.Run(c.name, func(t *testing.T) {
			require.Equal(t, c.want, hex.EncodeToString(c.in))
			var h bulk.Handle
			require.NoError(t, h.UnmarshalBinary(c.in))
			require.True(t, h.Remote())
			require.Nil(t, h.Segments())
			out, err := h.MarshalBinary()
			require.NoError(t, err)
			require.Equal(t, c.in, out)
		})
	}
}

// TestDescriptorRefused decodes descriptors that a hostile peer may send. Every error matches
// ErrProtocol, or ErrVersion where it may be a later release, and leaves the handle as it was.
func TestDescriptorRefused(t *testing.T) {
	for _, c := range []struct {
		name, says string
		in         []byte
		later      bool
	}{
		{"nothing", "is truncated", nil, false},
		{"version 0", "version 0", append([]byte{0}, descriptor(0, 1, 1)[1:]...), true},
		{"version 5", "version 5, want 4", append([]byte{5}, descriptor(0, 1, 1)[1:]...), true},
		{"unknown flag", "has unknown flags", descriptor(8, 1, 1), true},
		{"all flags", "has unknown flags", descriptor(0xff, 1, 1), true},
		{"fields that have to be understood", "unknown required fields", withLaterFields(descriptor(0, 1, 1), 1|mustUnderstand), true},
		{"fields that are not there", "truncated fields", withLaterFields(descriptor(0, 1, 1), 1)[:3+na.KeySize+7], false},
		{"no access", "allows no access", descriptor(0, 1, 0), false},
		{"unknown access", "invalid length or access mode", descriptor(0, 1, 4), false},
		{"all access bits", "invalid length or access mode", descriptor(0, 1, 0xff), false},
		{"negative length", "invalid length or access mode", descriptor(0, 1<<63, 1), false},
		{"length -1", "invalid length or access mode", descriptor(0, ^uint64(0), 1), false},
		{"bytes after it", "trailing bytes", descriptor(0, 1, 1, []byte{0}), false},
		{"bytes after the address", "trailing bytes", descriptor(bound, 1, 1, address("tcp://a"), []byte{0}), false},
		{"data without the flag", "trailing bytes", descriptor(0, 3, 1, []byte("abc")), false},
		{"too little data", "has 2 bytes of eager data", descriptor(eager, 3, 1, []byte("ab")), false},
		{"too much data", "has 4 bytes of eager data", descriptor(eager, 3, 1, []byte("abcd")), false},
		{"huge data", "has 3 bytes of eager data", descriptor(eager, 1<<62, 1, []byte("abc")), false},
		{"more data than travels", "has 65537 bytes of eager data", descriptor(eager, 65537, 1, make([]byte, 65537)), false},
		{"data that may be written", "has 3 bytes of eager data", descriptor(eager, 3, 2, []byte("abc")), false},
		{"data that may be read and written", "has 3 bytes of eager data", descriptor(eager, 3, 3, []byte("abc")), false},
		{"no place", "truncated chunk reference", descriptor(placed, 1, 1), false},
		{"half a place", "truncated chunk reference", descriptor(placed|bound, 1, 1, []byte{1, 2, 3, 4, 5}), false},
		{"no address", "truncated address", descriptor(bound, 1, 1), false},
		{"half a length of the address", "truncated address", descriptor(bound, 1, 1, []byte{1}), false},
		{"address cut short", "truncated address", descriptor(bound, 1, 1, []byte{7, 0}, []byte("tcp://")), false},
		{"empty address", "invalid address", descriptor(bound, 1, 1, address("")), false},
		{"address without a scheme", "invalid address", descriptor(bound, 1, 1, address("nowhere")), false},
		{"address with a blank", "invalid address", descriptor(bound, 1, 1, address("tcp://a b")), false},
		{"long address", "invalid address", descriptor(bound, 1, 1, address("tcp://"+strings.Repeat("a", 60000))), false},
		{"target id out of range", "invalid address", descriptor(bound, 1, 1, address("tcp://a#65536")), false},
		{"target id written twice", "want the form", descriptor(bound, 1, 1, address("tcp://a#007")), false},
		{"target id 0 written out", "want the form", descriptor(bound, 1, 1, address("tcp://a#0")), false},
	} {
		t.Run(c.name, func(t *testing.T) {
			var h bulk.Handle
			require.NoError(t, h.UnmarshalBinary(descriptor(eager|bound, 2, 1, address("tcp://a"), []byte("xy"))))
			err := h.UnmarshalBinary(c.in)
			want := na.ErrProtocol
			if c.later {
				want = na.ErrVersion
			}
			require.ErrorIs(t, err, want)
			require.Contains(t, err.Error(), c.says)
			require.Less(t, len(err.Error()), 1000)
			again, err := h.MarshalBinary()
			require.NoError(t, err)
			require.Equal(t, descriptor(eager|bound, 2, 1, address("tcp://a"), []byte("xy")), again)
		})
	}
}

// withLaterFields returns b with so many words of fields of a later release.
func withLaterFields(b []byte, fields byte) []byte {
	b = bytes.Clone(b)
	b[2] = fields
	return slices.Insert(b, 3+na.KeySize, make([]byte, 8*int(fields&^mustUnderstand))...)
}

const mustUnderstand = 128

// TestDescriptorLater checks that the fields of a later release are skipped, whatever is behind
// them.
func TestDescriptorLater(t *testing.T) {
	for _, b := range [][]byte{
		descriptor(0, 5, 3),
		descriptor(placed|bound, 5, 1, []byte{1, 2, 3, 4, 5, 6}, address("tcp://host:7#2")),
		descriptor(eager|bound, 5, 1, address("tcp://host:7#2"), []byte("hello")),
	} {
		for _, fields := range []byte{1, 127} {
			var h bulk.Handle
			require.NoError(t, h.UnmarshalBinary(withLaterFields(b, fields)))
			again, err := h.MarshalBinary()
			require.NoError(t, err)
			require.Equal(t, b, again)
		}
	}
}

func TestDescriptorTruncated(t *testing.T) {
	for _, whole := range [][]byte{
		descriptor(0, 5, 3),
		descriptor(bound, 5, 3, address("tcp://host:7#2")),
		descriptor(eager, 5, 1, []byte("hello")),
		descriptor(placed|bound, 5, 1, []byte{1, 2, 3, 4, 5, 6}, address("tcp://host:7#2")),
		descriptor(eager|bound, 5, 1, address("tcp://host:7#2"), []byte("hello")),
	} {
		require.NoError(t, new(bulk.Handle).UnmarshalBinary(whole))
		for n := range whole {
			require.ErrorIs(t, new(bulk.Handle).UnmarshalBinary(whole[:n]), na.ErrProtocol, "%d of %d bytes", n, len(whole))
		}
	}
}

func FuzzUnmarshal(f *testing.F) {
	beginnings.Seed(f, descriptor(0, 5, 3))
	beginnings.Seed(f, descriptor(bound, 5, 2, address("tcp://host:7#2")))
	beginnings.Seed(f, descriptor(eager, 5, 1, []byte("hello")))
	beginnings.Seed(f, descriptor(eager|bound, 5, 1, address("sim://node1"), []byte("hello")))
	f.Fuzz(func(t *testing.T, given []byte) {
		b := bytes.Clone(given)
		var h bulk.Handle
		err := h.UnmarshalBinary(b)
		if !bytes.Equal(b, given) {
			t.Fatal("the input was changed")
		}
		if err != nil {
			if !errors.Is(err, na.ErrProtocol) && !errors.Is(err, na.ErrVersion) {
				t.Fatalf("got %v, want an error that matches ErrProtocol or ErrVersion", err)
			}
			return
		}
		if h.Len() < 0 || h.Access() == bulk.LocalOnly || !h.Remote() {
			t.Fatalf("accepted %v", &h)
		}
		clear(b) // it belongs to the caller again
		out, err := h.MarshalBinary()
		given = slices.Delete(bytes.Clone(given), 3+na.KeySize, 3+na.KeySize+8*int(given[2]))
		given[2] = 0
		if err != nil || !bytes.Equal(out, given) {
			t.Fatalf("encodes again to %x, %v; was %x", out, err, given)
		}
	})
}

// TestDescriptorAmplification checks that a descriptor of n bytes costs a small multiple of n,
// whatever its fields; one inside another is bytes.
func TestDescriptorAmplification(t *testing.T) {
	nested := descriptor(0, 1<<62, 3)
	for range 100 {
		nested = descriptor(eager, uint64(len(nested)), 1, nested)
	}
	require.NoError(t, new(bulk.Handle).UnmarshalBinary(nested))
	for _, b := range [][]byte{
		descriptor(0, 1<<62, 3),
		descriptor(eager, 1<<62, 1),
		descriptor(eager, 64<<10, 1),
		descriptor(eager, 64<<10, 1, make([]byte, 64<<10)),
		descriptor(bound, 1, 1, []byte{0xff, 0xff}),
		nested,
		descriptor(bound, 1, 1, address("tcp://"+strings.Repeat("a", 60000))),
		descriptor(bound, 1, 1, address("tcp://"+strings.Repeat("a", 500))),
	} {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		const rounds = 20
		for range rounds {
			var h bulk.Handle
			_ = h.UnmarshalBinary(b)
		}
		runtime.ReadMemStats(&after)
		got := int(after.TotalAlloc-before.TotalAlloc) / rounds
		require.Less(t, got, 3*len(b)+4<<10, "descriptor of %d bytes", len(b))
	}
}

// TestTokenIsNotPrinted checks that the token is printed by no verb of package fmt, neither by
// itself nor inside a value that a program may print.
func TestTokenIsNotPrinted(t *testing.T) {
	var h bulk.Handle
	require.NoError(t, h.UnmarshalBinary(descriptor(0, 12345, 3)))
	require.Equal(t, "bulk handle of 12345 bytes (remote, read+write)", h.String())
	type argument struct {
		Data   *bulk.Handle
		hidden *bulk.Handle
	}
	type byValue struct {
		Data   bulk.Handle
		hidden bulk.Handle
	}
	v := &byValue{}
	require.NoError(t, v.Data.UnmarshalBinary(descriptor(0, 12345, 3)))
	require.NoError(t, v.hidden.UnmarshalBinary(descriptor(0, 12345, 3)))
	var forms []string
	for _, part := range [][]byte{token[:4], token[12:]} {
		numbers := func(format, sep string) string {
			s := make([]string, len(part))
			for i, b := range part {
				s[i] = fmt.Sprintf(format, b)
			}
			return strings.Join(s, sep)
		}
		forms = append(forms, string(part), numbers("%x", ""), numbers("%X", ""), numbers("%d", " "), numbers("0x%x", ", "), numbers("%d", ", "),
			numbers("%o", " "), numbers("%b", " "), fmt.Sprintf("%q", part), numbers("%x", " "))
	}
	require.Contains(t, fmt.Sprintf("%v", token), forms[3], "the forms are those of fmt")
	for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x", "%X", "% x", "%#x", "%d", "%o", "%b", "%c", "%U"} {
		for _, x := range []any{&h, argument{&h, &h}, &argument{&h, &h}, []*bulk.Handle{&h}, v, map[string]any{"h": &h}, []any{v}} {
			text := fmt.Sprintf(verb, x)
			for _, form := range forms {
				require.NotContains(t, text, form, "%s of %T", verb, x)
			}
		}
	}
	require.Contains(t, fmt.Sprintf("%+v", argument{Data: &h}), h.String())
}

type argument struct {
	Name string
	Data *bulk.Handle
	More []*bulk.Handle
	None *bulk.Handle
	Flat bulk.Handle
}

func TestHandleInsideArguments(t *testing.T) {
	transports.Each(t, func(t *testing.T, n *transports.Net) {
		p := newPair(t, n)
		mem := newMemory(3000)
		mem.fill(5)
		small := []byte("small")
		a := newHandle(t, p.octx, bulk.Options{Access: bulk.ReadOnly}, mem.segs...)
		b := newHandle(t, p.octx, bulk.Options{Access: bulk.ReadWrite, Bind: true}, mem.segs...)
		c := newHandle(t, p.octx, bulk.Options{Access: bulk.ReadOnly, Bind: true}, small)
		in := &argument{Name: "x", Data: a, More: []*bulk.Handle{b, c}}
		require.NoError(t, in.Flat.UnmarshalBinary(descriptor(0, 7, 2)))
		for _, cdc := range []codec.Codec{codec.Msgpack} {
			raw, err := cdc.Append(nil, in)
			require.NoError(t, err)
			var out argument
			require.NoError(t, cdc.Decode(raw, &out))
			require.Equal(t, "x", out.Name)
			require.Nil(t, out.None)
			for i, pair := range [][2]*bulk.Handle{{a, out.Data}, {b, out.More[0]}, {c, out.More[1]}, {&in.Flat, &out.Flat}} {
				want, got := pair[0], pair[1]
				require.True(t, got.Remote(), i)
				require.Equal(t, want.Len(), got.Len(), i)
				require.Equal(t, want.Access(), got.Access(), i)
				require.Equal(t, want.Owner(), got.Owner(), i)
				x, err := want.MarshalBinary()
				require.NoError(t, err)
				y, err := got.MarshalBinary()
				require.NoError(t, err)
				require.Equal(t, x, y, "a decoded handle encodes to the same bytes")
			}
			require.Equal(t, p.octx.Self(), out.More[0].Owner())
			require.True(t, out.Data.Owner().IsZero())

			// Every copy reaches the memory.
			for _, h := range []*bulk.Handle{out.Data, out.More[0]} {
				mine := newMemory(3000)
				e := p.transfer(bulk.Spec{Remote: h, Local: newLocalHandle(t, p.mctx, mine.segs...), Size: 3000})
				require.NoError(t, e.err)
				require.Empty(t, describeDiff(mine.bytes(), mem.bytes()))
			}
		}
		// The raw codec takes a handle as a whole argument.
		raw, err := codec.Raw.Append(nil, a)
		require.NoError(t, err)
		var h bulk.Handle
		require.NoError(t, codec.Raw.Decode(raw, &h))
		require.Equal(t, a.Len(), h.Len())
	})
}

func TestEncodeRefused(t *testing.T) {
	transports.Each(t, func(t *testing.T, n *transports.Net) {
		_, hctx := n.Origin(hg.Config{})
		h := newLocalHandle(t, hctx, make([]byte, 10))
		require.Equal(t, bulk.LocalOnly, h.Access())
		require.False(t, h.Remote())
		_, err := h.MarshalBinary()
		require.ErrorIs(t, err, hg.ErrInvalid)
		require.Contains(t, err.Error(), "local only")
		require.ErrorIs(t, h.UnmarshalBinary(descriptor(0, 1, 1)), hg.ErrInvalid, "a handle of this process is not overwritten")

		var zero bulk.Handle
		_, err = zero.MarshalBinary()
		require.ErrorIs(t, err, hg.ErrInvalid)
		require.Zero(t, zero.Len())
		require.Equal(t, bulk.LocalOnly, zero.Access())
		require.True(t, zero.Remote())
		require.NotEmpty(t, zero.String())

		for _, opts := range []bulk.Options{{Access: bulk.ReadOnly}, {Access: bulk.ReadWrite}} {
			closed := newHandle(t, hctx, opts, make([]byte, 10))
			require.NoError(t, closed.Close())
			_, err = closed.MarshalBinary()
			require.ErrorIs(t, err, hg.ErrClosed, "the key of a closed handle opens nothing")
		}
	})
}

// TestBoundHandleWithoutListener checks that a process that does not listen can bind a handle:
// every process with a session with it reaches the memory, also one that the handle was passed on
// to, and no other one.
func TestBoundHandleWithoutListener(t *testing.T) {
	transports.Each(t, func(t *testing.T, n *transports.Net) {
		p := newPair(t, n)
		other, octx := n.Target(hg.Config{})
		_, err := other.Register("ping", func(r hg.Request) error { return r.Respond("pong", nil) })
		require.NoError(t, err)
		theirs := newMemory(5000)
		theirs.fill(1)
		there := decodeRemote(t, newHandle(t, p.mctx, bulk.Options{Access: bulk.ReadOnly, Bind: true}, theirs.segs...))
		require.Equal(t, p.mctx.Self(), there.Owner())
		pull := func(hctx *hg.Context) error {
			mine := newMemory(5000)
			var e outcome
			if _, err := bulk.Transfer(hctx, bulk.Spec{Remote: there, Local: newLocalHandle(t, hctx, mine.segs...), Size: 5000}, e.done); err != nil {
				return err
			}
			n.Until(func() bool { return e.calls > 0 })
			if e.err == nil {
				require.Empty(t, describeDiff(mine.bytes(), theirs.bytes()))
			}
			return e.err
		}
		for _, at := range []struct {
			hctx *hg.Context
			peer na.Addr
		}{{p.octx, p.peer}, {octx, other.Addr()}} {
			err := pull(at.hctx)
			require.ErrorIs(t, err, hg.ErrUnreachable)
			require.ErrorContains(t, err, there.Owner().String())
			require.ErrorContains(t, err, "has no open session")
			h, err := p.mctx.Create(at.peer, hg.HashName("ping"))
			require.NoError(t, err)
			called := false
			require.NoError(t, h.Forward(nil, func(_ *hg.Handle, e error) { called, err = true, e }))
			n.Until(func() bool { return called })
			require.NoError(t, err)
			require.NoError(t, h.Close())
			require.NoError(t, pull(at.hctx))
		}
		require.NoError(t, p.mover.Close())
		n.Until(func() bool { return octx.Stats().NA.Peers == 0 })
		require.ErrorIs(t, pull(octx), hg.ErrUnreachable)
	})
}

func TestCreateRefuses(t *testing.T) {
	transports.Each(t, func(t *testing.T, n *transports.Net) {
		cls, hctx := n.Origin(hg.Config{})
		_, err := bulk.Create(hctx, bulk.Options{Access: 4})
		require.ErrorIs(t, err, hg.ErrInvalid)
		_, err = bulk.Create(hctx, bulk.Options{Access: bulk.ReadOnly, Eager: 64<<10 + 1})
		require.ErrorIs(t, err, hg.ErrInvalid)
		require.Contains(t, err.Error(), "Eager")
		limit := hctx.NA().Limits().MaxSegments
		_, err = bulk.Create(hctx, bulk.Options{Access: bulk.ReadOnly}, make([][]byte, limit)...)
		require.NoError(t, err)
		require.EqualValues(t, 1, hctx.Stats().NA.Regions)
		for _, access := range []bulk.Access{bulk.LocalOnly, bulk.ReadWrite} {
			_, err = bulk.Create(hctx, bulk.Options{Access: access}, make([][]byte, limit+1)...)
			require.ErrorIs(t, err, hg.ErrInvalid)
			require.Contains(t, err.Error(), fmt.Sprint(limit))
		}
		require.EqualValues(t, 1, hctx.Stats().NA.Regions, "what was refused is not registered")
		require.NoError(t, cls.Close())
		for _, access := range []bulk.Access{bulk.LocalOnly, bulk.ReadOnly} {
			_, err = bulk.Create(hctx, bulk.Options{Access: access}, make([]byte, 10))
			require.ErrorIs(t, err, hg.ErrClosed)
		}
	})
}

// TestEagerLimit checks that up to the limit the data of a read-only handle is in the descriptor;
// beyond it, or when peers may write, it is not.
func TestEagerLimit(t *testing.T) {
	transports.Each(t, func(t *testing.T, n *transports.Net) {
		_, hctx := n.Origin(hg.Config{})
		for _, c := range []struct {
			access bulk.Access
			option int
			length int
			eager  bool
		}{
			{bulk.ReadOnly, 0, 0, true},
			{bulk.ReadOnly, 0, 1, true},
			{bulk.ReadOnly, 0, bulk.DefaultEager, true},
			{bulk.ReadOnly, 0, bulk.DefaultEager + 1, false},
			{bulk.ReadOnly, 100, 100, true},
			{bulk.ReadOnly, 100, 101, false},
			{bulk.ReadOnly, 64 << 10, 64 << 10, true},
			{bulk.ReadOnly, 64 << 10, 64<<10 + 1, false},
			{bulk.ReadOnly, -1, 0, false},
			{bulk.ReadOnly, -1, 1, false},
			{bulk.WriteOnly, 0, 10, false},
			{bulk.ReadWrite, 0, 10, false},
			{bulk.ReadWrite, 100, 0, false},
		} {
			mem := newMemory(c.length/3, c.length-c.length/3)
			mem.fill(9)
			h := newHandle(t, hctx, bulk.Options{Access: c.access, Eager: c.option}, mem.segs...)
			b, err := h.MarshalBinary()
			require.NoError(t, err)
			want := 3 + na.KeySize
			if c.eager {
				want += c.length
				require.Empty(t, describeDiff(b[3+na.KeySize:], mem.bytes()))
			}
			require.Equal(t, c.eager, b[1]&eager != 0, "%+v", c)
			require.Len(t, b, want, "%+v", c)
		}
	})
}

// TestEagerIsASnapshot checks that the peer sees data that traveled with the handle as it was when
// the handle was encoded, without any transfer.
func TestEagerIsASnapshot(t *testing.T) {
	transports.Each(t, func(t *testing.T, n *transports.Net) {
		p := newPair(t, n)
		var got *bulk.Handle
		id := p.rpc("take", func(h hg.Request) error {
			got = new(bulk.Handle)
			return errors.Join(h.Input(got), h.Respond(nil, nil))
		})
		theirs := newMemory(700, 0, 800)
		theirs.fill(3)
		snapshot := theirs.bytes()
		there := newHandle(t, p.mctx, bulk.Options{Access: bulk.ReadOnly}, theirs.segs...)
		h, err := p.mctx.Create(p.peer, id)
		require.NoError(t, err)
		defer h.Close()
		calls := 0
		require.NoError(t, h.Forward(there, func(_ *hg.Handle, e error) { calls++; err = e }))
		theirs.fillByte(0xee) // the snapshot was taken inside Forward
		n.Until(func() bool { return calls == 1 })
		require.NoError(t, err)

		pull := func(want string) {
			t.Helper()
			mine := newMemory(100, 1300)
			var e outcome
			var notified []int64
			op, err := bulk.Transfer(p.octx, bulk.Spec{Peer: p.mctx.Self(), Remote: got, RemoteOffset: 50, Local: newLocalHandle(t, p.octx, mine.segs...),
				LocalOffset: 10, Size: 1350, OnProgress: func(_ *bulk.Op, moved int64) { notified = append(notified, moved) }}, e.done)
			require.NoError(t, err)
			require.Zero(t, e.calls, "done runs in Trigger")
			op.Cancel() // everything is there: success wins
			p.octx.Trigger(0)
			require.Equal(t, 1, e.calls)
			require.NoError(t, e.err)
			require.EqualValues(t, 1350, e.moved)
			require.Equal(t, []int64{1350}, notified)
			wanted := make([]byte, 1400)
			copy(wanted[10:], want[50:])
			copy(wanted[1360:], make([]byte, 40))
			require.Empty(t, describeDiff(mine.bytes(), wanted))
			require.True(t, mine.hasIntactCanaries())
		}
		pull(string(snapshot))
		require.NoError(t, there.CloseWait(t.Context()))
		pull(string(snapshot)) // closing takes the memory back, not the bytes that were sent

		require.NoError(t, got.UnmarshalBinary(func() []byte {
			fresh := newHandle(t, p.mctx, bulk.Options{Access: bulk.ReadOnly}, theirs.segs...)
			b, err := fresh.MarshalBinary()
			require.NoError(t, err)
			b2 := bytes.Clone(b)
			clear(b)
			return b2
		}()))
		pull(strings.Repeat("\xee", 1500))
	})
}

// TestForgedDescriptor checks that a key that is forged in part is refused by the owner, whatever
// the descriptor claims.
func TestForgedDescriptor(t *testing.T) {
	transports.Each(t, func(t *testing.T, n *transports.Net) {
		p := newPair(t, n)
		theirs := newMemory(100_000)
		theirs.fill(1)
		pristine := theirs.bytes()
		h := newHandle(t, p.octx, bulk.Options{Access: bulk.ReadOnly, Eager: -1}, theirs.segs...)
		honest, err := h.MarshalBinary()
		require.NoError(t, err)
		mine := newMemory(200_000)
		mine.fillByte(0xee)
		there := func(change func(b []byte)) *bulk.Handle {
			b := bytes.Clone(honest)
			change(b)
			r := new(bulk.Handle)
			require.NoError(t, r.UnmarshalBinary(b))
			return r
		}
		l := newLocalHandle(t, p.mctx, mine.segs...)
		e := p.transfer(bulk.Spec{Dir: bulk.Push, Remote: there(func(b []byte) { b[27] = 3 }), Local: l, Size: 1000})
		require.ErrorIs(t, e.err, na.ErrPermission)
		e = p.transfer(bulk.Spec{Remote: there(func(b []byte) { binary.LittleEndian.PutUint64(b[19:], 1<<40) }), RemoteOffset: 99_000, Local: l, Size: 1001})
		require.ErrorIs(t, e.err, hg.ErrInvalid)
		e = p.transfer(bulk.Spec{Remote: there(func(b []byte) { binary.LittleEndian.PutUint64(b[19:], 1<<63-1) }), RemoteOffset: 1<<63 - 1001, Local: l, Size: 1000})
		require.ErrorIs(t, e.err, hg.ErrInvalid)
		for i := range 8 { // a peer that tries many may be cut off
			e = p.transfer(bulk.Spec{Remote: there(func(b []byte) { b[3+2*i] ^= 1 << i }), Local: l, Size: 1000})
			require.ErrorIs(t, e.err, na.ErrRevoked, "bit %d of byte %d of the token", i, 2*i)
		}
		require.Zero(t, e.moved)
		require.Empty(t, describeDiff(theirs.bytes(), pristine))
		require.True(t, mine.isFilledWith(0xee))
		assert.True(t, theirs.hasIntactCanaries())
		p.requireIntact()
	})
}
