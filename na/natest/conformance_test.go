package natest_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/na/natest"
)

func TestNames(t *testing.T) {
	seen := map[string]bool{}
	for _, name := range natest.Names() {
		require.False(t, seen[name], "two rules are called %s", name)
		require.Regexp(t, "^[A-Z][A-Za-z]+$", name)
		seen[name] = true
	}
	require.Greater(t, len(seen), 60)
}
