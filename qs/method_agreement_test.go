package qs_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/hg/codec"
	"github.com/quicksilver-rpc/quicksilver/qs"
)

// A jsonCodec is a simple codec of a program: it does not use MarshalBinary.
type jsonCodec struct{}

func (jsonCodec) Name() string { return "json" }
func (jsonCodec) ID() uint8    { return 200 }

func (jsonCodec) Append(dst []byte, v any) ([]byte, error) {
	if v == nil {
		return dst, nil
	}
	b, err := json.Marshal(v)
	return append(dst, b...), err
}

func (jsonCodec) Decode(b []byte, v any) error {
	if v == nil {
		return nil
	}
	return json.Unmarshal(b, v)
}

// A deafCodec encodes as msgpack, and decodes no Source and no Sink.
type deafCodec struct{ codec.Codec }

func (deafCodec) ID() uint8 { return 201 }

func (c deafCodec) Decode(b []byte, v any) error {
	if in, ok := v.(*keySource); ok {
		var some keyOnly
		err := c.Codec.Decode(b, &some)
		in.Key = some.Key
		return err
	}
	return c.Codec.Decode(b, v)
}

type (
	keyOnly  struct{ Key string }
	keyCount struct {
		Key   string
		Count int
	}
	keyName   struct{ Name string }
	keyNumber struct{ Key int }
	keySource struct {
		Key  string
		Body qs.Source
	}
	keyData struct {
		Key  string
		Data qs.Source
	}
	keySink struct {
		Key string
		To  qs.Sink
	}
	keyInto struct {
		Key  string
		Into qs.Sink
	}
	keySwap struct {
		Key  string
		Body qs.Sink
	}
	twoSinks struct{ A, B qs.Sink }
	sinksTwo struct{ B, A qs.Sink }
	sawText  struct{ Saw string }
	sawMore  struct {
		Saw  string
		More int
	}
	sawNumber struct{ Saw int }
)

// A definition is one side's.
type definition struct {
	serve func(n *qs.Node, name string, ran func())
	call  func(ctx context.Context, to qs.Peer, name string) (out any, err error)
}

// handleAny returns the input that the handler has got.
func handleAny(ctx context.Context, in any) (string, error) {
	switch in := in.(type) {
	case keySource:
		b, err := io.ReadAll(in.Body.Reader(ctx))
		return fmt.Sprintf("%s, %q", in.Key, b), err
	case keySink:
		if in.Key == "do not write" {
			return in.Key, nil
		}
		_, err := io.WriteString(in.To.Writer(ctx), "to the Sink")
		return in.Key, err
	case sinksTwo:
		_, err := io.WriteString(in.A.Writer(ctx), "A")
		if err == nil {
			_, err = io.WriteString(in.B.Writer(ctx), "BB")
		}
		return "two", err
	}
	return fmt.Sprintf("%+v", in), nil
}

// method defines a method with these types.
func method[In, Out any](in In, out func(string) Out, c codec.Codec) definition {
	return definition{
		func(n *qs.Node, name string, ran func()) {
			qs.Define[In, Out](name, qs.WithCodec(c)).Handle(n, func(ctx context.Context, in In) (o Out, err error) {
				ran()
				text, err := handleAny(ctx, in)
				return out(text), err
			})
		},
		func(ctx context.Context, to qs.Peer, name string) (any, error) {
			return qs.Define[In, Out](name, qs.WithCodec(c)).Call(ctx, to, in)
		},
	}
}

func stream[In, Item any](in In, item func(string) Item, c codec.Codec) definition {
	return definition{
		func(n *qs.Node, name string, ran func()) {
			qs.DefineStream[In, Item](name, qs.WithCodec(c)).Handle(n, func(ctx context.Context, in In, send func(Item) error) error {
				ran()
				text, err := handleAny(ctx, in)
				if err == nil {
					err = send(item(text))
				}
				return err
			})
		},
		func(ctx context.Context, to qs.Peer, name string) (any, error) {
			var all []Item
			for item, err := range qs.DefineStream[In, Item](name, qs.WithCodec(c)).Call(ctx, to, in) {
				if err != nil {
					return all, err
				}
				all = append(all, item)
			}
			return all, nil
		},
	}
}

