package hg_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/hg"
	"github.com/quicksilver-rpc/quicksilver/hg/codec"
	"github.com/quicksilver-rpc/quicksilver/internal/hghook"
	"github.com/quicksilver-rpc/quicksilver/internal/test/transports"
	"github.com/quicksilver-rpc/quicksilver/na"
)

func newMetadata(t *testing.T, pairs ...string) (m hg.Metadata) {
	t.Helper()
	for ; len(pairs) > 0; pairs = pairs[2:] {
		var err error
		m, err = m.With(pairs[0], pairs[1])
		require.NoError(t, err)
	}
	return m
}

func TestMeta(t *testing.T) {
	m := newMetadata(t, "b", "1", "a.c-9", "", "b", "2", hg.KeyMeta, "k")
	require.Equal(t, map[string]string{"b": "2", "a.c-9": "", "qs-key": "k"}, maps.Collect(m.All()))
	v, ok := m.Get("b")
	require.Equal(t, "2", v)
	require.True(t, ok)
	_, ok = m.Get("c")
	require.False(t, ok)
	require.Equal(t, `{a.c-9: "", b: "2", qs-key: "k"}`, m.String())
	require.Equal(t, `{x: "a\"\n\x00\xffé"}`, fmt.Sprint(newMetadata(t, "x", "a\"\n\x00\xffé")))
	require.Equal(t, "{}", hg.Metadata{}.String())
	for _, name := range []string{"", "A", "a_b", "ä", "qs-other", strings.Repeat("a", 64)} {
		same, err := m.With(name, "x")
		require.ErrorIs(t, err, hg.ErrInvalid, name)
		why := "want 1 to 63 of a-z, 0-9, '.' and '-'"
		if name == "qs-other" {
			why = "the prefix qs- is reserved, except for qs-key"
		}
		require.ErrorContains(t, err, why, name)
		require.Equal(t, m, same)
	}
	_, err := hg.Metadata{}.With("x", strings.Repeat("v", 8<<10-4))
	require.NoError(t, err, "all that there may be")
	_, err = hg.Metadata{}.With("x", strings.Repeat("v", 8<<10-3))
	require.ErrorIs(t, err, hg.ErrOverflow)
	require.ErrorContains(t, err, "adding x makes 1 entries of 8200 bytes, limit 16 of 8192")
	_, err = m.With("x", strings.Repeat("v", 8<<10-10))
	require.ErrorIs(t, err, hg.ErrOverflow, "beside others")
	_, err = m.With("x", strings.Repeat("v", 100_000))
	require.ErrorIs(t, err, hg.ErrOverflow)
	require.ErrorContains(t, err, "value of x has 100000 bytes, limit 8192")
	full := hg.Metadata{}
	for i := range 16 {
		full = newMetadata(t, append(metadataPairs(full), string(rune('a'+i)), "v")...)
	}
	_, err = full.With("q", "v")
	require.ErrorIs(t, err, hg.ErrOverflow)
	_, err = full.With("a", "w")
	require.NoError(t, err, "one that is replaced")
	for range m.All() {
		break
	}
	both, err := full.WithOwn("qs-some", strings.Repeat("v", 2<<10-10))
	require.NoError(t, err, "beside all that a program gives")
	require.Equal(t, full, both.WithoutOwn())
	require.Equal(t, m, m.WithoutOwn(), "with a key, which programs give")
	_, err = both.With("a", "w")
	require.NoError(t, err, "one that is replaced, beside the library's")
	_, err = both.WithOwn("qs-more", "")
	require.ErrorIs(t, err, hg.ErrOverflow)
	for _, name := range []string{"a", hg.KeyMeta, "qs-A"} {
		_, err = m.WithOwn(name, "x")
		require.ErrorIs(t, err, hg.ErrInvalid, name)
	}
}

func metadataPairs(m hg.Metadata) (pairs []string) {
	for name, value := range m.All() {
		pairs = append(pairs, name, value)
	}
	return pairs
}

