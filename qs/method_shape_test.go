package qs

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

	"github.com/quicksilver-rpc/quicksilver/hg/codec"
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

// A shape says what is on the wire: the names that msgpack gives, what types are made of, and which encode themselves.
func TestShape(t *testing.T) {
	got := shape(reflect.TypeFor[shaped]())
	require.Equal(t, "{ID int, Kind string, named {ID int, Kind int}, re []uint8, Level int8, At time.Time, Wait time.Duration, Month int, "+
		"Arrays [2][3]bool, Any any, Tree {Kids []*qs.shapeTree, Up *qs.shapeTree}, Big *big.Int(text), Addr netip.Addr(binary), "+
		"Text slog.Level(text), Map map[int8]*int}", got)

	v := shaped{unseen: 1, Renamed: []byte{1}}
	b, err := codec.Msgpack.Append(nil, &v)
	require.NoError(t, err)
	var wire map[string]msgpack.RawMessage
	require.NoError(t, codec.Msgpack.Decode(b, &wire))
	var names []string
	for _, f := range wireFields(reflect.TypeFor[shaped]()) {
		names = append(names, f.name)
		require.Contains(t, wire, f.name)
	}
	require.Len(t, wire, len(names), "%v", names)
	require.Less(t, len(shape(wide(5))), 3*maxShape)
}

// wide is a type whose description would be long: fields of fields.
func wide(depth int) reflect.Type {
	if depth == 0 {
		return reflect.TypeFor[int]()
	}
	inner := wide(depth - 1)
	var fields []reflect.StructField
	for _, name := range strings.Split("ABCDEFGH", "") {
		fields = append(fields, reflect.StructField{Name: name, Type: inner})
	}
	return reflect.StructOf(fields)
}
