package qs

import (
	"context"
	"fmt"
	"os"
	"reflect"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/hg"
	"github.com/quicksilver-rpc/quicksilver/hg/codec"
	"github.com/quicksilver-rpc/quicksilver/internal/schema"
	"github.com/quicksilver-rpc/quicksilver/na"
)

// An outcome is a cell of docs/EVOLUTION.md: %s is a field.
type outcome string

const (
	isFine       outcome = "works"
	isRefused    outcome = "`ErrBadInput`, names `%s`; not run"
	failsAfter   outcome = "error, names `%s`; has run"
	isOtherKind  outcome = "`ErrProtocol`, names both kinds; not run"
	isOtherCodec outcome = "`ErrProtocol`, names both codecs; not run"
	isUnserved   outcome = "`ErrNoMethod`, names the method; not run"
	isDropped    outcome = "dropped, and counted at the server; not run"
)

// check reports whether a call has ended with the outcome o.
func (o outcome) check(t *testing.T, field string, err error, begun *atomic.Bool) {
	t.Helper()
	switch o {
	case isFine:
		require.NoError(t, err)
		require.True(t, begun.Load())
		return
	case isDropped:
		require.NoError(t, err)
		require.False(t, begun.Load())
		return
	}
	require.Error(t, err)
	require.Equal(t, o == failsAfter, begun.Load(), "%v", err)
	require.Equal(t, o == failsAfter, FateOf(err) == Ran, "%v", err)
	switch o {
	case isRefused, failsAfter:
		require.Regexp(t, `\b`+field+`\b`, err.Error())
		if o == isRefused {
			require.ErrorIs(t, err, hg.ErrBadInput)
		}
	case isOtherKind, isOtherCodec:
		require.ErrorIs(t, err, na.ErrProtocol)
		require.Regexp(t, `(is defined as an? \w+ \(\w+\) by the caller, and as an? \w+ \(\w+\) by the server)|(is one-way at one side only)|encoded with codec \w+, decoded with \w+`, err.Error())
	case isUnserved:
		require.ErrorIs(t, err, ErrNoMethod)
		require.Contains(t, err.Error(), "evolve/")
	}
}

// A change is a row: before and now are the two definitions, each with the values that its caller
// sends and its handler answers.
type change struct {
	what                 string
	field                string
	before, now          definition
	oldClient, newClient outcome
}

func (c *change) row() string {
	cell := func(o outcome, side int) string { return strings.ReplaceAll(string(o), "%s", c.names(side)) }
	return fmt.Sprintf("|%s|%s|%s|\n", c.what, cell(c.oldClient, 0), cell(c.newClient, 1))
}

// names returns the fields that the error of a side names: field is both, or one for each side.
func (c *change) names(side int) string {
	if both := strings.Split(c.field, "/"); len(both) == 2 {
		return both[side]
	}
	return c.field
}

type (
	base  struct{ Name string }
	inner struct{ N int }
	body  struct {
		Name string
		Body Source
	}
)

// A definition is that of one side: the values that its caller sends, and its handler answers.
type definition struct {
	kind    schema.Kind
	in, out any
	opts    []Option
	fail    error // of the handler
	gone    bool  // the server does not have the method
}

func newSender(in any) definition    { return definition{kind: schema.Plain, in: in, out: 1} }
func newAnswerer(out any) definition { return definition{kind: schema.Plain, in: 1, out: out} }

// serve is Handle for types that are defined at run time.
func (d *definition) serve(n *Node, name string, begun *atomic.Bool) {
	switch {
	case d.gone:
		return
	case d.kind == schema.Stream && reflect.TypeOf(d.out) == reflect.TypeFor[base]():
		DefineStream[int, base](name).Handle(n, func(_ context.Context, _ int, send func(base) error) error {
			begun.Store(true)
			return send(d.out.(base))
		})
		return
	case d.kind == schema.Stream:
		DefineStream[int, inner](name).Handle(n, func(_ context.Context, _ int, send func(inner) error) error {
			begun.Store(true)
			return send(d.out.(inner))
		})
		return
	}
	m := d.method(name)
	n.registerHandler(m, func(r hg.Request) error {
		s := &request{requestContext: requestContext{n: n, m: m, r: r}, in: reflect.New(reflect.TypeOf(d.in)).Interface()}
		defer s.endLent()
		if err := s.decodeInput(); err != nil {
			return err
		}
		begun.Store(true)
		if d.fail != nil || d.kind == schema.OneWay {
			return d.fail
		}
		return r.Respond(d.out, nil)
	}, false)
}

func (d *definition) method(name string) *method {
	if d.kind == schema.OneWay {
		return defineMethod(name, d.opts, d.kind, reflect.TypeOf(d.in), nil, nil)
	}
	return defineMethod(name, d.opts, d.kind, reflect.TypeOf(d.in), nil, reflect.TypeOf(d.out))
}

