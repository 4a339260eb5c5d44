package main

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver"
	"github.com/quicksilver-rpc/quicksilver/hg"
)

type order struct {
	Item   string
	Count  int
	Weight float64
	Tags   []string
	Blob   []byte
	Big    uint64
}

type goods struct{ Goods quicksilver.Source }

type parcel struct {
	Label string
	Goods quicksilver.Source
	Back  quicksilver.Sink
}

// typedTarget is a node in this process.
func typedTarget(t *testing.T, reflect bool) string {
	t.Helper()
	node, err := quicksilver.Open("tcp://127.0.0.1:0", quicksilver.Config{HG: hg.Config{Reflect: reflect}})
	require.NoError(t, err)
	quicksilver.Define[order, order]("shop/order").Handle(node, func(_ context.Context, o order) (order, error) {
		switch {
		case o.Count < 0:
			return o, hg.WithDetail(quicksilver.Errorf(quicksilver.BadInput, "a count of %d", o.Count), map[string]int{"least": 1})
		case o.Item == "":
			return o, quicksilver.Errorf(quicksilver.NotFound, "no such item")
		}
		o.Count++
		o.Blob = []byte(o.Item)
		return o, nil
	})
	quicksilver.Define[goods, int64]("shop/goods").Handle(node, func(ctx context.Context, g goods) (int64, error) {
		return io.Copy(io.Discard, g.Goods.Reader(ctx))
	})
	quicksilver.Define[parcel, int64]("shop/parcel").Handle(node, func(ctx context.Context, p parcel) (int64, error) {
		return io.Copy(p.Back.Writer(ctx), io.MultiReader(strings.NewReader(p.Label), p.Goods.Reader(ctx)))
	})
	quicksilver.DefineOneWay[string]("shop/note").Handle(node, func(context.Context, string) {})
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- node.Serve(ctx) }()
	t.Cleanup(func() {
		stop()
		require.NoError(t, <-ended)
	})
	return node.Addr().String()
}

func TestCall(t *testing.T) {
	t.Parallel()
	addr := typedTarget(t, true)
	out := run(t, 0, "call", addr, "shop/order", `{"Item": "<nut>", "Count": 41, "Weight": 2, "Tags": ["a", "b"], "Big": 18446744073709551615}`)
	require.JSONEq(t, `{"Item": "<nut>", "Count": 42, "Weight": 2, "Tags": ["a", "b"], "Blob": "PG51dD4=", "Big": 18446744073709551615}`, out.out.String())
	require.Contains(t, out.out.String(), "<nut>")
	require.Equal(t, "hello", run(t, 0, "call", "-raw", addr, hg.PingRPC, "hello").out.String())
	require.Equal(t, "null\n", run(t, 0, "call", addr, hg.HealthRPC).out.String())

	file := filepath.Join(t.TempDir(), "order.json")
	writeFile(t, file, []byte(`{"Item": "bolt", "Count": 1}`))
	require.Contains(t, run(t, 0, "call", addr, "shop/order", "@"+file).out.String(), `"Count":2`)
	require.Regexp(t, `the input cannot be read: open .*none`, run(t, 1, "call", addr, "shop/order", "@"+file+".none").errors.String())
	for in, args := range map[string][]string{`{"Item": "nut", "Count": 2}`: {addr, "shop/order"}, "hello": {"-raw", addr, hg.PingRPC}} {
		q := newQS(t, append(append([]string{"call"}, args...), "-")...)
		q.cmd.Stdin = strings.NewReader(in)
		require.Regexp(t, `"Count":3|^hello$`, q.start().wait(0).out.String())
	}

	for _, c := range []struct{ input, method, want string }{
		{`{"Count": -1}`, "shop/order", `target: a count of -1 after .* \(ran\)\n  code:   \d+, bad input\n  detail: \{"least":1\}\n  to do:  .*qs rpcs ` + addr},
		{`null`, "shop/order", `target: no such item .*\n  code:   64, not found\n  to do:  the method ran and said so`},
		{`{"Item": 7}`, "shop/order", `bad input\n  to do:  look at the codec and the input it wants`},
		{`{}`, "shop/ordr", `to do:  look at what there is: qs rpcs ` + addr},
	} {
		require.Regexp(t, c.want, run(t, 1, "call", addr, c.method, c.input).errors.String())
	}
	require.Regexp(t, `^qs call: "\{" is no JSON: `, run(t, 2, "call", addr, "shop/order", "{").errors.String())
	require.Regexp(t, `^qs call: "1 2" is JSON with something behind it\n`, run(t, 2, "call", addr, "shop/order", "1 2").errors.String())
}