func oneWay[In any](in In) definition {
	return definition{
		func(n *qs.Node, name string, ran func()) {
			qs.DefineOneWay[In](name).Handle(n, func(context.Context, In) { ran() })
		},
		func(ctx context.Context, to qs.Peer, name string) (any, error) {
			return nil, qs.DefineOneWay[In](name).Send(ctx, to, in)
		},
	}
}

// TestDisagreements checks that in each way in which two programs can define a method differently,
// either the rules of Define give the result, or the error names the difference. No byte that was
// to be sent is lost without an error.
func TestDisagreements(t *testing.T) {
	t.Parallel()
	text := func(s string) sawText { return sawText{s} }
	more := func(s string) sawMore { return sawMore{s, 7} }
	number := func(s string) sawNumber { return sawNumber{len(s)} }
	str := func(s string) string { return s }
	raw := func(s string) []byte { return []byte(s) }
	room := make([]byte, 100)
	a, b := make([]byte, 10), make([]byte, 10)
	sa, sb := qs.Buffer(a), qs.Buffer(b)
	lent := func() qs.Source { return qs.Bytes([]byte("lent")) }
	j, d := jsonCodec{}, deafCodec{codec.Msgpack}
	var nothing keyOnly
	for i, row := range []struct {
		what           string
		client, server definition
		out            any    // the result of the client,
		err            string // or the error that it gets,
		ran            bool   // which the handler has made, or its output
	}{
		// Fields.
		{"the same", method(keyOnly{"k"}, text, nil), method(nothing, text, nil), sawText{"{Key:k}"}, "", true},
		{"a field more at the client", method(keyCount{"k", 1}, text, nil), method(nothing, text, nil), nil, `Count of qs_test.keyOnly: unknown field`, false},
		{"a field more at the client, which is zero", method(keyCount{"k", 0}, text, nil), method(nothing, text, nil), sawText{"{Key:k}"}, "", true},
		{"a field more at the server", method(keyOnly{"k"}, text, nil), method(keyCount{}, text, nil), sawText{"{Key:k Count:0}"}, "", true},
		{"a field with another name", method(keyName{"k"}, text, nil), method(nothing, text, nil), nil, `Name of qs_test.keyOnly: unknown field`, false},
		{"a field of another type", method(keyOnly{"k"}, text, nil), method(keyNumber{}, text, nil), nil, `decode into \*qs_test.keyNumber: Key: .*(invalid|unexpected) code`, false},
		{"a field of another type, back", method(keyNumber{7}, text, nil), method(nothing, text, nil), nil, `decode into \*qs_test.keyOnly: Key: .*(invalid|unexpected) code`, false},
		{"a smaller integer that fits", method(struct{ N int64 }{7}, text, nil), method(struct{ N int8 }{}, text, nil), sawText{"{N:7}"}, "", true},
		{"a smaller integer", method(struct{ N int64 }{300}, text, nil), method(struct{ N int8 }{}, text, nil), nil, "N: .*300 into int8: integer out of range", false},
		{"an integer without sign", method(struct{ In []int64 }{[]int64{-1}}, text, nil), method(struct{ In []uint64 }{}, text, nil), nil, "In: .*-1 into uint64: integer out of range", false},
		{"an integer with a sign", method(uint64(1<<63), text, nil), method(int64(0), text, nil), nil, "9223372036854775808 into int64", false},
		{"a float for an integer", method(1.5, text, nil), method(0, text, nil), nil, "decode into .*int: .*invalid code", false},
		{"a string for a struct", method("k", text, nil), method(nothing, text, nil), nil, `decode into \*qs_test.keyOnly: .*(invalid|unexpected) code`, false},
		{"a struct for a string", method(keyOnly{"k"}, text, nil), method("", text, nil), nil, `decode into \*string: .*(invalid|unexpected) code`, false},
		{"no input, for some", method(struct{}{}, text, nil), method(nothing, text, nil), sawText{"{Key:}"}, "", true},
		{"an output with more fields", method(keyOnly{"k"}, text, nil), method(nothing, more, nil), sawText{"{Key:k}"}, "", true},
		{"an output with fewer fields", method(keyOnly{"k"}, more, nil), method(nothing, text, nil), nil, `More of qs_test.sawMore: missing field`, true},
		{"an integer for a float", method(int64(1<<53+1), text, nil), method(0.0, text, nil), nil, "9007199254740993 into float64: integer out of range", false},
		{"an output of another type", method(keyOnly{"k"}, number, nil), method(nothing, text, nil), nil, `decode into \*qs_test.sawNumber: Saw: .*(invalid|unexpected) code`, true},
		{"an output that is a string", method(keyOnly{"k"}, text, nil), method(nothing, str, nil), nil, `decode into \*qs_test.saw(Text)?: .*(invalid|unexpected) code`, true},
		{"an output that is a struct", method(keyOnly{"k"}, str, nil), method(nothing, text, nil), nil, `decode into \*string: .*(invalid|unexpected) code`, true},

		// Sources.
		{"a Source", method(keySource{"k", lent()}, text, nil), method(keySource{}, text, nil), sawText{`k, "lent"`}, "", true},
		{"a Source more at the client, which lends", method(keySource{"k", lent()}, text, nil), method(nothing, text, nil), nil, `lacks the caller's field "Body": at the server it has no Source`, false},
		{"a Source more at the client, which is zero", method(keySource{Key: "k"}, text, nil), method(nothing, text, nil), sawText{"{Key:k}"}, "", true},
		{"a Source more at the server", method(keyOnly{"k"}, text, nil), method(keySource{}, text, nil), sawText{`k, ""`}, "", true},
		{"a Source with another name", method(keyData{"k", lent()}, text, nil), method(keySource{}, text, nil), nil, `lacks the caller's field "Data": at the server it has Body`, false},
		{"a Sink for a Source", method(keySwap{"k", qs.Buffer(room)}, text, nil), method(keySource{}, text, nil), nil, `Body: .*the field is a Sink at the caller and a Source at the server`, false},
		{"a Source for a Sink", method(keySource{"k", lent()}, text, nil), method(keySwap{}, text, nil), nil, `Body: .*the field is a Source at the caller and a Sink at the server`, false},
		{"a Source for bytes", method(keySource{"k", lent()}, text, nil), method(struct {
			Key  string
			Body []byte
		}{}, text, nil), nil, `lacks the caller's field "Body"`, false},
		{"bytes for a Source", method(struct{ Body []byte }{[]byte("abcdefgh")}, text, nil), method(keySource{}, text, nil), nil, `malformed Source: the two sides have different types`, false},

		// Sinks.
		{"a Sink", method(keySink{"k", qs.Buffer(room)}, text, nil), method(keySink{}, text, nil), sawText{"k"}, "", true},
		{"a Sink more at the client, which lends", method(keySink{"k", qs.Buffer(room)}, text, nil), method(nothing, text, nil), nil, `lacks the caller's field "To": at the server it has no Source`, false},
		{"a Sink more at the client, which is zero", method(keySink{Key: "k"}, text, nil), method(nothing, text, nil), sawText{"{Key:k}"}, "", true},
		{"a Sink more at the server, not used", method(keyOnly{"do not write"}, text, nil), method(keySink{}, text, nil), sawText{"do not write"}, "", true},
		{"a Sink more at the server, used", method(keyOnly{"k"}, text, nil), method(keySink{}, text, nil), nil, `the caller provided no Buffer`, true},
		{"a Sink with another name", method(keyInto{"k", qs.Buffer(room)}, text, nil), method(keySink{}, text, nil), nil, `lacks the caller's field "Into": at the server it has To`, false},
		{"Sinks in another order", method(twoSinks{sa, sb}, text, nil), method(sinksTwo{}, text, nil), sawText{"two"}, "", true},
		{"one of two Sinks", method(twoSinks{B: qs.Buffer(room)}, text, nil), method(sinksTwo{}, text, nil), nil, "the caller provided no Buffer", true},

		// Kinds.
		{"a stream, of a method", method(keyOnly{"k"}, text, nil), stream(nothing, text, nil), nil, `as a method \(Define\) by the caller, and as a stream \(DefineStream\) by the server`, false},
		{"a method, of a stream", stream(keyOnly{"k"}, text, nil), method(nothing, text, nil), nil, `as a stream \(DefineStream\) by the caller, and as a method \(Define\) by the server`, false},
		{"raw ones", stream([]byte("0123456789abcdefghi"), raw, codec.Raw), method([]byte{}, raw, codec.Raw), nil, `as a stream \(DefineStream\)`, false},
		{"raw ones, back", method([]byte("0123456789abcdefghi"), raw, codec.Raw), stream([]byte{}, raw, codec.Raw), nil, `as a method \(Define\)`, false},
		{"a one-way method, called", method(keyOnly{"k"}, text, nil), oneWay(nothing), nil, "is one-way at one side only", false},
		{"a method, sent to", oneWay(keyOnly{"k"}), method(nothing, text, nil), nil, "", false}, // counted, and logged, at the server
		{"a stream, sent to", oneWay(keyOnly{"k"}), stream(nothing, text, nil), nil, "", false},
		{"a one-way method, of a stream", stream(keyOnly{"k"}, text, nil), oneWay(nothing), nil, "is one-way at one side only", false},

		// Items.
		{"a stream", stream(keyOnly{"k"}, text, nil), stream(nothing, text, nil), []sawText{{"{Key:k}"}}, "", true},
		{"items with more fields", stream(keyOnly{"k"}, text, nil), stream(nothing, more, nil), []sawText{{"{Key:k}"}}, "", true},
		{"items of another type", stream(keyOnly{"k"}, number, nil), stream(nothing, text, nil), nil, `decode into \*qs_test.sawNumber: Saw: .*(invalid|unexpected) code`, true},
		{"items that are strings", stream(keyOnly{"k"}, text, nil), stream(nothing, str, nil), nil, `decode into \*qs_test.saw(Text)?: .*(invalid|unexpected) code`, true},
		{"a stream with a Source", stream(keySource{"k", lent()}, text, nil), stream(keySource{}, text, nil), []sawText{{`k, "lent"`}}, "", true},
		{"a stream with a Source more at the client", stream(keySource{"k", lent()}, text, nil), stream(nothing, text, nil), nil, `lacks the caller's field "Body"`, false},
		{"a stream with a Source more at the server", stream(keyOnly{"k"}, text, nil), stream(keySource{}, text, nil), []sawText{{`k, ""`}}, "", true},

		// Codecs.
		{"raw", method([]byte("k"), raw, codec.Raw), method([]byte{}, raw, codec.Raw), []byte("[107]"), "", true},
		{"raw for msgpack", method([]byte("\xa1k"), str, codec.Raw), method("", str, nil), nil, "encoded with codec raw, decoded with msgpack", false},
		{"msgpack for raw", method("k", str, nil), method([]byte{}, raw, codec.Raw), nil, "encoded with codec msgpack, decoded with raw", false},
		{"JSON", method(keyOnly{"k"}, text, j), method(nothing, text, j), sawText{"{Key:k}"}, "", true},
		{"JSON for msgpack", method(keyOnly{"k"}, text, j), method(nothing, text, nil), nil, "encoded with codec 200, decoded with msgpack", false},
		{"msgpack for JSON", method(keyOnly{"k"}, text, nil), method(nothing, text, j), nil, "encoded with codec msgpack, decoded with json", false},
		{"a stream in JSON", stream(keyOnly{"k"}, text, j), stream(nothing, text, j), []sawText{{"{Key:k}"}}, "", true},
		{"a stream in JSON for msgpack", stream(keyOnly{"k"}, text, j), stream(nothing, text, nil), nil, "encoded with codec 200, decoded with msgpack", false},
		{"a Source in JSON", method(keySource{"k", lent()}, text, j), method(keySource{}, text, j), nil, "codec json does not encode the Source or Sink in Body of .*keySource", false},
		{"a From in JSON", method(keySource{"k", qs.Reader(strings.NewReader("x"))}, text, j), method(keySource{}, text, j), nil, "codec json does not encode the Source or Sink in Body of .*keySource", false},
		{"a Sink in JSON", method(keySink{"k", qs.Buffer(room)}, text, j), method(keySink{}, text, j), nil, "codec json does not encode the Source or Sink in To of .*keySink", false},
		{"a stream with a Source in JSON", stream(keySource{"k", lent()}, text, j), stream(keySource{}, text, j), nil, "codec json does not encode the Source or Sink in Body of .*keySource", false},
		{"a zero Source in JSON", method(keySource{Key: "k"}, text, j), method(keySource{}, text, j), sawText{`k, ""`}, "", true},
		{"a decoder that leaves a Source out", method(keySource{"k", lent()}, text, d), method(keySource{}, text, d), nil, `lacks the caller's field "Body"`, false},
	} {
		t.Run(row.what, func(t *testing.T) {
			name := fmt.Sprintf("agree/%d", i)
			ran := make(chan struct{}, 1)
			s := server(t, qs.Config{}, func(n *qs.Node) { row.server.serve(n, name, func() { ran <- struct{}{} }) })
			c := open(t, "tcp://", qs.Config{})
			out, err := row.client.call(testContext(t), peer(t, c, s.Addr().String()), name)
			if row.err != "" {
				require.Error(t, err, "got %+v", out)
				require.Regexp(t, row.err, err.Error())
				require.Contains(t, err.Error(), name)
			} else {
				require.NoError(t, err)
				require.Equal(t, row.out, out)
			}
			if err != nil {
				require.Equal(t, !row.ran, qs.FateOf(err) == qs.NotRun, "fate %v of %v", qs.FateOf(err), err)
			}
			require.Len(t, ran, map[bool]int{true: 1}[row.ran])
		})
	}
	require.Equal(t, int64(1), sa.Filled())
	require.Equal(t, int64(2), sb.Filled())
	require.Equal(t, "A", string(bytes.TrimRight(a, "\x00")))
	require.Equal(t, "BB", string(bytes.TrimRight(b, "\x00")))
}

