package qs_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/hg"
	"github.com/quicksilver-rpc/quicksilver/qs"
)

// TestContexts checks 64 peers of 4 contexts that share a port. Each always reaches the same one,
// which pulls the memory that the peer lends and calls it back over the same session; and all four
// have peers.
func TestContexts(t *testing.T) {
	t.Parallel()
	type visit struct {
		From string
		Body qs.Source
	}
	const contexts, peers = 4, 64
	where := qs.Define[struct{}, int]("test/where")
	visits, back := qs.Define[visit, int]("test/visit"), qs.Define[struct{}, string]("test/back")
	body := randomBytes(3, 200_000) // more than fits a message: it has a connection of its own
	s := server(t, qs.Config{Contexts: contexts}, func(n *qs.Node) {
		_, err := n.HG().Class().Register(where.Name(), func(r hg.Request) error { return r.Respond(r.HG().ID(), nil) })
		require.NoError(t, err)
		visits.Handle(n, func(ctx context.Context, in visit) (int, error) {
			if got, err := io.ReadAll(in.Body.Reader(ctx)); err != nil || !bytes.Equal(got, body) {
				return 0, fmt.Errorf("%d bytes: %w", len(got), err)
			}
			name, err := back.Call(ctx, qs.CallFrom(ctx).Peer, struct{}{})
			if err == nil && name != in.From {
				err = fmt.Errorf("%s was called back, and %s has answered", in.From, name)
			}
			return 0, err
		})
	})
	var (
		mu    sync.Mutex
		errs  []error
		found = map[int]int{} // peers of each context
		all   sync.WaitGroup
	)
	for i := range peers {
		name := fmt.Sprint("peer ", i)
		c := open(t, "tcp://", qs.Config{})
		back.Handle(c, func(context.Context, struct{}) (string, error) { return name, nil })
		to := peer(t, c, s.Addr().String())
		all.Go(func() {
			first, err := where.Call(testContext(t), to, struct{}{})
			for range 3 {
				_, verr := visits.Call(testContext(t), to, visit{name, qs.Bytes(body)})
				at, werr := where.Call(testContext(t), to, struct{}{})
				if err = errors.Join(err, verr, werr); at != first {
					err = errors.Join(err, fmt.Errorf("%s has reached context %d, and then %d", name, first, at))
				}
			}
			mu.Lock()
			defer mu.Unlock()
			found[first]++
			errs = append(errs, err)
		})
	}
	all.Wait()
	require.NoError(t, errors.Join(errs...))
	require.Len(t, found, contexts, "%v", found)
	sessions := 0
	for _, hctx := range s.HG().Class().Contexts() {
		sessions += hctx.Stats().NA.Peers
	}
	require.Equal(t, peers, sessions, "each peer has one")
}

// TestContextsByNumber checks that a context is reached by its number, too, from whichever of the
// caller's.
func TestContextsByNumber(t *testing.T) {
	t.Parallel()
	where := qs.Define[struct{}, int]("test/where")
	const contexts = 3
	s := server(t, qs.Config{Contexts: contexts}, func(n *qs.Node) {
		_, err := n.HG().Class().Register(where.Name(), func(r hg.Request) error { return r.Respond(r.HG().ID(), nil) })
		require.NoError(t, err)
	})
	c := open(t, "tcp://", qs.Config{Contexts: contexts})
	for i := 1; i < contexts; i++ {
		got, err := where.Call(testContext(t), peer(t, c, fmt.Sprintf("%v#%d", s.Addr(), i)), struct{}{})
		require.NoError(t, err)
		require.Equal(t, i, got)
	}
	for _, addr := range []string{"udp://127.0.0.1:0", "sm://*"} {
		_, err := qs.Open(addr, qs.Config{Contexts: contexts})
		require.ErrorIs(t, err, qs.ErrInvalid)
		require.ErrorContains(t, err, "open several Nodes")
	}
}

// TestContextsBothWays checks nodes of several contexts that call each other at the same moment;
// whatever contexts of the two connect, no call fails.
func TestContextsBothWays(t *testing.T) {
	t.Parallel()
	echo := qs.Define[int, int]("test/echo")
	register := func(n *qs.Node) {
		echo.Handle(n, func(_ context.Context, in int) (int, error) { return in, nil })
	}
	var all sync.WaitGroup
	for range 12 {
		a, b := server(t, qs.Config{Contexts: 4}, register), server(t, qs.Config{Contexts: 4}, register)
		for _, x := range [][2]*qs.Node{{a, b}, {b, a}} {
			for i := range 8 { // each Peer calls by the next context
				to := peer(t, x[0], x[1].Addr().String())
				all.Go(func() {
					for range 3 {
						got, err := echo.Call(testContext(t), to, i)
						assert.NoError(t, err)
						assert.Equal(t, i, got)
					}
				})
			}
		}
	}
	all.Wait()
}

// TestContextOfTheProgram checks that a handler of a stream may wait in a context that the program
// has made and drives itself.
func TestContextOfTheProgram(t *testing.T) {
	t.Parallel()
	items := qs.DefineStream[int, int]("test/items/own")
	s := server(t, qs.Config{}, func(n *qs.Node) {
		items.Handle(n, func(_ context.Context, most int, send func(int) error) (err error) {
			for i := 0; err == nil && i < most; i++ { // more than there is room for
				err = send(i)
			}
			return err
		})
	})
	own, err := s.HG().Class().NewContext()
	require.NoError(t, err)
	ctx, stop := context.WithCancel(testContext(t))
	ended := make(chan error, 1)
	go func() { ended <- own.Wait(ctx, func() bool { return false }) }()
	defer func() {
		stop()
		require.ErrorIs(t, <-ended, context.Canceled)
	}()
	p := peer(t, open(t, "tcp://", qs.Config{}), s.Addr().WithTarget(own.ID()).String())
	const most = 100_000
	got := 0
	for i, err := range items.Call(testContext(t), p, most) {
		require.NoError(t, err)
		require.Equal(t, got, i)
		got++
	}
	require.Equal(t, most, got)
}
