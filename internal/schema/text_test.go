package schema

import (
	"log/slog"
	"math/big"
	"net/netip"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/vmihailenco/msgpack/v5"
)

type shapeBase struct{ ID, Kind int }

type shapeTree struct {
	Kids []*shapeTree
	Up   *shapeTree
}

type shapeLevel int8

type shaped struct {
	shapeBase
	Named   shapeBase `msgpack:"named"`
	Kind    string    // hides that of shapeBase
	Skipped int       `msgpack:"-"`
	Renamed []byte    `msgpack:"re,omitempty"`
	unseen  int
	Level   shapeLevel
	At      time.Time
	Wait    time.Duration
	Month   time.Month
	Arrays  [2][3]bool
	Any     any
	Tree    shapeTree
	Big     *big.Int
	Addr    netip.Addr
	Text    slog.Level
	Map     map[shapeLevel]*int
}

// TestShape checks that a shape describes the wire: the names that msgpack gives, the elements of
// types, and the types that encode themselves.
func TestShape(t *testing.T) {
	got := Of(reflect.TypeFor[shaped]()).String()
	require.Equal(t, "schema.shaped{ID int, named schema.shapeBase{ID int, Kind int}, Kind string, re? []uint8, Level int8, At time.Time, Wait time.Duration, Month int, "+
		"Arrays [2][3]bool, Any any, Tree schema.shapeTree{Kids []*schema.shapeTree, Up *schema.shapeTree}, Big *big.Int(text), Addr netip.Addr(binary), "+
		"Text slog.Level(text), Map map[int8]*int}", got)

	v := shaped{unseen: 1, Renamed: []byte{1}}
	b, err := msgpack.Marshal(&v)
	require.NoError(t, err)
	var wire map[string]msgpack.RawMessage
	require.NoError(t, msgpack.Unmarshal(b, &wire))
	var names []string
	typ := Of(reflect.TypeFor[shaped]())
	for i, m := range typ.Members {
		if typ.Find(m.Name) == &typ.Members[i] {
			names = append(names, m.Name)
			require.Contains(t, wire, m.Name)
		}
	}
	require.Len(t, wire, len(names), "%v", names)
	require.Less(t, len(Of(wideType(6)).String()), 3*maxText)
}

// wideType is a type with a long description: fields of fields.
func wideType(depth int) reflect.Type {
	if depth == 0 {
		return reflect.TypeFor[int]()
	}
	inner := wideType(depth - 1)
	var fields []reflect.StructField
	for _, name := range strings.Split("ABCDEFGH", "") {
		fields = append(fields, reflect.StructField{Name: name, Type: inner})
	}
	return reflect.StructOf(fields)
}

type (
	tuple struct {
		_msgpack struct{} `msgpack:",as_array"` //lint:ignore U1000 read by msgpack
		A        int
		B        *tuple
	}
	outer      struct{ In box[box[int]] }
	box[T any] struct {
		Of   T
		More *box[T]
	}
	unusualTags struct {
		A int `msgpack:"a name,alias:old"`
		B int `msgpack:"{b},omitempty"`
		*shapeBase
	}
)

// TestParse checks that parse reads texts of String and of formatLines; the type that it returns
// has the same texts.
func TestParse(t *testing.T) {
	for _, typ := range []reflect.Type{
		reflect.TypeFor[shaped](), reflect.TypeFor[tuple](), reflect.TypeFor[outer](), reflect.TypeFor[unusualTags](), reflect.TypeFor[struct{}](),
		reflect.TypeFor[map[string][]struct{ A [4]byte }](), reflect.TypeFor[**any](), reflect.TypeFor[error](),
	} {
		want := Of(typ)
		for _, text := range []string{want.String(), want.formatLines()} {
			got, err := Parse(text)
			require.NoError(t, err)
			require.Equal(t, want.String(), got.String())
		}
	}
	aliased, err := Parse("{New|Old? int}")
	require.NoError(t, err)
	require.Equal(t, []Alias{{"Old", nil, 0}}, aliased.Aliases)
	tree, err := Parse("main.Tree{Kids []*main.Tree}")
	require.NoError(t, err)
	require.Same(t, tree, tree.Members[0].Type.Elem.Elem)
	for _, text := range []string{"", "{", "{A}", "{A int", "{A int,}}", "{A int, A int}", "[x]int", "map[int", "int int", "{ int}", strings.Repeat("[]", 200) + "int"} {
		_, err := Parse(text)
		require.Error(t, err, text)
	}
}

func FuzzParse(f *testing.F) {
	f.Add(Of(reflect.TypeFor[shaped]()).String())
	f.Add("<A int>")
	f.Fuzz(func(t *testing.T, text string) {
		if typ, err := Parse(text); err == nil {
			again, err := Parse(typ.formatLines())
			require.NoError(t, err)
			require.Equal(t, typ.formatLines(), again.formatLines())
		}
	})
}

// TestIndent checks that a line is indented by the structs that it is in, however these are held.
func TestIndent(t *testing.T) {
	type in struct{ A int }
	type outer struct {
		V in
		P *in
		S [][2]*in
		M map[string]in
		E struct{}
	}
	const inside = "schema.in{\n\t\tA int\n\t}"
	require.Equal(t, "schema.outer{\n\tV "+inside+"\n\tP *"+inside+"\n\tS [][2]*"+inside+"\n\tM map[string]"+inside+"\n\tE {}\n}",
		Of(reflect.TypeFor[outer]()).formatLines())
	require.Equal(t, "[]schema.in{\n\tA int\n}", Of(reflect.TypeFor[[]in]()).formatLines())
}
