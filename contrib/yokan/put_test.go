package yokan_test

import (
	"bytes"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/contrib/yokan"
)

// TestPutSegments checks that values of 4 KiB and more are lent where they are, and shorter ones
// are copied together, in the order of the pairs.
func TestPutSegments(t *testing.T) {
	short, long := bytes.Repeat([]byte("s"), 4095), bytes.Repeat([]byte("l"), 4096)
	for _, c := range []struct {
		values [][]byte
		want   []int // lengths of the segments, of which those of 4096 are long
	}{
		{nil, nil},
		{[][]byte{nil}, []int{17}},
		{[][]byte{short, nil, short}, []int{51 + 2*4095}},
		{[][]byte{long}, []int{17, 4096}},
		{[][]byte{short, long, long, short, short, long}, []int{6*17 + 4095, 4096, 4096, 2 * 4095, 4096}},
		{[][]byte{long, short}, []int{34, 4096, 4095}},
	} {
		keys := make([][]byte, len(c.values))
		for i := range keys {
			keys[i] = []byte{byte('a' + i)}
		}
		segments := yokan.PutSegments(keys, c.values)
		var lengths []int
		for _, s := range segments {
			if lengths = append(lengths, len(s)); len(s) == len(long) {
				require.Same(t, &long[0], &s[0])
			}
		}
		require.Equal(t, c.want, lengths)
		want := []byte{}
		for _, items := range [][][]byte{keys, c.values} {
			for _, b := range items {
				want = append(want, encodeNumbers([]uint64{uint64(len(b))})...)
			}
		}
		want = append(append(want, bytes.Join(keys, nil)...), bytes.Join(c.values, nil)...)
		require.True(t, bytes.Equal(want, bytes.Join(segments, nil)))
	}
}
