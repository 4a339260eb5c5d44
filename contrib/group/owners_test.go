package group

import (
	"fmt"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestOwners checks that shares are even, a member that leaves moves only the keys that it owned,
// and the owner of a key does not change otherwise.
func TestOwners(t *testing.T) {
	t.Parallel()
	const keys, members = 100_000, 16
	var names []string
	for i := range members {
		names = append(names, fmt.Sprint("kv-", i))
	}
	share, moved := map[string]int{}, 0
	for i := range keys {
		key := fmt.Sprint("key/", i)
		owners := Owners(names, key, 3)
		share[owners[0]]++
		left := Owners(slices.DeleteFunc(slices.Clone(names), func(n string) bool { return n == "kv-5" }), key, 2)
		if left[0] != owners[0] {
			moved++
			require.Equal(t, "kv-5", owners[0], "a key moved that its owner kept")
			require.Equal(t, owners[1], left[0], "it moves to the second owner")
		}
	}
	for name, n := range share {
		require.LessOrEqual(t, n, keys*11/members/10, name)
	}
	require.LessOrEqual(t, moved, keys*11/members/10)
	t.Logf("shares of %d: %v; moved %d", keys/members, share, moved)

	require.Equal(t, []string{"b", "c", "a"}, Owners([]string{"a", "b", "c"}, "golden", 5))
	require.Empty(t, Owners(nil, "x", 3))
	require.Empty(t, Owners(names, "x", -1))
}
