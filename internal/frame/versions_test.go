package frame_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/internal/frame"
	"github.com/quicksilver-rpc/quicksilver/na/codes"
)

// TestAgree checks that two sides use the newest version that both speak, whichever dials, and each
// error names the older side.
func TestAgree(t *testing.T) {
	n := func(oldest, newest uint16) frame.Range { return frame.Range{Oldest: oldest, Newest: newest} }
	for _, row := range []struct {
		dialer, listener frame.Range
		want             uint16
		text             string
	}{
		{n(7, 7), n(7, 7), 7, ""},
		{n(7, 8), n(7, 7), 7, ""},
		{n(7, 7), n(7, 8), 7, ""},
		{n(7, 8), n(8, 9), 8, ""},
		{n(1, 99), n(8, 9), 9, ""},
		{n(7, 8), n(9, 10), 0, "no common version of frames: the dialing side speaks 7 to 8, the listening side 9 to 10; upgrade the dialing side"},
		{n(9, 9), n(7, 8), 0, "no common version of frames: the dialing side speaks 9, the listening side 7 to 8; upgrade the listening side"},
	} {
		got, err := frame.Agree("frames", row.dialer, row.listener)
		require.Equal(t, row.want, got)
		if row.text == "" {
			require.NoError(t, err)
			continue
		}
		require.ErrorIs(t, err, codes.ErrVersion)
		require.Equal(t, row.text, err.Error())
	}
	own := frame.Versions()
	require.LessOrEqual(t, own.Oldest, own.Newest)
	require.LessOrEqual(t, own.Newest-own.Oldest, uint16(1), "a release supports its own version and the one before")
}
