package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"math"
	"math/big"
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/hg"
	"github.com/quicksilver-rpc/quicksilver/hg/inspect"
	"github.com/quicksilver-rpc/quicksilver/na"
	"github.com/quicksilver-rpc/quicksilver/qs"
)

type order struct {
	Item   string
	Count  int
	Weight float64
	Tags   []string
	Blob   []byte
	Big    uint64
}

type goods struct{ Goods qs.Source }

type parcel struct {
	Label string
	Goods qs.Source
	Back  qs.Sink
}

type two struct {
	In  struct{ One qs.Sink }
	Two qs.Sink
}

type base struct {
	ID int64 `msgpack:"id"`
}

// odd holds values that JSON cannot represent.
type odd struct {
	base
	Bytes    []byte
	Array    [3]byte
	Time     time.Time
	Wait     time.Duration
	Huge     *big.Int
	Nan      float64
	Any      any
	ByNumber map[int]string
	ByBool   map[bool]int
	Host     netip.Addr
	Level    slog.Level
	Pointer  *int
}

var sample = odd{base: base{7}, Bytes: []byte{0, 255}, Array: [3]byte{1, 2, 3}, Time: time.Date(2026, 1, 2, 3, 4, 5, 6, time.UTC), Wait: 1500 * time.Millisecond,
	Huge: new(big.Int).Exp(big.NewInt(10), big.NewInt(30), nil), Nan: math.NaN(), Any: []any{[]byte{1}, time.Date(2026, 1, 2, 3, 4, 5, 6, time.UTC), 2.0},
	ByNumber: map[int]string{-1: "a"}, ByBool: map[bool]int{true: 1}, Host: netip.MustParseAddr("10.0.0.1"), Level: slog.LevelWarn, Pointer: new(int)}

func readFile(t *testing.T, name string) string {
	t.Helper()
	b, err := os.ReadFile(name)
	require.NoError(t, err)
	return string(b)
}

// errCredit is a code with a name, which the tool learns from the target.
var errCredit = qs.DefineCode(201, "credit used up")

