package main

import (
	"context"
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/internal/schema"
	"github.com/quicksilver-rpc/quicksilver/qs"
)

// TestSchemaOfPackage checks that the package variables of a program are those that its test has
// committed.
func TestSchemaOfPackage(t *testing.T) {
	t.Parallel()
	want, err := os.ReadFile("../../examples/blob/testdata/api.txt")
	require.NoError(t, err)
	require.Equal(t, string(want), run(t, 0, "schema", "../../examples/blob").out.String())
	require.Contains(t, run(t, exitUsage, "schema", "../../examples/...").errors.String(), "is more than one package")
	require.Contains(t, run(t, 1, "schema", "../../qs/qstest").errors.String(), "no methods in the package variables of ../../qs/qstest")
	require.Contains(t, run(t, 1, "schema", "./nosuch").errors.String(), "./nosuch is neither an address nor a package")
}

// errNoStock is a code of a program that a test of schemas runs.
var errNoStock = qs.DefineCode(231, "no stock left")

// TestSchemaOfAddress checks that a running program is described like its package variables.
func TestSchemaOfAddress(t *testing.T) {
	t.Parallel()
	order := qs.Define[struct{ Item string }, int64]("schema/order")
	rows := qs.DefineStream[string, struct{ N int }]("schema/rows")
	load := qs.DefineUpload[string, []byte, int]("schema/load")
	talk := qs.DefineDuplex[string, int, string]("schema/talk")
	note := qs.DefineOneWay[string]("schema/note")
	node, err := qs.Open("tcp://127.0.0.1:0", qs.Config{Inspect: true})
	require.NoError(t, err)
	order.Handle(node, func(context.Context, struct{ Item string }) (int64, error) { return 0, nil })
	rows.Handle(node, func(context.Context, string, func(struct{ N int }) error) error { return nil })
	load.Handle(node, func(context.Context, string, *qs.Receiver[[]byte]) (int, error) { return 0, nil })
	talk.Handle(node, func(context.Context, string, *qs.DuplexServer[int, string]) error { return nil })
	note.Handle(node, func(context.Context, string) {})
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- node.Serve(ctx) }()
	defer func() {
		stop()
		require.NoError(t, <-ended)
	}()
	got := run(t, 0, "schema", node.Addr().String()).out.String()
	require.Equal(t, qs.Schema(order, rows, load, talk, note), got)
	program, err := schema.ParseProgram(got)
	require.NoError(t, err)
	require.Len(t, program.Methods, 5)
	require.Equal(t, "no stock left", program.Codes[uint8(errNoStock)])
	require.Contains(t, got, "\ncode 231 \"no stock left\"\n")
	require.Contains(t, run(t, 0, "schema", "--json", node.Addr().String()).out.String(), `"name":"no stock left","kind":"code","code":231`)
}
