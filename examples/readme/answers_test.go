package main

import (
	"context"
	"io"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/qs"
)

// TestAnswers checks that the answers of docs/guide/troubleshooting.md describe the actual
// behavior.
func TestAnswers(t *testing.T) {
	ctx, stop := context.WithTimeout(t.Context(), time.Minute)
	defer stop()
	var (
		late     = qs.Define[int, int]("answers/late")
		wrapped  = qs.Define[int, int]("answers/wrapped")
		callback = qs.Define[int, int]("answers/callback")
		mine     = qs.Define[int, int]("answers/mine")
		line     = qs.DefineOneWay[string]("answers/line")
		remote   string
	)
	server, err := qs.Open("tcp://127.0.0.1:0", qs.Config{})
	require.NoError(t, err)
	wrapped.Handle(server, func(context.Context, int) (int, error) {
		return 0, qs.Errorf(qs.ErrInternal, "read: %w", io.ErrUnexpectedEOF)
	})
	callback.Handle(server, func(ctx context.Context, n int) (int, error) {
		remote = qs.CallerFrom(ctx).Remote
		return mine.Call(ctx, qs.CallFrom(ctx).Peer, n)
	})
	serving, end := context.WithCancel(ctx)
	ended := make(chan error, 1)
	go func() { ended <- server.Serve(serving) }()
	client, err := qs.Open("tcp://", qs.Config{})
	require.NoError(t, err)
	mine.Handle(client, func(_ context.Context, n int) (int, error) { return n + 1, nil })

	t.Run("a peer does not connect", func(t *testing.T) {
		nobody, err := client.Peer(ctx, "tcp://127.0.0.1:1")
		require.NoError(t, err)
		_, err = nobody.Ping(ctx)
		require.ErrorIs(t, err, qs.ErrUnreachable)
	})
	to, err := client.Peer(ctx, server.Addr().String())
	require.NoError(t, err)
	t.Run("a handler is registered late", func(t *testing.T) {
		_, err := late.Call(ctx, to, 1)
		require.ErrorIs(t, err, qs.ErrNoMethod)
		late.Handle(server, func(_ context.Context, n int) (int, error) { return n, nil })
		_, err = late.Call(ctx, to, 1)
		require.NoError(t, err)
	})
	t.Run("a one-way request that is not served", func(t *testing.T) {
		require.NoError(t, line.Send(ctx, to, "lost"))
	})
	t.Run("what is wrapped does not travel", func(t *testing.T) {
		_, err := wrapped.Call(ctx, to, 1)
		require.ErrorIs(t, err, qs.ErrInternal)
		require.NotErrorIs(t, err, io.ErrUnexpectedEOF)
		require.ErrorContains(t, err, "unexpected EOF")
		require.ErrorIs(t, qs.Errorf(qs.ErrInternal, "read: %w", io.ErrUnexpectedEOF), io.ErrUnexpectedEOF)
	})
	t.Run("codes of other errors", func(t *testing.T) {
		require.Equal(t, qs.ErrCanceled, qs.CodeOf(context.Canceled))
		require.Equal(t, qs.ErrTimeout, qs.CodeOf(context.DeadlineExceeded))
		require.EqualValues(t, 22, qs.CodeOf(io.ErrNoProgress)) // na.ErrIO
	})
	t.Run("a client is called back", func(t *testing.T) {
		n, err := callback.Call(ctx, to, 41)
		require.NoError(t, err)
		require.Equal(t, 42, n)
		require.Contains(t, remote, "127.0.0.1:")
	})
	t.Run("the transport of a peer", func(t *testing.T) {
		id, ok := to.Identity()
		require.True(t, ok)
		require.Equal(t, "tcp", id.Transport)
	})
	require.NoError(t, client.Close())
	end()
	require.NoError(t, <-ended)
}