// startTypedTarget is a node in this process.
func startTypedTarget(t *testing.T, withReflect bool) string {
	t.Helper()
	node, err := qs.Open("tcp://127.0.0.1:0", qs.Config{HG: hg.Config{Reflect: withReflect}})
	require.NoError(t, err)
	qs.Define[order, order]("shop/order").Handle(node, func(_ context.Context, o order) (order, error) {
		switch {
		case o.Item == "gone":
			return o, qs.Refuse(qs.Errorf(qs.ErrNotFound, "it is gone"))
		case o.Item == "quota":
			return o, qs.Refuse(qs.Errorf(200, "the quota is used up"))
		case o.Item == "credit":
			return o, qs.Refuse(qs.Errorf(errCredit, "no credit for Ada"))
		case o.Item == "busy":
			return o, qs.Refuse(qs.Errorf(qs.ErrNotReady, "not yet"))
		case o.Count < 0:
			return o, hg.WithDetail(qs.Errorf(qs.ErrBadInput, "a count of %d", o.Count), map[string]int{"least": 1})
		case o.Item == "":
			return o, qs.Errorf(qs.ErrNotFound, "no such item")
		}
		o.Count++
		o.Blob = []byte(o.Item)
		return o, nil
	})
	qs.Define[goods, int64]("shop/goods").Handle(node, func(ctx context.Context, g goods) (int64, error) {
		return io.Copy(io.Discard, g.Goods.Reader(ctx))
	})
	qs.Define[parcel, int64]("shop/parcel").Handle(node, func(ctx context.Context, p parcel) (int64, error) {
		if p.Label == "fail" {
			_, err := io.WriteString(p.Back.Writer(ctx), p.Label)
			return 0, errors.Join(err, errors.New("fails behind its first bytes"))
		}
		return io.Copy(p.Back.Writer(ctx), io.MultiReader(strings.NewReader(p.Label), p.Goods.Reader(ctx)))
	})
	qs.Define[two, string]("shop/two").Handle(node, func(ctx context.Context, to two) (string, error) {
		for text, sink := range map[string]qs.Sink{"one": to.In.One, "two": to.Two} {
			if sink.Len() != 0 {
				if _, err := io.WriteString(sink.Writer(ctx), text); err != nil {
					return "", err
				}
			}
		}
		return "done", nil
	})
	token := func(ctx context.Context, name string) string {
		v, _ := qs.Metadata(ctx, name)
		return v
	}
	qs.Define[string, string]("shop/token").Handle(node, func(ctx context.Context, _ string) (string, error) {
		return token(ctx, "token") + " " + token(ctx, "tenant"), nil
	})
	qs.DefineStream[goods, order]("shop/stock").Handle(node, func(ctx context.Context, g goods, send func(order) error) error {
		text, err := io.ReadAll(g.Goods.Reader(ctx))
		if err != nil {
			return err
		}
		for i, item := range strings.Fields(token(ctx, "token") + " " + string(text)) {
			if err := send(order{Item: item, Count: i}); err != nil {
				return err
			}
		}
		return qs.Errorf(qs.ErrNotFound, "no more")
	})
	qs.DefineStream[int, int]("shop/count").Handle(node, func(ctx context.Context, to int, send func(int) error) error {
		for i := 0; i != to; i++ {
			if err := send(i); err != nil {
				return err
			}
		}
		return nil
	})
	qs.DefineUpload[string, order, int]("shop/load").Handle(node, func(context.Context, string, *qs.Receiver[order]) (int, error) { return 0, nil })
	qs.DefineDuplex[string, int, string]("shop/chat").Handle(node, func(context.Context, string, *qs.DuplexServer[int, string]) error { return nil })
	var note atomic.Value
	qs.DefineOneWay[string]("shop/note").Handle(node, func(ctx context.Context, text string) { note.Store(token(ctx, "token") + ": " + text) })
	qs.Define[string, any]("shop/noted").Handle(node, func(context.Context, string) (any, error) { return note.Load(), nil })
	qs.Define[struct{}, odd]("shop/sample").Handle(node, func(context.Context, struct{}) (odd, error) { return sample, nil })
	qs.Define[odd, odd]("shop/same").Handle(node, func(_ context.Context, o odd) (odd, error) {
		was, n := sample, o
		if !math.IsNaN(n.Nan) || was.Time.Compare(n.Time) != 0 || was.Huge.Cmp(n.Huge) != 0 {
			return o, qs.Errorf(qs.ErrBadInput, "got %+v", o)
		}
		was.Nan, n.Nan, was.Time, was.Any, n.Any = 0, 0, n.Time, nil, nil // the zone of a time is another
		if !reflect.DeepEqual(was, n) {
			return o, qs.Errorf(qs.ErrBadInput, "got %+v, want %+v", n, was)
		}
		return o, nil
	})
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
	addr := startTypedTarget(t, true)
	out := run(t, 0, "call", addr, "shop/order", `{"Item": "<nut>", "Count": 41, "Weight": 2, "Tags": ["a", "b"], "Big": 18446744073709551615}`)
	require.JSONEq(t, `{"Item": "<nut>", "Count": 42, "Weight": 2, "Tags": ["a", "b"], "Blob": "PG51dD4=", "Big": 18446744073709551615}`, out.out.String())
	require.Contains(t, out.out.String(), "<nut>")
	require.Equal(t, "hello", run(t, 0, "call", "-raw", addr, hg.PingRPC, "hello").out.String())
	require.Equal(t, "null\n", run(t, 0, "call", addr, hg.HealthRPC).out.String())

	plain := serve(t, "") // its codec is raw
	require.Equal(t, "", run(t, 0, "call", plain.addr, hg.PingRPC).out.String())
	require.Equal(t, `"x"`, run(t, 0, "call", plain.addr, hg.PingRPC, `"x"`).out.String())
	run(t, 0, "call", plain.addr, hg.HealthRPC)

	file := filepath.Join(t.TempDir(), "order.json")
	writeFile(t, file, []byte(`{"Item": "bolt", "Count": 1}`))
	require.Contains(t, run(t, 0, "call", addr, "shop/order", "@"+file).out.String(), `"Count":2`)
	require.Regexp(t, `cannot read the input: open .*none`, run(t, exitFailed, "call", addr, "shop/order", "@"+file+".none").errors.String())
	for in, args := range map[string][]string{`{"Item": "nut", "Count": 2}`: {addr, "shop/order"}, "hello": {"-raw", addr, hg.PingRPC}} {
		q := newQS(t, append(append([]string{"call"}, args...), "-")...)
		q.cmd.Stdin = strings.NewReader(in)
		require.Regexp(t, `"Count":3|^hello$`, q.start().wait(0).out.String())
	}

	for _, c := range []struct {
		code                int
		input, method, want string
	}{
		{exitHandler, `{"Count": -1}`, "shop/order", `shop/order: ` + addr + ` answers: a count of -1; it ran\n  code:   \d+, bad input\n  detail: \{"least":1\}\n  to do:  .*qs rpcs ` + addr},
		{exitHandler, `null`, "shop/order", `answers: no such item; it ran\n  code:   64, not found\n  to do:  the method ran and returned this error`},
		{exitUsage, `{"Item": "gone"}`, "shop/order", `shop/order: ` + addr + ` refuses: it is gone; it did NOT RUN\n  code:   64, not found\n  to do:  it did not run, and a retry alone will fail again`},
		{exitUsage, `{"Item": "quota"}`, "shop/order", `code:   200, application error code 200\n  to do:  it did not run, and a retry alone will fail again`},
		{exitUsage, `{"Item": "credit"}`, "shop/order", `code:   201, credit used up\n  to do:  it did not run, and a retry alone will fail again`},
		{exitNotRun, `{"Item": "busy"}`, "shop/order", `to do:  it did not run: retry it`},
		{exitUsage, `{}`, "shop/ordr", `serves no method "shop/ordr": NOT sent; did you mean shop/order\?\n  to do:  look at what there is: qs rpcs ` + addr},
		{exitUsage, `{}`, "Shop/Order", `; did you mean shop/order\?\n`},
		{exitUsage, `{}`, "order", `; did you mean shop/order\?\n`},
		{exitUsage, `{}`, "ping", `; did you mean hg/ping\?\n  to do:  .*: qs rpcs --all ` + addr},
		{exitUsage, `{}`, "hg/nosuch", `"hg/nosuch": NOT sent\n  to do:  .*: qs rpcs --all ` + addr},
	} {
		require.Regexp(t, c.want, run(t, c.code, "call", addr, c.method, c.input).errors.String())
	}
	for input, want := range map[string]string{
		`{"Item": 7}`:                    `Item: the number 7 is not a valid string; NOT sent; shop/order takes main.order\{Item string, Count int, `,
		`{"Item": "nut", "count": 1}`:    `unknown field "count"; the fields are Item, Count, Weight, Tags, Blob, Big; NOT sent`,
		`{"Tags": ["a", false]}`:         `Tags\[1\]: the boolean false is not a valid string; NOT sent`,
		`{"Blob": "one"}`:                `Blob: the string "one" is not a valid base64 of bytes: .*; NOT sent`,
		`{"Count": 9223372036854775808}`: `Count: the number 9223372036854775808 is not a valid int64; NOT sent`,
	} {
		require.Regexp(t, `^qs call: the input: `+want, run(t, 2, "call", addr, "shop/order", input).errors.String())
	}
	require.Equal(t, "hello", run(t, 0, "call", addr, hg.PingRPC, "hello", "-raw").out.String(), "flags may stand anywhere")
	require.Regexp(t, `^qs call: "\{" is not JSON: `, run(t, 2, "call", addr, "shop/order", "{").errors.String())
	require.Regexp(t, `^qs call: "1 2" has data after the JSON value\n`, run(t, 2, "call", addr, "shop/order", "1 2").errors.String())
}