// TestTwoDefinitions checks that a name has one codec and one kind at a node: a second definition
// with another gets an error, and nothing is sent.
func TestTwoDefinitions(t *testing.T) {
	t.Parallel()
	raw := qs.Define[[]byte, []byte]("two/definitions", qs.WithCodec(codec.Raw))
	packed := qs.Define[[]byte, []byte]("two/definitions")
	same := qs.Define[struct{ Body qs.Source }, []byte]("two/definitions")
	s := server(t, qs.Config{}, func(n *qs.Node) {
		packed.Handle(n, func(_ context.Context, in []byte) ([]byte, error) { return in, nil })
		require.PanicsWithValue(t, "qs: method two/definitions: two/definitions is defined twice, as "+
			"a method in codec msgpack (2) and as a method in codec raw (1)", func() { raw.Handle(n, func(_ context.Context, in []byte) ([]byte, error) { return in, nil }) })
	})
	c := open(t, "tcp://", qs.Config{})
	to := peer(t, c, s.Addr().String())
	_, err := packed.Call(testContext(t), to, []byte("in"))
	require.NoError(t, err)
	_, err = raw.Call(testContext(t), to, []byte("in"))
	refused := func(err error, was string) {
		t.Helper()
		require.ErrorIs(t, err, qs.ErrInvalid)
		require.ErrorContains(t, err, "as a method in codec msgpack (2) and as "+was)
		require.Equal(t, qs.NotRun, qs.FateOf(err))
	}
	refused(err, "a method in codec raw (1)")
	refused(qs.DefineOneWay[[]byte]("two/definitions").Send(testContext(t), to, nil), "a one-way method in codec msgpack (2)")
	for _, err := range qs.DefineStream[[]byte, []byte]("two/definitions").Call(testContext(t), to, nil) {
		refused(err, "a stream in codec msgpack (2)")
	}
	_, err = same.Call(testContext(t), to, struct{ Body qs.Source }{qs.Bytes([]byte("in"))})
	require.ErrorContains(t, err, "target: hg: input of two/definitions", "other types alone are a matter of the target")
	_, err = c.HG().Class().Register("two/below", nil)
	require.NoError(t, err)
	_, err = qs.Define[struct{ Body qs.Source }, []byte]("two/below").Call(testContext(t), to, struct{ Body qs.Source }{qs.Bytes([]byte("in"))})
	require.ErrorContains(t, err, "two/below is also registered with package hg")
	require.Equal(t, qs.NotRun, qs.FateOf(err))
}

