package raftqs

import (
	"bytes"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestFramesInPieces checks that a frame is complete only with its last byte, however its bytes
// arrive.
func TestFramesInPieces(t *testing.T) {
	frame := append([]byte{0, 0, 0, 9}, "123456789"...)
	for piece := 1; piece <= len(frame); piece++ {
		var r frameReader
		for rest := frame; len(rest) > 0; {
			n, whole, err := r.consume(rest[:min(piece, len(rest))])
			require.NoError(t, err)
			require.Positive(t, n)
			rest = rest[n:]
			require.Equal(t, len(rest) == 0, whole)
		}
		require.Equal(t, "123456789", string(r.body))
	}
	var r frameReader
	n, whole, err := r.consume([]byte{0, 0, 0, 0, 0, 0, 0, 1})
	require.NoError(t, err)
	require.True(t, whole, "a frame without a body")
	require.Equal(t, frameHeaderLen, n, "what follows is of the next frame")
}

// TestFrameLength checks that a length beyond the bound is refused, and one within it allocates no
// more than the length of the received request.
func TestFrameLength(t *testing.T) {
	var r frameReader
	_, _, err := r.consume([]byte{4, 0, 0, 1})
	require.ErrorIs(t, err, errFormat)
	r = frameReader{}
	_, whole, err := r.consume([]byte{4, 0, 0, 0, 1})
	require.NoError(t, err)
	require.False(t, whole)
	require.Equal(t, maxRequest, cap(r.body))
	for len(r.body) < maxFrameBody {
		_, whole, err = r.consume(bytes.Repeat([]byte{1}, 1<<20))
		require.NoError(t, err)
	}
	require.True(t, whole)
}

// TestTurnIsExclusive checks that one caller has the turn at a time, and does not leave before it has
// processed what was queued meanwhile.
func TestTurnIsExclusive(t *testing.T) {
	var turn notifyLock
	require.True(t, turn.tryLock())
	require.False(t, turn.tryLock())
	require.False(t, turn.tryLock())
	require.False(t, turn.tryUnlock(), "something was received")
	require.False(t, turn.tryLock(), "it has the turn still")
	require.False(t, turn.tryUnlock())
	require.True(t, turn.tryUnlock())
	require.True(t, turn.tryLock())
}