// TestMetaTravels checks that metadata travels both ways, with input and output of any size, and
// with errors.
func TestMetaTravels(t *testing.T) {
	transports.Each(t, func(t *testing.T, n *transports.Net) {
		p := newPair(t, n, hg.Config{})
		var got []hg.Metadata
		var size int
		answer := newMetadata(t, "seen", "yes")
		var fail error
		h := p.handle(p.rpc("meta", func(h hg.Request) error {
			got = append(got, h.Meta())
			require.NoError(t, h.SetOutputMeta(answer))
			if fail != nil {
				return fail
			}
			err := h.RespondRaw(make([]byte, size), nil)
			require.ErrorIs(t, h.SetOutputMeta(hg.Metadata{}), na.ErrAnswered)
			require.Equal(t, hg.Metadata{}, h.Meta(), "it goes with the input")
			return err
		}))
		for _, size = range []int{0, 10, 100_000} {
			got = nil
			require.NoError(t, h.SetMeta(newMetadata(t, "trace", "abc", "key", strings.Repeat("x", 900))))
			require.NoError(t, p.call(h, make([]byte, size)))
			out, err := h.OutputRaw()
			require.NoError(t, err)
			require.Len(t, out, size)
			require.Equal(t, newMetadata(t, "seen", "yes"), h.OutputMeta())
			require.NoError(t, h.SetMeta(hg.Metadata{}))
			require.NoError(t, p.call(h, nil))
			require.Len(t, got, 2)
			require.Equal(t, newMetadata(t, "trace", "abc", "key", strings.Repeat("x", 900)), got[0])
			require.Empty(t, maps.Collect(got[1].All()))
		}
		fail = hg.Errorf(hg.ErrNotFound, "no")
		requireCode(t, p.call(h, nil), hg.ErrNotFound)
		require.Equal(t, newMetadata(t, "seen", "yes"), h.OutputMeta())
		h.Close()
		p.requireClean(0)
	})
}

// TestMetaFitsMessages checks that metadata of any length travels both ways in messages of any
// length, also those of a peer with a smaller limit, with any input and output.
func TestMetaFitsMessages(t *testing.T) {
	t.Parallel()
	for _, eager := range [][2]int{{256, 256}, {4096, 4096}, {256, 4096}, {4096, 256}} {
		t.Run(fmt.Sprint(eager), func(t *testing.T) {
			transports.Each(t, func(t *testing.T, n *transports.Net) {
				p := &pair{Net: n, t: t}
				p.target, p.tctx = n.Target(hg.Config{NA: na.Config{Eager: eager[0]}})
				p.origin, p.octx = n.Origin(hg.Config{NA: na.Config{Eager: eager[1]}})
				answer := func(h hg.Request) error {
					require.NoError(t, h.SetOutputMeta(h.Meta()))
					return echo(h)
				}
				h := p.handle(p.rpc("echo", answer))
				oneWays, length := 0, 0
				o := p.handle(p.oneWay("tell", func(h hg.Request) error {
					in, err := h.InputRaw()
					require.NoError(t, err)
					v, _ := h.Meta().Get("k")
					require.Len(t, in, 100_000)
					require.Len(t, v, length)
					oneWays++
					return err
				}))
				for i, said := range []int{100, 130, 220, 2000, 3900, 4000, 4050, 8188} {
					m := newMetadata(t, "k", strings.Repeat("x", said-1)+"y")
					for _, size := range []int{0, 50, 200, 10_000, 60 << 10, 100_000} {
						require.NoError(t, h.SetMeta(m))
						in := sizedBytes(size)
						require.NoError(t, p.callRaw(h, in))
						require.Equal(t, m, h.OutputMeta())
						out, err := h.OutputRaw()
						require.NoError(t, err)
						require.True(t, bytes.Equal(in, out))
					}
					require.NoError(t, o.SetMeta(m))
					length = said
					require.NoError(t, p.callRaw(o, make([]byte, 100_000)))
					p.Until(func() bool { return oneWays == i+1 })
				}
				h.Close()
				o.Close()
				p.requireClean(0)
			})
		})
	}
}

// TestMetaInline checks that metadata that does not fit an envelope is sent with its message once
// the target has seen such a call, as input is; calls without metadata do not change.
func TestMetaInline(t *testing.T) {
	transports.Each(t, func(t *testing.T, n *transports.Net) {
		p := newPair(t, n, hg.Config{})
		h := p.handle(p.rpc("echo", echo))
		for range 5 {
			require.NoError(t, h.SetMeta(newMetadata(t, "k", strings.Repeat("x", 8<<10-4))))
			require.NoError(t, p.callRaw(h, sizedBytes(10)))
			require.NoError(t, h.SetMeta(hg.Metadata{}))
			require.NoError(t, p.callRaw(h, sizedBytes(10)))
		}
		require.EqualValues(t, 1, p.octx.Stats().Loans, "the first")
		require.EqualValues(t, 4, p.octx.Stats().Inline)
		h.Close()
		p.requireClean(0)
	})
}