// TestCallLends checks that files are a Source and a Sink of a method.
func TestCallLends(t *testing.T) {
	t.Parallel()
	addr := startTypedTarget(t, true)
	require.Contains(t, run(t, 0, "rpcs", addr).out.String(), "{Label string, Goods Source, Back Sink} -> int64")
	src, dst := filepath.Join(t.TempDir(), "src"), filepath.Join(t.TempDir(), "dst")
	data := noise(5_000_000)
	writeFile(t, src, data)
	call := func(code int, args ...string) *process {
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

	require.Regexp(t, `--source.*want NAME=VALUE`, call(2, "-source", "f").errors.String())
	require.Regexp(t, `no such file or directory: NOT sent\n$`, call(exitFailed, "-source", "Goods="+src+".none").errors.String())
	require.Regexp(t, `Goods: the field is a Source: --source lends a file in it`, run(t, 2, "call", addr, "shop/parcel", `{"Goods": "x"}`).errors.String())
	require.Regexp(t, `not for --raw`, call(2, "-raw", "-source", "Goods="+src).errors.String())
}

// TestCallKeepsFiles checks that a mistake in the name of a field, or in that of a file, leaves
// files as they are, and so does a call that fails: the method has not run, or its bytes do not
// become the file.
func TestCallKeepsFiles(t *testing.T) {
	t.Parallel()
	addr, dir := startTypedTarget(t, true), t.TempDir()
	file := filepath.Join(dir, "file")
	writeFile(t, file, []byte("precious"))
	call := func(code int, method, in string, flags ...string) string {
		return run(t, code, append(append([]string{"call"}, flags...), addr, method, in)...).errors.String()
	}
	for _, flags := range [][]string{{"-source", "Godos=" + file}, {"-sink", "Bakc=" + file}, {"-source", "Back=" + file}} {
		require.Regexp(t, `shop/parcel has no S(ource|ink) ".*"; there are (Goods|Back); NOT sent`, call(2, "shop/parcel", `{}`, flags...))
	}
	require.Contains(t, call(2, "shop/goods", `{}`, "-sink", "Goods="+file), `no Sink "Goods"; it has none`)
	require.Contains(t, call(exitHandler, "shop/parcel", `{"Label": "fail"}`, "-sink", "Back="+file), "fails behind its first bytes")
	require.Contains(t, call(exitFailed, "shop/parcel", `{}`, "-sink", "Back="+filepath.Join(dir, "no", "file")), "NOT sent")
	require.Contains(t, run(t, 2, "call", "-source", "Goods="+file, startTypedTarget(t, false), "shop/parcel", `{}`).errors.String(), "are not known")
	require.Equal(t, "precious", readFile(t, file))
	requireNames(t, dir, "file")

	link := filepath.Join(dir, "link")
	require.NoError(t, os.Chmod(file, 0o640))
	require.NoError(t, os.Symlink(file, link))
	call(0, "shop/parcel", `{"Label": "new"}`, "-sink", "Back="+link)
	require.Equal(t, "new", readFile(t, file))
	info, err := os.Lstat(link)
	require.NoError(t, err)
	require.NotZero(t, info.Mode()&os.ModeSymlink)
	info, err = os.Stat(file)
	require.NoError(t, err)
	require.EqualValues(t, 0o640, info.Mode().Perm())
}

// TestCallSinks checks that the output of a method with Sinks is the same whether files are lent in
// them or not, and several files can be lent.
func TestCallSinks(t *testing.T) {
	t.Parallel()
	addr, dir := startTypedTarget(t, true), t.TempDir()
	one, two := filepath.Join(dir, "one"), filepath.Join(dir, "two")
	for _, flags := range [][]string{nil, {"-sink", "Two=" + two}, {"-sink", "Two=" + two, "-sink", "In.One=" + one}, {"-sink", "Two=-"}} {
		q := run(t, 0, append(append([]string{"call"}, flags...), addr, "shop/two", `{}`)...)
		if len(flags) > 0 && flags[1] == "Two=-" {
			require.Equal(t, "two", q.out.String())
			require.Equal(t, "\"done\"\n", q.errors.String())
			continue
		}
		require.Equal(t, "\"done\"\n", q.out.String())
	}
	require.Equal(t, "one", readFile(t, one))
	require.Equal(t, "two", readFile(t, two))
}

// TestCallStream checks that metadata is sent with a call of each kind, and a one-way method can be
// called. The items of a stream are lines, those in front of an error, too.
func TestCallStream(t *testing.T) {
	t.Parallel()
	addr := startTypedTarget(t, true)
	require.Equal(t, "0\n1\n2\n", run(t, 0, "call", addr, "shop/count", "3").out.String())
	require.Empty(t, run(t, 0, "call", addr, "shop/count").out.String())
	require.Contains(t, run(t, 2, "call", addr, "shop/count", `"x"`).errors.String(), "shop/count takes int\n")
	require.Regexp(t, `(?s)code: +20, deadline exceeded.*to do:`, run(t, exitMayHaveRun, "call", "-timeout", "300ms", addr, "shop/count", "-1").errors.String())
	for _, args := range [][]string{{"call", addr, "shop/load", `"x"`}, {"call", addr, "shop/chat"}, {"call", "-raw", addr, "shop/chat"}, {"bench", addr, "shop/load"}} {
		require.Regexp(t, `shop/(load is of kind upload|chat is of kind duplex): its caller sends items, .*; NOT sent\n$`, run(t, exitUsage, args...).errors.String())
	}
	require.Regexp(t, `shop/count is a stream.*NOT sent`, run(t, 2, "call", "-raw", addr, "shop/count", "3").errors.String())
	src := filepath.Join(t.TempDir(), "src")
	writeFile(t, src, []byte("tea salt"))
	q := run(t, exitHandler, "call", "-meta", "token=bread", "-source", "Goods="+src, addr, "shop/stock")
	require.Regexp(t, `^\{"Item":"bread","Count":0,.*\n\{"Item":"tea","Count":1,.*\n\{"Item":"salt","Count":2,.*\n$`, q.out.String())
	require.Regexp(t, `(?s)no more.*code: +64, not found`, q.errors.String())
}

func TestCallMeta(t *testing.T) {
	t.Parallel()
	for _, withReflect := range []bool{true, false} {
		addr := startTypedTarget(t, withReflect)
		out := run(t, 0, "call", "-meta", "token=a=b", "-meta", "tenant=c", addr, "shop/token").out.String()
		require.Equal(t, "\"a=b c\"\n", out)
		q := run(t, 0, "call", "-meta", "token=said", "-oneway", addr, "shop/note", `"hello"`)
		require.Empty(t, q.out.String())
		waitUntil(t, "the note", func() bool {
			return run(t, 0, "call", addr, "shop/noted").out.String() == "\"said: hello\"\n"
		})
	}
	addr := startTypedTarget(t, true)
	run(t, 0, "call", addr, "shop/note", `"hello"`)
	require.Regexp(t, `--meta: .*invalid name "To Ken"`, run(t, 2, "call", "-meta", "To Ken=a", addr, "shop/token").errors.String())
	require.Regexp(t, `one-way.*\n.*\n.*--oneway for one-way methods`, run(t, exitUsage, "call", startTypedTarget(t, false), "shop/note", `"hello"`).errors.String())
}

// TestCallRoundTrip checks that the output of a call is valid input for another one, with the same
// meaning, also for values that JSON cannot represent.
func TestCallRoundTrip(t *testing.T) {
	t.Parallel()
	addr := startTypedTarget(t, true)
	out := run(t, 0, "call", addr, "shop/sample").out.String()
	require.Equal(t, `{"id":7,"Bytes":"AP8=","Array":"AQID","Time":"2026-01-02T03:04:05.000000006Z","Wait":"1.5s","Huge":1000000000000000000000000000000,`+
		`"Nan":"NaN","Any":[{"$bytes":"AQ=="},{"$time":"2026-01-02T03:04:05.000000006Z"},2.0],"ByNumber":{"-1":"a"},`+
		`"ByBool":{"$map":[[true,1]]},"Host":"10.0.0.1","Level":"WARN","Pointer":0}`+"\n", out)
	require.Equal(t, out, run(t, 0, "call", addr, "shop/same", out).out.String())
}

func TestRPCs(t *testing.T) {
	t.Parallel()
	addr := startTypedTarget(t, true)
	out := run(t, 0, "rpcs", addr).out.String()
	require.Regexp(t, `(?m)^shop/order +call +msgpack +main.order\{Item string.*\} -> main.order\{Item string.*\}$`, out)
	require.Regexp(t, `(?m)^shop/note +one-way +msgpack +string$`, out)
	require.Regexp(t, `(?m)^shop/count +stream +msgpack +int -> int$`, out)
	require.Regexp(t, `(?m)^shop/chat +duplex +msgpack +string, int \.\.\. -> string$`, out)
	require.Equal(t, "shop/chat: duplex, codec msgpack\ninput: string\nitems: int\noutput: string\n", run(t, 0, "rpcs", addr, "shop/chat").out.String())
	require.NotRegexp(t, `(?m)^(hg|qs)/`, out, "the program's own")
	require.Regexp(t, `(?m)^hg/ping +call +msgpack`, run(t, 0, "rpcs", "-all", addr).out.String())
	var all []rpcReport
	require.NoError(t, json.Unmarshal(run(t, 0, "rpcs", "-json", addr).out.Bytes(), &all))
	require.Contains(t, all, rpcReport{Name: "shop/note", Codec: "msgpack", Kind: "one_way", Input: "string"})
	for _, rpc := range all {
		require.False(t, inspect.IsBuiltIn(rpc.Name), rpc.Name)
	}
	require.Equal(t, "shop/order: call, codec msgpack\ninput: main.order{\n  Item string\n  Count int\n  Weight float64\n  Tags []string\n  Blob []uint8\n  Big uint64\n}\n"+
		"output: main.order{\n  Item string\n  Count int\n  Weight float64\n  Tags []string\n  Blob []uint8\n  Big uint64\n}\n", run(t, 0, "rpcs", addr, "shop/order").out.String())
	require.Equal(t, "shop/note: one-way, codec msgpack\ninput: string\n", run(t, 0, "rpcs", addr, "shop/note").out.String())
	require.Regexp(t, `^shop/two: .*\ninput: main.two\{\n  In \{\n    One Sink\n  \}\n  Two Sink\n\}\noutput: string\n$`, run(t, 0, "rpcs", addr, "shop/two").out.String())
	require.Contains(t, run(t, 0, "rpcs", addr, "hg/ping").out.String(), "hg/ping: call, codec")
	require.Regexp(t, `serves no method "shop/ordr"; did you mean shop/order\?\n`, run(t, exitUsage, "rpcs", addr, "shop/ordr").errors.String())
	completed := run(t, 0, "__complete", "call", addr, "shop/t").out.String()
	require.Regexp(t, `^shop/token\nshop/two\n:`, completed)

	none := run(t, 0, "rpcs", startTarget(t, nil))
	require.Empty(t, none.out.String())
	require.Regexp(t, `^qs rpcs: .* serves only RPCs of Quicksilver itself: --all lists them\n$`, none.errors.String())
	s := serve(t, "")
	require.Regexp(t, `^add +call +msgpack +\{A int, B int\} -> int\ncount +stream +msgpack +\{N int, Interval time\.Duration\} -> int\nfail +call +msgpack +string -> string\ngreet +call +msgpack +string -> string\nsleep +call +msgpack +time.Duration -> string\n$`, regexp.MustCompile(`(?m)^name.*\n`).ReplaceAllString(run(t, 0, "rpcs", s.addr).out.String(), ""))
	require.Equal(t, "\"hello, Ada\"\n", run(t, 0, "call", s.addr, "greet", `"Ada"`).out.String())
	require.Equal(t, "1\n2\n3\n", run(t, 0, "call", s.addr, "count", `{"N": 3, "Interval": "1ms"}`).out.String())
	require.Equal(t, 10, strings.Count(run(t, 0, "call", s.addr, "count").out.String(), "\n"))
	require.Contains(t, run(t, exitHandler, "call", s.addr, "count", `{"N": -1}`).errors.String(), "N is -1")
	require.Equal(t, "1\n", run(t, 0, "call", "-n", "1", s.addr, "count", `{"Interval": "1h"}`).out.String())
	require.Contains(t, run(t, 0, "rpcs", "-all", s.addr).out.String(), inspect.GaugesRPC)
	require.Regexp(t, `^qs rpcs: .* does not publish its RPCs: set qs\.Config\.Inspect there, or hg\.Config\.Reflect\n`,
		run(t, exitUsage, "rpcs", startTypedTarget(t, false)).errors.String())
}

func TestTop(t *testing.T) {
	t.Parallel()
	s := serve(t, "")
	out := run(t, 0, "top", "-n", "3", "-all", "-interval", "1ms", s.addr).out.String()
	require.Regexp(t, `(?s)^`+s.addr+`  \d\d:\d\d:\d\d  0 handlers at work, 0 requests wait\n\nCalls under way: 1\n *age .*\n\nPeers: 1\n`+
		`name +.*\nqs\.test \(this top\)  127\.0\.0\.1:\d+ .* tcp\n\nMethods: \d, of the last \d+\.\d s\n.*`+s.addr+`  .*\nhg/gauges .* target\n`, out)
	require.NotContains(t, out, "\x1b")
	d := json.NewDecoder(&run(t, 0, "top", "-n", "2", "-interval", "1ms", "-json", s.addr).out)
	for range 2 {
		var r topReport
		require.NoError(t, d.Decode(&r))
		require.Len(t, r.Contexts, 1)
		require.Equal(t, s.addr, r.Contexts[0].Address)
	}
	require.ErrorIs(t, d.Decode(new(any)), io.EOF)
	require.Contains(t, run(t, exitUsage, "top", startTypedTarget(t, false)).errors.String(), "qs.Config.Inspect")
	require.Contains(t, run(t, 2, "top", "-interval", "0", s.addr).errors.String(), "--interval is 0s, want more than 0s and at most 10s")

	q := newQS(t, "top", "-interval", "1ms", s.addr)
	r, w, err := os.Pipe()
	require.NoError(t, err)
	q.cmd.Stdout = w
	q.start()
	require.NoError(t, w.Close())
	_, err = io.ReadFull(r, make([]byte, 2000)) // several reads
	require.NoError(t, err)
	require.NoError(t, q.cmd.Process.Signal(os.Interrupt))
	_, _ = io.Copy(io.Discard, r)
	require.NoError(t, r.Close())
	q.wait(0)
}

// TestLookupFate checks that a call is not sent if the types of its method are not received in
// time, or before an interrupt; commands that only query have no fate.
func TestLookupFate(t *testing.T) {
	t.Parallel()
	asked := make(chan struct{}, 10)
	addr := startTarget(t, map[string]hg.Handler{inspect.RPCsRPC: func(r hg.Request) error {
		_ = r.Detach() // never answered
		asked <- struct{}{}
		return nil
	}})
	for _, command := range []string{"call", "bench"} {
		q := run(t, exitNotRun, command, "-timeout", "100ms", addr, "greet")
		const todo = "  to do:  retry it, or give it more time with --timeout; qs ping "
		require.Equal(t, "qs "+command+": greet: NOT sent: "+addr+" did not answer within 100ms (asked for its types first)\n"+
			todo+addr+" shows whether the program responds\n", q.errors.String())
		var e struct{ Error errorReport }
		q = run(t, exitNotRun, command, "-timeout", "100ms", "-json", addr, "greet")
		requireSchema(t, "error", q.errors.Bytes())
		require.NoError(t, json.Unmarshal(q.errors.Bytes(), &e))
		require.Equal(t, "did_not_run", e.Error.Fate)
		require.Equal(t, "did_not_run", e.Error.Kind)
		for len(asked) > 0 {
			<-asked
		}
		q = newQS(t, command, "-timeout", "1h", addr, "greet").start()
		<-asked
		require.NoError(t, q.cmd.Process.Signal(os.Interrupt))
		require.Regexp(t, `greet: NOT sent: .* before this was interrupted\n  to do:  retry it, .*\n$`, q.wait(exitInterrupted).errors.String())
	}
	q := run(t, exitNotRun, "rpcs", "-timeout", "100ms", addr)
	require.Equal(t, "qs rpcs: "+addr+" did not list its methods within 100ms\n"+
		"  to do:  retry it, or give it more time with --timeout; qs ping "+addr+" shows whether the program responds\n", q.errors.String())
	require.NotContains(t, run(t, exitNotRun, "rpcs", "-json", "-timeout", "100ms", addr).errors.String(), `"fate"`)
	require.Contains(t, run(t, exitUsage, "call", startTypedTarget(t, false), "nosuch").errors.String(), "to do:  look at what there is: qs rpcs ")
	require.Contains(t, adviceFor(hg.ErrTimeout, hg.NotRun, false, "a"), "it did not run: retry it, or give it more time with --timeout; qs ping a shows")
}

// TestNoInput checks that only "-" and "@-" read the standard input. Without an input the zero
// value is sent, even if a pipe or a file has data, with a note.
func TestNoInput(t *testing.T) {
	t.Parallel()
	addr, plain := startTypedTarget(t, true), serve(t, "").addr
	file := filepath.Join(t.TempDir(), "input")
	writeFile(t, file, []byte(`"x"`))
	const zero, empty = "no JSON given, the zero value is sent", "no input given, an empty one is sent"
	for line, sent := range map[string]string{
		"call % shop/token":                 zero,
		"bench -n 1 % shop/token":           zero,
		"call % shop/sample":                "",
		"call % shop/token \"\"":            "",
		"call % shop/token -":               "",
		"call % shop/token @-":              "",
		"call % shop/token null":            "",
		"call -raw ! hg/ping":               empty,
		"bench -n 1 -raw ! hg/ping":         empty,
		"call % shop/goods -source Goods=-": "",
	} {
		args := strings.Fields(strings.NewReplacer("%", addr, "!", plain).Replace(line))
		want := ""
		if sent != "" {
			want = "qs " + args[0] + ": note: " + sent + `; "-" reads the standard input` + "\n"
		}
		from, err := os.Open(file)
		require.NoError(t, err)
		q := newQS(t, args...)
		q.cmd.Stdin = from
		require.Equal(t, want, q.start().wait(0).errors.String(), line)
		at, err := from.Seek(0, io.SeekCurrent)
		require.NoError(t, err)
		require.Equal(t, strings.HasSuffix(line, "-"), at > 0, "%s: another program may read it", line)
		require.NoError(t, from.Close())
		q = newQS(t, args...)
		q.cmd.Stdin = strings.NewReader(`"x"`)
		require.Equal(t, want, q.start().wait(0).errors.String(), line)
	}
	require.Empty(t, run(t, 0, "call", addr, "shop/token").errors.String(), "/dev/null")
}

// TestStreamCut checks that a stream that ends early after some items has run, and the error says
// so; --count ends it without an error.
func TestStreamCut(t *testing.T) {
	t.Parallel()
	ended := make(chan struct{})
	addr := startTargetNode(t, func(n *qs.Node) {
		qs.DefineStream[int, int]("tick").Handle(n, func(ctx context.Context, n int, send func(int) error) error {
			for i := range n {
				if err := send(i); err != nil {
					return err
				}
			}
			<-ended // not ctx: the answer at the deadline could arrive before the caller's own timeout
			return nil
		})
	})
	t.Cleanup(func() { close(ended) })
	q := run(t, exitMayHaveRun, "call", "-timeout", "1s", addr, "tick", "4")
	require.Equal(t, "0\n1\n2\n3\n", q.out.String())
	require.Equal(t, "qs call: tick: ended by --timeout, 1s, after 4 items; it ran\n  code:   20, deadline exceeded\n  to do:  give it more time with --timeout, 0 for no limit, or end it with --count\n", q.errors.String())
	q = run(t, exitMayHaveRun, "call", "-json", "-timeout", "1s", addr, "tick", "1")
	require.Regexp(t, `"code_text":"deadline exceeded","fate":"ran"`, q.errors.String())
	require.Equal(t, "0\n1\n", run(t, 0, "call", "-timeout", "0", "-n", "2", addr, "tick", "4").out.String())
	require.Equal(t, "qs call: tick: "+addr+" sent no item within 1s; it MAY HAVE RUN\n  code:   20, deadline exceeded\n"+
		"  to do:  use --timeout 0 for a subscription, whose items may come at any time; otherwise check before you retry it\n",
		run(t, exitMayHaveRun, "call", "-timeout", "1s", addr, "tick", "0").errors.String())
	require.Equal(t, "qs call: --count is for streams, and shop/token is not a stream; NOT sent\n", run(t, exitUsage, "call", "-n", "1", startTypedTarget(t, true), "shop/token", `""`).errors.String())
}

// TestTypesDenied checks that the texts about a method whose types the program does not publish name
// the reason: Inspect is not set, or the authorizer denied the request for the types.
func TestTypesDenied(t *testing.T) {
	t.Parallel()
	handle := func(n *qs.Node) {
		qs.Define[goods, int64]("goods").Handle(n, func(context.Context, goods) (int64, error) { return 0, nil })
		qs.DefineStream[int, int]("tick").Handle(n, func(context.Context, int, func(int) error) error { return nil })
		qs.DefineDuplex[int, int, int]("chat").Handle(n, func(context.Context, int, *qs.DuplexServer[int, int]) error { return nil })
	}
	source := filepath.Join(t.TempDir(), "source")
	require.NoError(t, os.WriteFile(source, nil, 0o600))
	for _, c := range []struct {
		cfg qs.Config
		why string
	}{
		{qs.Config{}, "the program does not tell what it serves (qs.Config.Inspect)"},
		{qs.Config{Inspect: true, Authorize: func(_ context.Context, c *qs.Call) error {
			if c.Method == inspect.RPCsRPC {
				return qs.Errorf(qs.ErrPermission, "not for you")
			}
			return nil
		}}, "the request for the types (hg/rpcs) was denied: not for you"},
	} {
		addr := startTargetNodeWith(t, c.cfg, handle)
		require.Equal(t, "qs call: --source and --sink: "+c.why+": the fields of goods are not known; NOT sent\n",
			run(t, exitUsage, "call", "-source", "Goods="+source, addr, "goods").errors.String())
		require.Equal(t, "qs call: --count is for streams: "+c.why+": the kind of tick is not known; NOT sent\n",
			run(t, exitUsage, "call", "-count", "1", addr, "tick", "0").errors.String())
		require.Equal(t, "qs call: tick: "+addr+" refuses: tick is a stream (DefineStream), and this was not known, because "+c.why+"; it did NOT RUN\n"+
			"  code:   12, protocol error\n  to do:  let the program publish its types: it needs qs.Config.Inspect, and an authorizer that allows hg/rpcs\n",
			run(t, exitUsage, "call", addr, "tick", "0").errors.String())
		require.Equal(t, "qs call: chat: "+addr+" refuses: chat is a duplex (DefineDuplex): its caller sends items; it did NOT RUN\n"+
			"  code:   12, protocol error\n  to do:  call it from a program that uses package qs\n",
			run(t, exitUsage, "call", addr, "chat", "0").errors.String())
	}
}

// TestOneFate checks that the remedy for a call that timed out names the same fate as its error.
func TestOneFate(t *testing.T) {
	t.Parallel()
	for fate, want := range map[hg.Fate]string{hg.Ran: "; it ran, so", hg.MaybeRan: "; it may have run, so", hg.NotRun: "it did not run: "} {
		require.Contains(t, adviceFor(hg.ErrTimeout, fate, false, "tcp://h:1"), want)
	}
	addr := startTargetNode(t, func(n *qs.Node) {
		qs.Define[int, int]("late").Handle(n, func(context.Context, int) (int, error) { return 0, qs.Errorf(qs.ErrTimeout, "the disk is slow") })
	})
	require.Regexp(t, `(?s)answers: the disk is slow; it ran\n.*to do: .*it ran, so check`, run(t, exitHandler, "call", addr, "late", "0").errors.String())
}

// startTargetNode serves a node of this process.
func startTargetNode(t *testing.T, handle func(n *qs.Node)) (addr string) {
	t.Helper()
	return startTargetNodeWith(t, qs.Config{Inspect: true}, handle)
}

// startTargetNodeWith is like startTargetNode, with the given configuration.
func startTargetNodeWith(t *testing.T, cfg qs.Config, handle func(n *qs.Node)) (addr string) {
	t.Helper()
	n, err := qs.Open("tcp://127.0.0.1:0", cfg)
	require.NoError(t, err)
	handle(n)
	served := make(chan error, 1)
	go func() { served <- n.Serve(context.Background()) }()
	t.Cleanup(func() {
		require.NoError(t, n.Close())
		require.NoError(t, <-served)
	})
	return n.Addr().String()
}

// TestServeRehearsalMethods checks that the methods of qs serve answer, and produce the exit codes
// for "may have run" and for "failed".
func TestServeRehearsalMethods(t *testing.T) {
	t.Parallel()
	addr := serve(t, "").addr
	require.Equal(t, "3\n", run(t, 0, "call", addr, "add", `{"A": 1, "B": 2}`).out.String())
	require.Contains(t, run(t, exitUsage, "call", addr, "add", `{"C": 1}`).errors.String(), "C")
	require.Equal(t, `"slept 1ms"`+"\n", run(t, 0, "call", addr, "sleep", `"1ms"`).out.String())
	require.Regexp(t, `^qs call: sleep: `+addr+` did not answer within 500ms; it MAY HAVE RUN\n  code:`, run(t, exitMayHaveRun, "call", "-t", "500ms", addr, "sleep", `"1h"`).errors.String())
	require.Contains(t, run(t, exitHandler, "call", addr, "sleep", `"2h"`).errors.String(), "invalid duration 2h0m0s, want 0s to 1h0m0s")
	require.Regexp(t, `^qs call: fail: `+addr+` answers: boo; it ran\n`, run(t, exitHandler, "call", addr, "fail", `"boo"`).errors.String())
	require.Regexp(t, `answers: fail was called; it ran\n`, run(t, exitHandler, "call", addr, "fail", "null").errors.String())
}

// TestServeDrains checks that after SIGTERM a server waits for requests, for --drain, and reports
// the requests that it has canceled.
func TestServeDrains(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		drain  string
		method string
		in     string
		code   int // of serve
		want   string
	}{
		// the last poll may print one
		{"1m", "count", `{"N": 2, "Interval": "1s"}`, 0, `^qs serve: (1 request|2 requests) under way: waits up to 1m0s for the end\n$`},
		{"50ms", "sleep", `"1h"`, exitFailed, `\nqs serve: canceled after 50ms: 1 request: handler of sleep has not answered\n$`},
		{"0", "sleep", `"1h"`, exitFailed, `^qs serve: canceled after 0s: 1 request: handler of sleep has not answered\n$`},
	} {
		for _, handlers := range []string{"inline", "typed"} {
			s := newQS(t, "serve", "-drain", c.drain, "-handlers", handlers)
			out, err := os.CreateTemp(t.TempDir(), "")
			require.NoError(t, err)
			defer out.Close()
			s.cmd.Stdout = out
			s.start()
			addr := ""
			waitUntil(t, "the address", func() bool { addr = strings.TrimSpace(readFile(t, out.Name())); return addr != "" })
			q := newQS(t, "call", "-t", "1h", addr, c.method, c.in).start()
			looker, err := dial(&network{timeout: patience}, addr)
			require.NoError(t, err)
			waitUntil(t, "the call", func() bool {
				l, err := looker.fetchGauges(t.Context())
				return err == nil && slices.ContainsFunc(l.all[0].Calls, func(s inspect.CallState) bool { return s.RPC == c.method && s.State == "running" }) || q.hasEnded()
			})
			looker.close()
			require.NoError(t, s.cmd.Process.Signal(syscall.SIGTERM))
			s.wait(c.code)
			if c.code == 0 {
				q.wait(0)
			} else {
				q.wait(exitHandler)
			}
			require.Regexp(t, c.want, s.errors.String())
		}
	}
}