// TestDefineRefusesTypes checks that a definition with a type of which something would not arrive
// is refused, with an error that names it; another codec decides for itself.
func TestDefineRefusesTypes(t *testing.T) {
	t.Parallel()
	type unexported struct{ _ string }
	refused := func(want string, define func()) {
		t.Helper()
		defer func() { require.Regexp(t, want, fmt.Sprint(recover())) }()
		define()
		t.Error("not refused:", want)
	}
	refused(`^qs: method types/chan cannot have this type: .*\.C has type chan int, which has no encoding`,
		func() { qs.Define[struct{ C chan int }, int]("types/chan") })
	refused(`func\(\) has type func\(\), which has no encoding`, func() { qs.Define[int, func()]("types/func") })
	refused(`\.P has type uintptr, which has no encoding`, func() { qs.DefineStream[int, struct{ P uintptr }]("types/item") })
	refused(`unexported, a struct without exported fields`, func() { qs.DefineOneWay[unexported]("types/oneway") })
	refused(`codec: raw: int is not`, func() { qs.Define[int, []byte]("types/raw", qs.WithCodec(codec.Raw)) })
	qs.Define[struct{ C chan int }, unexported]("types/json", qs.WithCodec(jsonCodec{}))
	qs.Define[struct{}, struct{}]("types/nothing")
	type left struct {
		Body qs.Source `msgpack:"-"`
	}
	refused(`has a qs\.Source in the field Body \(omitted by its tag\)`, func() { qs.Define[left, int]("types/left") })
	refused(`has a qs\.Sink embedded in struct .*, want a named field`,
		func() { qs.Define[struct{ qs.Sink }, int]("types/embedded") })
}

// TestOmitEmptySource checks that a Source that its tag leaves out when it is empty is sent when it
// lends something.
func TestOmitEmptySource(t *testing.T) {
	t.Parallel()
	type in struct {
		Body qs.Source `msgpack:",omitempty"`
	}
	m := qs.Define[in, string]("types/omitempty")
	_, to := pair(t, qs.Config{}, func(n *qs.Node) {
		m.Handle(n, func(ctx context.Context, in in) (string, error) {
			b, err := io.ReadAll(in.Body.Reader(ctx))
			return string(b), err
		})
	})
	for _, want := range []string{"", "lent"} {
		got, err := m.Call(testContext(t), to, in{qs.Bytes([]byte(want))})
		require.NoError(t, err)
		require.Equal(t, want, got)
	}
}