// call is Call for types that are defined at run time.
func (d *definition) call(ctx context.Context, to Peer, name string) (err error) {
	if d.kind == schema.Stream && reflect.TypeOf(d.out) == reflect.TypeFor[base]() {
		for _, err = range DefineStream[int, base](name).Call(ctx, to, 1) {
		}
		return err
	}
	if d.kind == schema.Stream {
		for _, err = range DefineStream[int, inner](name).Call(ctx, to, 1) {
		}
		return err
	}
	in := reflect.New(reflect.TypeOf(d.in))
	in.Elem().Set(reflect.ValueOf(d.in))
	o := &outgoingCall{}
	o.begin(d.method(name), to)
	if o.Call.In = in.Interface(); d.kind != schema.OneWay {
		o.reply = reflect.New(reflect.TypeOf(d.out)).Interface()
		o.Call.Out = o.reply
	}
	return o.run(ctx)
}

// TestEvolution makes the calls that docs/EVOLUTION.md describes, and compares its tables.
func TestEvolution(t *testing.T) {
	t.Parallel()
	one := 1
	at := time.Unix(1, 0)
	page, err := os.ReadFile("../docs/EVOLUTION.md")
	require.NoError(t, err)
	ins := []change{
		{"nothing", "", newSender(base{"n"}), newSender(base{"n"}), isFine, isFine},
		{"field added, and zero", "", newSender(base{"n"}), newSender(struct {
			base
			Size int
		}{base{"n"}, 0}), isFine, isFine},
		{"field added, and set", "Size", newSender(base{"n"}), newSender(struct {
			base
			Size int
		}{base{"n"}, 1}), isFine, isRefused},
		{"pointer added, and nil", "", newSender(base{"n"}), newSender(struct {
			base
			Size *int
		}{base{"n"}, nil}), isFine, isFine},
		{"pointer added, and set", "Size", newSender(base{"n"}), newSender(struct {
			base
			Size *int
		}{base{"n"}, &one}), isFine, isRefused},
		{"slice or map added, and empty", "", newSender(base{"n"}), newSender(struct {
			base
			Tags []string
			By   map[string]int
		}{base{"n"}, []string{}, map[string]int{}}), isFine, isFine},
		{"slice added, with elements", "Tags", newSender(base{"n"}), newSender(struct {
			base
			Tags []string
		}{base{"n"}, []string{""}}), isFine, isRefused},
		{"map added, with elements", "By", newSender(base{"n"}), newSender(struct {
			base
			By map[string]int
		}{base{"n"}, map[string]int{"a": 0}}), isFine, isRefused},
		{"struct added, also if it is zero", "In", newSender(base{"n"}), newSender(struct {
			base
			In inner
		}{base{"n"}, inner{}}), isFine, isRefused},
		{"array added, also if it is zero", "Sum", newSender(base{"n"}), newSender(struct {
			base
			Sum [2]int
		}{base{"n"}, [2]int{}}), isFine, isRefused},
		{"time added, also if it is zero", "At", newSender(base{"n"}), newSender(struct {
			base
			At time.Time
		}{base{"n"}, time.Time{}}), isFine, isRefused},
		{"struct with omitempty added, and zero", "", newSender(base{"n"}), newSender(struct {
			base
			In *inner `msgpack:",omitempty"`
		}{base{"n"}, nil}), isFine, isFine},
		{"field of a struct in it added, and set", "In.More", newSender(struct{ In inner }{inner{1}}), newSender(struct {
			In struct{ N, More int }
		}{struct{ N, More int }{1, 2}}), isFine, isRefused},
		{"field removed that is set", "Name", newSender(base{"n"}), newSender(struct{}{}), isRefused, isFine},
		{"field removed that is zero", "", newSender(base{}), newSender(struct{}{}), isFine, isFine},
		{"field renamed that is set", "Name/Title", newSender(base{"n"}), newSender(struct{ Title string }{"n"}), isRefused, isRefused},
		{"field renamed that is zero", "", newSender(base{}), newSender(struct{ Title string }{}), isFine, isFine},
		{"field renamed, with a tag that keeps the name", "", newSender(base{"n"}), newSender(struct {
			Title string `msgpack:"Name"`
		}{"n"}), isFine, isFine},
		{"type of a field changed", "Name", newSender(base{"n"}), newSender(struct{ Name int }{1}), isRefused, isRefused},
		{"integer made larger, the value fits both", "", newSender(struct{ N int8 }{1}), newSender(struct{ N int64 }{1}), isFine, isFine},
		{"integer made larger, the value does not fit the old one", "N", newSender(struct{ N int8 }{1}), newSender(struct{ N int64 }{1 << 40}), isFine, isRefused},
		{"integer made a float", "N", newSender(struct{ N int }{1}), newSender(struct{ N float64 }{1.5}), isFine, isRefused},
		{"float32 made float64", "N", newSender(struct{ N float32 }{1}), newSender(struct{ N float64 }{1}), isFine, isRefused},
		{"text made bytes", "", newSender(base{"n"}), newSender(struct{ Name []byte }{[]byte("n")}), isFine, isFine},
		{"field made a pointer, which is set", "", newSender(struct{ N int }{1}), newSender(struct{ N *int }{&one}), isFine, isFine},
		{"field made a pointer, which is nil", "", newSender(struct{ N int }{1}), newSender(struct{ N *int }{}), isFine, isFine},
		{"field made a slice", "N", newSender(struct{ N int }{1}), newSender(struct{ N []int }{[]int{1}}), isRefused, isRefused},
		{"slice made a longer array", "", newSender(struct{ N []int }{[]int{1}}), newSender(struct{ N [2]int }{[2]int{1}}), isFine, isFine},
		{"slice made an array that is too short", "N", newSender(struct{ N []int }{[]int{1, 2}}), newSender(struct{ N [1]int }{[1]int{1}}), isRefused, isFine},
		{"type made any", "", newSender(struct{ N int }{1}), newSender(struct{ N any }{1}), isFine, isFine},
		{"fields moved to a struct that is embedded", "", newSender(base{"n"}), newSender(struct{ base }{base{"n"}}), isFine, isFine},
		{"fields moved to a struct that is not embedded", "Name/Base", newSender(base{"n"}), newSender(struct{ Base base }{base{"n"}}), isRefused, isRefused},
		{"In made a struct", "base/string", newSender("n"), newSender(base{"n"}), isRefused, isRefused},
		{"`Source` added, which lends something", "Body", newSender(base{"n"}), newSender(body{"n", Bytes([]byte("lent"))}), isFine, isRefused},
		{"`Source` added, which is zero", "", newSender(base{"n"}), newSender(body{Name: "n"}), isFine, isFine},
	}
	outs := []change{
		{"nothing", "", newAnswerer(base{"n"}), newAnswerer(base{"n"}), isFine, isFine},
		{"field added", "Size", newAnswerer(base{"n"}), newAnswerer(struct {
			Name string
			Size int
		}{"n", 1}), isFine, failsAfter},
		{"pointer added", "", newAnswerer(base{"n"}), newAnswerer(struct {
			Name string
			Size *int
		}{"n", &one}), isFine, isFine},
		{"field with omitempty added", "", newAnswerer(base{"n"}), newAnswerer(struct {
			Name string
			Size int `msgpack:",omitempty"`
		}{"n", 1}), isFine, isFine},
		{"any added", "", newAnswerer(base{"n"}), newAnswerer(struct {
			Name string
			Size any
		}{"n", 1}), isFine, isFine},
		{"slice added", "Tags", newAnswerer(base{"n"}), newAnswerer(struct {
			Name string
			Tags []string
		}{"n", nil}), isFine, failsAfter},
		{"map added", "By", newAnswerer(base{"n"}), newAnswerer(struct {
			Name string
			By   map[string]int
		}{"n", nil}), isFine, failsAfter},
		{"struct added", "In", newAnswerer(base{"n"}), newAnswerer(struct {
			Name string
			In   inner
		}{"n", inner{}}), isFine, failsAfter},
		{"field of a struct in a slice added", "Rows.More", newAnswerer(struct{ Rows []inner }{[]inner{{1}}}), newAnswerer(struct {
			Rows []struct{ N, More int }
		}{[]struct{ N, More int }{{1, 2}}}), isFine, failsAfter},
		{"field removed", "Name", newAnswerer(base{"n"}), newAnswerer(struct{}{}), failsAfter, isFine},
		{"pointer removed", "", newAnswerer(struct{ N *int }{&one}), newAnswerer(struct{}{}), isFine, isFine},
		{"field renamed", "Name/Title", newAnswerer(base{"n"}), newAnswerer(struct{ Title string }{"n"}), failsAfter, failsAfter},
		{"type of a field changed", "Name", newAnswerer(base{"n"}), newAnswerer(struct{ Name int }{1}), failsAfter, failsAfter},
		{"integer made larger, the value fits both", "", newAnswerer(struct{ N int8 }{1}), newAnswerer(struct{ N int64 }{1}), isFine, isFine},
		{"integer made larger, the value does not fit the old one", "N", newAnswerer(struct{ N int8 }{1}), newAnswerer(struct{ N int64 }{1 << 40}), failsAfter, isFine},
		{"field made a pointer, which is set", "", newAnswerer(struct{ N int }{1}), newAnswerer(struct{ N *int }{&one}), isFine, isFine},
		{"field made a pointer, which is nil", "N", newAnswerer(struct{ N int }{1}), newAnswerer(struct{ N *int }{}), failsAfter, isFine},
		{"omitempty added, the value is zero", "N", newAnswerer(struct{ N int }{1}), newAnswerer(struct {
			N int `msgpack:",omitempty"`
		}{}), failsAfter, isFine},
		{"array made longer", "N", newAnswerer(struct{ N [1]int }{}), newAnswerer(struct{ N [2]int }{}), failsAfter, failsAfter},
		{"time made text", "At", newAnswerer(struct{ At time.Time }{at}), newAnswerer(struct{ At string }{"now"}), failsAfter, failsAfter},
		{"fields moved to a struct that is embedded", "", newAnswerer(base{"n"}), newAnswerer(struct{ base }{base{"n"}}), isFine, isFine},
		{"Out made a struct", "string/base", newAnswerer("n"), newAnswerer(base{"n"}), failsAfter, failsAfter},
		{"items of a stream: field renamed", "Name/N", definition{kind: schema.Stream, in: 1, out: base{"n"}}, definition{kind: schema.Stream, in: 1, out: inner{1}}, failsAfter, failsAfter},
	}
	plain, items, note := newSender(1), definition{kind: schema.Stream, in: 1, out: inner{}}, definition{kind: schema.OneWay, in: 1}
	other, coded, limited, idempotent, gone := plain, plain, plain, plain, plain
	other.in, other.out, other.opts = []byte("1"), []byte{}, []Option{WithCodec(codec.Raw)}
	coded.fail = Errorf(Code(77), "code %d", 77)
	limited.opts, idempotent.opts, gone.gone = []Option{MaxConcurrent(1), MaxQueue(0)}, []Option{Idempotent()}, true
	kinds := []change{
		{"method made a stream", "", plain, items, isOtherKind, isOtherKind},
		{"method made one-way", "", plain, note, isOtherKind, isDropped},
		{"stream made one-way", "", items, note, isOtherKind, isDropped},
		{"codec changed", "", plain, other, isOtherCodec, isOtherCodec},
		{"method renamed, or removed", "", plain, gone, isUnserved, isFine},
		{"error code added: the caller gets its number and the text", "code 77", plain, coded, failsAfter, isFine},
		{"`Idempotent` added or removed", "", plain, idempotent, isFine, isFine},
		{"limit of the server added or removed", "", plain, limited, isFine, isFine},
	}
	tables := [][]change{ins, outs, kinds}
	name := func(table, row, side int) string { return fmt.Sprintf("evolve/%d/%d/%d", table, row, side) }
	ran := map[string]*atomic.Bool{}
	s, err := Open("tcp://127.0.0.1:0", Config{})
	require.NoError(t, err)
	func() {
		for i, changes := range tables {
			for j, c := range changes {
				for side, d := range []definition{c.now, c.before} {
					begun := new(atomic.Bool)
					ran[name(i, j, side)] = begun
					d.serve(s, name(i, j, side), begun)
				}
			}
		}
	}()
	serving, stop := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- s.Serve(serving) }()
	client, err := Open("tcp://", Config{})
	require.NoError(t, err)
	t.Cleanup(func() {
		require.NoError(t, client.Close())
		stop()
		require.NoError(t, <-ended)
	})
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	to, err := client.Peer(ctx, s.Addr().String())
	require.NoError(t, err)
	const head = "|---|---|---|\n"
	parts := strings.Split(string(page), head)
	require.Len(t, parts, len(tables)+1)
	for i, changes := range tables {
		var rows strings.Builder
		for j := range changes {
			c := &changes[j]
			for side, d := range []definition{c.before, c.now} {
				want := []outcome{c.oldClient, c.newClient}[side]
				t.Run(fmt.Sprint(c.what, ", ", []string{"old", "new"}[side], " client"), func(t *testing.T) {
					err := d.call(ctx, to, name(i, j, side))
					t.Log(err)
					want.check(t, c.names(side), err, ran[name(i, j, side)])
				})
			}
			rows.WriteString(c.row())
		}
		_, after, ok := strings.Cut(parts[i+1], "\n\n")
		require.True(t, ok)
		parts[i+1] = rows.String() + "\n" + after
	}
	want := strings.Join(parts, head)
	if os.Getenv("QUICKSILVER_UPDATE") != "" {
		require.NoError(t, os.WriteFile("../docs/EVOLUTION.md", []byte(want), 0o666))
		return
	}
	require.Equal(t, want, string(page), "QUICKSILVER_UPDATE=1 writes the tables again")
}