// TestRawOfMsgpack checks that bytes that a method cannot decode are not sent to it.
func TestRawOfMsgpack(t *testing.T) {
	t.Parallel()
	addr := startTypedTarget(t, true)
	const want = "shop/token is of codec msgpack, and the input of --raw is none: without --raw JSON is converted; NOT sent\n"
	require.Equal(t, "qs call: "+want, run(t, exitUsage, "call", "-raw", addr, "shop/token", "garbage").errors.String())
	require.Equal(t, "qs bench: "+want, run(t, exitUsage, "bench", "-n", "1", "-raw", addr, "shop/token", "garbage").errors.String())
	require.Equal(t, "\xa1 ", run(t, 0, "call", "-raw", addr, "shop/token", "\xa1x").out.String(), "a string of msgpack")
	require.Contains(t, run(t, exitNotRun, "call", "-json", "tcp://127.0.0.1:1", "m").errors.String(), `"fate":"did_not_run"`)
}

// TestHealth checks that a program is ready, or the reason is printed.
func TestHealth(t *testing.T) {
	t.Parallel()
	class, addr := startTargetClass(t, nil)
	require.Equal(t, "ok\n", run(t, 0, "health", addr).out.String())
	class.SetReady(false)
	q := run(t, 1, "health", addr)
	require.Equal(t, "not ok\n", q.out.String())
	require.Regexp(t, `^qs health: `+addr+`: target: the target is not ready\n$`, q.errors.String())
	q = run(t, 1, "health", "-json", addr)
	requireSchema(t, "health", q.out.Bytes())
	requireSchema(t, "error", q.errors.Bytes())
	require.Regexp(t, `"ok":false,"why":".*the target is not ready"`, q.out.String())
	require.Contains(t, run(t, 1, "health", "tcp://127.0.0.1:1").errors.String(), "cannot be reached")
}

