package files

import (
	"context"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/na"
	"github.com/quicksilver-rpc/quicksilver/qs"
)

// An endlessStore store has an entry of one kind after the other in each directory.
type endlessStore kind

func (endlessStore) stat(_ context.Context, path string) (entry, error) {
	return entry{Name: path, Kind: directory}, nil
}

func (e endlessStore) list(_ context.Context, _, after string) ([]entry, error) {
	n := 0
	_, _ = fmt.Sscan(after, &n)
	return []entry{{Name: fmt.Sprintf("%09d", n+1), Kind: kind(e)}}, nil
}

func (endlessStore) mkdir(context.Context, string, uint32) error { return nil }

// TestEndlessTree checks that a target that lists without an end, in breadth or in depth, is
// refused.
func TestEndlessTree(t *testing.T) {
	defer func(n int) { maxEntries = n }(maxEntries)
	maxEntries = 1000
	for _, k := range []kind{regular, directory, special} {
		_, err := makePlan(t.Context(), endlessStore(k), endlessStore(k), "d", "d", false)
		require.ErrorIs(t, err, na.ErrInvalid)
		require.ErrorContains(t, err, "path exceeds 4096 bytes, or more than 1000 entries")
	}
}

// TestEndlessListing checks that a target that always reports more entries to come is refused.
func TestEndlessListing(t *testing.T) {
	c := openClient(t, serveNode(t, func(n *qs.Node) {
		methodSeek.Handle(n, func(context.Context, seekRequest) (seekReply, error) { return seekReply{Left: 5}, nil })
	}))
	err := (&Copier{c: c}).verifyPrefix(t.Context(), seekRequest{}, &seekReply{Left: 6})
	require.ErrorIs(t, err, na.ErrProtocol)
	require.ErrorContains(t, err, "5 bytes left to verify, 5 before")
}
