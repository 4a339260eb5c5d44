package files

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/hg"
	"github.com/quicksilver-rpc/quicksilver/na"
)

// TestBuffersAreBounded: a target lends its transfers so much memory, keeps some of it, and takes it all back.
func TestBuffersAreBounded(t *testing.T) {
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
	for range maxBuffered / MaxPiece {
		b, err := p.get(MaxPiece - 1)
		require.NoError(t, err)
		all = append(all, b)
	}
	_, err = p.get(MaxPiece)
	require.ErrorIs(t, err, na.ErrAgain)
	require.ErrorContains(t, err, "1024 MiB of buffers are in use by other transfers")

	// A transfer that has some of it waits for that, and one that has none is refused.
	fs := &Server{buffers: p}
	has, hasNot := fs.newTransfer(na.Addr{}, "has"), fs.newTransfer(na.Addr{}, "has not")
	p.put(all[0])
	all[0], err = has.buffer(t.Context(), MaxPiece)
	require.NoError(t, err)
	_, err = hasNot.buffer(t.Context(), MaxPiece)
	require.ErrorIs(t, err, na.ErrAgain)
	over, end := context.WithCancelCause(t.Context())
	end(na.ErrTimeout)
	_, err = has.buffer(over, MaxPiece)
	require.ErrorIs(t, err, na.ErrTimeout, "it waits for as long as the transfer goes on")
	got := make(chan error, 1)
	go func() {
		b, err := has.buffer(t.Context(), MaxPiece)
		all[0] = b
		got <- err
	}()
	has.giveBack(all[0])
	require.NoError(t, <-got)
	has.lent.Add(-1)

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