// TestHealthWaits checks that --wait polls until the program is ready, or the time is over.
func TestHealthWaits(t *testing.T) {
	t.Parallel()
	var asked atomic.Int32
	addr := startTarget(t, map[string]hg.Handler{hg.HealthRPC: func(r hg.Request) error {
		if asked.Add(1) < 3 {
			return hg.Refuse(hg.Errorf(hg.ErrNotReady, "it starts"))
		}
		return r.RespondRaw(nil, nil)
	}})
	require.Contains(t, run(t, 1, "health", addr).errors.String(), "it starts")
	require.Equal(t, "ok\n", run(t, 0, "health", "--wait", "1h", addr).out.String())
	require.EqualValues(t, 3, asked.Load())
	require.Contains(t, run(t, 1, "health", "--wait", "1ms", "tcp://127.0.0.1:1").errors.String(), "cannot be reached")
	q := newQS(t, "health", "--wait", "1h", "-json", "tcp://127.0.0.1:1").start()
	waitUntil(t, "the end of it", func() bool {
		_ = q.cmd.Process.Signal(os.Interrupt)
		return q.hasEnded()
	})
	require.Contains(t, []int{exitInterrupted, -1}, q.code, "before it catches signals it is ended by them")
}

// TestCallAdvice checks that the advice depends on the fate of the request, not only on the code.
func TestCallAdvice(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		code hg.Code
		fate hg.Fate
		want string
	}{
		{hg.ErrNoEntry, hg.Ran, "the method ran and returned this error"},
		{na.ErrProtocol, hg.NotRun, "check its codec"},
		{na.ErrProtocol, hg.Ran, "the method ran and returned this error"},
		{hg.ErrBadInput, hg.NotRun, "check its codec"}, {hg.ErrBadInput, hg.Ran, "did not accept its input"},
		{hg.ErrPermission, hg.NotRun, "present a certificate"},
		{hg.ErrPermission, hg.Ran, "the method ran and returned this error"},
		{hg.ErrDenied, hg.Ran, "the method ran and returned this error"},
		{hg.ErrDenied, hg.NotRun, "correct the cause"}, // refused by a handler
		{hg.ErrTimeout, hg.Ran, "give it more time"},
		{hg.ErrTimeout, hg.NotRun, "it did not run: retry it"},
		{hg.ErrOverflow, hg.NotRun, "it did not run, and a retry alone will fail again"},
		{hg.ErrDraining, hg.NotRun, "it did not run: retry it"},
		{hg.ErrPeerLost, hg.MaybeRan, "it may have run"},
	} {
		require.Contains(t, adviceFor(c.code, c.fate, true, "a"), c.want, "%v, %v", c.code, c.fate)
	}
	s := serveFiles(t, "")
	says := run(t, exitHandler, "call", s.addr, "qs/file/open", `{"Path": "nosuch"}`).errors.String()
	require.Regexp(t, `no such file or directory; it ran\n  code:   44, no such entry\n  to do:  the method ran and returned this error`, says)
}