// TestMetaOfAuthorizer checks that an authorizer sees metadata of any length, and before it agrees
// input is not fetched.
func TestMetaOfAuthorizer(t *testing.T) {
	transports.Each(t, func(t *testing.T, n *transports.Net) {
		p := &pair{Net: n, t: t}
		asked, ran := 0, 0
		p.target, p.tctx = n.Target(hg.Config{MaxPulled: 256 << 10, Authorize: func(ctx context.Context, _ hg.Caller, _ *hg.RPC) error {
			asked++
			r, ok := ctx.Value(hghook.RequestKey{}).(hg.Request)
			require.True(t, ok)
			if v, _ := r.Meta().Get("token"); !strings.HasSuffix(v, "good") {
				return hg.Errorf(hg.ErrDenied, "a token of %d bytes", len(v))
			}
			return nil
		}})
		p.origin, p.octx = n.Origin(hg.Config{})
		h := p.handle(p.rpc("echo", func(h hg.Request) error {
			ran++
			v, _ := h.Meta().Get("token")
			require.True(t, strings.HasSuffix(v, "good"))
			return echo(h)
		}))
		for i, size := range []int{0, 10, 0, 60 << 10, 200_000, 10} {
			require.NoError(t, h.SetMeta(newMetadata(t, "token", strings.Repeat("x", 8000)+"good")))
			in := sizedBytes(size)
			require.NoError(t, p.callRaw(h, in))
			out, err := h.OutputRaw()
			require.NoError(t, err)
			require.True(t, bytes.Equal(in, out))
			require.NoError(t, h.SetMeta(newMetadata(t, "token", strings.Repeat("x", 8000)+"bad")))
			requireCode(t, p.callRaw(h, in), hg.ErrDenied)
			if i == 0 {
				require.EqualValues(t, 1, p.octx.Stats().Inline, "the one before was agreed to, and room granted")
			}
			requireCode(t, p.callRaw(h, sizedBytes(1<<20)), hg.ErrDenied) // it could not be fetched
			require.Equal(t, 3*i+3, asked)
			require.Equal(t, i+1, ran)
		}
		h.Close()
		p.requireClean(0)
	})
}

// TestMetaOfErrors checks that an error takes precedence over metadata that leaves no room for it.
func TestMetaOfErrors(t *testing.T) {
	transports.Each(t, func(t *testing.T, n *transports.Net) {
		for _, most := range []int64{0, 1000} { // with the second the origin has room for an envelope's bytes only
			p := &pair{Net: n, t: t}
			p.target, p.tctx = n.Target(hg.Config{})
			p.origin, p.octx = n.Origin(hg.Config{MaxOutput: most})
			h := p.handle(p.rpc("fail", func(h hg.Request) error {
				in, err := h.InputRaw()
				require.NoError(t, err)
				require.NoError(t, h.SetOutputMeta(newMetadata(t, "k", string(in))))
				return hg.Errorf(hg.ErrNotFound, "%s", strings.Repeat("no", 400))
			}))
			for _, size := range []int{10, 3000, 8000} {
				err := p.callRaw(h, bytes.Repeat([]byte{'x'}, size))
				requireCode(t, err, hg.ErrNotFound)
				require.ErrorContains(t, err, "nono")
				v, _ := h.OutputMeta().Get("k")
				if most == 0 || size < 4000 {
					require.Len(t, v, size)
				} else {
					require.Empty(t, v)
				}
			}
			h.Close()
			p.requireClean(0)
		}
	})
}

// jsonCodec is a codec of a program.
type jsonCodec struct{ id uint8 }

func (jsonCodec) Name() string                 { return "json" }
func (c jsonCodec) ID() uint8                  { return c.id }
func (jsonCodec) Decode(b []byte, v any) error { return json.Unmarshal(b, v) }
func (jsonCodec) Append(dst []byte, v any) ([]byte, error) {
	b, err := json.Marshal(v)
	return append(dst, b...), err
}