// TestCallLends: files are a Source and a Sink of a method.
func TestCallLends(t *testing.T) {
	t.Parallel()
	addr := typedTarget(t, true)
	require.Contains(t, run(t, 0, "rpcs", addr).out.String(), "{Label string, Goods Source, Back Sink} -> int64")
	src, dst := filepath.Join(t.TempDir(), "src"), filepath.Join(t.TempDir(), "dst")
	data := noise(5_000_000)
	writeFile(t, src, data)
	call := func(code int, args ...string) *qs {
		return run(t, code, append(append([]string{"call"}, args...), addr, "shop/parcel", `{"Label": "to you: "}`)...)
	}
	require.Equal(t, "5000008\n", call(0, "-source", "Goods="+src, "-sink", "Back="+dst).out.String())
	got, err := os.ReadFile(dst)
	require.NoError(t, err)
	require.True(t, bytes.Equal(append([]byte("to you: "), data...), got))
	require.Equal(t, "8\n", call(0, "-sink", "Back="+dst).out.String(), "the Source is empty")
	got, err = os.ReadFile(dst)
	require.NoError(t, err)
	require.Equal(t, "to you: ", string(got))

	q := newQS(t, "call", "-source", "Goods=/dev/stdin", addr, "shop/goods", "{}")
	q.cmd.Stdin = bytes.NewReader(data)
	require.Equal(t, "5000000\n", q.start().wait(0).out.String())

	require.Regexp(t, `target: .*the Sink is full`, call(1, "-source", "Goods="+src).errors.String())
	require.Regexp(t, `-source is "f", want FIELD=FILE`, call(2, "-source", "f").errors.String())
	require.Regexp(t, `no such file`, call(1, "-source", "Goods="+src+".none").errors.String())
	require.Regexp(t, `must be a JSON object`, run(t, 2, "call", "-source", "Goods="+src, addr, "shop/parcel").errors.String())
	require.Regexp(t, `not for -raw`, call(2, "-raw", "-source", "Goods="+src).errors.String())
}

func TestRPCs(t *testing.T) {
	t.Parallel()
	addr := typedTarget(t, true)
	out := run(t, 0, "rpcs", addr).out.String()
	require.Regexp(t, `(?m)^shop/order +msgpack +\{Item string.*\} -> \{Item string.*\}$`, out)
	require.Regexp(t, `(?m)^shop/note +msgpack +string \(one-way\)$`, out)
	require.Regexp(t, `(?m)^hg/ping +msgpack`, out)
	var all []hg.RPCInfo
	require.NoError(t, json.Unmarshal(run(t, 0, "rpcs", "-json", addr).out.Bytes(), &all))
	require.Contains(t, all, hg.RPCInfo{Name: "shop/note", Codec: "msgpack", Shape: "string", OneWay: true})
	require.Contains(t, run(t, 0, "rpcs", serve(t, "").addr).out.String(), hg.GaugesRPC)
	require.Regexp(t, `^qs rpcs: .* does not tell what it serves: a program does with hg.Config.Reflect: `,
		run(t, 1, "rpcs", typedTarget(t, false)).errors.String())
}

func TestTop(t *testing.T) {
	t.Parallel()
	s := serve(t, "")
	out := run(t, 0, "top", "-n", "2", "-interval", "1ms", s.addr).out.String()
	require.Regexp(t, `(?s)^`+s.addr+`  \d\d:\d\d:\d\d\n\ncontext 0 at `+s.addr+`: 1 peers, .*\npeer .*\n`+s.addr+`  .*\npeer `, out)
	require.NotContains(t, out, "\x1b")
	d := json.NewDecoder(&run(t, 0, "top", "-n", "2", "-interval", "1ms", "-json", s.addr).out)
	for range 2 {
		var all []hg.Gauges
		require.NoError(t, d.Decode(&all))
		require.Len(t, all, 1)
		require.Equal(t, s.addr, all[0].Address)
	}
	require.ErrorIs(t, d.Decode(new(any)), io.EOF)
	require.Contains(t, run(t, 1, "top", typedTarget(t, false)).errors.String(), "hg.Class.ServeGauges")
	require.Contains(t, run(t, 2, "top", "-interval", "0", s.addr).errors.String(), "-interval is not positive")

	q := newQS(t, "top", "-interval", "1ms", s.addr)
	r, w, err := os.Pipe()
	require.NoError(t, err)
	q.cmd.Stdout = w
	q.start()
	require.NoError(t, w.Close())
	_, err = io.ReadFull(r, make([]byte, 2000)) // several looks
	require.NoError(t, err)
	require.NoError(t, q.cmd.Process.Signal(os.Interrupt))
	_, _ = io.Copy(io.Discard, r)
	require.NoError(t, r.Close())
	q.wait(0)
}
