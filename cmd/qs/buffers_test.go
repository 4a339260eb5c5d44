package main

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/hg"
	"github.com/quicksilver-rpc/quicksilver/internal/leak"
	"github.com/quicksilver-rpc/quicksilver/na"
)

// TestBuffersAreBounded: a target lends its transfers so much memory, keeps some of it, and takes it all back.
func TestBuffersAreBounded(t *testing.T) {
	leak.Check(t)
	class, err := hg.Open("tcp://", hg.Config{})
	require.NoError(t, err)
	hctx, err := class.NewContext()
	require.NoError(t, err)
	p := &buffers{hctx: hctx}
	small, err := p.get(1)
	require.NoError(t, err)
	require.Len(t, small.mem, 64<<10)
	p.put(small)
	again, err := p.get(60 << 10)
	require.NoError(t, err)
	require.Same(t, small, again)
	p.put(small)

	var all []*buffer
	for range maxBuffered / maxPiece {
		b, err := p.get(maxPiece - 1)
		require.NoError(t, err)
		all = append(all, b)
	}
	_, err = p.get(maxPiece)
	require.ErrorIs(t, err, na.ErrAgain)
	require.ErrorContains(t, err, "1024 MiB of buffers are in use by other transfers")
	for _, b := range all {
		p.put(b)
	}
	require.LessOrEqual(t, p.kept, int64(maxSpare))
	require.Equal(t, p.kept, p.bytes)
	for _, b := range p.spare {
		b.close()
	}
	require.NoError(t, class.Shutdown(t.Context()))
}
