package inspect_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/hg/codec"
	"github.com/quicksilver-rpc/quicksilver/hg/inspect"
)

// TestLaterFields checks that fields that a later release adds to a record of the RPCs of the
// library are skipped, in inputs and in outputs.
func TestLaterFields(t *testing.T) {
	encode := func(v any) []byte {
		b, err := codec.Msgpack.Append(nil, v)
		require.NoError(t, err)
		return b
	}
	type later struct {
		Number int
		Names  map[string][]string
	}
	more := later{7, map[string][]string{"later": {"a", "b"}}}

	request, err := inspect.DecodeGaugesRequest(encode(struct {
		A     later
		Watch bool
		Z     later
	}{more, true, more}))
	require.NoError(t, err)
	require.Equal(t, inspect.GaugesRequest{Watch: true}, request)

	type peer struct {
		Later   later
		Address string
		Streams int64
	}
	gauges, err := inspect.DecodeGauges(encode([]struct {
		Context int
		Later   later
		Peers   []peer
	}{{3, more, []peer{{more, "tcp://a:1", 5}}}}))
	require.NoError(t, err)
	require.Equal(t, []inspect.Gauges{{Context: 3, Peers: []inspect.PeerGauges{{Address: "tcp://a:1", Streams: 5}}}}, gauges)

	type rpc struct {
		Name, Codec string
		Later       later
	}
	listing := encode(struct {
		Later later
		RPCs  []rpc
		Codes map[uint8]string
	}{more, []rpc{{"greet", "msgpack", more}}, map[uint8]string{200: "ErrQuota"}})
	rpcs, err := inspect.DecodeRPCs(listing)
	require.NoError(t, err)
	require.Equal(t, []inspect.RPC{{Name: "greet", Codec: "msgpack"}}, rpcs)
	codes, err := inspect.DecodeCodes(listing)
	require.NoError(t, err)
	require.Equal(t, map[uint8]string{200: "ErrQuota"}, codes)
}
