package codec_test

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math/big"
	"net/netip"
	"reflect"
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/vmihailenco/msgpack/v5"

	"github.com/quicksilver-rpc/quicksilver/hg/codec"
)

// wide takes 208 bytes of memory and is nothing on the wire if a peer sends nil.
type wide struct {
	Name   string
	Counts [24]int64
}

// array returns an array of n times the same element.
func array(n int, element ...byte) []byte {
	b := binary.BigEndian.AppendUint32([]byte{0xdd}, uint32(n))
	return append(b, bytes.Repeat(element, n)...)
}

// dict returns a map of n pairs with keys that differ.
func dict(n int, element ...byte) []byte {
	b := binary.BigEndian.AppendUint32([]byte{0xdf}, uint32(n))
	for i := range n {
		b = append(b, 0xcd, byte(i>>8), byte(i))
		b = append(b, element...)
	}
	return b
}

// field returns a map with one pair.
func field(name string, value ...byte) []byte {
	b := append([]byte{0x81, 0xa0 + byte(len(name))}, name...)
	return append(b, value...)
}

type (
	inField struct{ List []wide }
	renamed struct {
		List []wide `msgpack:"l,omitempty,alias:ell"`
	}
	Embedded   struct{ List []wide }
	inEmbedded struct{ Embedded }
	notInlined struct {
		Embedded `msgpack:"e,noinline"`
	}
	hidden struct {
		List string
		Embedded
	}
	asArray struct {
		_msgpack struct{} `msgpack:",as_array"` //lint:ignore U1000 read by msgpack
		A        int
		List     []wide
	}
	tree struct {
		Name string
		Size [2]uint64 // on systems of 32 bits, too, it is larger than what is not counted
		Kids []tree
	}
	Wide    wide
	byPtr   struct{ *Wide }
	inArray struct{ Two [2][]wide }
)

func TestBudgetRefuses(t *testing.T) {
	nils := array(1000, 0xc0)
	for _, c := range []struct {
		name string
		dst  any
		in   []byte
	}{
		{"elements", new([]wide), nils},
		{"empty maps as elements", new([]wide), array(1000, 0x80)},
		{"empty arrays as elements", new([]wide), array(1000, 0x90)},
		{"fixed arrays", new([][100]int), array(1000, 0x90)},
		{"targets of pointers", new([]*wide), array(1000, 0x80)},
		{"pointers to pointers", new([]**wide), array(1000, 0x80)},
		{"map values", new(map[int]wide), dict(1000, 0xc0)},
		{"map keys", new(map[[8]string]int), append([]byte{0xde, 0x03, 0xe8}, bytes.Repeat([]byte{0x90, 0x01}, 1000)...)},
		{"rows", new([][]wide), append([]byte{0x91}, nils...)},
		{"field", new(inField), field("List", nils...)},
		{"renamed field", new(renamed), field("l", nils...)},
		{"alias", new(renamed), field("ell", nils...)},
		{"embedded", new(inEmbedded), field("List", nils...)},
		{"embedded under its own name", new(inEmbedded), field("Embedded", field("List", nils...)...)},
		{"embedded and named", new(notInlined), field("e", field("List", nils...)...)},
		{"embedded and hidden", new(hidden), field("Embedded", field("List", nils...)...)},
		{"array-encoded struct", new(asArray), append([]byte{0x92, 0x01}, nils...)},
		{"array-encoded embedded", new(inEmbedded), append([]byte{0x91}, nils...)},
		{"a type that contains itself", new([]tree), array(1000, 0x90)},
		{"deeper in such a type", new(tree), field("Kids", append([]byte{0x91}, field("Kids", nils...)...)...)},
		{"in an array", new(inArray), field("Two", append([]byte{0x92, 0xc0}, nils...)...)},
		{"pointer to pointer to slice", new(**[]wide), nils},
	} {
		t.Run(c.name, func(t *testing.T) {
			require.NoError(t, codec.Check(c.in, codec.MaxDepth))
			_ = codec.Msgpack.Decode(c.in, c.dst) // caches are filled
			var err error
			got := allocated(func() { err = codec.Msgpack.Decode(c.in, c.dst) })
			require.ErrorIs(t, err, codec.ErrInflated)
			require.Less(t, got, uint64(8<<10))
		})
	}
}

// TestBudgetAccepts checks that valid messages are decoded, however well they happen to compress.
func TestBudgetAccepts(t *testing.T) {
	type flags struct{ A, B, C, D bool }
	type version1 struct{ ID, Name string }
	type version2 struct {
		ID, Name, Owner, Place, Comment string
		Tags, Links                     []string
		Sizes                           [4]int64
		Created, Changed                time.Time
	}
	type bigArray struct {
		_msgpack struct{} `msgpack:",as_array"` //lint:ignore U1000 read by msgpack
		A, B, C  int
		S        []int
	}
	const n = 5000
	old := make([]version1, n)
	for i := range old {
		old[i] = version1{ID: "12345678"}
	}
	zeros := make([]big.Int, n)
	for _, c := range []struct {
		name    string
		in, dst any
	}{
		{"numbers", make([]int, n), new([]int)},
		{"empty strings", make([]string, n), new([]string)},
		{"nil interfaces", make([]any, n), new([]any)},
		{"empty rows", make([][]int, n), new([][]int)},
		{"nil pointers", make([]*wide, n), new([]*wide)},
		{"nil maps", make([]map[string]wide, n), new([]map[string]wide)},
		{"structs of zeros", make([]wide, n), new([]wide)},
		{"small structs", make([]flags, n), new([]flags)},
		{"array-encoded structs", make([]bigArray, n), new([]bigArray)},
		{"fixed arrays of zeros", make([][100]int, n), new([][100]int)},
		{"values of an older sender", old, new([]version2)},
		{"times", make([]time.Time, n), new([]time.Time)},
		{"types with their own encoding", &zeros, new([]big.Int)},
		{"addresses", make([]netip.Addr, n), new([]netip.Addr)},
		{"small maps", []map[string]int{{"a": 1}, {"b": 2}}, new([]map[string]int)},
		{"a few empty ones", map[string][]struct{}{"List": make([]struct{}, 20)}, new(inField)},
	} {
		t.Run(c.name, func(t *testing.T) {
			require.NoError(t, codec.Msgpack.Decode(encode(t, c.in), c.dst))
		})
	}
}

