package files

import (
	"context"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/hg"
	"github.com/quicksilver-rpc/quicksilver/na"
)

// TestBuffersAreBounded checks that a target lends its transfers a bounded amount of memory, keeps
// some of it, and takes all of it back.
func TestBuffersAreBounded(t *testing.T) {
	class, err := hg.Open("tcp://", hg.Config{})
	require.NoError(t, err)
	hctx, err := class.NewContext()
	require.NoError(t, err)
	p := newBuffers(hctx)
	clients := make([]string, maxBuffered/maxBufferedOfClient+1)
	for i := range clients {
		clients[i] = fmt.Sprint("client ", i)
	}
	small, err := p.get(clients[0], 1)
	require.NoError(t, err)
	require.Len(t, small.mem, 64<<10)
	p.put(clients[0], small)
	again, err := p.get(clients[0], 60<<10)
	require.NoError(t, err)
	require.Same(t, small, again)
	p.put(clients[0], small)

	const each = maxBufferedOfClient / MaxPiece
	var all []*buffer
	for i := range maxBuffered / MaxPiece {
		b, err := p.get(clients[i/each], MaxPiece-1)
		require.NoError(t, err)
		all = append(all, b)
		if len(all) == each {
			_, err = p.get(clients[0], 1)
			require.ErrorIs(t, err, na.ErrAgain)
			require.ErrorContains(t, err, "512 MiB of buffers for this client are in use")
		}
	}
	last := clients[len(clients)-1]
	_, err = p.get(last, MaxPiece)
	require.ErrorIs(t, err, na.ErrAgain)
	require.ErrorContains(t, err, "1024 MiB of buffers are in use")

	// A transfer that has some of it waits for that, and one that has none is refused.
	fs := &Server{buffers: p}
	has, hasNot := fs.newTransfer(na.Addr{}, clients[0], "", "has"), fs.newTransfer(na.Addr{}, last, "", "has not")
	p.put(clients[0], all[0])
	all[0], err = has.buffer(t.Context(), MaxPiece)
	require.NoError(t, err)
	_, err = hasNot.buffer(t.Context(), MaxPiece)
	require.ErrorIs(t, err, na.ErrAgain)
	over, end := context.WithCancelCause(t.Context())
	end(na.ErrTimeout)
	_, err = has.buffer(over, MaxPiece)
	require.ErrorIs(t, err, na.ErrTimeout, "it waits until the transfer has ended")
	got := make(chan error, 1)
	go func() {
		b, err := has.buffer(t.Context(), MaxPiece)
		all[0] = b
		got <- err
	}()
	has.releaseBuffer(all[0])
	require.NoError(t, <-got)
	has.lent.Add(-1)

	for i, b := range all {
		p.put(clients[i/each], b)
	}
	require.Empty(t, p.lent)
	require.LessOrEqual(t, p.kept, int64(maxSpare))
	require.Equal(t, p.kept, p.bytes)
	for _, b := range p.spare {
		b.close()
	}
	require.NoError(t, class.Shutdown(t.Context()))
}