// TestCodecsMustAgree checks that an RPC may have a codec of its own. Where the two sides differ
// the error states it, before anything runs and with both names.
func TestCodecsMustAgree(t *testing.T) {
	transports.Each(t, func(t *testing.T, n *transports.Net) {
		p := newPair(t, n, hg.Config{})
		ran := 0
		double := func(h hg.Request) error {
			ran++
			var in int
			if err := h.Input(&in); err != nil {
				return err
			}
			return h.Respond(2*in, nil)
		}
		_, err := p.target.RegisterRPC(hg.RPC{Name: "double", Handler: double, Codec: jsonCodec{200}})
		require.NoError(t, err)
		same, err := p.origin.RegisterRPC(hg.RPC{Name: "double", Codec: jsonCodec{200}})
		require.NoError(t, err)
		h := p.handle(same)
		require.NoError(t, p.call(h, 21))
		var out int
		require.NoError(t, h.Output(&out))
		require.Equal(t, 42, out)
		b, err := h.OutputRaw()
		require.NoError(t, err)
		require.Equal(t, "42", string(b))

		require.NoError(t, p.origin.Deregister(same))
		other, err := p.origin.Register("double", nil)
		require.NoError(t, err)
		require.NoError(t, h.Reset(p.target.Addr(), other))
		ran = 0
		err = p.call(h, 21)
		requireCode(t, err, na.ErrProtocol)
		require.ErrorIs(t, err, hg.ErrRefused)
		require.ErrorContains(t, err, "encoded with codec msgpack, decoded with json")
		require.Zero(t, ran)

		var o outcome
		require.NoError(t, h.ForwardRaw([]byte("21"), o.cb)) // the program defines the meaning of bytes
		n.Until(func() bool { return o.calls == 1 })
		require.NoError(t, o.err)
		err = h.Output(&out)
		require.ErrorIs(t, err, na.ErrProtocol)
		require.ErrorContains(t, err, "encoded with codec 200, decoded with msgpack")
		h.Close()
		p.requireClean(0)
	})
}

// TestDetail checks that the detail that a handler attaches to an error arrives with it.
func TestDetail(t *testing.T) {
	type quota struct{ Used, Limit int }
	transports.Each(t, func(t *testing.T, n *transports.Net) {
		p := newPair(t, n, hg.Config{})
		var fail error
		h := p.handle(p.rpc("fails", func(hg.Request) error { return fail }))
		call := func(err error) *hg.RemoteError {
			fail = err
			remote, ok := hg.RemoteOf(p.call(h, nil))
			require.True(t, ok)
			return remote
		}
		full := hg.Errorf(hg.ErrExhausted, "no room")
		remote := call(hg.WithDetail(full, quota{7, 8}))
		var got quota
		require.NoError(t, remote.Detail(&got))
		require.Equal(t, quota{7, 8}, got)
		require.ErrorIs(t, remote, hg.ErrExhausted)
		require.Equal(t, "no room", remote.Text)

		for name, err := range map[string]error{
			"none":        full,
			"too long":    hg.WithDetail(full, make([]byte, 1025)),
			"no encoding": hg.WithDetail(full, func() {}),
		} {
			remote = call(err)
			require.ErrorIs(t, remote.Detail(&got), hg.ErrNoEntry, name)
			require.Equal(t, "no room", remote.Text)
		}
		long := errors.New(strings.Repeat("x", 5000))
		remote = call(hg.WithDetail(long, "as long as can be "+strings.Repeat("y", 1000)))
		var text string
		require.NoError(t, remote.Detail(&text))
		require.Len(t, text, 1018)
		require.Len(t, remote.Text, 1024)
		h.Close()
		p.requireClean(0)
	})
}

// TestDetailIsCut checks that an error is truncated to the length of one message, its detail first.
func TestDetailIsCut(t *testing.T) {
	transports.Each(t, func(t *testing.T, n *transports.Net) {
		p := &pair{Net: n, t: t}
		p.target, p.tctx = n.Target(hg.Config{})
		p.origin, p.octx = n.Origin(hg.Config{MaxOutput: 256, NA: na.Config{Eager: 256}}) // takes nothing longer
		h := p.handle(p.rpc("fails", func(h hg.Request) error {
			require.NoError(t, h.SetOutputMeta(newMetadata(t, "k", strings.Repeat("x", 900))))
			return hg.WithDetail(errors.New(strings.Repeat("x", 900)), strings.Repeat("y", 900))
		}))
		err := p.call(h, nil)
		requireCode(t, err, hg.ErrHandler)
		remote, _ := hg.RemoteOf(err)
		require.Equal(t, strings.Repeat("x", 238), remote.Text)
		require.ErrorIs(t, remote.Detail(nil), hg.ErrNoEntry)
		h.Close()
		p.requireClean(0)
	})
}

var _ codec.Codec = jsonCodec{}
