package qs_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"io"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/hg"
	"github.com/quicksilver-rpc/quicksilver/hg/codec"
	"github.com/quicksilver-rpc/quicksilver/qs"
)

// TestStreamTickets checks that a request whose tickets name streams that it does not have, or that
// are of another kind, or one stream twice, is refused before the handler runs.
func TestStreamTickets(t *testing.T) {
	t.Parallel()
	type both struct {
		A, B qs.Source
		To   qs.Sink
	}
	m := qs.Define[both, int]("test/tickets")
	_, addr := pair(t, qs.Config{}, func(n *qs.Node) {
		m.Handle(n, func(ctx context.Context, in both) (int, error) {
			a, err := io.ReadAll(in.A.Reader(ctx))
			return len(a), err
		})
	})
	c := open(t, "tcp://", qs.Config{})
	_, err := c.HG().Class().RegisterRPC(hg.RPC{Name: m.Name()})
	require.NoError(t, err)
	ticket := func(kind, number, index byte, length uint64) []byte {
		return binary.AppendUvarint([]byte{kind, number, index}, length)
	}
	up, down, items := hg.StreamSpec{Up: true, Bulk: true}, hg.StreamSpec{Bulk: true}, hg.StreamSpec{Up: true}
	for what, v := range map[string]struct {
		in      map[string][]byte
		lent    string
		streams []hg.StreamSpec
		runs    bool
	}{
		"one":                  {map[string][]byte{"A": ticket(2, 0, 0, 0)}, "A", []hg.StreamSpec{up}, true},
		"it expects a lot":     {map[string][]byte{"A": ticket(2, 0, 0, 1<<63-1)}, "A", []hg.StreamSpec{up}, true},
		"more than can be":     {map[string][]byte{"A": ticket(2, 0, 0, 1<<63)}, "A", []hg.StreamSpec{up}, false},
		"no stream":            {map[string][]byte{"A": ticket(2, 0, 0, 0)}, "A", nil, false},
		"a stream beyond":      {map[string][]byte{"A": ticket(2, 0, 1, 0)}, "A", []hg.StreamSpec{up}, false},
		"a stream far beyond":  {map[string][]byte{"A": ticket(2, 0, 255, 0)}, "A", []hg.StreamSpec{up}, false},
		"a stream down":        {map[string][]byte{"A": ticket(2, 0, 0, 0)}, "A", []hg.StreamSpec{down}, false},
		"a stream up":          {map[string][]byte{"To": ticket(6, 0, 0, 0)}, "To", []hg.StreamSpec{up}, false},
		"a stream of items":    {map[string][]byte{"A": ticket(2, 0, 0, 0)}, "A", []hg.StreamSpec{items}, false},
		"items behind":         {map[string][]byte{"A": ticket(2, 0, 1, 0)}, "A", []hg.StreamSpec{up, items}, false},
		"one stream twice":     {map[string][]byte{"A": ticket(2, 0, 0, 0), "B": ticket(2, 1, 0, 0)}, "A,B", []hg.StreamSpec{up, up}, false},
		"half a ticket":        {map[string][]byte{"A": {2, 0}}, "A", []hg.StreamSpec{up}, false},
		"a ticket with a tail": {map[string][]byte{"A": append(ticket(2, 0, 0, 0), 7)}, "A", []hg.StreamSpec{up}, false},
	} {
		h, err := c.HG().Create(addr.Addr(), hg.HashName(m.Name()))
		require.NoError(t, err)
		require.NoError(t, h.SetStreams(v.streams...))
		meta, err := hg.Metadata{}.WithOwn("qs-lent", v.lent)
		require.NoError(t, err)
		require.NoError(t, h.SetMeta(meta))
		in, err := codec.Msgpack.Append(nil, v.in)
		require.NoError(t, err)
		ctx, cancel := context.WithCancel(testContext(t))
		if v.runs {
			require.NoError(t, h.ForwardRaw(in, func(*hg.Handle, error) {}))
			_, err = h.Stream(0).WriteContext(ctx, []byte("some"))
			require.NoError(t, err, what)
		} else {
			_, err = h.CallRaw(ctx, in)
			require.ErrorIs(t, err, hg.ErrRemote, what)
			if !slices.Contains(v.streams, items) { // else it is another kind of method
				require.ErrorIs(t, err, hg.ErrBadInput, what)
			}
			require.Equal(t, qs.NotRun, qs.FateOf(err), what)
		}
		cancel()
		require.NoError(t, h.Close())
	}
}

// TestMostStreams checks that a call lends as many Readers and Writers as it may have streams, and
// one more is refused before anything is sent.
func TestMostStreams(t *testing.T) {
	t.Parallel()
	type many struct {
		S00, S01, S02, S03, S04, S05, S06, S07, S08, S09, S10, S11, S12, S13 qs.Source
		To, More                                                             qs.Sink
	}
	m := qs.Define[many, int]("test/many")
	_, to := pair(t, qs.Config{}, func(n *qs.Node) {
		m.Handle(n, func(ctx context.Context, in many) (int, error) {
			total := 0
			for _, s := range []qs.Source{in.S13, in.S12, in.S11, in.S10, in.S09, in.S08, in.S07, in.S06, in.S05, in.S04, in.S03, in.S02, in.S01, in.S00} {
				n, err := io.Copy(in.To.Writer(ctx), s.Reader(ctx))
				if err != nil {
					return 0, err
				}
				total += int(n)
			}
			return total, nil
		})
	})
	const each = 300_000
	var into bytes.Buffer
	src := func(i byte) qs.Source { return qs.Reader(bytes.NewReader(bytes.Repeat([]byte{i}, each))) }
	in := many{src(0), src(1), src(2), src(3), src(4), src(5), src(6), src(7), src(8), src(9), src(10), src(11), src(12), src(13), qs.Writer(&into), qs.Sink{}}
	got, err := m.Call(testContext(t), to, in)
	require.NoError(t, err)
	require.Equal(t, 14*each, got)
	for i := range 14 {
		require.Equal(t, bytes.Repeat([]byte{byte(13 - i)}, each), into.Next(each))
	}
	in = many{src(0), src(1), src(2), src(3), src(4), src(5), src(6), src(7), src(8), src(9), src(10), src(11), src(12), src(13), qs.Writer(&into), qs.Writer(io.Discard)}
	_, err = m.Call(testContext(t), to, in)
	require.ErrorIs(t, err, qs.ErrInvalid)
	require.ErrorContains(t, err, "more than 15 Readers and Writers")
	require.Equal(t, qs.NotRun, qs.FateOf(err))
	in.More = qs.Sink{}
	_, err = m.Call(testContext(t), to, in)
	require.NoError(t, err, "a call that was refused has used nothing")
}
