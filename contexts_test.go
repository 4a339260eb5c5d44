package quicksilver_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	qs "github.com/quicksilver-rpc/quicksilver"
	"github.com/quicksilver-rpc/quicksilver/hg"
)

// TestContexts: several contexts share a port; each is reached by its number, and each is driven by Serve.
func TestContexts(t *testing.T) {
	t.Parallel()
	where := qs.Define[struct{}, int]("test/where")
	const contexts = 3
	s := server(t, qs.Config{Contexts: contexts}, func(n *qs.Node) {
		_, err := n.HG().Class().Register(where.Name(), func(r hg.Incoming) error { return r.Respond(r.Queue().ID(), nil) })
		require.NoError(t, err)
	})
	c := open(t, "tcp://", qs.Config{Contexts: contexts})
	for i := range contexts {
		addr := s.Addr().String()
		if i > 0 {
			addr += fmt.Sprint("#", i)
		}
		got, err := where.Call(within(t), peer(t, c, addr), struct{}{})
		require.NoError(t, err)
		require.Equal(t, i, got)
	}
}