func TestBudgetLimit(t *testing.T) {
	// Each nil costs 208-24 bytes beyond what it pays for, on a system of 64 bits; 4 bytes and 4 KiB are granted.
	size := int(reflect.TypeFor[wide]().Size())
	at := func(n int) error { return codec.Msgpack.Decode(array(n, 0xc0), new([]wide)) }
	granted := (4*5 + 4096) / (size - 24 - 4)
	require.NoError(t, at(granted))
	require.ErrorIs(t, at(granted+1), codec.ErrInflated)
	require.ErrorContains(t, at(100), fmt.Sprint(size, " bytes of memory for 1 bytes of input in []codec_test.wide"))
}

type sparse wide

func (sparse) DecodeSparse() {}

type sparseByPointer wide

func (*sparseByPointer) DecodeSparse() {}

func TestBudgetSparse(t *testing.T) {
	var a []sparse
	require.NoError(t, codec.Msgpack.Decode(array(1000, 0xc0), &a))
	require.Len(t, a, 1000)
	var b map[int]*sparseByPointer
	require.NoError(t, codec.Msgpack.Decode(dict(1000, 0x80), &b))
	require.Len(t, b, 1000)

	// What a sparse type contains is counted all the same.
	rows := array(10, field("Inner", array(100, 0xc0)...)...)
	require.ErrorIs(t, codec.Msgpack.Decode(rows, new([]sparseOuter)), codec.ErrInflated)
}

type sparseOuter struct{ Inner []wide }

func (sparseOuter) DecodeSparse() {}

// TestBudgetEmbeddedPointer checks that a struct embedded by pointer is allocated with the first of
// its fields.
func TestBudgetEmbeddedPointer(t *testing.T) {
	err := codec.Msgpack.Decode(array(1000, field("Name", 0xa0)...), new([]byPtr))
	require.ErrorIs(t, err, codec.ErrInflated)
}

// TestAmplification checks the numbers in doc.go. Garbage of growing slices and of building rows is
// counted as well.
func TestAmplification(t *testing.T) {
	const n = 100_000
	emptyPairs := append(binary.BigEndian.AppendUint32([]byte{0xdf}, n), bytes.Repeat([]byte{0xa0}, 2*n)...)
	for _, c := range []struct {
		name string
		in   []byte
		dst  any
		max  float64
	}{
		{"bytes", encode(t, make([]byte, n)), new([]byte), 1},
		{"a string, by way of a buffer", encode(t, string(make([]byte, n))), new(string), 3},
		{"numbers", array(n, 0), new([]int), 2 * 8},
		{"strings", array(n, 0xa0), new([]string), 16},
		{"any", array(n, 0xc0), new([]any), 2 * 16},
		{"empty rows", array(n, 0x90), new([][]int), 3 * 24},
		{"a map", emptyPairs, new(map[string]string), 40},
		{"small maps", array(n, 0x81, 0xa0, 0xa0), new([]map[string]string), 120},
		{"small maps in any", array(n, 0x81, 0xa0, 0xa0), new(any), 120},
		{"structs that just pay", array(n, append(field("Name", 0xa3), "abc"...)...), new([]wide), 2 * 24},
	} {
		t.Run(c.name, func(t *testing.T) {
			var err error
			got := allocated(func() { err = codec.Msgpack.Decode(c.in, c.dst) })
			require.NoError(t, err)
			ratio := float64(got) / float64(len(c.in))
			t.Logf("%.1f bytes per byte", ratio)
			require.Less(t, ratio, c.max+0.5)
			runtime.KeepAlive(c.dst)
		})
	}
}

// inflatingTypes is full of things that inflate.
type inflatingTypes struct {
	Wides   []wide
	ByName  map[string]wide
	Ptrs    []*wide
	Trees   []tree
	Any     any
	Anys    []any
	Strs    []string
	Rows    [][]int
	Err     error
	When    time.Time
	Whens   []time.Time
	Maps    []map[string]string
	ByAny   map[any]any
	Raw     msgpack.RawMessage
	Array   [4]wide
	Endless endless
	Embedded
}

func FuzzDecode(f *testing.F) {
	names := []string{"Wides", "ByName", "Ptrs", "Trees", "Any", "Anys", "Strs", "Rows", "Err", "When", "Whens", "Maps", "ByAny",
		"Raw", "Array", "Endless", "List"}
	for _, name := range names {
		f.Add(field(name, array(3, 0xc0)...))
		f.Add(field(name, array(2, field("Name", 0xa0)...)...))
		f.Add(field(name, dict(2, 0x80)...))
		f.Add(field(name, append(ext8(5), 0xdf, 0, 0x10, 0, 0)...))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		for _, v := range []any{new(inflatingTypes), new(any), new(map[string]any), new([]wide), new(endless), new(string)} {
			got := allocated(func() { _ = codec.Msgpack.Decode(b, v) })
			if limit := uint64(300*len(b) + 1<<20); got > limit {
				t.Fatalf("%d bytes allocated into %T for %d bytes %x", got, v, len(b), b)
			}
		}
	})
}
